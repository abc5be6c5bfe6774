// The launch of the kernels that run within a step of a model: those of linear, attention, step and
// sampling. Such kernels may overlap with the one before (programmatic dependent launch), may need
// clusters, and share one carveout. The kernels of memory and of catalogue are launched with
// <<<>>>: they start when the one before has ended, and have neither clusters nor dynamic shared
// memory.
#pragma once

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <cuda_runtime_api.h>
#endif

#include <cstdint>

namespace wcuda::kernels {

// Where and how a kernel is launched.
struct Launch {
  cudaStream_t stream = nullptr;
  int32_t sm_count = 0;
  int32_t compute_capability = 0;  // major * 10 + minor
  // Programmatic dependent launch: the kernel may start before the previous one in the stream has
  // ended, loads weights, then waits. Every kernel in such a sequence waits.
  bool is_dependent = false;
  // For kernels that have a function …_scratch_bytes: aligned to 16 bytes and all zero before the
  // first use. Kernels reset their counters there to zero, so calls in one stream may share it.
  void* scratch = nullptr;
  uint64_t scratch_bytes = 0;
};

#if defined(__CUDACC__)

// Launches kernel<<<grid, block, shared_bytes>>>(parameters), with clusters of `cluster` blocks
// along x unless that is 0.
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
  // One carveout for all kernels: an SM can change it only while it is idle.
  attributes[config.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[config.numAttrs++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

#endif

}  // namespace wcuda::kernels
