// The engines of linear_vector for weights that are not quantized: F16, BF16 and F32.
//
// F16 and BF16 use tensor cores (mma m16n8k16, f32 sums) with activations in two terms: for bf16 of
// 8 bits each, for f16 of 11 bits each (x / 64 = high + low / 2048). With f16, the error is 2^-22
// of values above 2^-8, and 2^-30 below; values of 4 million and above saturate. F32 uses f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/linear/vector_stage.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/shared/packed_tile.h"

namespace wcuda::kernels::vector {

template <TensorType kType, uint32_t T>
struct HalfEngine {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(kType);
  static constexpr bool kIsF16 = kType == TensorType::kF16;
  static constexpr uint32_t kStageInputs = 64;
  static constexpr uint32_t kStagePackedTiles = 1;
  static constexpr uint32_t kStageBytes = kLayout.packed_tile_bytes();
  // Accumulators. Columns are [token][high, low]; for T = 8 tokens there are two sets.
  static constexpr uint32_t kSums = T == 8 ? 8 : 4;
  static constexpr float kScale = kIsF16 ? 64.0f : 1.0f;
  static constexpr float kLowScale = kIsF16 ? 1.0f / 2048.0f : 1.0f;

  static constexpr uint32_t codes_bytes(uint32_t inputs) { return inputs * T * 4; }
  static constexpr uint32_t scales_bytes(uint32_t) { return 0; }

  static __device__ uint16_t term(float v) {
    if constexpr (kIsF16)
      return __half_as_ushort(__float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f)));
    else
      return __bfloat16_as_ushort(__float2bfloat16_rn(v));
  }
  static __device__ float value(uint16_t term) {
    if constexpr (kIsF16)
      return __half2float(__ushort_as_half(term));
    else
      return __bfloat162float(__ushort_as_bfloat16(term));
  }

  static constexpr uint32_t kStaticBytes = 0, kScratchBytes = 0;
  static __device__ void prepare() {}

  // Layout of x: [group][token][high, low][32], for T = 8 [group][high, low][token][32].
  template <class AfterLoads>
  static __device__ void stage_x(const VectorParams& params, const StageRange& range, uint8_t* x,
                                 float* squares, AfterLoads after_loads) {
    stage_split<T, false>(
        params, range, squares, after_loads,
        [&](uint32_t vec8, uint32_t token, const float(&v)[8], bool is_there) {
          if (!is_there) return;
          uint32_t high[4], low[4];  // pairs
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            uint16_t terms[2][2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const float scaled = v[2 * i + j] * (1.0f / kScale);
              terms[0][j] = term(scaled);
              terms[1][j] = term((scaled - value(terms[0][j])) * (1.0f / kLowScale));
            }
            high[i] = terms[0][0] | uint32_t{terms[0][1]} << 16;
            low[i] = terms[1][0] | uint32_t{terms[1][1]} << 16;
          }
          uint8_t* target = x + vec8 / 4 * T * 128 + vec8 % 4 * 16 + token * (T == 8 ? 64 : 128);
          *reinterpret_cast<uint4*>(target) = make_uint4(high[0], high[1], high[2], high[3]);
          *reinterpret_cast<uint4*>(target + (T == 8 ? 512 : 64)) =
              make_uint4(low[0], low[1], low[2], low[3]);
        });
  }

  static __device__ void mma(float* c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                             uint32_t b0, uint32_t b1) {
    if constexpr (kIsF16)
      mma_f16(c, a0, a1, a2, a3, b0, b1);
    else
      mma_bf16(c, a0, a1, a2, a3, b0, b1);
  }

  static __device__ void consume(const VectorParams&, const uint8_t* stage, const uint8_t* x,
                                 uint32_t group, uint32_t lane, uint8_t*, float (&sums)[kSums]) {
    uint4 rows[2][2];  // (group, row g or g + 8): 8 inputs 8t …
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
      rows[i / 2][i % 2] = *reinterpret_cast<const uint4*>(stage + i * 512 + lane * 16);
#pragma unroll
    for (uint32_t m = 0; m < 2; ++m) {
      const uint8_t* cell = x + (group + m) * T * 128 + lane * 16;
#pragma unroll
      for (uint32_t i = 0; i < kSums / 4; ++i) {
        uint4 b = make_uint4(0, 0, 0, 0);
        if (T >= 4 || lane / 8 < T) b = *reinterpret_cast<const uint4*>(cell + i * 512);
        const uint4 g = rows[m][0], g8 = rows[m][1];
        mma(sums + 4 * i, g.x, g8.x, g.y, g8.y, b.x, b.y);
        mma(sums + 4 * i, g.z, g8.z, g.w, g8.w, b.z, b.w);
      }
    }
  }

  template <class Put>
  static __device__ void store(float (&sums)[kSums], uint32_t lane, Put put) {
    const uint32_t g = lane / 4, t = lane % 4;
    if constexpr (T == 8) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i)  // tokens 2t, 2t + 1 of row g, then of g + 8
        put((2 * t + i % 2) * 16 + g + i / 2 * 8, (sums[i] + sums[4 + i] * kLowScale) * kScale);
    } else if (t < T) {
      put(t * 16 + g, (sums[0] + sums[1] * kLowScale) * kScale);
      put(t * 16 + g + 8, (sums[2] + sums[3] * kLowScale) * kScale);
    }
  }
};

template <uint32_t T>
struct F32Engine {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kF32);
  static constexpr uint32_t kStageInputs = 64;
  static constexpr uint32_t kStagePackedTiles = 1;
  static constexpr uint32_t kStageBytes = kLayout.packed_tile_bytes();
  static constexpr uint32_t kSums = 2 * T;  // (token, row g or g + 8)

  static constexpr uint32_t codes_bytes(uint32_t inputs) { return inputs * T * 4; }
  static constexpr uint32_t scales_bytes(uint32_t) { return 0; }

  static constexpr uint32_t kStaticBytes = 0, kScratchBytes = 0;
  static __device__ void prepare() {}

  // Layout of x: (input / 4, token, 4).
  template <class AfterLoads>
  static __device__ void stage_x(const VectorParams& params, const StageRange& range, uint8_t* x,
                                 float* squares, AfterLoads after_loads) {
    stage_split<T, false>(params, range, squares, after_loads,
                          [&](uint32_t vec8, uint32_t token, const float(&v)[8], bool is_there) {
                            if (!is_there) return;
                            auto* target = reinterpret_cast<float4*>(x) + vec8 * 2 * T + token;
                            target[0] = make_float4(v[0], v[1], v[2], v[3]);
                            target[T] = make_float4(v[4], v[5], v[6], v[7]);
                          });
  }

  static __device__ void consume(const VectorParams&, const uint8_t* stage, const uint8_t* x,
                                 uint32_t group, uint32_t lane, uint8_t*, float (&sums)[kSums]) {
#pragma unroll
    for (uint32_t run = 0; run < 4; ++run) {  // inputs 16 * run + 4t …
      const auto* rows = reinterpret_cast<const float4*>(stage + run * 1024 + lane * 16);
      const float4 g = rows[0], g8 = rows[32];
      const uint32_t quad = group * 8 + run * 4 + lane % 4;
#pragma unroll
      for (uint32_t token = 0; token < T; ++token) {
        const float4 v = reinterpret_cast<const float4*>(x)[quad * T + token];
        sums[2 * token] += g.x * v.x + g.y * v.y + g.z * v.z + g.w * v.w;
        sums[2 * token + 1] += g8.x * v.x + g8.y * v.y + g8.z * v.z + g8.w * v.w;
      }
    }
  }

  template <class Put>
  static __device__ void store(float (&sums)[kSums], uint32_t lane, Put put) {
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t i = 0; i < kSums; ++i) {
      sums[i] += __shfl_xor_sync(~0u, sums[i], 1);
      sums[i] += __shfl_xor_sync(~0u, sums[i], 2);
      if (t == 0) put(i / 2 * 16 + g + i % 2 * 8, sums[i]);
    }
  }
};

}  // namespace wcuda::kernels::vector
