// Programmatic dependent launch: a kernel that may start before the one ahead of it in the stream
// has ended. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// Lets the next kernel of the stream start once every block has come here.
__device__ __forceinline__ void dependent_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernel ahead has ended and its writes are visible. Nothing that another kernel
// writes may be read before, nor anything written that another kernel reads.
__device__ __forceinline__ void dependent_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Launches kernel<<<grid, block, shared_bytes>>>(parameters), in clusters of `cluster` blocks along
// x where that is not 0.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(const Launch& launch, dim3 grid, dim3 block, uint32_t shared_bytes,
                          uint32_t cluster, void (*kernel)(Parameters...),
                          const Arguments&... arguments) {
  cudaLaunchAttribute attributes[3] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  if (launch.is_dependent && launch.compute_capability >= 90) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster != 0) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  // The same division of an SM's memory for all kernels: it changes only while nothing runs there.
  attributes[config.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[config.numAttrs++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace wcuda::kernels
