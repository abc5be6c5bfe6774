// 32-bit shared-memory addresses, as PTX instructions take them, and loads and stores there. Only
// for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint32_t load_shared_32(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_shared_16(uint32_t address) {
  uint16_t value;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared_16(uint32_t address, uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
__device__ __forceinline__ void store_shared_8(uint32_t address, uint16_t value) {
  asm volatile("st.shared.b8 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
// Clears 16 bytes at a multiple of 16.
__device__ __forceinline__ void clear_shared_16_bytes(uint32_t address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

}  // namespace wcuda::kernels
