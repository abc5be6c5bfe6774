// mbarrier: a barrier in shared memory that counts arrivals and bytes of asynchronous copies. A
// phase ends when both counts are complete, and the next begins. A thread waits for the end of a
// phase by its parity: 0, 1, 0, … A wait for parity 1 during the first phase returns immediately.
//
// Barriers are shared addresses of 8 bytes, aligned to 8. Compute capability 9.0 and later; only
// for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

constexpr uint32_t kBarrierBytes = 8;

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes this thread's mbarrier_init visible to the cluster and to asynchronous copies.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
template <uint32_t kArrivals>
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "n"(kArrivals)
               : "memory");
}
// Arrives on the barrier of another CTA, given by cluster_address().
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives when the cp.async copies that this thread has issued are complete.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and makes the phase wait for `bytes` more bytes.
__device__ __forceinline__ void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Waits for the end of the phase of this parity. Writes by threads of the CTA before they arrived
// are then visible.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// The same for writes by threads of the cluster.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Orders earlier accesses of this thread to shared memory before later ones by asynchronous copies
// and WGMMA.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace wcuda::kernels
