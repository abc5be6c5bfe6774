// 32-bit shared-memory addresses, as PTX instructions take them. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace wcuda::kernels
