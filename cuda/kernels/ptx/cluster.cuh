// Clusters of blocks: ranks, barriers and each other's shared memory. Only for .cu files. A device
// without clusters has one block in each.
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
// A barrier of the whole cluster, in two halves; orders shared memory.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// The same, but nothing written before need be seen after.
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
// Of `address` (shared memory of this block) in the block of a rank.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t remote = address;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#endif
  return remote;
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ float cluster_load(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void cluster_store(uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

#endif

}  // namespace wcuda::kernels
