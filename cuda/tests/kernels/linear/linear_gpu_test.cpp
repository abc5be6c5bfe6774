// Linear layers above 8 tokens on the device against double precision.
#include "kernels/linear/gpu_linear_fixture.h"
#include "kernels/linear/linear_batch.h"
#include "kernels/linear/linear_vector.h"
#include "kernels/linear/packed_gemm.h"
#include "kernels/linear/row_norm.h"

namespace wcuda::testing {
namespace {

using namespace tensor_type;

std::vector<std::vector<float>> run(const LinearProblem& problem, const ops::Limits& limits,
                                    uint32_t batch_max, bool is_dependent = false) {
  PreparedLinear linear(limits, batch_max);
  linear.launch.is_dependent = is_dependent;
  return problem.outputs(linear, 0, problem.parameters().columns);
}

// By the tokens up to which linear_batch computes a layer, where there is code for it: all by one
// kernel.
class GpuLinear : public ::testing::TestWithParam<uint32_t> {
 protected:
  void expect_close(const LinearCase& parameters) const {
    const LinearProblem problem(parameters);
    problem.expect_close(run(problem, problem.limits(), GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Path, GpuLinear, ::testing::Values(0, 5000), [](const auto& info) {
  return std::string(info.param == 0 ? "packed_gemm" : "linear_batch");
});

TEST_P(GpuLinear, columns_of_any_count_are_close_to_double_precision) {
  for (const uint32_t columns : {9u, 15u, 16u, 17u, 33u, 64u, 65u, 200u, 270u}) {
    SCOPED_TRACE(columns);
    expect_close({{kQ4_K}, {131}, 512, columns});
    expect_close({{kQ8_0}, {64}, 96, columns, Epilogue::kAdd, true, true, true});
  }
}

TEST_P(GpuLinear, every_format_is_close_to_double_precision) {
  size_t count = 0;
  for (const quant::Format* format : loadable_formats()) {
    SCOPED_TRACE(format->name);
    expect_close({{format->id}, {49}, 768, 33, Epilogue::kStore, true});
    ++count;
  }
  EXPECT_EQ(count, 28u);
}

TEST_P(GpuLinear, weights_around_zero_keep_the_precision_of_f16) {
  for (const uint32_t type : {kQ2_K, kQ4_K, kQ5_K}) {
    SCOPED_TRACE(type);
    LinearCase parameters{{type}, {64}, 1024, 40};
    parameters.is_centred = true;
    expect_close(parameters);
  }
}

TEST_P(GpuLinear, matrices_of_mixed_formats_share_their_input) {
  for (const uint32_t columns : {20u, 130u}) {
    SCOPED_TRACE(columns);
    expect_close(
        {{kQ4_K, kQ4_0, kQ6_K}, {200, 33, 47}, 1280, columns, Epilogue::kStore, true, true});
  }
}

TEST_P(GpuLinear, gates_are_close_to_double_precision) {
  for (const Epilogue epilogue : {Epilogue::kSiluGate, Epilogue::kGeluTanhGate})
    for (const uint32_t columns : {10u, 70u}) {
      SCOPED_TRACE(columns);
      expect_close({{kQ4_K, kQ4_K}, {145, 145}, 512, columns, epilogue, true, true, false});
      expect_close({{kF16, kQ8_0}, {64, 64}, 64, columns, epilogue, false, false, true});
    }
  // Tiles of the most rows, each by one block.
  for (const uint32_t columns : {15u, 31u, 63u}) {
    SCOPED_TRACE(columns);
    expect_close({{kQ4_K, kQ4_K}, {14325, 14325}, 512, columns, Epilogue::kSiluGate, true, true});
  }
}

TEST_P(GpuLinear, inputs_of_any_magnitude_neither_overflow_nor_vanish) {
  for (const float scale : {1e-30f, 1e-8f, 1e6f, 1e30f})
    for (const uint32_t columns : {12u, 80u})
      for (const quant::Format* format : loadable_formats()) {
        SCOPED_TRACE(std::string(format->name) + " " + std::to_string(scale));
        // Tiny products added to what is there would only show its rounding.
        const Epilogue epilogue = scale > 1 && columns == 80 ? Epilogue::kAdd : Epilogue::kStore;
        expect_close({{format->id}, {40}, 256, columns, epilogue, false, false, false, scale});
      }
}

TEST_P(GpuLinear, odd_input_counts_of_plain_types) {
  for (const uint32_t cols : {1u, 7u, 36u, 75u, 260u})
    for (const uint32_t columns : {9u, 150u}) {
      SCOPED_TRACE(cols);
      expect_close({{kF32}, {37}, cols, columns, Epilogue::kStore, true});
      expect_close({{kF16, kF16}, {5, 19}, cols, columns});
    }
}

TEST_P(GpuLinear, layers_that_exceed_the_scratch_memory_go_in_parts_of_the_tokens) {
  LinearCase parameters{{kQ4_0, kQ8_0}, {900, 900}, 64, 300, Epilogue::kSiluGate, true, true};
  for (const Epilogue epilogue : {Epilogue::kSiluGate, Epilogue::kStore}) {
    parameters.epilogue = epilogue;
    const LinearProblem problem(parameters);
    ops::Limits limits = problem.limits();
    limits.max_batch_tokens = 70;
    problem.expect_close(run(problem, limits, GetParam()));
  }
}

// Odd rows and inputs: the last tiles of rows, tokens and inputs are filled in part. Without code
// for WGMMA this is the kernel of mma.sync.
TEST_P(GpuLinear, every_format_and_count_of_tokens_is_close_to_double_precision) {
  std::vector<uint32_t> counts = {9, 16, 17, 63, 64, 65, 128, 200, 256};
  if (GetParam() == 0) counts.insert(counts.end(), {1000, 4096});
  for (const quant::Format* format : loadable_formats())
    for (const uint32_t tokens : counts) {
      SCOPED_TRACE(std::string(format->name) + ", " + std::to_string(tokens) + " tokens");
      const uint32_t block = format->block_elements;
      const uint32_t cols = block == 1 ? 333 : 512 + (block == 256 ? 256 : block);
      const Epilogue epilogue = tokens % 2 != 0 ? Epilogue::kAdd : Epilogue::kStore;
      expect_close({{format->id}, {53}, cols, tokens, epilogue, true, true});
    }
}

// More tiles than multiprocessors, so that CTAs compute several; fewer, so that up to 16 share one.
TEST(GpuPackedGemm, whole_tiles_and_parts_are_close_to_double_precision) {
  for (const LinearCase& parameters :
       {LinearCase{{kQ4_K}, {300}, 4096, 200, Epilogue::kAdd, true, true},
        LinearCase{{kQ4_K, kQ4_K}, {150, 150}, 2816, 129, Epilogue::kGeluTanhGate, false, true},
        LinearCase{{kQ4_K, kQ4_K, kQ6_K}, {512, 130, 129}, 2048, 300, Epilogue::kStore, true},
        LinearCase{{kQ4_K}, {3900}, 512, 1100, Epilogue::kAdd, true, true},
        LinearCase{{kQ8_0}, {24}, 32800, 70, Epilogue::kStore, false, true},
        LinearCase{{kQ4_K, kQ4_K}, {1700, 1700}, 512, 700, Epilogue::kSiluGate, true, true},
        LinearCase{{kQ6_K, kQ8_0}, {1000, 2500}, 256, 600, Epilogue::kStore, false, true},
        // Short pairs of tiles, alone and after others. The last 44 tokens are less than half a
        // tile.
        LinearCase{{kQ6_K}, {3000}, 512, 700, Epilogue::kAdd, true, true},
        LinearCase{{kF16}, {3001}, 256, 700, Epilogue::kStore, true, true},
        LinearCase{{kQ4_K, kQ4_K}, {3000, 3000}, 512, 300, Epilogue::kSiluGate, true, true},
        LinearCase{{kQ4_0, kQ4_0}, {4096, 4096}, 256, 1100, Epilogue::kGeluTanhGate, false}}) {
    const LinearProblem problem(parameters);
    const auto outputs = run(problem, problem.limits(), 0, true);
    problem.expect_close(outputs);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run(problem, problem.limits(), 0), outputs);
  }
}

// Two launches of gate and up, and of down. Both forms are the same f16 numbers, scaled by other
// powers of two; only values that are subnormal in one form differ.
TEST(GpuPackedGemm, gate_and_up_write_the_operand_that_down_would_convert) {
  if (!device_traits(device_launch()).has_warpgroup_code) GTEST_SKIP() << "no code for WGMMA";
  constexpr uint32_t kTokens = 700, kHidden = 1536, kRows = 130;  // with short pairs of tiles
  for (const float x_scale : {1.0f, 1e-12f, 1e12f})
    for (const Epilogue epilogue : {Epilogue::kSiluGate, Epilogue::kGeluTanhGate})
      for (const uint32_t type : {kQ8_0, kQ4_K, kF16}) {
        SCOPED_TRACE(std::to_string(type) + " " + std::to_string(x_scale));
        LinearCase gate_case{{kQ4_0, kQ4_0}, {kHidden, kHidden}, 288, kTokens, epilogue, true};
        gate_case.x_scale = x_scale;
        const LinearProblem problem(gate_case);
        const RandomMatrix matrix = random_matrix(*quant::find_format(type), kRows, kHidden);
        const DeviceArray<uint8_t> packed_tiles(matrix.packed_tiles);
        ops::Limits limits = problem.limits();
        limits.max_batch_tokens = 512;
        limits.feed_forward_length = kHidden;
        PreparedLinear linear(limits);
        linear.launch.is_dependent = true;
        std::vector<float> converted, written;
        problem.outputs(
            [&](const kernels::LinearArgs& gate) {
              kernels::LinearArgs down;
              down.tokens = kTokens;
              down.x = gate.outputs[0];
              down.matrix_count = 1;
              down.matrices[0] = {packed_tiles.data(), type, kRows, kHidden,
                                  scale_factor_of(matrix)};
              down.epilogue = Epilogue::kAdd;
              DeviceArray<float> output(std::vector<float>(uint64_t{kTokens} * kRows));
              down.outputs[0] = output.data();
              linear(gate);
              linear(down);
              converted = output.read();
              linear.write_operand(gate, down.matrices[0], problem.row_norm_max(0),
                                   problem.row_norm_max(1));
              linear.read_operand(down);
              written = output.read();
            },
            0, kTokens);

        ASSERT_EQ(written.size(), converted.size());
        double error = 0, square = 0;
        for (size_t i = 0; i < written.size(); ++i) {
          // The second product is added to the first.
          const double first = converted[i], second = double{written[i]} - converted[i];
          ASSERT_TRUE(std::isfinite(second)) << i;
          error += (second - first) * (second - first);
          square += first * first;
        }
        EXPECT_GT(square, 0);
        EXPECT_LT(std::sqrt(error / square), 1e-5);
      }
}

TEST(GpuPackedGemm, a_gate_of_zeros_writes_an_operand_of_zeros) {
  if (!device_traits(device_launch()).has_warpgroup_code) GTEST_SKIP() << "no code for WGMMA";
  constexpr uint32_t kTokens = 130, kHidden = 512, kRows = 64;
  const LinearProblem problem(
      {{kQ4_0, kQ4_0}, {kHidden, kHidden}, 256, kTokens, Epilogue::kSiluGate, true});
  const RandomMatrix matrix = random_matrix(*quant::find_format(kQ4_K), kRows, kHidden);
  const DeviceArray<uint8_t> packed_tiles(matrix.packed_tiles);
  const DeviceArray<uint8_t> zeros(std::vector<uint8_t>(uint64_t{kHidden} * 256));
  ops::Limits limits = problem.limits();
  limits.max_batch_tokens = 512;
  limits.feed_forward_length = kHidden;
  PreparedLinear linear(limits);
  problem.outputs(
      [&](const kernels::LinearArgs& args) {
        kernels::LinearArgs gate = args, down;
        gate.matrices[0].packed_tiles = zeros.data();
        down.tokens = kTokens;
        down.x = gate.outputs[0];
        down.matrix_count = 1;
        down.matrices[0] = {packed_tiles.data(), kQ4_K, kRows, kHidden, scale_factor_of(matrix)};
        down.epilogue = Epilogue::kAdd;
        const std::vector<float> residual(uint64_t{kTokens} * kRows, 3.0f);
        DeviceArray<float> output(residual);
        down.outputs[0] = output.data();
        linear.write_operand(gate, down.matrices[0], 0.0f, problem.row_norm_max(1));
        linear.read_operand(down);
        EXPECT_EQ(output.read(), residual);
      },
      0, kTokens);
}

TEST(GpuRowNorm, is_the_largest_of_all_calls) {
  const kernels::Launch launch = device_launch();
  for (const auto& [rows, cols] : {std::pair{1u, 1u}, {9u, 31u}, {100u, 2050u}}) {
    std::vector<float> values(uint64_t{rows} * cols);
    double largest = 0;
    for (uint32_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (uint32_t k = 0; k < cols; ++k) {
        float& value = values[uint64_t{r} * cols + k];
        value = random_unit(11, uint64_t{r} * cols + k) * static_cast<float>(r % 7 + 1);
        sum += double{value} * value;
      }
      largest = std::max(largest, sum);
    }
    DeviceArray<float> device_values(values), result(std::vector<float>{0.0f});

    EXPECT_EQ(kernels::row_norm_max(device_values.data(), rows, cols, result.data(), launch),
              cudaSuccess);
    EXPECT_NEAR(result.read()[0], std::sqrt(largest), 1e-5 * std::sqrt(largest));
    EXPECT_EQ(kernels::row_norm_max(device_values.data(), 1, 1, result.data(), launch),
              cudaSuccess);
    EXPECT_NEAR(result.read()[0], std::sqrt(largest), 1e-5 * std::sqrt(largest));
  }
}

TEST_P(GpuLinear, the_same_layer_gives_the_same_bits) {
  for (const uint32_t columns : {17u, 64u, 200u}) {
    const LinearProblem problem(
        {{kQ4_K, kQ6_K}, {500, 100}, 1024, columns, Epilogue::kStore, true});
    const auto first = run(problem, problem.limits(), GetParam());
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(run(problem, problem.limits(), GetParam(), i == 1), first) << columns;
  }
}

TEST(GpuLinearInvariant, a_column_has_the_same_bits_in_any_company) {
  for (const LinearCase& parameters :
       {LinearCase{{kQ4_K, kQ4_0, kQ6_K}, {300, 64, 80}, 1024, 150, Epilogue::kStore, true},
        LinearCase{{kQ8_0}, {130}, 4160, 150, Epilogue::kAdd, false, true},
        LinearCase{{kQ4_K, kQ4_K}, {70, 70}, 1536, 150, Epilogue::kGeluTanhGate, true},
        LinearCase{{kQ4_K}, {5000}, 2048, 1100, Epilogue::kAdd, true, true},
        LinearCase{{kQ4_K, kQ6_K}, {150, 150}, 768, 150, Epilogue::kSiluGate, true}}) {
    const LinearProblem problem(parameters);
    ops::Limits limits = problem.limits();
    limits.batch_invariant = true;
    PreparedLinear linear(limits);
    const uint32_t columns = parameters.columns;
    const auto all = problem.outputs(linear, 0, columns);
    problem.expect_close(all);

    for (const uint32_t count : {1u, 2u, 8u, 9u, 16u, 17u, 32u, 33u, 64u, 65u, 128u}) {
      const uint32_t first = (count * 3 + 1) % (columns + 1 - count);
      const auto some = problem.outputs(linear, first, count);
      for (size_t m = 0; m < all.size(); ++m) {
        const uint32_t rows = problem.parameters().rows[m];
        const auto begin = all[m].begin() + first * rows;
        EXPECT_EQ(some[m], std::vector<float>(begin, begin + count * rows)) << count;
      }
    }
  }
}

// The plan takes it that kernels have every type that a model may have.
TEST(GpuLinearPlan, kernels_take_every_format_that_can_be_loaded) {
  const kernels::Launch launch = device_launch();
  for (uint32_t type = 0; type < 64; ++type) {
    const quant::Format* const format = quant::find_format(type);
    const bool is_loadable = format != nullptr && format->is_loadable;
    EXPECT_EQ(kernels::has_linear_vector(type), is_loadable) << type;
    kernels::LinearArgs args;
    args.matrix_count = 1;
    args.matrices[0] = {nullptr, type, 64, 256};
    EXPECT_EQ(kernels::packed_gemm_supports(args, launch), is_loadable) << type;
    EXPECT_EQ(kernels::linear_batch_supports(args, launch),
              is_loadable && device_traits(launch).has_warpgroup_code)
        << type;
  }
}

}  // namespace
}  // namespace wcuda::testing
