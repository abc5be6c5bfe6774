// Barriers of some of the warps of a block. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

// Waits for `threads` threads of the block, all of the warps that call this, at barrier kIndex (1 …
// 15; __syncthreads is 0). Orders their accesses to memory.
template <uint32_t kIndex>
__device__ __forceinline__ void named_barrier_sync(uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kIndex), "r"(threads) : "memory");
}
// The same where the index is not a constant.
__device__ __forceinline__ void named_barrier_sync(uint32_t index, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
}
// Counts the calling warps towards the `threads` of the barrier without waiting for the others.
__device__ __forceinline__ void named_barrier_arrive(uint32_t index, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

}  // namespace wcuda::kernels
