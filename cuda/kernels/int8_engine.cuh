// Products of quantized weights with activations of two int8 terms, on int8 tensor cores: the inner
// part of linear_vector for every format with a tile (kernels/tile.h).
#pragma once

#include <type_traits>

#include "kernels/tile.h"
#include "kernels/vector_stage.cuh"

namespace wcuda::kernels::vector {

template <bool kSigned>
__device__ inline void mma_int8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kSigned)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two int8 terms: x = scale * (256 * high + low), |256 * high + low| ≤ 32639 = 127 * 256 + 127.
constexpr float kCodeMax = 32639.0f;

// Puts h = x * norm of the slice into the B operands of T tokens: codes [group][token][high, low]
// [32], for T = 8 [group][token][t][high, low][8], and for each group and token {scale, scale *
// sum, sum of its first 16 codes, of its last 16}.
template <uint32_t T, Ownership kOwnership>
__device__ inline void put_int8(uint32_t eight, uint32_t token, const float (&v)[8], bool is_there,
                                uint8_t* codes, uint8_t* scales) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(v[i]));
  amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 2));
  const float inverse = amax > 0.0f ? __fdividef(kCodeMax, amax) : 0.0f;
  int32_t q[8];
  int32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    q[i] = __float2int_rn(v[i] * inverse);
    sum += q[i];
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  const int32_t other = __shfl_xor_sync(~0u, sum, 2);
  if (!is_there) return;
  // The low term is the low byte of q, the high one the next of q + 128.
  uint32_t high[2], low[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t* four = q + 4 * i;
    high[i] = __byte_perm(__byte_perm(four[0] + 128, four[1] + 128, 0x0051),
                          __byte_perm(four[2] + 128, four[3] + 128, 0x0051), 0x5410);
    low[i] = __byte_perm(__byte_perm(four[0], four[1], 0x0040),
                         __byte_perm(four[2], four[3], 0x0040), 0x5410);
  }
  const uint32_t cell = eight / 4 * T + token;
  constexpr uint32_t kLowOffset = T == 8 ? 8 : 32;
  uint8_t* target = codes + cell * 64;
  if constexpr (kOwnership == Ownership::kEight) {
    target += eight % 4 * (T == 8 ? 16 : 8);
    *reinterpret_cast<uint2*>(target) = make_uint2(high[0], high[1]);
    *reinterpret_cast<uint2*>(target + kLowOffset) = make_uint2(low[0], low[1]);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t place = owned_place(kOwnership, eight % 4 * 8 + 4 * i);
      uint8_t* four = target + (T == 8 ? place / 8 * 16 + place % 8 : place);
      *reinterpret_cast<uint32_t*>(four) = high[i];
      *reinterpret_cast<uint32_t*>(four + kLowOffset) = low[i];
    }
  }
  if (eight % 4 == 0) {
    const float scale = amax * (1.0f / kCodeMax);
    *reinterpret_cast<uint4*>(scales + cell * 16) =
        make_uint4(__float_as_uint(scale), __float_as_uint(scale * static_cast<float>(sum + other)),
                   static_cast<uint32_t>(sum), static_cast<uint32_t>(other));
  }
}

// The table of a tile with a codebook (kernels/tile_grid.h), filled by a block.
template <class Tile, class = void>
struct Codebook {
  static constexpr uint32_t kBytes = 0;
  static __device__ void prepare() {}
};
template <class Tile>
struct Codebook<Tile, std::void_t<decltype(&Tile::prepare)>> {
  static constexpr uint32_t kBytes = 8192;  // at most
  static __device__ void prepare() {
    Tile::prepare();
    __syncthreads();
  }
};

// Products of a tile with int8 activations. Columns of B are "diagonal": as many groups as there
// is room for (4 / T), each with its tokens and two terms, and in the product of one group the
// lanes of the other groups' columns carry zeros. So one accumulator takes several groups and lane
// t holds one group and token of rows g and g + 8. 8 tokens: a product for each term, lane t holds
// tokens 2t and 2t + 1.
template <uint32_t kType, uint32_t T>
struct Int8Engine {
  using Tile = kernels::Tile<kType>;
  static constexpr quant::RecordLayout kLayout = Tile::kLayout;
  // Small records in large bytes: half a chunk a stage.
  static constexpr uint32_t kUnits =
      kLayout.record_elements() < kChunkInputs &&
              kLayout.block_bytes * 256u > 3000u * kLayout.block_elements / 16u
          ? 1
          : 2;
  static constexpr uint32_t kStageInputs = kUnits * kUnitInputs;
  static constexpr uint32_t kStageRecords = kStageInputs / kLayout.record_elements();
  static constexpr uint32_t kStageBytes = kStageRecords * kLayout.record_bytes();
  static constexpr uint32_t kSums = T == 8 ? 4 : 2;  // a lane's: [token][row g, row g + 8]
  static constexpr uint32_t kGroupsOfUnit = kUnitInputs / Tile::kGroup;

  static constexpr uint32_t codes_bytes(uint32_t inputs) { return inputs * T * 2; }
  static constexpr uint32_t scales_bytes(uint32_t inputs) { return inputs / 32 * T * 16; }

  static constexpr uint32_t kStaticBytes = Codebook<Tile>::kBytes;
  static __device__ void prepare() { Codebook<Tile>::prepare(); }

  template <class AfterLoads>
  static __device__ void stage_x(const VectorParams& params, const StageRange& range, uint8_t* x,
                                 float* squares, AfterLoads after_loads) {
    stage_slice<T>(params, range, squares, after_loads,
                   [&](uint32_t eight, uint32_t token, const float(&v)[8], bool is_there) {
                     put_int8<T, Tile::kOwnership>(eight, token, v, is_there, x,
                                                   x + params.x_scales_offset);
                   });
  }

  // sums += rescaled products of an accumulator pair; h is the 16-group in its 32, if they matter.
  static __device__ void add(float (&sums)[2], int32_t product0, int32_t product1, uint4 x,
                             uint32_t h, const float (&scale)[2], const float (&min)[2]) {
    const float x_scale = __uint_as_float(x.x);
    const int32_t sum16 = static_cast<int32_t>(h ? x.w : x.z);
    if constexpr (Tile::kOffset != 0) {
      const int32_t sum = Tile::kGroup == 16 ? sum16 : static_cast<int32_t>(x.z + x.w);
      product0 -= Tile::kOffset * sum;
      product1 -= Tile::kOffset * sum;
    }
    sums[0] = fmaf(x_scale * scale[0], static_cast<float>(product0), sums[0]);
    sums[1] = fmaf(x_scale * scale[1], static_cast<float>(product1), sums[1]);
    if constexpr (Tile::kHasMin) {
      const float sum =
          Tile::kGroup == 16 ? x_scale * static_cast<float>(sum16) : __uint_as_float(x.y);
      sums[0] = fmaf(-min[0], sum, sums[0]);
      sums[1] = fmaf(-min[1], sum, sums[1]);
    }
  }

  // Adds the products of a stage with the inputs from group `group` of the slice on. sums[0] and
  // sums[1] depend on all that is read.
  static __device__ void consume(const VectorParams& params, const uint8_t* stage, const uint8_t* x,
                                 uint32_t group, uint32_t lane, float (&sums)[kSums]) {
#pragma unroll
    for (uint32_t half = 0; half < kUnits; ++half) {
      const typename Tile::Raw raw = Tile::load(stage, half, lane);
      const uint8_t* codes = x + (group + 4 * half) * T * 64;
      const uint8_t* scales = x + params.x_scales_offset + (group + 4 * half) * T * 16;
      if constexpr (T >= 4)
        consume_shared(stage, half, raw, codes, scales, lane, sums);
      else
        consume_diagonal(stage, half, raw, codes, scales, lane, sums);
    }
  }

  // T = 1 and 2: several groups in an accumulator.
  static __device__ void consume_diagonal(const uint8_t* stage, uint32_t half,
                                          const typename Tile::Raw& raw, const uint8_t* codes,
                                          const uint8_t* scales, uint32_t lane,
                                          float (&sums)[kSums]) {
    constexpr uint32_t kSetGroups = 4 / T;  // scale groups in an accumulator
    constexpr uint32_t kSets = kGroupsOfUnit / kSetGroups;
    constexpr uint32_t kSetProducts = kSetGroups * Tile::kGroup / 32;
    const uint32_t g = lane / 4, t = lane % 4;
    float scale[kSets][2], min[kSets][2];
#pragma unroll
    for (uint32_t s = 0; s < kSets; ++s)
      Tile::scales(stage, half, s * kSetGroups + t / T, lane, scale[s], min[s]);
#pragma unroll
    for (uint32_t s = 0; s < kSets; ++s) {
      int32_t c[4] = {0, 0, 0, 0};
      uint2 b;
      uint32_t carried;  // the product of the set in which this lane's column takes part
      uint4 cell;
      if constexpr (Tile::kGroup == 32) {
        b = read_8(codes + s * 256 + lane * 8);
        carried = g / (2 * T);
        cell = read_16(scales + (s * 4 + t) * 16);
      } else {
        const uint32_t own = g / (2 * T), m = own / 2;
        b = read_8(codes + (s * kSetProducts + m) * T * 64 + g % (2 * T) * 32 + t * 8);
        carried = t / 2 == own % 2 ? m : ~0u;
        cell = read_16(scales + ((s * kSetProducts + t / T / 2) * T + t % T) * 16);
      }
#pragma unroll
      for (uint32_t m = 0; m < kSetProducts; ++m) {
        uint32_t a[4];
        Tile::codes(raw, half, s * kSetProducts + m, a);
        mma_int8<Tile::kSigned>(c, a, carried == m ? b.x : 0, carried == m ? b.y : 0);
      }
      add(sums, 256 * c[0] + c[1], 256 * c[2] + c[3], cell, t / T % 2, scale[s], min[s]);
    }
  }

  // T = 4 and 8: one group in an accumulator; the lanes of a quad share out its scales.
  static __device__ void consume_shared(const uint8_t* stage, uint32_t half,
                                        const typename Tile::Raw& raw, const uint8_t* codes,
                                        const uint8_t* scales, uint32_t lane,
                                        float (&sums)[kSums]) {
    constexpr uint32_t kParts = 32 / Tile::kGroup;  // scale groups in 32 inputs
    const uint32_t t = lane % 4;
    float own_scale[kParts][2], own_min[kParts][2];
#pragma unroll
    for (uint32_t i = 0; i < kParts; ++i)
      Tile::scales(stage, half, 4 * i + t, lane, own_scale[i], own_min[i]);
#pragma unroll
    for (uint32_t m = 0; m < 4; ++m) {
      uint32_t a[4];
      Tile::codes(raw, half, m, a);
      uint4 b;
      uint4 cells[2];
      if constexpr (T == 8) {
        b = read_16(codes + m * 512 + lane * 16);
        cells[0] = read_16(scales + (m * 8 + 2 * t) * 16);
        cells[1] = read_16(scales + (m * 8 + 2 * t + 1) * 16);
      } else {
        const uint2 pair = read_8(codes + m * 256 + lane * 8);
        b = make_uint4(pair.x, pair.y, 0, 0);
        cells[0] = read_16(scales + (m * 4 + t) * 16);
      }
#pragma unroll
      for (uint32_t h = 0; h < kParts; ++h) {
        const uint32_t group = m * kParts + h;
        float scale[2], min[2];
#pragma unroll
        for (uint32_t row = 0; row < 2; ++row) {
          scale[row] = __shfl_sync(~0u, own_scale[group / 4][row], group % 4, 4);
          if (Tile::kHasMin) min[row] = __shfl_sync(~0u, own_min[group / 4][row], group % 4, 4);
        }
        const bool is_carrier = kParts == 1 || t / 2 == h;
        int32_t c[4] = {0, 0, 0, 0};
        mma_int8<Tile::kSigned>(c, a, is_carrier ? b.x : 0, is_carrier ? b.y : 0);
        if constexpr (T == 8) {
          int32_t low[4] = {0, 0, 0, 0};
          mma_int8<Tile::kSigned>(low, a, is_carrier ? b.z : 0, is_carrier ? b.w : 0);
          float first[2] = {sums[0], sums[1]}, second[2] = {sums[2], sums[3]};
          add(first, 256 * c[0] + low[0], 256 * c[2] + low[2], cells[0], h, scale, min);
          add(second, 256 * c[1] + low[1], 256 * c[3] + low[3], cells[1], h, scale, min);
          sums[0] = first[0], sums[1] = first[1], sums[2] = second[0], sums[3] = second[1];
        } else {
          float own[2] = {sums[0], sums[1]};
          add(own, 256 * c[0] + c[1], 256 * c[2] + c[3], cells[0], h, scale, min);
          sums[0] = own[0], sums[1] = own[1];
        }
      }
    }
  }

  // Sums of the 16 rows over the quads, to slot (T, 16).
  template <class Put>
  static __device__ void store(float (&sums)[kSums], uint32_t lane, Put put) {
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t step = T; step < 4; step *= 2) {
      sums[0] += __shfl_xor_sync(~0u, sums[0], step);
      sums[1] += __shfl_xor_sync(~0u, sums[1], step);
    }
    if constexpr (T == 8) {
      put(2 * t * 16 + g, sums[0]);
      put(2 * t * 16 + g + 8, sums[1]);
      put((2 * t + 1) * 16 + g, sums[2]);
      put((2 * t + 1) * 16 + g + 8, sums[3]);
    } else if (t < T) {
      put(t * 16 + g, sums[0]);
      put(t * 16 + g + 8, sums[1]);
    }
  }
};

}  // namespace wcuda::kernels::vector
