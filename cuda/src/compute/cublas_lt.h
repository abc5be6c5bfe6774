// What is used of cuBLASLt 13, declared here from its public manual: the library is opened at run
// time, and its headers need not be there to build.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/dynlib.h"

namespace wcuda::compute::cublas_lt {

constexpr int kSuccess = 0;
constexpr int kReal32 = 0;      // cudaDataType_t
constexpr int kReal16 = 2;      // f16
constexpr int kCompute32 = 68;  // cublasComputeType_t: f32 sums
constexpr int32_t kTransposed = 1;
constexpr int kDescriptorTransposeA = 3;
constexpr int kPreferenceWorkspaceBytes = 1;

struct Algorithm {
  uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96, "as in the library");

struct Functions {
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*descriptor_create)(void** descriptor, int compute, int scale);
  int (*descriptor_destroy)(void* descriptor);
  int (*descriptor_set)(void* descriptor, int attribute, const void* value, size_t bytes);
  int (*layout_create)(void** layout, int type, uint64_t rows, uint64_t cols, int64_t stride);
  int (*layout_destroy)(void* layout);
  int (*preference_create)(void** preference);
  int (*preference_destroy)(void* preference);
  int (*preference_set)(void* preference, int attribute, const void* value, size_t bytes);
  int (*heuristic)(void* handle, void* descriptor, void* a, void* b, void* c, void* d,
                   void* preference, int asked, HeuristicResult* results, int* found);
  int (*matmul)(void* handle, void* descriptor, const void* alpha, const void* a, void* a_layout,
                const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                void* d, void* d_layout, const Algorithm* algorithm, void* workspace,
                size_t workspace_bytes, cudaStream_t stream);
};

inline Result<Functions> open() {
  WCUDA_ASSIGN(const DynamicLibrary library, DynamicLibrary::open(kCublasLtLibrary));
  Functions f{};
  WCUDA_TRY(library.find("cublasLtCreate", &f.create));
  WCUDA_TRY(library.find("cublasLtDestroy", &f.destroy));
  WCUDA_TRY(library.find("cublasLtMatmulDescCreate", &f.descriptor_create));
  WCUDA_TRY(library.find("cublasLtMatmulDescDestroy", &f.descriptor_destroy));
  WCUDA_TRY(library.find("cublasLtMatmulDescSetAttribute", &f.descriptor_set));
  WCUDA_TRY(library.find("cublasLtMatrixLayoutCreate", &f.layout_create));
  WCUDA_TRY(library.find("cublasLtMatrixLayoutDestroy", &f.layout_destroy));
  WCUDA_TRY(library.find("cublasLtMatmulPreferenceCreate", &f.preference_create));
  WCUDA_TRY(library.find("cublasLtMatmulPreferenceDestroy", &f.preference_destroy));
  WCUDA_TRY(library.find("cublasLtMatmulPreferenceSetAttribute", &f.preference_set));
  WCUDA_TRY(library.find("cublasLtMatmulAlgoGetHeuristic", &f.heuristic));
  WCUDA_TRY(library.find("cublasLtMatmul", &f.matmul));
  return f;
}

}  // namespace wcuda::compute::cublas_lt
