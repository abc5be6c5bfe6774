// Programmatic dependent launch: a kernel that may start before the one ahead of it in the stream
// has ended. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

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

}  // namespace wcuda::kernels
