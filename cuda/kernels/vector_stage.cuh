// The walk over a slice of the activations that puts them into shared memory.
#pragma once

#include "kernels/dependent_launch.h"
#include "kernels/vector_params.h"

namespace wcuda::kernels::vector {

// Inputs that some warps stage together.
struct StageRange {
  uint32_t begin;        // first input
  uint32_t eights;       // groups of eight inputs; a multiple of 8
  uint32_t first_eight;  // number of the first in shared memory
  uint32_t warp, warps;  // this warp, of so many
};

// Waits for the kernel ahead, then calls put(eight, token, v, is_there) for eight inputs each,
// v = x * norm (zero past cols and for tokens past columns), for T tokens. Whole warps call, for
// eights in a row; where not is_there, nothing may be stored. squares (T, 16): 0 … of the
// warp gets sums of squares of x if there is a norm. after_loads is called once the first inputs
// are on the way, by warps that have any.
//
// A warp does kPieces blocks of 32 eights at once, of one token or two. kIsFull: none of the inputs
// and tokens is missing, and rows are as they lie.
template <uint32_t T, bool kWholeEights, bool kHasNorm, bool kIsFull, class AfterLoads, class Put>
__device__ inline void stage_slice(const VectorParams& params, const StageRange& range,
                                   float* squares, AfterLoads after_loads, Put put) {
  constexpr uint32_t kTokens = T < 2 ? T : 2;
  constexpr uint32_t kPieces =
      T >= 4 ? (kIsFull || !kWholeEights ? 2 : 1) : (kHasNorm ? 2 : 4) / kTokens;
  constexpr uint32_t kNone = ~0u;
  const uint32_t lane = threadIdx.x % 32;
  // Work w is the tokens w % (T / kTokens) * kTokens … of the eights w / (T / kTokens) * 32 ….
  const auto token_of = [&](uint32_t work, uint32_t i) {
    return work % (T / kTokens) * kTokens + i;
  };
  const auto eight_of = [&](uint32_t work) { return work / (T / kTokens) * 32 + lane; };
  // Piece p of work: past the end, where only kIsFull does not look, the first.
  const auto piece_of = [&](uint32_t work, uint32_t p) {
    const uint32_t own = work + p * range.warps;
    return kIsFull && eight_of(own) - lane >= range.eights ? 0 : own;
  };
  // First input of the lane's eight, kNone where there is none.
  const auto input_of = [&](uint32_t work) {
    const uint32_t eight = eight_of(work), input = range.begin + eight * 8;
    return kIsFull || (eight < range.eights && input < params.cols) ? input : kNone;
  };
  // Eight floats at `source`; `missing` where there are none.
  const auto load = [&](const float* source, uint32_t input, float missing, float(&values)[8]) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 4) {
      float4 four = make_float4(missing, missing, missing, missing);
      if (kIsFull || (input != kNone && (kWholeEights || i == 0 || input + i < params.cols)))
        four = *reinterpret_cast<const float4*>(source + i);
      values[i] = four.x;
      values[i + 1] = four.y;
      values[i + 2] = four.z;
      values[i + 3] = four.w;
    }
  };
  float gains[kPieces][8];
  const auto add_square = [&](uint32_t token, float square) {
#pragma unroll
    for (uint32_t step = 16; step != 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
    if (lane == 0) squares[token * 16] += square;
  };
  const auto load_gains = [&](uint32_t work) {
    if constexpr (kHasNorm) {
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p) {
        const uint32_t input = input_of(piece_of(work, p));
        load(params.norm + input, input, 1.0f, gains[p]);
      }
    }
  };
  // Of x; kNone for zeros.
  uint32_t inputs[kPieces][kTokens];
  const auto find = [&](uint32_t work) {
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      const uint32_t own = piece_of(work, p), input = input_of(own);
#pragma unroll
      for (uint32_t i = 0; i < kTokens; ++i) {
        inputs[p][i] = kIsFull || token_of(own, i) < params.columns ? input : kNone;
      }
    }
  };
  load_gains(range.warp);
  find(range.warp);
  if (kHasNorm && lane < T) {
    squares[lane * 16] = 0.0f;
    // The last warp clears what is added with it.
    const uint32_t warp = threadIdx.x / 32;
    if (warp + 1 == blockDim.x / 32)
      for (uint32_t pad = warp + 1; pad % 4 != 0; ++pad) squares[lane * 16 + pad - warp] = 0.0f;
  }
  // All that the loads need is there when the wait ends.
#pragma unroll
  for (uint32_t p = 0; p < kPieces; ++p)
#pragma unroll
    for (uint32_t i = 0; i < kTokens; ++i) asm volatile("" : "+r"(inputs[p][i]));
  __syncwarp();
  dependent_wait();

  // A warp whose tokens stay the same adds up its lanes at the end.
  const bool has_own_tokens = kHasNorm && T >= 4 && range.warps * kPieces % (T / kTokens) == 0;
  float own_squares[kPieces][kTokens] = {};

#pragma unroll 1
  for (uint32_t work = range.warp; eight_of(work) - lane < range.eights;
       work += kPieces * range.warps) {
    if (work != range.warp) {
      load_gains(work);
      find(work);
    }
    float values[kPieces][kTokens][8];
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
#pragma unroll
      for (uint32_t i = 0; i < kTokens; ++i) {
        uint32_t row = token_of(piece_of(work, p), i);
        if (!kIsFull && params.x_rows != nullptr && inputs[p][i] != kNone) row = params.x_rows[row];
        const float* const source = params.x + (row * params.cols + inputs[p][i]);
        load(source, inputs[p][i], 0.0f, values[p][i]);
      }
    }
    if (work == range.warp) after_loads();
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      const uint32_t own = work + p * range.warps, eight = eight_of(own);
      if (p != 0 && eight - lane >= range.eights) break;  // the whole warp
#pragma unroll
      for (uint32_t i = 0; i < kTokens; ++i) {
        const uint32_t token = token_of(own, i);
        if constexpr (kHasNorm) {
          float square = 0.0f;
#pragma unroll
          for (uint32_t j = 0; j < 8; ++j) {
            square += values[p][i][j] * values[p][i][j];
            values[p][i][j] *= gains[p][j];
          }
          if (has_own_tokens)
            own_squares[p][i] += square;
          else
            add_square(token, square);
        }
        put(range.first_eight + eight, token, values[p][i], kIsFull || eight < range.eights);
      }
    }
  }
  if (has_own_tokens)
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p)
#pragma unroll
      for (uint32_t i = 0; i < kTokens; ++i)
        add_square(token_of(range.warp + p * range.warps, i), own_squares[p][i]);
}

template <uint32_t T, bool kWholeEights, class AfterLoads, class Put>
__device__ inline void stage_slice(const VectorParams& params, const StageRange& range,
                                   float* squares, AfterLoads after_loads, Put put) {
  if constexpr (T >= 4 && kWholeEights) {
    if (params.columns == T && params.x_rows == nullptr && range.eights % 32 == 0 &&
        range.begin + range.eights * 8 <= params.cols) {
      if (params.norm != nullptr)
        stage_slice<T, kWholeEights, true, true>(params, range, squares, after_loads, put);
      else
        stage_slice<T, kWholeEights, false, true>(params, range, squares, after_loads, put);
      return;
    }
  }
  if (params.norm != nullptr)
    stage_slice<T, kWholeEights, true, false>(params, range, squares, after_loads, put);
  else
    stage_slice<T, kWholeEights, false, false>(params, range, squares, after_loads, put);
}

}  // namespace wcuda::kernels::vector
