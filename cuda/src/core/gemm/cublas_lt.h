// The part of cuBLASLt 13 that is used, declared from its public manual: the library is opened at
// run time, and a build does not need its headers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/base/dynlib.h"

namespace wcuda::compute::cublas_lt {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 15;
// cudaDataType_t
constexpr int kReal32 = 0;
constexpr int kReal16 = 2;  // f16
constexpr int kRealBf16 = 14;
constexpr int kRealE4m3 = 28;
// cublasComputeType_t: f32 sums; operands unchanged, or rounded to tf32
constexpr int kCompute32 = 68;
constexpr int kComputeTf32 = 77;
constexpr int32_t kTransposed = 1;
// cublasLtMatmulDescAttributes_t
constexpr int kDescriptorTransposeA = 3;
constexpr int kDescriptorTransposeB = 4;
constexpr int kDescriptorEpilogue = 7;
constexpr int kDescriptorBias = 8;
constexpr int kDescriptorBiasType = 26;
// cublasLtEpilogue_t, bits
constexpr uint32_t kEpilogueNone = 1;
constexpr uint32_t kEpilogueRelu = 2;
constexpr uint32_t kEpilogueBias = 4;
constexpr uint32_t kEpilogueGelu = 32;
// cublasLtMatrixLayoutAttribute_t
constexpr int kLayoutBatchCount = 5;
constexpr int kLayoutBatchStride = 6;
// cublasLtMatmulPreferenceAttributes_t
constexpr int kPreferenceWorkspaceBytes = 1;
constexpr int kPreferenceAlignmentA = 5;  // B, C and D follow

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
  int (*layout_set)(void* layout, int attribute, const void* value, size_t bytes);
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
  WCUDA_TRY(library.find("cublasLtMatrixLayoutSetAttribute", &f.layout_set));
  WCUDA_TRY(library.find("cublasLtMatmulPreferenceCreate", &f.preference_create));
  WCUDA_TRY(library.find("cublasLtMatmulPreferenceDestroy", &f.preference_destroy));
  WCUDA_TRY(library.find("cublasLtMatmulPreferenceSetAttribute", &f.preference_set));
  WCUDA_TRY(library.find("cublasLtMatmulAlgoGetHeuristic", &f.heuristic));
  WCUDA_TRY(library.find("cublasLtMatmul", &f.matmul));
  return f;
}

// The first call opens the library; WCUDA_NOT_AVAILABLE names it.
inline const Result<Functions>& functions() {
  static const Result<Functions> opened = open();
  return opened;
}

inline Status checked(int status, const char* function) {
  if (status == kSuccess) return {};
  return Status::native_error(WCUDA_INTERNAL, status, "cuBLASLt: %s returned %d", function, status);
}

}  // namespace wcuda::compute::cublas_lt
