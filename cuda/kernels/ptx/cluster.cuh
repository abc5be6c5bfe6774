// Clusters of blocks: ranks, barriers, distributed shared memory. Only for .cu files. On a device
// without clusters each block is a cluster of one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
  return size;
}
// The two halves of a barrier of the cluster; it orders accesses to memory between its blocks.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// The same without ordering earlier writes.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// Returns the address, in the block of `rank`, that corresponds to `address` in this block.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t remote = address;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#endif
  return remote;
}
// The same for a pointer to a shared variable.
template <class T>
__device__ __forceinline__ T* cluster_pointer(T* variable, [[maybe_unused]] uint32_t rank) {
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

// The functions below take addresses from cluster_address() and need compute capability 9.0.

__device__ __forceinline__ float cluster_load(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void cluster_store(uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void cluster_store(uint32_t address, float2 value) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x),
               "f"(value.y)
               : "memory");
}
__device__ __forceinline__ void cluster_store(uint32_t address, float4 value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}
// Stores 16 or 8 bytes and counts them on an mbarrier of the same block.
__device__ __forceinline__ void cluster_store_async(uint32_t target, uint64_t a, uint64_t b,
                                                    uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::
          "r"(target),
      "l"(a), "l"(b), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void cluster_store_async(uint32_t target, uint64_t a, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
          target),
      "l"(a), "r"(barrier)
      : "memory");
}

}  // namespace wcuda::kernels
