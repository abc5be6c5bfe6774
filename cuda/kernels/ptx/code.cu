// This kernel is never launched: its attributes report the architecture of the code.
#include <cuda_runtime.h>

#include "kernels/ptx/code.h"

namespace wcuda::kernels {
namespace {

__global__ void code_probe(int32_t* out) { *out = 0; }

}  // namespace

int32_t launch_capability() {
  int device = 0, major = 0, minor = 0;
  cudaFuncAttributes attributes{};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
      cudaFuncGetAttributes(&attributes, code_probe) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return usable_capability(major * 10 + minor, attributes.ptxVersion);
}

}  // namespace wcuda::kernels
