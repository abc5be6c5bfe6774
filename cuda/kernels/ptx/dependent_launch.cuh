// Programmatic dependent launch: a kernel may start before the previous one of its stream has
// ended. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

namespace wcuda::kernels {

// Allows the next kernel of the stream to start once every block has called this.
__device__ __forceinline__ void dependent_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the previous kernel has ended and its writes are visible. Before this call a kernel
// must not read what another kernel writes, nor write what another kernel reads; with one
// exception: a kernel that never triggers has ended before any later one starts, so that what it
// and kernels before it wrote may be read, past the L1 cache.
__device__ __forceinline__ void dependent_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace wcuda::kernels
