// This kernel is never launched: its attributes report the architecture of the code.
#include <cuda_runtime.h>

#include "kernels/ptx/code.h"

namespace wcuda::kernels {
namespace {

__global__ void code_probe(int32_t* out) { *out = 0; }

}  // namespace

static_assert(means_no_code(cudaErrorInvalidDeviceFunction) &&
              means_no_code(cudaErrorNoKernelImageForDevice) &&
              means_no_code(cudaErrorJitCompilerNotFound) &&
              means_no_code(cudaErrorUnsupportedPtxVersion) &&
              means_no_code(cudaErrorJitCompilationDisabled));

int32_t launch_capability(int32_t* error) {
  int device = 0, major = 0, minor = 0;
  cudaFuncAttributes attributes{};
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, code_probe);
  if (error != nullptr) *error = means_no_code(status) ? cudaSuccess : status;
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return usable_capability(major * 10 + minor, attributes.ptxVersion);
}

}  // namespace wcuda::kernels
