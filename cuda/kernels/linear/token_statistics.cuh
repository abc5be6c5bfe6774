// Square sum and maximum of a token's activations, over a warp and a block. Only for .cu files.
#pragma once

#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

struct Statistics {
  float square_sum;
  float max;  // of magnitudes
};

__device__ inline Statistics warp_statistics(Statistics value) {
#pragma unroll
  for (int32_t distance = 16; distance > 0; distance /= 2) {
    value.square_sum += __shfl_xor_sync(~0u, value.square_sum, distance);
    value.max = fmaxf(value.max, __shfl_xor_sync(~0u, value.max, distance));
  }
  return value;
}

// Returns the statistics of the whole block to every thread; the order of the sum is fixed. A
// kernel may call this once. The block must have kWarps warps.
template <uint32_t kWarps>
__device__ inline Statistics block_statistics(Statistics value) {
  __shared__ Statistics parts[kWarps];
  value = warp_statistics(value);
  const uint32_t lane = threadIdx.x % 32;
  if (lane == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = lane < kWarps ? parts[lane] : Statistics{0.0f, 0.0f};
  return warp_statistics(value);
}

// Returns 2^exponent, which must be a normal number.
__device__ inline float power_of_two(int32_t exponent) {
  return bits_float(static_cast<uint32_t>(exponent + 127) << 23);
}

}  // namespace wcuda::kernels
