// Prefix sums over the lanes of a warp. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

// Returns the sum of the values of the lanes up to this one. Called by all lanes.
__device__ inline uint32_t warp_prefix(uint32_t value, uint32_t lane) {
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

}  // namespace wcuda::kernels
