// TMA bulk copies: one thread copies up to a stage of a pipeline from global to shared memory. The
// copy completes on an mbarrier, which mbarrier_expect_tx() has prepared for its bytes. Copies from
// shared to global memory complete in groups of the thread that started them; before them,
// fence_proxy_async() must follow the writes to shared memory. Addresses and sizes are multiples of
// 16. Compute capability 9.0 and later; only for .cu files.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

// Copies `bytes` bytes; target and barrier are shared addresses.
__device__ __forceinline__ void bulk_copy(uint32_t target, const void* source, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same with an L2 cache policy.
__device__ __forceinline__ void bulk_copy(uint32_t target, const void* source, uint32_t bytes,
                                          uint32_t barrier, uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(target),
      "l"(source), "r"(bytes), "r"(barrier), "l"(l2_policy)
      : "memory");
}

// Copies to the same offset in each CTA of the cluster whose bit is set in `ranks`, and completes
// on the barrier of each.
__device__ __forceinline__ void bulk_copy_multicast(uint32_t target, const void* source,
                                                    uint32_t bytes, uint32_t barrier,
                                                    uint32_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(target),
      "l"(source), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(ranks))
      : "memory");
}

// Copies the box at (element, row) of the matrix that a tensor map describes (tensor_map.h). The
// map is a __grid_constant__ parameter; the target is aligned to 1024 bytes.
__device__ __forceinline__ void tensor_copy(uint32_t target, const CUtensorMap& map,
                                            uint32_t element, uint32_t row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(target),
      "l"(&map), "r"(element), "r"(row), "r"(barrier)
      : "memory");
}

// Loads `bytes` bytes into the L2 cache, if that is possible.
__device__ __forceinline__ void bulk_prefetch(const void* source, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

// Copies `bytes` bytes from shared to global memory, or adds them, as f32 values, to the target.
__device__ __forceinline__ void bulk_store(void* target, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target),
               "r"(source), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_add(float* target, uint32_t source, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(target),
      "r"(source), "r"(bytes)
      : "memory");
}
// Closes a group of the thread's copies to global memory.
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the thread's groups have read their sources, or until they are complete.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Cache policy for data that is read once: L2 evicts it first.
__device__ __forceinline__ uint64_t l2_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

}  // namespace wcuda::kernels
