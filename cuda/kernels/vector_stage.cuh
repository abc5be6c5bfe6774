// The walk over a CTA's slice of the activations that puts them into shared memory.
#pragma once

#include "kernels/dependent_launch.h"
#include "kernels/vector_params.h"

namespace wcuda::kernels::vector {

// Waits for the kernel ahead, then calls put(eight, token, v, is_there) for eight inputs each,
// v = x * norm of begin + 8 * eight … (zero past cols and for tokens past columns); count inputs, a
// multiple of 64, for T tokens. Whole warps call, for eights in a row; where not is_there, nothing
// may be stored. squares (warps, T) gets sums of squares of x if there is a norm.
template <uint32_t T, class Put>
__device__ inline void stage_slice(const VectorParams& params, uint32_t begin, uint32_t count,
                                   float* squares, Put put) {
  // Pieces of eight inputs that a thread has in flight.
  constexpr uint32_t kPieces = T == 1 ? 2 : 1, kTokens = T < 4 ? T : 4;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t eights = count / 8;
  if (lane < T) squares[warp * T + lane] = 0.0f;
  // Eight floats of `source`; `missing` where there are none.
  const auto load = [&](const float* source, uint32_t eight, bool is_there, float missing,
                        float(&values)[8]) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 4) {
      const uint32_t input = begin + eight * 8 + i;
      float4 four = make_float4(missing, missing, missing, missing);
      if (is_there && eight < eights && input < params.cols)
        four = *reinterpret_cast<const float4*>(source + input);
      values[i] = four.x;
      values[i + 1] = four.y;
      values[i + 2] = four.z;
      values[i + 3] = four.w;
    }
  };
  float gains[kPieces][8];
  const auto load_gains = [&](uint32_t first) {
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p)
      load(params.norm, first + p * kVectorThreads, params.norm != nullptr, 1.0f, gains[p]);
  };
  load_gains(threadIdx.x);
  __syncwarp();
  dependent_wait();

#pragma unroll 1
  for (uint32_t first = threadIdx.x; first - lane < eights; first += kPieces * kVectorThreads) {
    if (first >= kPieces * kVectorThreads) load_gains(first);
#pragma unroll 1
    for (uint32_t begin_token = 0; begin_token < T; begin_token += kTokens) {
      float values[kPieces][kTokens][8];
#pragma unroll
      for (uint32_t i = 0; i < kTokens; ++i) {
        const uint32_t token = begin_token + i;
        const bool is_column = token < params.columns;
        const uint64_t row =
            is_column && params.x_rows != nullptr ? params.x_rows[token] : uint64_t{token};
#pragma unroll
        for (uint32_t p = 0; p < kPieces; ++p)
          load(params.x + row * params.cols, first + p * kVectorThreads, is_column, 0.0f,
               values[p][i]);
      }
#pragma unroll
      for (uint32_t i = 0; i < kTokens; ++i) {
        float square = 0.0f;
#pragma unroll
        for (uint32_t p = 0; p < kPieces; ++p) {
          const uint32_t eight = first + p * kVectorThreads;
          if (eight - lane >= eights) break;  // the whole warp
#pragma unroll
          for (uint32_t j = 0; j < 8; ++j) {
            square += values[p][i][j] * values[p][i][j];
            values[p][i][j] *= gains[p][j];
          }
          put(eight, begin_token + i, values[p][i], eight < eights);
        }
        if (params.norm != nullptr) {
#pragma unroll
          for (uint32_t step = 16; step != 0; step /= 2)
            square += __shfl_xor_sync(~0u, square, step);
          if (lane == 0) squares[warp * T + begin_token + i] += square;
        }
      }
    }
  }
}

}  // namespace wcuda::kernels::vector
