// cp.async: copies of 16 bytes per thread from global to shared memory, in groups that complete in
// order. Compute capability 8.0 and later; only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

// Copies `bytes` bytes and fills the rest of the 16 with 0.
__device__ __forceinline__ void copy_async_16(uint32_t target, const void* source, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_16(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace wcuda::kernels
