// Accesses to global memory with a memory order at gpu scope, by which blocks communicate. Relaxed
// accesses bypass L1 and order no other access. An acquire sees what was written before the release
// whose value it reads. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

__device__ __forceinline__ uint32_t load_relaxed_32(const void* place) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
  return value;
}
// Loads 16 bytes. They may be of different times, word by word.
__device__ __forceinline__ float4 load_relaxed_float4(const float* place) {
  float4 value;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(place)
               : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed_32(void* place, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(place), "r"(value) : "memory");
}

__device__ __forceinline__ uint64_t load_acquire_64(const uint64_t* place) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(place) : "memory");
  return value;
}

// Increments a counter and returns its old value, with acquire-release order.
__device__ __forceinline__ uint32_t increment_acq_rel(uint32_t* counter) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(old)
               : "l"(counter)
               : "memory");
  return old;
}
__device__ __forceinline__ uint64_t increment_acq_rel(uint64_t* counter) {
  uint64_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;"
               : "=l"(old)
               : "l"(counter)
               : "memory");
  return old;
}

}  // namespace wcuda::kernels
