// The declarations of cuBLASLt that core/gemm has without its header.
#include "core/gemm/cublas_lt.h"

#include <gtest/gtest.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace wcuda::compute {
namespace {

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

}  // namespace
}  // namespace wcuda::compute
#endif
