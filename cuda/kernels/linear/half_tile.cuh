// Half tiles: the operand A of f16 tensor-core products (m16n8k16, m64nNk16) from packed tiles in
// shared memory. Only for .cu files.
//
// HalfTile<type> holds what a lane needs of a half K-tile (128 inputs of an M-tile,
// kernels/linear/tile.cuh):
//
//   kOrder        the order in which inputs are stored for operand B (half_input.h)
//   kKTileBytes   bytes of the packed tiles of 256 inputs
//   kWeightScale  the factor by which weights are multiplied, so that small scales stay normal f16
//   kHasScaleFactor  whether they are also multiplied by that of their matrix (scale_factor.h)
//   load          loads the codes and scales of half K-tile `half` (0, 1) of the K-tile. With
//                 has_scales, the same object has loaded the other half just before
//   group         returns the operands of group m (0 … 3), 32 inputs, of the half K-tile: a[0 … 3]
//                 for the first 16 places, a[4 … 7] for the others; rows g, g + 8, g, g + 8
#pragma once

#include <cuda_fp16.h>

#include "kernels/linear/half_input.h"
#include "kernels/linear/tile.cuh"
#include "kernels/shared/scale_factor.h"

namespace wcuda::kernels {

// Returns the order for types whose codes are bytes. With kCross, a pair is every second byte.
constexpr InputOrder order_of(Ownership ownership) {
  return ownership == Ownership::kContiguous8 ? InputOrder::kCross
         : ownership == Ownership::kSplit     ? InputOrder::kSplit
                                              : InputOrder::kNested;
}

__device__ __forceinline__ uint32_t half2_bits(__half2 value) {
  return *reinterpret_cast<const uint32_t*>(&value);
}
__device__ __forceinline__ __half2 bits_half2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

// Returns the centre of the codes of K formats with mins. A weight is scale * (code - centre) +
// rest, with rest = scale * centre - min. The centre makes the rest small, and so halves the error
// of rounding to f16, compared with rounding scale and min. Other formats have f16 scales and mins.
WCUDA_HD constexpr float code_centre(uint32_t type) {
  return type == TensorType::kQ2_K ? 2.0f : type == TensorType::kQ5_K ? 16.0f : 0.0f;
}

// For types whose weights are scale * (code - offset) - min. Uses their int8 tiles.
template <TensorType kType>
struct HalfTile {
  using T = Tile<kType>;
  static constexpr InputOrder kOrder = order_of(T::kOwnership);
  static constexpr uint32_t kPackedTiles = kKTileInputs / T::kLayout.packed_tile_inputs();
  static constexpr uint32_t kKTileBytes = kPackedTiles * T::kLayout.packed_tile_bytes();
  static constexpr float kWeightScale = 4.0f;
  static constexpr bool kHasScaleFactor = false;
  // Number of scales that a lane decodes. The quad needs those of the half K-tile: 4 groups of 32
  // inputs, or 8 of 16. Lane t decodes group t of 32, or 2 groups of 16.
  static constexpr uint32_t kDecoded = T::kGroup == 16 ? 2 : 1;

  typename T::Raw raw;
  uint32_t scales[kDecoded];  // f16 of row g and of row g + 8
  uint32_t rests[kDecoded];   // scale * centre - min

  __device__ __forceinline__ void load(const uint8_t* k_tile, uint32_t half, uint32_t lane, __half2,
                                       bool = false) {
    raw = T::load(k_tile, half, lane);
#pragma unroll
    for (uint32_t i = 0; i < kDecoded; ++i) {
      const uint32_t t = lane % 4;
      const uint32_t group = T::kGroup == 16 ? 2 * (t % 2 * 2 + i) + t / 2 : t;
      float scale[2], min[2] = {};
      T::scales(k_tile, half, group, lane, scale, min);
      scales[i] = half2_bits(__floats2half2_rn(scale[0] * kWeightScale, scale[1] * kWeightScale));
      if (T::kHasMin) {
        constexpr float kCentre = code_centre(kType) * kWeightScale;
        rests[i] = half2_bits(__floats2half2_rn(scale[0] * kCentre - min[0] * kWeightScale,
                                                scale[1] * kCentre - min[1] * kWeightScale));
      }
    }
  }

  __device__ __forceinline__ void group(uint32_t half, uint32_t m, uint32_t lane,
                                        uint32_t (&a)[8]) const {
    const uint32_t source = T::kGroup == 16 ? (lane & ~1u) + m / 2 : (lane & ~3u) + m;
    const uint32_t i = T::kGroup == 16 ? m % 2 : 0;
    const __half2 scale = bits_half2(__shfl_sync(~0u, scales[i], source));
    __half2 rest = {};
    if (T::kHasMin) rest = bits_half2(__shfl_sync(~0u, rests[i], source));
    uint32_t codes[4];
    T::codes(raw, half, m, codes);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const __half2 row_scale = j % 2 == 0 ? __low2half2(scale) : __high2half2(scale);
      const __half2 row_rest = j % 2 == 0 ? __low2half2(rest) : __high2half2(rest);
      // If byte b replaces the low bits of the f16 number 1024, the result is 1024 + b.
      constexpr uint32_t kPairs[2] = {kOrder == InputOrder::kCross ? 0x4240 : 0x4140,
                                      kOrder == InputOrder::kCross ? 0x4341 : 0x4342};
      const uint32_t code = T::kSigned ? codes[j] ^ 0x80808080u : codes[j];
      constexpr float kBias =
          1024.0f + (T::kSigned ? 128.0f : 0.0f) + T::kOffset + code_centre(kType);
      const __half2 bias = __float2half2_rn(kBias);
#pragma unroll
      for (uint32_t pair = 0; pair < 2; ++pair) {
        const __half2 number =
            __hsub2(bits_half2(__byte_perm(code, 0x64646464u, kPairs[pair])), bias);
        const __half2 weight =
            T::kHasMin ? __hfma2(number, row_scale, row_rest) : __hmul2(number, row_scale);
        a[j / 2 * 4 + pair * 2 + j % 2] = half2_bits(weight);
      }
    }
  }
};

// Q4_K: nibble n is used where it is, as the low bits of the subnormal f16 number n * 2^-24, or
// 16 n * 2^-24, so that a weight takes one multiply-add. Scales times 2^24 must then be f16
// numbers: weights are multiplied by 2^-12 and by a power of two that follows from the largest
// scale of the matrix (Matrix::scale_factor).
template <>
struct HalfTile<TensorType::kQ4_K> {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ4_K);
  static constexpr InputOrder kOrder = InputOrder::kCross;
  static constexpr uint32_t kPackedTiles = 1;
  static constexpr uint32_t kKTileBytes = kLayout.packed_tile_bytes();
  static constexpr float kWeightScale = 1.0f / kScaleFactorDivisor;
  static constexpr bool kHasScaleFactor = true;

  uint4 qs[2];       // two groups each (low and high nibbles): 8 bytes of row g, 8 of row g + 8
  __half2 scale;     // of group lane % 4, row g and row g + 8, times 2^24; of odd groups 2^20
  __half2 rest;      // the weight of code 0
  __half2 d, d_min;  // times the scale factor, row g and row g + 8

  __device__ __forceinline__ void load(const uint8_t* k_tile, uint32_t half, uint32_t lane,
                                       __half2 factor, bool has_scales = false) {
    const uint8_t* const header = k_tile + field_base(kLayout, 1) + lane / 4 * 16;
    const uint4 low = read_16(header), high = read_16(header + 128);
    const uint8_t* const codes = k_tile + half * 1024 + lane * 16;
    qs[0] = read_16(codes);
    qs[1] = read_16(codes + 512);
    // Selects byte lane % 4 of row g for the lower 16 bits, and that of row g + 8 for the upper.
    const uint32_t bytes = 0x4400 + lane % 4 * 0x1111;
    const uint32_t first = __byte_perm(low.y, high.y, bytes);
    const uint32_t second = __byte_perm(low.z, high.z, bytes);
    uint32_t scale_code = first & 0x003f003f, min_code = second & 0x003f003f;
    if (half != 0) {
      const uint32_t third = __byte_perm(low.w, high.w, bytes);
      scale_code = (third & 0x000f000f) | (first >> 2 & 0x00300030);
      min_code = (third >> 4 & 0x000f000f) | (second >> 2 & 0x00300030);
    }
    if (!has_scales) {
      d = __hmul2(bits_half2(__byte_perm(low.x, high.x, 0x5410)), factor);
      d_min = __hmul2(bits_half2(__byte_perm(low.x, high.x, 0x7632)), factor);
    }
    const __half2 scale_number = number(scale_code), min_number = number(min_code);
    // What rounding takes from the scale, as of code 8, and from the min, is added to the rest.
    const __half2 scaled = __hmul2(scale_number, d), min = __hmul2(min_number, d_min);
    const __half2 scale_lost = __hfma2(scale_number, d, __hneg2(scaled));
    const __half2 min_lost = __hfma2(min_number, d_min, __hneg2(min));
    const __half2 lost = __hfma2(scale_lost, __float2half2_rn(8.0f), __hneg2(min_lost));
    rest = __hmul2(__hsub2(lost, min), __float2half2_rn(1.0f / kScaleFactorDivisor));
    scale = __hmul2(scaled,
                    __float2half2_rn((lane % 2 == 0 ? 0x1p24f : 0x1p20f) / kScaleFactorDivisor));
  }

  __device__ __forceinline__ void group(uint32_t, uint32_t m, uint32_t lane,
                                        uint32_t (&a)[8]) const {
    const uint32_t source = (lane & ~3u) + m;
    const __half2 scales = bits_half2(__shfl_sync(~0u, half2_bits(scale), source));
    const __half2 rests = bits_half2(__shfl_sync(~0u, half2_bits(rest), source));
    const uint4 q = qs[m / 2];
    const uint32_t words[4] = {q.x, q.z, q.y, q.w};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const __half2 row_scale = j % 2 == 0 ? __low2half2(scales) : __high2half2(scales);
      const __half2 row_rest = j % 2 == 0 ? __low2half2(rests) : __high2half2(rests);
#pragma unroll
      for (uint32_t pair = 0; pair < 2; ++pair) {
        const uint32_t codes = words[j] >> (8 * pair) & (m % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
        a[j / 2 * 4 + pair * 2 + j % 2] =
            half2_bits(__hfma2(bits_half2(codes), row_scale, row_rest));
      }
    }
  }

 private:
  static __device__ __forceinline__ __half2 number(uint32_t code) {
    return __hsub2(bits_half2(code | 0x64006400), __float2half2_rn(1024.0f));
  }
};

// F16: weights are used as stored. A packed tile has two runs of 32 inputs. In a run, a lane has 16
// bytes of row g and, 512 bytes later, 16 bytes of row g + 8.
template <>
struct HalfTile<TensorType::kF16> {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kF16);
  static constexpr InputOrder kOrder = InputOrder::kContiguous8;
  static constexpr uint32_t kPackedTiles = 4;
  static constexpr uint32_t kKTileBytes = kPackedTiles * kLayout.packed_tile_bytes();
  static constexpr float kWeightScale = 1.0f;
  static constexpr bool kHasScaleFactor = false;
  const uint8_t* half_bytes;

  __device__ __forceinline__ void load(const uint8_t* k_tile, uint32_t half, uint32_t lane, __half2,
                                       bool = false) {
    half_bytes = k_tile + half * (kKTileBytes / 2) + lane * 16;
  }
  __device__ __forceinline__ void group(uint32_t, uint32_t m, uint32_t, uint32_t (&a)[8]) const {
    const uint4 low = read_16(half_bytes + m * 1024), high = read_16(half_bytes + m * 1024 + 512);
    a[0] = low.x;
    a[1] = high.x;
    a[2] = low.y;
    a[3] = high.y;
    a[4] = low.z;
    a[5] = high.z;
    a[6] = low.w;
    a[7] = high.w;
  }
};

// BF16: each pair of weights is converted to a pair of f16.
template <>
struct HalfTile<TensorType::kBF16> : HalfTile<TensorType::kF16> {
  static constexpr float kWeightScale = 4.0f;
  __device__ __forceinline__ void group(uint32_t half, uint32_t m, uint32_t lane,
                                        uint32_t (&a)[8]) const {
    HalfTile<TensorType::kF16>::group(half, m, lane, a);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i)
      a[i] = half2_bits(__floats2half2_rn(bits_float(a[i] << 16) * kWeightScale,
                                          bits_float(a[i] & 0xffff0000u) * kWeightScale));
  }
};

// F32: runs of 16 inputs, 4 per lane.
template <>
struct HalfTile<TensorType::kF32> {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kF32);
  static constexpr InputOrder kOrder = InputOrder::kSplit;
  static constexpr uint32_t kPackedTiles = 4;
  static constexpr uint32_t kKTileBytes = kPackedTiles * kLayout.packed_tile_bytes();
  static constexpr float kWeightScale = 4.0f;
  static constexpr bool kHasScaleFactor = false;
  const uint8_t* half_bytes;

  __device__ __forceinline__ void load(const uint8_t* k_tile, uint32_t half, uint32_t lane, __half2,
                                       bool = false) {
    half_bytes = k_tile + half * (kKTileBytes / 2) + lane * 16;
  }
  __device__ __forceinline__ void group(uint32_t, uint32_t m, uint32_t, uint32_t (&a)[8]) const {
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {  // run j / 2, row g + 8 * (j % 2)
      const float4 values = *reinterpret_cast<const float4*>(half_bytes + m * 2048 + j * 512);
      a[j / 2 * 4 + j % 2] =
          half2_bits(__floats2half2_rn(values.x * kWeightScale, values.y * kWeightScale));
      a[j / 2 * 4 + 2 + j % 2] =
          half2_bits(__floats2half2_rn(values.z * kWeightScale, values.w * kWeightScale));
    }
  }
};

// Divides sums of products by the scale factor of their matrix, if the type has one: gate and up,
// whose sums meet in an epilogue, have different ones.
template <class Operand, uint32_t kCount>
__device__ __forceinline__ void divide_by_scale_factor(float scale_factor, float (&sums)[kCount]) {
  if (Operand::kHasScaleFactor) {
#pragma unroll
    for (float& sum : sums) sum *= 1.0f / scale_factor;
  }
}

// Copies the codebook of a type to shared memory. Does nothing for types without one.
template <class Operand>
__device__ __forceinline__ auto prepare_operand(int) -> decltype(Operand::T::prepare()) {
  Operand::T::prepare();
}
template <class Operand>
__device__ __forceinline__ void prepare_operand(...) {}

}  // namespace wcuda::kernels
