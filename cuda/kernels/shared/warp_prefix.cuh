// Prefix sums over the lanes of a warp. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

// Returns the sum of the values of the lanes up to this one. Called by all lanes.
template <class T>
__device__ __forceinline__ T warp_prefix(T value, uint32_t lane) {
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const T below = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

}  // namespace wcuda::kernels
