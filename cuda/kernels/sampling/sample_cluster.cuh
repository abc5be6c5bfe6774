// Messages into the shared memory of another block of the cluster.
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/shared_address.cuh"

namespace wcuda::kernels {
namespace {

#if __CUDA_ARCH__ >= 900
// Writes 16 bytes into another block's shared memory and counts them on its barrier.
__device__ __forceinline__ void send(uint32_t target, uint64_t a, uint64_t b, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::
          "r"(target),
      "l"(a), "l"(b), "r"(barrier)
      : "memory");
}
// The same, 8 bytes.
__device__ __forceinline__ void send(uint32_t target, uint64_t a, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
          target),
      "l"(a), "r"(barrier)
      : "memory");
}
// The one arrival of a phase that ends when `bytes` have come too.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_bytes(uint32_t barrier, uint32_t parity) {
  uint32_t is_done = 0;
  while (!is_done)
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(is_done)
        : "r"(barrier), "r"(parity)
        : "memory");
}
#endif

// The same shared variable in block `rank` of the cluster.
template <class T>
__device__ __forceinline__ T* in_block(T* variable, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  uint64_t address;
  asm volatile("mapa.u64 %0, %1, %2;"
               : "=l"(address)
               : "l"(reinterpret_cast<uint64_t>(variable)), "r"(rank));
  return reinterpret_cast<T*>(address);
#else
  return variable;
#endif
}

}  // namespace
}  // namespace wcuda::kernels
