// Matrix products of the host against naive ones in double precision.
#include <gtest/gtest.h>

#include <cfloat>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/base/cpu.h"
#include "tests/llm/ops/host_fixture.h"

namespace wcuda::ops::host {
namespace {

using namespace tensor_type;

constexpr uint32_t kPackedTypes[] = {kF32,  kF16,    kBF16,  kQ4_0,   kQ4_1, kQ5_0,
                                     kQ5_1, kQ8_0,   kQ2_K,  kQ3_K,   kQ4_K, kQ5_K,
                                     kQ6_K, kIQ4_NL, kIQ3_S, kIQ4_XS, kMXFP4};
constexpr uint32_t kPlainTypes[] = {kIQ2_XXS, kIQ2_XS, kIQ3_XXS, kTQ1_0, kTQ2_0};

Limits linear_limits() {
  Limits limits{};
  limits.max_batch_tokens = 160;
  limits.max_batch_rows = 160;
  limits.max_logits_rows = 160;
  limits.max_sequence_tokens = 256;
  limits.embedding_length = 768;
  limits.feed_forward_length = 768;
  limits.head_count = 4;
  limits.kv_head_count = 2;
  limits.head_length = 32;
  limits.vocabulary_size = 256;
  return limits;
}

struct Naive {
  double value;
  double magnitude;  // sum of the absolute terms: errors are measured against it
};

Naive naive_dot(const Matrix& matrix, uint32_t row, const float* x) {
  Naive sum{0.0, 0.0};
  for (uint32_t i = 0; i < matrix.weight.cols; ++i) {
    const double term = static_cast<double>(matrix.values[uint64_t{row} * matrix.weight.cols + i]) *
                        static_cast<double>(x[i]);
    sum.value += term;
    sum.magnitude += std::abs(term);
  }
  return sum;
}

// Activations keep 16 bits of the largest in 32, sums are f32: far below bf16's 2^-9.
constexpr double kTolerance = 6e-5;

void check_project(const Kernels& kernels, uint32_t type, Layout layout, uint32_t rows,
                   uint32_t cols, uint32_t tokens) {
  Random random(type * 1000 + rows + tokens);
  Machine machine(kernels, 2, linear_limits());
  ASSERT_TRUE(machine.ops);
  const Matrix matrix = random_matrix(type, rows, cols, layout, random);
  ASSERT_NE(matrix.weight.data, nullptr);
  const auto x = random.normals(uint64_t{tokens} * cols), bias = random.normals(rows);
  const auto before = random.normals(uint64_t{tokens} * rows);
  auto residual = before;

  const Status status =
      project(*machine.ops, tokens, x.data(), matrix.weight, bias.data(), residual.data());

  ASSERT_TRUE(status.ok()) << status.message();
  for (uint32_t t = 0; t < tokens; ++t)
    for (uint32_t r = 0; r < rows; ++r) {
      const Naive product = naive_dot(matrix, r, x.data() + uint64_t{t} * cols);
      const double expected = before[t * rows + r] + product.value + bias[r];
      ASSERT_NEAR(residual[t * rows + r], expected, product.magnitude * kTolerance + 1e-5)
          << kernels.name << " type " << type << " row " << r << " token " << t << " of " << tokens;
    }
}

TEST(HostLinear, packed_types_equal_the_naive_product) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t type : kPackedTypes)
      for (uint32_t tokens : {1u, 2u, 3u, 5u, 8u, 9u, 139u})
        check_project(*kernels, type, Layout::kHost16, 69, 512, tokens);
}

TEST(HostLinear, odd_shapes_equal_the_naive_product) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t type : kPackedTypes)
      for (uint32_t rows : {1u, 15u, 16u, 17u, 33u, 97u}) {
        const uint32_t block = quant::find_format(type)->block_elements;
        check_project(*kernels, type, Layout::kHost16, rows, block == 1 ? 150 : 3 * block, 7);
      }
}

TEST(HostLinear, plain_types_and_rows_equal_the_naive_product) {
  for (const Kernels* kernels : all_kernels()) {
    for (uint32_t type : kPlainTypes)
      for (uint32_t tokens : {1u, 6u})
        check_project(*kernels, type, Layout::kRows, 19, 512, tokens);
    for (uint32_t type : kPackedTypes) check_project(*kernels, type, Layout::kRows, 19, 256, 5);
  }
}

TEST(HostLinear, a_token_is_the_same_whatever_else_is_in_the_step) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t type : kPackedTypes) {
      Random random(type);
      Machine machine(*kernels, 2, linear_limits());
      ASSERT_TRUE(machine.ops);
      const uint32_t rows = 5 * 16 + 8, tokens = 139;  // more than a block of each
      const uint32_t cols = quant::find_format(type)->block_elements == 1 ? 301 : 256;
      const Matrix matrix = random_matrix(type, rows, cols, Layout::kHost16, random);
      const auto x = random.normals(tokens * cols);
      std::vector<float> together(tokens * rows, 0.0f);
      ASSERT_TRUE(
          project(*machine.ops, tokens, x.data(), matrix.weight, nullptr, together.data()).ok());
      for (uint32_t t = 0, count = 1; t + count <= tokens; t += count, count = count % 9 + 1) {
        std::vector<float> apart(count * rows, 0.0f);

        ASSERT_TRUE(
            project(*machine.ops, count, x.data() + t * cols, matrix.weight, nullptr, apart.data())
                .ok());

        ASSERT_EQ(std::memcmp(apart.data(), &together[t * rows], apart.size() * 4), 0)
            << kernels->name << " type " << type << ", " << count << " tokens from " << t;
      }
    }
}

TEST(HostLinear, values_that_are_not_finite_stay_so) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t type : kPackedTypes)
      for (float bad : {NAN, INFINITY, -INFINITY}) {
        Random random(type);
        Machine machine(*kernels, 1, linear_limits());
        ASSERT_TRUE(machine.ops);
        const Matrix matrix = random_matrix(type, 16, 256, Layout::kHost16, random);
        auto x = random.normals(2 * 256);
        x[256 + 100] = bad;
        std::vector<float> y(32, 0.0f);

        ASSERT_TRUE(project(*machine.ops, 2, x.data(), matrix.weight, nullptr, y.data()).ok());

        for (uint32_t r = 0; r < 16; ++r) {
          EXPECT_TRUE(std::isfinite(y[r]));
          EXPECT_FALSE(std::isfinite(y[16 + r])) << kernels->name << " type " << type;
        }
      }
}

TEST(HostLinear, extreme_magnitudes_are_kept) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t type : kPackedTypes) {
      Random random(type + 50);
      Machine machine(*kernels, 1, linear_limits());
      ASSERT_TRUE(machine.ops);
      const Matrix matrix = random_matrix(type, 16, 512, Layout::kHost16, random);
      auto x = random.normals(512);
      for (uint32_t i = 0; i < 512; ++i) x[i] *= i < 128 ? 1e-30f : i < 256 ? 0.0f : 1e20f;
      std::vector<float> y(16, 0.0f);

      ASSERT_TRUE(project(*machine.ops, 1, x.data(), matrix.weight, nullptr, y.data()).ok());

      for (uint32_t r = 0; r < 16; ++r) {
        const Naive expected = naive_dot(matrix, r, x.data());
        EXPECT_NEAR(y[r], expected.value, expected.magnitude * kTolerance) << type;
      }
    }
}

// Weights so small that each exact sum is finite, and so are the sums of its terms' magnitudes.
TEST(HostLinear, the_largest_activations_give_finite_products) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t type : kPackedTypes)
      for (float largest : {1e30f, 1e33f, 1e36f, 1e38f, FLT_MAX}) {
        Random random(type);
        Machine machine(*kernels, 1, linear_limits());
        ASSERT_TRUE(machine.ops);
        const Matrix matrix = random_matrix(type, 16, 512, Layout::kHost16, random, 5e-7f);
        std::vector<float> x(9 * 512), y(9 * 16, 0.0f);
        for (uint32_t i = 0; i < x.size(); ++i) {
          const bool is_negative = i / 512 % 3 == 1 || (i / 512 % 3 == 2 && random.below(2) == 1);
          x[i] = (is_negative ? -largest : largest) * (i % 7 == 0 ? 0.3f : 1.0f);
        }

        ASSERT_TRUE(project(*machine.ops, 1, x.data(), matrix.weight, nullptr, y.data()).ok());
        ASSERT_TRUE(
            project(*machine.ops, 8, x.data() + 512, matrix.weight, nullptr, y.data() + 16).ok());

        for (uint32_t t = 0; t < 9; ++t)
          for (uint32_t r = 0; r < 16; ++r) {
            const Naive expected = naive_dot(matrix, r, x.data() + t * 512);
            ASSERT_LT(expected.magnitude, FLT_MAX);
            EXPECT_NEAR(y[t * 16 + r], expected.value, expected.magnitude * kTolerance)
                << kernels->name << " type " << type << " token " << t << " of " << largest;
          }
      }
}

// The largest weights and activations of equal magnitude: the integer sums are at their limit.
TEST(HostLinear, integer_sums_hold_the_largest_values) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t type : kPackedTypes) {
      if (quant::find_format(type)->block_elements == 1) continue;
      for (float sign : {1.0f, -1.0f}) {
        Random random(type);
        Machine machine(*kernels, 1, linear_limits());
        ASSERT_TRUE(machine.ops);
        const Matrix matrix = extreme_matrix(type, 16, 256);
        const std::vector<float> x(9 * 256, sign * 0.7f);
        std::vector<float> y(9 * 16, 0.0f);

        ASSERT_TRUE(project(*machine.ops, 9, x.data(), matrix.weight, nullptr, y.data()).ok());

        for (uint32_t r = 0; r < 16; ++r) {
          const Naive expected = naive_dot(matrix, r, x.data());
          EXPECT_GT(expected.magnitude, 1.0);
          for (uint32_t t = 0; t < 9; ++t)
            EXPECT_NEAR(y[t * 16 + r], expected.value, expected.magnitude * kTolerance)
                << kernels->name << " type " << type;
        }
      }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512vnni,avx512vl"))) void vpdpwssd(const int32_t* w, const int32_t* x,
                                                             int32_t* sums) {
  __m256i vectors[3];
  std::memcpy(&vectors[0], sums, 32);
  std::memcpy(&vectors[1], w, 32);
  std::memcpy(&vectors[2], x, 32);
  vectors[0] = _mm256_dpwssd_epi32(vectors[0], vectors[1], vectors[2]);
  std::memcpy(sums, &vectors[0], 32);
}

// The table for AVX-VNNI differs from that for AVX2 in this instruction, here in the encoding of
// AVX-512. It must add without saturation.
TEST(HostLinear, the_instruction_of_vnni_multiplies_words_and_adds) {
  if (!cpu_has_avx512_vnni()) GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  Random random(1);
  const int16_t words[] = {0, 1, -1, 4096, -4096, 32767, -32767, -32768};
  for (uint32_t i = 0; i < 1000; ++i) {
    int16_t w[16], x[16];
    int32_t sums[8], expected[8];
    for (uint32_t lane = 0; lane < 8; ++lane) {
      int64_t sum = sums[lane] = static_cast<int32_t>(random.below(0xffffffffu));
      for (uint32_t j = 2 * lane; j < 2 * lane + 2; ++j) {
        w[j] = i % 2 ? words[random.below(8)] : static_cast<int16_t>(random.below(65536));
        x[j] = i % 2 ? words[random.below(8)] : static_cast<int16_t>(random.below(65536));
        sum += int64_t{w[j]} * x[j];
      }
      expected[lane] = static_cast<int32_t>(static_cast<uint32_t>(sum));
    }
    int32_t pairs[2][8];
    std::memcpy(pairs[0], w, sizeof w);
    std::memcpy(pairs[1], x, sizeof x);

    vpdpwssd(pairs[0], pairs[1], sums);

    ASSERT_EQ(std::memcmp(sums, expected, sizeof sums), 0);
  }
}
#endif

// Before main, so that it holds for every test of the program.
const bool is_isa_limited = (limit_isa(std::getenv("WCUDA_MAX_ISA")), true);

// ctest runs it with and without the variable.
TEST(HostKernels, none_is_wider_than_the_environment_allows) {
  const char* const widest = std::getenv("WCUDA_MAX_ISA");
  bool was_widest = false;
  for (const Kernels* kernels : all_kernels()) {
    EXPECT_FALSE(was_widest) << kernels->name << " is wider than " << widest;
    was_widest = widest != nullptr && std::strcmp(kernels->name, widest) == 0;
  }
  EXPECT_EQ(&best_kernels(), all_kernels().back());
}

TEST(HostFeedForward, equals_the_naive_version) {
  for (const Kernels* kernels : all_kernels())
    for (Activation activation : {Activation::kSilu, Activation::kGeluTanh})
      for (uint32_t tokens : {1u, 11u}) {
        Random random(tokens);
        Machine machine(*kernels, 2, linear_limits());
        ASSERT_TRUE(machine.ops);
        constexpr uint32_t kDim = 64, kHidden = 53;
        const Matrix gate = random_matrix(kQ4_1, kHidden, kDim, Layout::kHost16, random);
        const Matrix up = random_matrix(kQ8_0, kHidden, kDim, Layout::kHost16, random);
        const auto x = random.normals(tokens * kDim, 5.0f), norm = random.normals(kDim, 3.0f);
        const auto gate_bias = random.normals(kHidden), up_bias = random.normals(kHidden);
        std::vector<float> out(tokens * kHidden, NAN);

        LinearArgs args{};
        args.token_count = tokens;
        args.x = x.data();
        args.norm = norm.data();
        args.epsilon = 1e-5f;
        args.weight_count = 2;
        args.weights[0] = gate.weight;
        args.weights[1] = up.weight;
        args.biases[0] = gate_bias.data();
        args.biases[1] = up_bias.data();
        args.epilogue = Epilogue::kGate;
        args.activation = activation;
        args.outputs[0] = out.data();

        ASSERT_TRUE(run_linear(*machine.ops, args).ok());

        for (uint32_t t = 0; t < tokens; ++t) {
          std::vector<float> h(kDim);
          double squares = 0.0;
          for (uint32_t i = 0; i < kDim; ++i) squares += std::pow(double{x[t * kDim + i]}, 2);
          for (uint32_t i = 0; i < kDim; ++i)
            h[i] = static_cast<float>(x[t * kDim + i] / std::sqrt(squares / kDim + 1e-5) * norm[i]);
          for (uint32_t r = 0; r < kHidden; ++r) {
            const double g = naive_dot(gate, r, h.data()).value + gate_bias[r];
            const double u = naive_dot(up, r, h.data()).value + up_bias[r];
            const double inner = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
            const double expected =
                (activation == Activation::kSilu ? g / (1 + std::exp(-g))
                                                 : 0.5 * g * (1 + std::tanh(inner))) *
                u;
            ASSERT_NEAR(out[t * kHidden + r], expected, std::abs(expected) * 1e-3 + 5e-3)
                << kernels->name << " gate " << g;
          }
        }
      }
}

TEST(HostEmbed, gathers_scaled_rows_of_every_layout) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t type : kPackedTypes)
      for (Layout layout : {Layout::kRows, Layout::kHost16}) {
        Random random(type);
        Machine machine(*kernels, 2, linear_limits());
        ASSERT_TRUE(machine.ops);
        const Matrix table = random_matrix(type, 53, 256, layout, random);
        Step step({{20, 0}, {1, 5}}, 4, 53, random);
        std::vector<float> out(21 * 256, NAN);

        ASSERT_TRUE(machine.ops->embed({}, {&step.batch, table.weight, 2.0f, out.data()}).ok());

        for (uint32_t t = 0; t < 21; ++t)
          for (uint32_t i = 0; i < 256; ++i)
            ASSERT_EQ(out[t * 256 + i], 2.0f * table.values[step.tokens[t] * 256u + i]);
      }
}

TEST(HostLogits, takes_the_rows_asked_for) {
  for (const Kernels* kernels : all_kernels()) {
    Random random(4);
    Machine machine(*kernels, 2, linear_limits());
    ASSERT_TRUE(machine.ops);
    const Matrix output = random_matrix(kQ8_0, 77, 64, Layout::kHost16, random);
    const auto x = random.normals(6 * 64), norm = random.normals(64), bias = random.normals(77);
    const uint32_t indices[] = {5, 0, 3};
    std::vector<float> logits(3 * 77, NAN);

    LinearArgs args{};
    args.token_count = 3;
    args.token_indices = indices;
    args.x = x.data();
    args.norm = norm.data();
    args.epsilon = 1e-6f;
    args.weight_count = 1;
    args.weights[0] = output.weight;
    args.biases[0] = bias.data();
    args.outputs[0] = logits.data();

    ASSERT_TRUE(run_linear(*machine.ops, args).ok());

    for (uint32_t l = 0; l < 3; ++l) {
      const float* row = x.data() + indices[l] * 64;
      std::vector<float> h(64);
      double squares = 0.0;
      for (uint32_t i = 0; i < 64; ++i) squares += double{row[i]} * row[i];
      for (uint32_t i = 0; i < 64; ++i)
        h[i] = static_cast<float>(row[i] / std::sqrt(squares / 64 + 1e-6) * norm[i]);
      for (uint32_t r = 0; r < 77; ++r)
        ASSERT_NEAR(logits[l * 77 + r], naive_dot(output, r, h.data()).value + bias[r], 2e-3);
    }
  }
}

TEST(HostOps, shape_mismatches_are_internal_errors) {
  Random random(2);
  Machine machine(best_kernels(), 1, linear_limits());
  ASSERT_TRUE(machine.ops);
  Matrix matrix = random_matrix(kQ4_1, 16, 64, Layout::kRows, random);
  std::vector<float> x(64), y(16);
  Weight too_wide = matrix.weight;
  too_wide.cols = 4096;
  Weight short_data = matrix.weight;
  short_data.bytes -= 1;
  Weight unknown = matrix.weight;
  unknown.type = 5;  // a type that GGUF no longer has

  for (const Weight& weight : {too_wide, short_data, unknown, Weight{}})
    EXPECT_EQ(project(*machine.ops, 1, x.data(), weight, nullptr, y.data()).code(), WCUDA_INTERNAL);
  EXPECT_EQ(project(*machine.ops, 161, x.data(), matrix.weight, nullptr, y.data()).code(),
            WCUDA_INTERNAL);
}

}  // namespace
}  // namespace wcuda::ops::host
