// How every kernel of the library is launched.
#pragma once

#include <cuda_runtime_api.h>

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

}  // namespace wcuda::kernels
