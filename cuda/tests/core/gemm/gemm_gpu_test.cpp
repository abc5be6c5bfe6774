// Products of f16 matrices against double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/dynlib.h"
#include "core/gemm/cublas_lt.h"
#include "core/gemm/gemm.h"
#include "kernels/shared/numeric.h"
#include "llm/quant/random_blocks.h"
#include "support/device_array.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace wcuda::compute {
namespace {

using testing::DeviceArray;

std::vector<uint16_t> random_halves(uint64_t seed, uint32_t rows, uint32_t cols, uint32_t stride) {
  std::vector<uint16_t> values(uint64_t{rows} * stride);
  for (uint32_t r = 0; r < rows; ++r)
    for (uint32_t c = 0; c < cols; ++c) {
      const auto bits =
          static_cast<int64_t>(testing::splitmix64(seed << 40 | uint64_t{r} << 20 | c));
      values[uint64_t{r} * stride + c] = float_to_half(static_cast<float>(bits) * 0x1p-63f);
    }
  return values;
}

// Products of two f16 numbers are exact in f32: only the sum rounds. Each addition is off by up to
// 2^-22 of the sum of magnitudes (the tensor cores cut, they do not round).
void expect_product(HalfGemm::Library library, uint32_t rows, uint32_t columns, uint32_t depth) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + " x " +
               std::to_string(depth));
  const uint32_t h_stride = (depth + 7) / 8 * 8, y_stride = (rows + 3) / 4 * 4;
  const auto w = random_halves(1, rows, depth, depth),
             h = random_halves(2, columns, depth, h_stride);
  const DeviceArray<uint16_t> device_w(w), device_h(h);
  DeviceArray<float> y(uint64_t{columns} * y_stride);
  DeviceArray<uint8_t> workspace(HalfGemm::kWorkspaceBytes);
  y.fill(0xff);
  HalfGemm gemm(library, workspace.data());
  kernels::GemmArgs args;
  args.rows = rows;
  args.tokens = columns;
  args.depth = depth;
  args.w = device_w.data();
  args.h = device_h.data();
  args.h_stride = h_stride;
  args.y = y.data();
  args.y_stride = y_stride;

  const Status status = gemm.run(args, {});
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<float> values = y.read();

  ASSERT_EQ(values.size(), uint64_t{columns} * y_stride);
  for (uint32_t c = 0; c < columns; ++c)
    for (uint32_t r = 0; r < rows; ++r) {
      double sum = 0, magnitude = 0;
      for (uint32_t k = 0; k < depth; ++k) {
        const double term = double{half_to_float(w[uint64_t{r} * depth + k])} *
                            half_to_float(h[uint64_t{c} * h_stride + k]);
        sum += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(values[uint64_t{c} * y_stride + r], sum, magnitude * 0x1p-18 + 1e-30)
          << "row " << r << " column " << c;
    }
}

TEST(GpuGemm, is_close_to_double_precision_with_and_without_the_library) {
  for (const auto library : {HalfGemm::Library::kWhereFound, HalfGemm::Library::kNone}) {
    expect_product(library, 128, 128, 64);
    expect_product(library, 1, 1, 8);
    expect_product(library, 129, 127, 72);
    expect_product(library, 300, 200, 1000);
    expect_product(library, 37, 9, 75);
    expect_product(library, 64, 65, 1);
  }
}

TEST(GpuGemm, opens_the_library_of_this_machine_or_says_why_not) {
  DeviceArray<uint8_t> workspace(HalfGemm::kWorkspaceBytes);
  const HalfGemm without(HalfGemm::Library::kNone, workspace.data());
  EXPECT_FALSE(without.has_library());

  const HalfGemm with(HalfGemm::Library::kWhereFound, workspace.data());
  EXPECT_EQ(with.has_library(), DynamicLibrary::open(kCublasLtLibrary).ok());
}

#if __has_include(<cublasLt.h>)
TEST(CublasLt, declarations_are_those_of_its_header) {
  EXPECT_EQ(cublas_lt::kSuccess, CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublas_lt::kReal32, CUDA_R_32F);
  EXPECT_EQ(cublas_lt::kReal16, CUDA_R_16F);
  EXPECT_EQ(cublas_lt::kCompute32, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(cublas_lt::kTransposed, CUBLAS_OP_T);
  EXPECT_EQ(cublas_lt::kDescriptorTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
  EXPECT_EQ(cublas_lt::kPreferenceWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  EXPECT_EQ(sizeof(cublas_lt::Algorithm), sizeof(cublasLtMatmulAlgo_t));
  EXPECT_EQ(sizeof(cublas_lt::HeuristicResult), sizeof(cublasLtMatmulHeuristicResult_t));
  EXPECT_EQ(offsetof(cublas_lt::HeuristicResult, workspace_bytes),
            offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
  EXPECT_EQ(offsetof(cublas_lt::HeuristicResult, status),
            offsetof(cublasLtMatmulHeuristicResult_t, state));
}
#endif

}  // namespace
}  // namespace wcuda::compute
