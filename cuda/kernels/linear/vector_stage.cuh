// Stages the activations of a K-split in shared memory.
#pragma once

#include "kernels/linear/vector_params.h"
#include "kernels/ptx/dependent_launch.cuh"

namespace wcuda::kernels::vector {

// Inputs that some warps stage together.
struct StageRange {
  uint32_t begin;        // first input
  uint32_t vec8s;        // groups of eight inputs; a multiple of 8
  uint32_t first_vec8;   // index of the first in shared memory
  uint32_t warp, warps;  // index of this warp, and number of warps
};

// Adds the squares of all lanes to the sum of the warp and token.
__device__ inline void add_square(float* squares, uint32_t token, float square) {
#pragma unroll
  for (uint32_t step = 16; step != 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
  if (threadIdx.x % 32 == 0) squares[token * 16] += square;
}

// Clears the warp's sums; the last warp also clears the padding up to a float4.
template <uint32_t T>
__device__ inline void clear_squares(float* squares) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane >= T) return;
  squares[lane * 16] = 0.0f;
  if (warp + 1 == blockDim.x / 32)
    for (uint32_t pad = warp + 1; pad % 4 != 0; ++pad) squares[lane * 16 + pad - warp] = 0.0f;
}

// Waits for the previous kernel, then calls put(vec8, token, v, is_there) for every eight inputs of
// T tokens, with v = x * norm (zero past cols and past params.tokens). All lanes of a warp call put
// together, for consecutive vec8s. If is_there is false, put must store nothing. If there is a
// norm, `squares` (T, 16), offset to the column of this warp, receives the sums of squares of x.
// Warps that have inputs call after_loads after they have issued the first loads.
//
// A warp processes kPieces blocks of 32 vec8s of one or two tokens at a time.
template <uint32_t T, bool kWholeVec8, bool kHasNorm, class AfterLoads, class Put>
__device__ inline void stage_split(const VectorParams& params, const StageRange& range,
                                   float* squares, AfterLoads after_loads, Put put) {
  constexpr uint32_t kTokens = T < 2 ? T : 2;
  constexpr uint32_t kPieces = T >= 4 ? (kWholeVec8 ? 1 : 2) : (kHasNorm ? 2 : 4) / kTokens;
  constexpr uint32_t kNone = ~0u;
  const uint32_t lane = threadIdx.x % 32;
  // Work item w has tokens w % (T / kTokens) * kTokens … of vec8s w / (T / kTokens) * 32 ….
  const auto token_of = [&](uint32_t work, uint32_t i) {
    return work % (T / kTokens) * kTokens + i;
  };
  const auto vec8_of = [&](uint32_t work) { return work / (T / kTokens) * 32 + lane; };
  // Returns the first input of the lane's vec8, or kNone past the end.
  const auto input_of = [&](uint32_t work) {
    const uint32_t vec8 = vec8_of(work), input = range.begin + vec8 * 8;
    return vec8 < range.vec8s && input < params.cols ? input : kNone;
  };
  // Loads eight floats from `source`. Floats past the end become `missing`.
  const auto load = [&](const float* source, uint32_t input, float missing, float(&values)[8]) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 4) {
      float4 four = make_float4(missing, missing, missing, missing);
      if (input != kNone && (kWholeVec8 || i == 0 || input + i < params.cols))
        four = *reinterpret_cast<const float4*>(source + i);
      values[i] = four.x;
      values[i + 1] = four.y;
      values[i + 2] = four.z;
      values[i + 3] = four.w;
    }
  };
  float gains[kPieces][8];
  const auto load_gains = [&](uint32_t work) {
    if constexpr (kHasNorm) {
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p) {
        const uint32_t input = input_of(work + p * range.warps);
        load(params.norm + input, input, 1.0f, gains[p]);
      }
    }
  };
  // First inputs of the loads of x; kNone for zeros.
  uint32_t inputs[kPieces][kTokens];
  const auto find = [&](uint32_t work) {
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      const uint32_t own = work + p * range.warps, input = input_of(own);
#pragma unroll
      for (uint32_t i = 0; i < kTokens; ++i) {
        inputs[p][i] = token_of(own, i) < params.tokens ? input : kNone;
      }
    }
  };
  load_gains(range.warp);
  find(range.warp);
  if constexpr (kHasNorm) clear_squares<T>(squares);
    // The addresses of the loads are computed before the wait.
#pragma unroll
  for (uint32_t p = 0; p < kPieces; ++p)
#pragma unroll
    for (uint32_t i = 0; i < kTokens; ++i) asm volatile("" : "+r"(inputs[p][i]));
  __syncwarp();
  dependent_wait();

  // If a warp has the same tokens in all its work, it sums over its lanes only at the end.
  const bool has_own_tokens = kHasNorm && T >= 4 && range.warps * kPieces % (T / kTokens) == 0;
  float own_squares[kPieces][kTokens] = {};

#pragma unroll 1
  for (uint32_t work = range.warp; vec8_of(work) - lane < range.vec8s;
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
        uint32_t row = token_of(work + p * range.warps, i);
        if (params.x_rows != nullptr && inputs[p][i] != kNone) row = params.x_rows[row];
        const float* const source = params.x + (row * params.cols + inputs[p][i]);
        load(source, inputs[p][i], 0.0f, values[p][i]);
      }
    }
    if (work == range.warp) after_loads();
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      const uint32_t own = work + p * range.warps, vec8 = vec8_of(own);
      if (p != 0 && vec8 - lane >= range.vec8s) break;  // the whole warp
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
            add_square(squares, token, square);
        }
        put(range.first_vec8 + vec8, token, values[p][i], vec8 < range.vec8s);
      }
    }
  }
  if (has_own_tokens)
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p)
#pragma unroll
      for (uint32_t i = 0; i < kTokens; ++i)
        add_square(squares, token_of(range.warp + p * range.warps, i), own_squares[p][i]);
}

// stage_split for 4 and 8 tokens if no input is missing and vec8s is a multiple of 32. A warp
// processes 32 vec8s of four tokens at a time; tokens past params.tokens repeat the last.
template <uint32_t T, bool kHasNorm, class AfterLoads, class Put>
__device__ inline void stage_whole_split(const VectorParams& params, const StageRange& range,
                                         float* squares, AfterLoads after_loads, Put put) {
  static_assert(T == 4 || T == 8);
  // Blocks of vec8s loaded at once (H200, 8B Q4_K, with 1 and 2: 559 and 577 steps/s for 8 tokens,
  // 704 and 694 for 4).
  constexpr uint32_t kPieces = T == 8 ? 2 : 1;
  const uint32_t lane = threadIdx.x % 32, cols = params.cols;
  // With 8 tokens, two warps divide the tokens, or one warp takes one half after the other.
  const bool is_split = T == 8 && range.warps % 2 == 0;
  const uint32_t first = (is_split ? range.warp / 2 : range.warp) * 32;
  const uint32_t step = (is_split ? range.warps / 2 : range.warps) * 32;
  uint32_t token = is_split ? range.warp % 2 * 4 : 0;
  const uint32_t token_end = is_split ? token + 4 : T;
  const uint32_t input = range.begin + lane * 8;
  const auto load = [&](const float* source, float(&values)[8]) {
    const float4 front = reinterpret_cast<const float4*>(source)[0];
    const float4 back = reinterpret_cast<const float4*>(source)[1];
    values[0] = front.x, values[1] = front.y, values[2] = front.z, values[3] = front.w;
    values[4] = back.x, values[5] = back.y, values[6] = back.z, values[7] = back.w;
  };
  float gains[kPieces][8];
  const auto load_gains = [&](uint32_t vec8) {
    if constexpr (kHasNorm)
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p)
        if (vec8 + p * step < range.vec8s)
          load(params.norm + input + (vec8 + p * step) * 8, gains[p]);
  };
  load_gains(first);
  if constexpr (kHasNorm) clear_squares<T>(squares);
  __syncwarp();
  dependent_wait();

  bool is_first = true;
#pragma unroll 1
  for (; token < token_end; token += 4) {
    float own_squares[4] = {};
    const float* sources[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t row = min(token + i, params.tokens - 1);
      if (params.x_rows != nullptr) row = params.x_rows[row];
      sources[i] = params.x + (row * cols + input);
    }
#pragma unroll 1
    for (uint32_t vec8 = first; vec8 < range.vec8s; vec8 += kPieces * step) {
      float values[kPieces][4][8];
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p)
        if (p == 0 || vec8 + p * step < range.vec8s)
#pragma unroll
          for (uint32_t i = 0; i < 4; ++i) load(sources[i] + (vec8 + p * step) * 8, values[p][i]);
      if (is_first)
        after_loads();
      else
        load_gains(vec8);
      is_first = false;
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p) {
        if (p != 0 && vec8 + p * step >= range.vec8s) break;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          if constexpr (kHasNorm)
#pragma unroll
            for (uint32_t j = 0; j < 8; ++j) {
              own_squares[i] = fmaf(values[p][i][j], values[p][i][j], own_squares[i]);
              values[p][i][j] *= gains[p][j];
            }
          put(range.first_vec8 + vec8 + p * step + lane, token + i, values[p][i], true);
        }
      }
    }
    if constexpr (kHasNorm)
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) add_square(squares, token + i, own_squares[i]);
  }
}

template <uint32_t T, bool kWholeVec8, class AfterLoads, class Put>
__device__ inline void stage_split(const VectorParams& params, const StageRange& range,
                                   float* squares, AfterLoads after_loads, Put put) {
  if constexpr (T >= 4 && kWholeVec8) {
    if (range.vec8s % 32 == 0 && range.begin + range.vec8s * 8 <= params.cols) {
      if (params.norm != nullptr)
        stage_whole_split<T, true>(params, range, squares, after_loads, put);
      else
        stage_whole_split<T, false>(params, range, squares, after_loads, put);
      return;
    }
  }
  if (params.norm != nullptr)
    stage_split<T, kWholeVec8, true>(params, range, squares, after_loads, put);
  else
    stage_split<T, kWholeVec8, false>(params, range, squares, after_loads, put);
}

}  // namespace wcuda::kernels::vector
