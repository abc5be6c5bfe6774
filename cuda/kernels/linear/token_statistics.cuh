// Sums of squares and maximum of a token's activations, over a warp and a block. Only for .cu
// files.
#pragma once

#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

struct Statistics {
  float square_sum;       // of x
  float gain_square_sum;  // of x times the gain of the norm
  float max;              // of magnitudes, times the gain
};

__device__ inline Statistics warp_statistics(Statistics value) {
#pragma unroll
  for (int32_t distance = 16; distance > 0; distance /= 2) {
    value.square_sum += __shfl_xor_sync(~0u, value.square_sum, distance);
    value.gain_square_sum += __shfl_xor_sync(~0u, value.gain_square_sum, distance);
    value.max = fmaxf(value.max, __shfl_xor_sync(~0u, value.max, distance));
  }
  return value;
}

// Returns the statistics of the whole block to every thread. The order of the sums is fixed, and
// the same as if a block of kCount times the threads had called it, of which thread i * blockDim.x
// + threadIdx.x had values[i]. A kernel may call this once. The block must have at most kWarpsMax
// warps, all of them full.
template <uint32_t kWarpsMax, uint32_t kCount>
__device__ inline Statistics block_statistics(const Statistics (&values)[kCount]) {
  static_assert(kCount * kWarpsMax <= 32);
  __shared__ Statistics parts[kCount * kWarpsMax];
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warps = blockDim.x / 32;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    const Statistics value = warp_statistics(values[i]);
    if (lane == 0) parts[i * warps + threadIdx.x / 32] = value;
  }
  __syncthreads();
  return warp_statistics(lane < kCount * warps ? parts[lane] : Statistics{0.0f, 0.0f, 0.0f});
}

// Returns s such that 2^s * max is 2^14 … 2^15; 0 if `max` is 0 or not finite.
__device__ inline int32_t scale_exponent(float max) {
  constexpr int32_t kTopExponent = 14;
  const auto exponent = static_cast<int32_t>(float_bits(max) >> 23 & 255);
  if (max == 0.0f || exponent == 255) return 0;
  return min(kTopExponent + 127 - exponent, 126);
}

// Returns 2^exponent, which must be a normal number.
__device__ inline float power_of_two(int32_t exponent) {
  return bits_float(static_cast<uint32_t>(exponent + 127) << 23);
}

}  // namespace wcuda::kernels
