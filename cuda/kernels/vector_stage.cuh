// The walk over a CTA's slice of the activations that puts them into shared memory.
#pragma once

#include "kernels/dependent_launch.h"
#include "kernels/vector_params.h"

namespace wcuda::kernels::vector {

// Waits for the kernel ahead, then calls put(quad, token, v) for four inputs each, v = x * norm of
// begin + 4 * quad … (zero past cols and for tokens past columns); count inputs, a multiple of 64,
// for T tokens. Lanes of a warp come with quads in a row, sixteen of them at least. squares (warps,
// T) gets sums of squares of x.
template <uint32_t T, class Put>
__device__ inline void stage_slice(const VectorParams& params, uint32_t begin, uint32_t count,
                                   float* squares, Put put) {
  constexpr uint32_t kBatch = 4;  // loads in flight of a thread
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t quads = count / 4;
  if (lane < T) squares[warp * T + lane] = 0.0f;
  float4 gains[kBatch];
  const auto load_gains = [&](uint32_t first) {
#pragma unroll
    for (uint32_t b = 0; b < kBatch; ++b) {
      const uint32_t quad = first + b * kVectorThreads, input = begin + quad * 4;
      gains[b] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
      if (params.norm != nullptr && quad < quads && input < params.cols)
        gains[b] = __ldg(reinterpret_cast<const float4*>(params.norm + input));
    }
  };
  load_gains(threadIdx.x);
  __syncwarp();
  dependent_wait();

#pragma unroll 1
  for (uint32_t first = threadIdx.x; first - lane < quads; first += kBatch * kVectorThreads) {
    if (first >= kBatch * kVectorThreads) load_gains(first);
#pragma unroll 1
    for (uint32_t token = 0; token < T; ++token) {
      const bool is_column = token < params.columns;
      const uint64_t row =
          is_column && params.x_rows != nullptr ? params.x_rows[token] : uint64_t{token};
      const float* x = params.x + row * params.cols;
      float4 values[kBatch];
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) {
        const uint32_t quad = first + b * kVectorThreads, input = begin + quad * 4;
        values[b] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (is_column && quad < quads && input < params.cols)
          values[b] = *reinterpret_cast<const float4*>(x + input);
      }
      float square = 0.0f;
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) {
        const uint32_t quad = first + b * kVectorThreads;
        if (quad - lane >= quads) break;  // the whole warp
        float4 v = values[b];
        square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        v.x *= gains[b].x;
        v.y *= gains[b].y;
        v.z *= gains[b].z;
        v.w *= gains[b].w;
        put(quad, token, v);
      }
#pragma unroll
      for (uint32_t step = 16; step != 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
      if (lane == 0) squares[warp * T + token] += square;
    }
  }
}

}  // namespace wcuda::kernels::vector
