// Transposes 16-byte chunks among four lanes, so that lanes that each hold 64 consecutive bytes can
// store 64 consecutive bytes together.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace wcuda::kernels {

// chunks[i] of lane q of a quad becomes chunks[q] of lane i. Called by all lanes of the warp.
__device__ inline void quad_transpose(uint4 (&chunks)[4]) {
#pragma unroll
  for (uint32_t bit = 1; bit <= 2; bit *= 2) {
    const bool is_upper = (threadIdx.x & bit) != 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      uint4& low = chunks[i];
      uint4& high = chunks[i + bit];
      uint4 sent = is_upper ? low : high;
      sent.x = __shfl_xor_sync(~0u, sent.x, bit);
      sent.y = __shfl_xor_sync(~0u, sent.y, bit);
      sent.z = __shfl_xor_sync(~0u, sent.z, bit);
      sent.w = __shfl_xor_sync(~0u, sent.w, bit);
      if (is_upper)
        low = sent;
      else
        high = sent;
    }
  }
}

}  // namespace wcuda::kernels
