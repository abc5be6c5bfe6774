// The engine of linear_vector for quantized weights: int8 tensor cores with activations of two int8
// terms, for every format that has a Tile (kernels/linear/tile.cuh).
#pragma once

#include <type_traits>

#include "kernels/linear/tile.cuh"
#include "kernels/linear/vector_stage.cuh"
#include "kernels/linear/whole_scales.cuh"
#include "kernels/ptx/mma.cuh"

namespace wcuda::kernels::vector {

// Returns v truncated to tf32.
__device__ inline float tf32_part(float v) {
  return __uint_as_float(__float_as_uint(v) & 0xffffe000);
}

// Returns 1 / v with an error of 1 or 2 ulp.
__device__ inline float reciprocal(float v) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(v));
  return inverse;
}

// Two int8 terms: x = scale * (256 * high + low), |256 * high + low| ≤ 32639 = 127 * 256 + 127.
constexpr float kCodeMax = 32639.0f;

// Stores h = x * norm of the K-split as operand B of T tokens: codes [group][token][high, low][32],
// for T = 8 [group][token][t][high, low][8], and scales.
//
// T = 1 and 2: each group and token has {scale, scale * sum, sum of its first 16 codes, sum of its
// last 16 codes}. Scales of odd groups compensate for weights that are 2^kOddShift times too large.
//
// T = 4 and 8: the 256 inputs of a warp have one scale per token, so that the sums of groups can be
// added before it is applied. It is repeated for each half K-tile of 128 inputs: [half
// K-tile]{[token] scale, [group][token]{sum of the first 16 codes, of the last 16}}, or with
// kSplitSum {scale * sum as two tf32 terms}.
constexpr uint32_t kHalfScaleBytes = 36;  // per token and half K-tile

template <uint32_t T, Ownership kOwnership, uint32_t kOddShift, bool kSplitSum>
__device__ inline void put_int8(uint32_t vec8, uint32_t token, const float (&v)[8], bool is_there,
                                uint8_t* codes, uint8_t* scales) {
  float amax = fmaxf(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))),
                     fmaxf(fmaxf(fabsf(v[4]), fabsf(v[5])), fmaxf(fabsf(v[6]), fabsf(v[7]))));
  if constexpr (T < 4) {
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 2));
  } else {
    amax = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(amax)));
  }
  const float inverse = T < 4 ? (amax > 0.0f ? __fdividef(kCodeMax, amax) : 0.0f)
                              : kCodeMax * reciprocal(fmaxf(amax, 1e-30f));
  // Adding 1.5 * 2^23 rounds to an integer: the low bits of the sum are the integer plus 128.
  constexpr float kRounder = 12582912.0f + 128.0f;
  uint32_t q[8];
  uint32_t all = -8u * (0x4b400000u + 128u);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    q[i] = __float_as_uint(fmaf(v[i], inverse, kRounder));
    all += q[i];
  }
  int32_t sum = static_cast<int32_t>(all);
  sum += __shfl_xor_sync(~0u, sum, 1);
  const int32_t other = __shfl_xor_sync(~0u, sum, 2);
  // The low term is the low byte minus 128, the high term the next byte.
  uint32_t high[2], low[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t* four = q + 4 * i;
    const uint32_t front = __byte_perm(four[0], four[1], 0x5140);
    const uint32_t back = __byte_perm(four[2], four[3], 0x5140);
    high[i] = __byte_perm(front, back, 0x7632);
    low[i] = __byte_perm(front, back, 0x5410) ^ 0x80808080;
  }
  // With T = 4 and 8, lane 0 has the first inputs of a half K-tile, so a place within the half
  // K-tile depends only on lane and token.
  const uint32_t lane = T < 4 ? vec8 : threadIdx.x % 32, half_index = (vec8 - lane) / 16;
  constexpr uint32_t kLowOffset = T == 8 ? 8 : 32;
  uint8_t* const target = codes + (half_index * 4 * T + token) * 64 + lane / 4 * (T * 64);
  if constexpr (kOwnership == Ownership::kContiguous8) {
    uint8_t* const place = target + lane % 4 * (T == 8 ? 16 : 8);
    if (is_there) {
      if constexpr (T == 8) {
        *reinterpret_cast<uint4*>(place) = make_uint4(high[0], high[1], low[0], low[1]);
      } else {
        *reinterpret_cast<uint2*>(place) = make_uint2(high[0], high[1]);
        *reinterpret_cast<uint2*>(place + kLowOffset) = make_uint2(low[0], low[1]);
      }
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t place = owned_place(kOwnership, lane % 4 * 8 + 4 * i);
      uint8_t* const four = target + (T == 8 ? place / 8 * 16 + place % 8 : place);
      if (is_there) {
        *reinterpret_cast<uint32_t*>(four) = high[i];
        *reinterpret_cast<uint32_t*>(four + kLowOffset) = low[i];
      }
    }
  }
  const float scale = amax * (1.0f / kCodeMax);
  const float scaled_sum = scale * static_cast<float>(sum + other);
  const bool is_first = is_there && lane % 4 == 0;
  if constexpr (T < 4) {
    const uint32_t cell = vec8 / 4 * T + token;
    const float group_scale = cell / T % 2 != 0 ? scale * (1.0f / (1 << kOddShift)) : scale;
    if (is_first)
      *reinterpret_cast<uint4*>(scales + cell * 16) =
          make_uint4(__float_as_uint(group_scale), __float_as_uint(scaled_sum),
                     static_cast<uint32_t>(sum), static_cast<uint32_t>(other));
  } else {
    const float high_sum = tf32_part(scaled_sum);
    const uint2 sums =
        kSplitSum ? make_uint2(__float_as_uint(high_sum), __float_as_uint(scaled_sum - high_sum))
                  : make_uint2(static_cast<uint32_t>(sum), static_cast<uint32_t>(other));
    uint8_t* const own =
        scales + half_index * (T * kHalfScaleBytes) + lane / 16 * (T * kHalfScaleBytes);
    if (is_first)
      *reinterpret_cast<uint2*>(own + (T + lane / 4 % 4 * T * 2 + token * 2) * 4) = sums;
    if (is_there && lane % 16 == 0) reinterpret_cast<float*>(own)[token] = scale;
  }
}

// Returns the codes of a tile; those of odd groups times 2^kOddShift if that saves a shift.
template <class Tile, class = void>
struct Codes {
  static constexpr uint32_t kOddShift = 0;
  static __device__ void get(const typename Tile::Raw& raw, uint32_t half, uint32_t m,
                             uint32_t (&a)[4]) {
    Tile::codes(raw, half, m, a);
  }
};
template <class Tile>
struct Codes<Tile, std::void_t<decltype(Tile::kOddShift)>> {
  static constexpr uint32_t kOddShift = Tile::kOddShift;
  static_assert(Tile::kGroup == 32 && Tile::kOffset == 0 && !Tile::kSigned);
  static __device__ void get(const typename Tile::Raw& raw, uint32_t half, uint32_t m,
                             uint32_t (&a)[4]) {
    Tile::shifted_codes(raw, half, m, a);
  }
};

// The codebook of a tile (kernels/linear/tile_grid.cuh) in shared memory, filled by all threads.
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

// Multiplies a tile with int8 activations. For T = 1 and 2 operand B is "diagonal": its 8 columns
// hold 4 / T groups, each with its tokens and two terms. In the MMA of one group the columns of the
// other groups are zero, so that one accumulator serves several groups, each of which has its own
// scale:
//
//   T = 1        column   0   1   2   3   4   5   6   7
//                group    0   0   1   1   2   2   3   3
//                term     hi  lo  hi  lo  hi  lo  hi  lo
//   product 0    (A: group 0)  x   x   0   0   0   0   0   0
//   product 1    (A: group 1)  0   0   x   x   0   0   0   0
//   product 2    (A: group 2)  0   0   0   0   x   x   0   0
//   product 3    (A: group 3)  0   0   0   0   0   0   x   x
//   sums, lane 4g + t          columns 2t, 2t + 1: group t; 256 * hi + lo of rows g and g + 8
//
// T = 2: two groups, column = 4 * group + 2 * token + term; lane t holds group t / 2, token t % 2.
// T = 4: one group, column = 2 * token + term; lane t holds token t. T = 8: one MMA per term,
// column = token; lane t holds tokens 2t and 2t + 1.
template <TensorType kType, uint32_t T>
struct Int8Engine {
  using Tile = kernels::Tile<kType>;
  static constexpr quant::TileLayout kLayout = Tile::kLayout;
  // Formats with many bytes per weight have stages of half a K-tile.
  static constexpr uint32_t kHalves =
      kLayout.packed_tile_inputs() < kKTileInputs &&
              kLayout.block_bytes * 256u > 3000u * kLayout.block_elements / 16u
          ? 1
          : 2;
  static constexpr uint32_t kStageInputs = kHalves * kHalfKTileInputs;
  static constexpr uint32_t kStagePackedTiles = kStageInputs / kLayout.packed_tile_inputs();
  static constexpr uint32_t kStageBytes = kStagePackedTiles * kLayout.packed_tile_bytes();
  // With T = 4 and 8, tf32 MMAs multiply the mins: (16 rows, groups) by (groups, tokens).
  static constexpr bool kMinsByProduct = T >= 4 && Tile::kHasMin && Tile::kGroup == 32;
  // If scales are integers, so are the sums over a packed tile.
  using Whole = WholeScales<Tile>;
  static constexpr bool kIsWhole = T >= 4 && Whole::kIs;
  // Sums of a lane: [token][row g, row g + 8], then the accumulators of the MMA of mins.
  static constexpr uint32_t kProductSums = T == 8 ? 4 : 2;
  static constexpr uint32_t kSums = kProductSums + (kMinsByProduct && !kIsWhole ? 4 : 0);
  // Scratch of a warp for the scales of a half K-tile: for each (group, row g), a pair of scales
  // and with kSharesMins a pair of mins.
  static constexpr bool kSharesMins = Tile::kHasMin && !kMinsByProduct;
  static constexpr uint32_t kScratchBytes =
      T >= 4 && !kIsWhole ? kHalfKTileInputs / Tile::kGroup * 8 * (kSharesMins ? 16 : 8) : 0;
  static constexpr uint32_t kGroupsOfHalf = kHalfKTileInputs / Tile::kGroup;

  static constexpr uint32_t codes_bytes(uint32_t inputs) { return inputs * T * 2; }
  static constexpr uint32_t scales_bytes(uint32_t inputs) {
    return T >= 4 ? inputs / kHalfKTileInputs * T * kHalfScaleBytes : inputs / 32 * T * 16;
  }

  static constexpr uint32_t kStaticBytes = Codebook<Tile>::kBytes;
  static __device__ void prepare() { Codebook<Tile>::prepare(); }

  template <class AfterLoads>
  static __device__ void stage_x(const VectorParams& params, const StageRange& range, uint8_t* x,
                                 float* squares, AfterLoads after_loads) {
    stage_split<T, true>(params, range, squares, after_loads,
                         [&](uint32_t vec8, uint32_t token, const float(&v)[8], bool is_there) {
                           put_int8<T, Tile::kOwnership, Codes<Tile>::kOddShift, kMinsByProduct>(
                               vec8, token, v, is_there, x, x + params.x_scales_offset);
                         });
  }

  // Adds the rescaled pair of accumulators to `sums`. `h` is the half of the 32 inputs, if groups
  // have
  // 16. `x` holds scales as put_int8 stores them for T = 1 and 2; the scale may be applied later.
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
    if constexpr (Tile::kHasMin && !kMinsByProduct) {
      const float sum =
          Tile::kGroup == 16 ? x_scale * static_cast<float>(sum16) : __uint_as_float(x.y);
      sums[0] = fmaf(-min[0], sum, sums[0]);
      sums[1] = fmaf(-min[1], sum, sums[1]);
    }
  }

  // Multiplies a stage with the inputs from group `group` of the K-split on. sums[0] and sums[1]
  // depend on everything that is read.
  static __device__ void consume(const VectorParams& params, const uint8_t* stage, const uint8_t* x,
                                 uint32_t group, uint32_t lane, uint8_t* scratch,
                                 float (&sums)[kSums]) {
    if constexpr (kIsWhole)
      consume_whole(params, stage, x, group, lane, sums);
    else
      consume_halves(params, stage, x, group, lane, scratch, sums);
  }

  // Multiplies one half K-tile after the other.
  static __device__ void consume_halves(const VectorParams& params, const uint8_t* stage,
                                        const uint8_t* x, uint32_t group, uint32_t lane,
                                        uint8_t* scratch, float (&sums)[kSums]) {
#pragma unroll
    for (uint32_t half = 0; half < kHalves; ++half) {
      const typename Tile::Raw raw = Tile::load(stage, half, lane);
      const uint8_t* codes = x + (group + 4 * half) * T * 64;
      const uint8_t* scales =
          x + params.x_scales_offset +
          (T >= 4 ? (group / 4 + half) * T * kHalfScaleBytes : (group + 4 * half) * T * 16);
      if constexpr (T >= 4)
        consume_shared(stage, half, raw, codes, scales, lane, scratch, sums);
      else
        consume_diagonal(stage, half, raw, codes, scales, lane, sums);
    }
  }

  // For T = 1 and 2: one accumulator serves several groups.
  static __device__ void consume_diagonal(const uint8_t* stage, uint32_t half,
                                          const typename Tile::Raw& raw, const uint8_t* codes,
                                          const uint8_t* scales, uint32_t lane,
                                          float (&sums)[kSums]) {
    constexpr uint32_t kSetGroups = 4 / T;  // scale groups in an accumulator
    constexpr uint32_t kSets = kGroupsOfHalf / kSetGroups;
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
      uint32_t carried;  // the MMA of the set in which this lane's column is not zero
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
        Codes<Tile>::get(raw, half, s * kSetProducts + m, a);
        mma_int8<Tile::kSigned>(c, a, carried == m ? b.x : 0, carried == m ? b.y : 0);
      }
      add(sums, 256 * c[0] + c[1], 256 * c[2] + c[3], cell, t / T % 2, scale[s], min[s]);
    }
  }

  // For T = 4 and 8 and integer scales. The product of each group times its scale is accumulated as
  // an integer over a packed tile, because all activations of the tile have the same scale.
  static __device__ void consume_whole(const VectorParams& params, const uint8_t* stage,
                                       const uint8_t* x, uint32_t group, uint32_t lane,
                                       float (&sums)[kSums]) {
    const uint8_t* const codes = x + group * T * 64;
    const uint8_t* const scales = x + params.x_scales_offset + group / 4 * T * kHalfScaleBytes;
    const typename Whole::Header header = Whole::load(stage, lane);
    static_assert(kHalves == 2);
    constexpr uint32_t kParts = 32 / Tile::kGroup;   // scale groups in 32 inputs
    constexpr uint32_t kTerms = T == 8 ? 2 : 1;      // MMAs: one per term, or one for both
    constexpr uint32_t kOwnTokens = T == 8 ? 2 : 1;  // of a lane
    const uint32_t g = lane / 4, t = lane % 4;
    int32_t whole[kTerms][4] = {};
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const typename Tile::Raw raw = Tile::load(stage, half, lane);
#pragma unroll
      for (uint32_t m = 0; m < 4; ++m) {
        uint32_t a[4];
        Whole::codes(raw, half, m, a);
        uint32_t b[4];
        if constexpr (T == 8) {
          const uint4 four = read_16(codes + (half * 4 + m) * 512 + lane * 16);
          b[0] = four.x, b[1] = four.y, b[2] = four.z, b[3] = four.w;
        } else {
          const uint2 two = read_8(codes + (half * 4 + m) * 256 + lane * 8);
          b[0] = two.x, b[1] = two.y;
        }
        int32_t scale[2];
#pragma unroll
        for (uint32_t row = 0; row < 2; ++row)
          scale[row] = Whole::scale(header, half, m * kParts + kParts - 1, row);
#pragma unroll
        for (uint32_t term = 0; term < kTerms; ++term) {
          int32_t c[4] = {0, 0, 0, 0};
          mma_int8<Whole::kCodesSigned>(c, a, b[2 * term], b[2 * term + 1]);
#pragma unroll
          for (uint32_t i = 0; i < 4; ++i) whole[term][i] += scale[i / 2] * c[i];
        }
        if constexpr (kParts == 2) {
          // Multiplies the first 16 inputs (lanes t = 0 and 1) again, by the difference of scales.
#pragma unroll
          for (uint32_t row = 0; row < 2; ++row)
            scale[row] = Whole::scale(header, half, m * 2, row) - scale[row];
#pragma unroll
          for (uint32_t term = 0; term < kTerms; ++term) {
            int32_t c[4] = {0, 0, 0, 0};
            mma_int8<Whole::kCodesSigned>(c, a, t < 2 ? b[2 * term] : 0,
                                          t < 2 ? b[2 * term + 1] : 0);
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) whole[term][i] += scale[i / 2] * c[i];
          }
        }
      }
    }
    const float* const x_scales = reinterpret_cast<const float*>(scales) + t * kOwnTokens;
#pragma unroll
    for (uint32_t i = 0; i < kOwnTokens; ++i)
#pragma unroll
      for (uint32_t row = 0; row < 2; ++row) {
        // The columns of a lane are two tokens, or the two terms of a token.
        const int32_t high = whole[0][T == 8 ? row * 2 + i : row * 2];
        const int32_t low = whole[kTerms - 1][T == 8 ? row * 2 + i : row * 2 + 1];
        const float sum = fmaf(256.0f, static_cast<float>(high), static_cast<float>(low));
        sums[2 * i + row] = fmaf(sum * x_scales[i], Whole::factor(header, row), sums[2 * i + row]);
      }
    if constexpr (Tile::kHasMin) {
      static_assert(Tile::kGroup == 32);
      const float a[4] = {header.min(0, t, 0), header.min(0, t, 1), header.min(1, t, 0),
                          header.min(1, t, 1)};
      float c[4] = {};
      const uint8_t* const first = scales + T * 4;
      if constexpr (T == 8) {
        const uint8_t* const place = first + (t * T + g) * 8;
        const float2 sum = *reinterpret_cast<const float2*>(place);
        const float2 next = *reinterpret_cast<const float2*>(place + T * kHalfScaleBytes);
        mma_tf32(c, a, sum.x, next.x);
        mma_tf32(c, a, sum.y, next.y);
      } else {
        const uint8_t* const place = first + (t * T + g / 2) * 8 + g % 2 * 4;
        mma_tf32(c, a, *reinterpret_cast<const float*>(place),
                 *reinterpret_cast<const float*>(place + T * kHalfScaleBytes));
      }
#pragma unroll
      for (uint32_t i = 0; i < kOwnTokens; ++i)
#pragma unroll
        for (uint32_t row = 0; row < 2; ++row) {
          const float min = T == 8 ? c[row * 2 + i] : c[row * 2] + c[row * 2 + 1];
          sums[2 * i + row] = fmaf(-header.min_factor(row), min, sums[2 * i + row]);
        }
    }
  }

  // For T = 4 and 8: each group has its own accumulator. Each lane of a quad computes some scales.
  static __device__ void consume_shared(const uint8_t* stage, uint32_t half,
                                        const typename Tile::Raw& raw, const uint8_t* codes,
                                        const uint8_t* scales, uint32_t lane, uint8_t* scratch,
                                        float (&sums)[kSums]) {
    constexpr uint32_t kParts = 32 / Tile::kGroup;  // scale groups in 32 inputs
    constexpr uint32_t kEntry = kSharesMins ? 16 : 8;
    const uint32_t g = lane / 4, t = lane % 4;
    __syncwarp();  // the scales of the previous half K-tile have been read
#pragma unroll
    for (uint32_t i = 0; i < kParts; ++i) {
      float scale[2], min[2];
      Tile::scales(stage, half, 4 * i + t, lane, scale, min);
      if constexpr (Codes<Tile>::kOddShift != 0) {
        const float factor = t % 2 != 0 ? 1.0f / (1 << Codes<Tile>::kOddShift) : 1.0f;
        scale[0] *= factor, scale[1] *= factor;
      }
      uint8_t* const entry = scratch + ((4 * i + t) * 8 + g) * kEntry;
      if constexpr (kSharesMins)
        *reinterpret_cast<float4*>(entry) = make_float4(scale[0], scale[1], min[0], min[1]);
      else
        *reinterpret_cast<float2*>(entry) = make_float2(scale[0], scale[1]);
      if constexpr (kMinsByProduct) add_mins(scales, lane, min, sums);
    }
    __syncwarp();
    constexpr uint32_t kOwnTokens = T == 8 ? 2 : 1;  // of a lane
    const float one = 1.0f;
    float parts[kOwnTokens][2] = {};
#pragma unroll
    for (uint32_t m = 0; m < 4; ++m) {
      uint32_t a[4];
      Codes<Tile>::get(raw, half, m, a);
      uint4 b;
      if constexpr (T == 8) {
        b = read_16(codes + m * 512 + lane * 16);
      } else {
        const uint2 pair = read_8(codes + m * 256 + lane * 8);
        b = make_uint4(pair.x, pair.y, 0, 0);
      }
      uint4 cells[kOwnTokens] = {};
#pragma unroll
      for (uint32_t i = 0; i < kOwnTokens; ++i) {
        cells[i].x = __float_as_uint(one);
        if constexpr (Tile::kOffset != 0 || kSharesMins) {
          const uint2 codes_sums = read_8(scales + T * 4 + (m * T + t * kOwnTokens + i) * 8);
          cells[i].y = __float_as_uint(
              static_cast<float>(static_cast<int32_t>(codes_sums.x + codes_sums.y)));
          cells[i].z = codes_sums.x, cells[i].w = codes_sums.y;
        }
      }
#pragma unroll
      for (uint32_t h = 0; h < kParts; ++h) {
        const uint8_t* const entry = scratch + ((m * kParts + h) * 8 + g) * kEntry;
        const float2 pair = *reinterpret_cast<const float2*>(entry);
        const float scale[2] = {pair.x, pair.y};
        float min[2];
        if constexpr (kSharesMins) {
          const float2 mins = *reinterpret_cast<const float2*>(entry + 8);
          min[0] = mins.x, min[1] = mins.y;
        }
        const bool is_carrier = kParts == 1 || t / 2 == h;
        int32_t c[4] = {0, 0, 0, 0};
        mma_int8<Tile::kSigned>(c, a, is_carrier ? b.x : 0, is_carrier ? b.y : 0);
        if constexpr (T == 8) {
          int32_t low[4] = {0, 0, 0, 0};
          mma_int8<Tile::kSigned>(low, a, is_carrier ? b.z : 0, is_carrier ? b.w : 0);
          add(parts[0], 256 * c[0] + low[0], 256 * c[2] + low[2], cells[0], h, scale, min);
          add(parts[1], 256 * c[1] + low[1], 256 * c[3] + low[3], cells[1], h, scale, min);
        } else {
          add(parts[0], 256 * c[0] + c[1], 256 * c[2] + c[3], cells[0], h, scale, min);
        }
      }
    }
    const float* const x_scales = reinterpret_cast<const float*>(scales) + t * kOwnTokens;
#pragma unroll
    for (uint32_t i = 0; i < kOwnTokens; ++i) {
      sums[2 * i] = fmaf(parts[i][0], x_scales[i], sums[2 * i]);
      sums[2 * i + 1] = fmaf(parts[i][1], x_scales[i], sums[2 * i + 1]);
    }
  }

  // Adds the products of the mins (rows g and g + 8, group t) and the sums of x (group, token).
  // Columns are tokens for T = 8, and [token][term] for T = 4.
  static __device__ void add_mins(const uint8_t* scales, uint32_t lane, const float (&min)[2],
                                  float (&sums)[kSums]) {
    const uint32_t g = lane / 4, t = lane % 4;
    const float high[2] = {tf32_part(min[0]), tf32_part(min[1])};
    float c[4] = {sums[kProductSums], sums[kProductSums + 1], sums[kProductSums + 2],
                  sums[kProductSums + 3]};
    if constexpr (T == 8) {
      const float2 sum = *reinterpret_cast<const float2*>(scales + T * 4 + (t * T + g) * 8);
      mma_tf32(c, high[0], high[1], sum.x);
      mma_tf32(c, high[0], high[1], sum.y);
      mma_tf32(c, min[0] - high[0], min[1] - high[1], sum.x);
    } else {
      const float sum =
          *reinterpret_cast<const float*>(scales + T * 4 + (t * T + g / 2) * 8 + g % 2 * 4);
      mma_tf32(c, high[0], high[1], sum);
      mma_tf32(c, min[0] - high[0], min[1] - high[1], sum);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) sums[kProductSums + i] = c[i];
  }

  // Reduces the sums of the 16 rows over the quads and stores them as (T, 16).
  template <class Put>
  static __device__ void store(float (&sums)[kSums], uint32_t lane, Put put) {
    const uint32_t g = lane / 4, t = lane % 4;
    if constexpr (kMinsByProduct && !kIsWhole) {
      const float* mins = sums + kProductSums;
      if constexpr (T == 8) {
        sums[0] -= mins[0], sums[1] -= mins[2], sums[2] -= mins[1], sums[3] -= mins[3];
      } else {
        sums[0] -= mins[0] + mins[1], sums[1] -= mins[2] + mins[3];
      }
    }
    if constexpr (T == 8) {
      put(2 * t * 16 + g, sums[0]);
      put(2 * t * 16 + g + 8, sums[1]);
      put((2 * t + 1) * 16 + g, sums[2]);
      put((2 * t + 1) * 16 + g + 8, sums[3]);
    } else if constexpr (T == 4) {
      put(t * 16 + g, sums[0]);
      put(t * 16 + g + 8, sums[1]);
    } else {
      // Two lanes hold partial sums of the same rows: one finishes row g, the other row g + 8.
      const bool is_second = t / T % 2 != 0;
      float sum =
          (is_second ? sums[1] : sums[0]) + __shfl_xor_sync(~0u, is_second ? sums[0] : sums[1], T);
      if constexpr (T == 1) sum += __shfl_xor_sync(~0u, sum, 2);
      if (T == 2 || t < 2) put(t % T * 16 + g + (is_second ? 8 : 0), sum);
    }
  }
};

}  // namespace wcuda::kernels::vector
