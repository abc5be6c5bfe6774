// Linear layers above 8 tokens on the device against double precision.
#include <cstring>

#include "kernels/linear/linear_batch.h"
#include "kernels/linear/linear_vector.h"
#include "kernels/linear/packed_gemm.h"
#include "llm/ops/gpu_linear_fixture.h"

namespace wcuda::testing {
namespace {

using compute::HalfGemm;

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8, kQ2_K = 10, kQ4_K = 12, kQ5_K = 13,
                   kQ6_K = 14;

struct Path {
  HalfGemm::Library library;
  ops::LinearSwitches switches;
};

std::vector<std::vector<float>> run(const LinearProblem& problem, const ops::Limits& limits,
                                    const Path& path, bool is_dependent = false) {
  PreparedLinear linear(limits, path.library, path.switches);
  linear.launch.is_dependent = is_dependent;
  return problem.outputs(linear, 0, problem.parameters().columns);
}

// As part of a test's name: letters, digits and underscores.
void PrintTo(const Path& path, std::ostream* out) {
  *out << (path.library == HalfGemm::Library::kNone ? "own_gemm" : "cublas_lt") << "_batch_to_"
       << path.switches.batch_tokens_max << "_packed_to_" << path.switches.packed_gemm_tokens_max;
}

class GpuLinear : public ::testing::TestWithParam<Path> {
 protected:
  void expect_close(const LinearCase& parameters) const {
    const LinearProblem problem(parameters);
    problem.expect_close(run(problem, problem.limits(), GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Path, GpuLinear,
                         ::testing::Values(Path{HalfGemm::Library::kWhereFound, {1000, 0}},
                                           Path{HalfGemm::Library::kWhereFound, {0, 5000}},
                                           Path{HalfGemm::Library::kWhereFound, {0, 0}},
                                           Path{HalfGemm::Library::kNone, {0, 0}}),
                         [](const auto& info) { return ::testing::PrintToString(info.param); });

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
}

TEST_P(GpuLinear, inputs_of_any_magnitude_neither_overflow_nor_vanish) {
  for (const float scale : {1e-30f, 1e-8f, 1e6f, 1e30f})
    for (const uint32_t columns : {12u, 80u}) {
      SCOPED_TRACE(scale);
      expect_close({{kQ4_K}, {40}, 256, columns, Epilogue::kStore, false, false, false, scale});
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

TEST_P(GpuLinear, layers_that_exceed_the_scratch_memory_go_piece_by_piece) {
  LinearCase parameters{{kQ4_0, kQ4_0}, {900, 900}, 64, 300, Epilogue::kSiluGate, true, true};
  for (const Epilogue epilogue : {Epilogue::kSiluGate, Epilogue::kStore}) {
    parameters.epilogue = epilogue;
    const LinearProblem problem(parameters);
    ops::Limits limits = problem.limits();
    limits.max_batch_tokens = 70;
    limits.vocabulary_size = 8;
    problem.expect_close(run(problem, limits, GetParam()));
  }
}

constexpr Path kWidePaths[] = {{HalfGemm::Library::kWhereFound, {0, 0}},
                               {HalfGemm::Library::kNone, {0, 0}}};

TEST(GpuLinearWide, many_columns_are_close_to_double_precision) {
  for (const Path& path : kWidePaths)
    for (const float scale : {1e-3f, 1.0f, 1e5f}) {
      SCOPED_TRACE(scale);
      for (const LinearCase& parameters :
           {LinearCase{{kQ4_K}, {136}, 512, 200, Epilogue::kAdd, false, true, false, scale},
            LinearCase{
                {kQ8_0, kQ6_K}, {64, 72}, 768, 40, Epilogue::kStore, true, true, true, scale},
            LinearCase{{kF16}, {48}, 2088, 30, Epilogue::kAdd, false, false, true, scale},
            LinearCase{{kQ8_0}, {24}, 16416, 20, Epilogue::kStore, false, true, false, scale}}) {
        const LinearProblem problem(parameters);
        problem.expect_close(run(problem, problem.limits(), path, true));
      }
    }
}

TEST(GpuLinearWide, columns_of_extreme_magnitude_are_scaled) {
  for (const Path& path : kWidePaths)
    for (const float scale : {1e-30f, 1e-8f, 1e8f, 1e20f, 1e30f}) {
      SCOPED_TRACE(scale);
      const bool is_large = scale > 1.0f;
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
        if (epilogue == Epilogue::kAdd && !is_large) continue;  // it would be lost in what is there
        const LinearProblem problem(
            {{kQ4_K}, {136}, 512, 150, epilogue, false, is_large, false, scale});
        problem.expect_close(run(problem, problem.limits(), path, true));
      }
    }
}

TEST(GpuLinearWide, joined_outputs_lie_one_after_the_other) {
  for (const Path& path : kWidePaths)
    for (const bool has_bias : {false, true}) {
      const LinearProblem problem(
          {{kQ4_K, kQ8_0, kQ6_K}, {200, 40, 72}, 768, 150, Epilogue::kStore, true, has_bias});
      PreparedLinear linear(problem.limits(), path.library, path.switches);
      linear.launch.is_dependent = true;
      const auto run_joined = [&](const kernels::LinearArgs& args) {
        DeviceArray<float> joined(150 * 312);
        ops::Node node = linear.node(args);
        ASSERT_EQ(node.kernel, ops::Kernel::kDequantizeGemm);
        node.output = ops::Form::kJoined;
        kernels::LinearArgs call = args;
        call.outputs[0] = joined.data();
        linear.run(node, call, {});
        uint32_t first = 0;
        for (uint32_t m = 0; m < 3; ++m) {
          const uint32_t bytes = args.matrices[m].rows * 4;
          ASSERT_EQ(cudaMemcpy2D(args.outputs[m], bytes, joined.data() + first, 312 * 4, bytes, 150,
                                 cudaMemcpyDeviceToDevice),
                    cudaSuccess);
          first += args.matrices[m].rows;
        }
      };
      problem.expect_close(problem.outputs(run_joined, 0, 150));
    }
}

// Read back by a layer whose matrix is the identity.
TEST(GpuLinearWide, hidden_sums_become_the_gate_that_they_are_of) {
  constexpr uint32_t kRows = 144;
  const quant::Format& plain = *quant::find_format(kF32);
  RandomMatrix identity = random_matrix(plain, kRows, kRows);
  for (uint32_t i = 0; i < kRows * kRows; ++i) {
    const float value = i % (kRows + 1) == 0 ? 1.0f : 0.0f;
    std::memcpy(&identity.file[i * sizeof(float)], &value, sizeof value);
  }
  const DeviceArray<uint8_t> packed_tiles(pack_tiles(plain, kRows, kRows, identity.file));
  for (const Path& path : kWidePaths)
    for (const Epilogue epilogue : {Epilogue::kSiluGate, Epilogue::kGeluTanhGate})
      for (const bool is_odd : {false, true}) {
        const LinearProblem problem({{kQ4_K, kQ8_0},
                                     {kRows, kRows},
                                     512,
                                     190,
                                     epilogue,
                                     true,
                                     is_odd,
                                     is_odd,
                                     is_odd ? 1e-3f : 10.0f});
        PreparedLinear linear(problem.limits(), path.library, path.switches);
        linear.launch.is_dependent = true;
        const auto run_both = [&](const kernels::LinearArgs& args) {
          ops::Node node = linear.node(args);
          node.kernel = ops::Kernel::kDequantizeGemm;
          node.output = ops::Form::kGateSums;
          linear.run(node, args, {});
          DeviceArray<float> output(190 * kRows);
          kernels::LinearArgs next;
          next.tokens = args.tokens;
          next.x = args.outputs[0];
          next.matrix_count = 1;
          next.matrices[0] = {packed_tiles.data(), kF32, kRows, kRows};
          next.outputs[0] = output.data();
          node = linear.node(next);
          ASSERT_EQ(node.kernel, ops::Kernel::kDequantizeGemm);
          node.input = ops::Form::kGateSums;
          linear.run(node, next, {args.biases[0], args.biases[1], epilogue});
          ASSERT_EQ(cudaMemcpy(args.outputs[0], output.data(), 190 * kRows * sizeof(float),
                               cudaMemcpyDeviceToDevice),
                    cudaSuccess);
        };
        problem.expect_close(problem.outputs(run_both, 0, 190));
      }
}

// Odd rows and inputs: the last tiles of rows, tokens and inputs are filled in part. Without code
// for WGMMA this is the kernel of mma.sync.
TEST(GpuPackedGemm, every_format_and_count_of_tokens_is_close_to_double_precision) {
  for (const quant::Format* format : loadable_formats())
    for (const uint32_t tokens : {9u, 16u, 17u, 63u, 64u, 65u, 128u, 200u, 256u, 1000u}) {
      SCOPED_TRACE(std::string(format->name) + ", " + std::to_string(tokens) + " tokens");
      const uint32_t block = format->block_elements;
      const uint32_t cols = block == 1 ? 333 : 512 + (block == 256 ? 256 : block);
      const Epilogue epilogue = tokens % 2 != 0 ? Epilogue::kAdd : Epilogue::kStore;
      const LinearProblem problem({{format->id}, {53}, cols, tokens, epilogue, true, true});
      const Path path{HalfGemm::Library::kNone, {0, 5000}};
      problem.expect_close(run(problem, problem.limits(), path));
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
        LinearCase{{kQ6_K, kQ8_0}, {1000, 2500}, 256, 600, Epilogue::kStore, false, true}}) {
    const LinearProblem problem(parameters);
    const Path path{HalfGemm::Library::kNone, {0, 5000}};
    const auto outputs = run(problem, problem.limits(), path, true);
    problem.expect_close(outputs);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run(problem, problem.limits(), path), outputs);
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
  const LinearProblem problem(
      {{kQ4_K, kQ4_0, kQ6_K}, {300, 64, 80}, 1024, 150, Epilogue::kStore, true});
  ops::Limits limits = problem.limits();
  limits.batch_invariant = true;
  PreparedLinear linear(limits);
  const auto all = problem.outputs(linear, 0, 150);
  problem.expect_close(all);

  for (const uint32_t count : {1u, 2u, 8u, 9u, 16u, 31u, 64u, 65u, 128u}) {
    const uint32_t first = (count * 3 + 1) % (151 - count);
    const auto some = problem.outputs(linear, first, count);
    for (size_t m = 0; m < all.size(); ++m) {
      const uint32_t rows = problem.parameters().rows[m];
      const auto begin = all[m].begin() + first * rows;
      EXPECT_EQ(some[m], std::vector<float>(begin, begin + count * rows)) << count;
    }
  }
}

// The plan, which needs no device, against what the kernels say of themselves.
TEST(GpuLinearPlan, agrees_with_the_kernels) {
  const kernels::Launch launch = device_launch();
  const ops::DeviceTraits device = device_traits(launch);
  ops::Limits limits{};
  limits.max_batch_tokens = 256;
  for (uint32_t type = 0; type < 64; ++type) {
    ops::LinearShape shape{1, 1, {type}, {64}, 256};
    EXPECT_EQ(ops::linear_kernel(shape, limits, device) == ops::Kernel::kLinearVector,
              kernels::has_linear_vector(type))
        << type;
    shape.token_count = 64;
    kernels::LinearArgs args;
    args.matrix_count = 1;
    args.matrices[0] = {nullptr, type, 64, 256};
    EXPECT_EQ(ops::linear_kernel(shape, limits, device) == ops::Kernel::kLinearBatch,
              kernels::linear_batch_supports(args, launch))
        << type;
    shape.token_count = 200;
    EXPECT_EQ(ops::linear_kernel(shape, limits, device) == ops::Kernel::kPackedGemm,
              kernels::packed_gemm_supports(args, launch))
        << type;
  }
}

}  // namespace
}  // namespace wcuda::testing
