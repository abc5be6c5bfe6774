// How every kernel of the library is launched.
#pragma once

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <cuda_runtime_api.h>
#endif

#include <cstdint>

namespace wcuda::kernels {

// How a kernel is launched.
struct Launch {
  cudaStream_t stream = nullptr;
  int32_t sm_count = 0;
  int32_t compute_capability = 0;  // major * 10 + minor
  // Programmatic dependent launch: the kernel may start before the one ahead of it in the stream
  // has ended, loads weights, then waits. Every kernel of the chain waits.
  bool is_dependent = false;
  // For kernels that say so (…_scratch_bytes): 16-byte aligned, all zero before the first use; a
  // kernel leaves its counters there at zero. Calls in one stream may share it.
  void* scratch = nullptr;
  uint64_t scratch_bytes = 0;
};

#if defined(__CUDACC__)

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

#endif

}  // namespace wcuda::kernels
