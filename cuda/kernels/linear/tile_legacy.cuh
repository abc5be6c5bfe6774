// Tiles of the formats with 32 weights in a block: Q4_0, Q4_1, Q5_0, Q5_1; Q8_0 is in tile.cuh.
#pragma once

#include "kernels/linear/tile.cuh"

#if defined(__CUDACC__)

namespace wcuda::kernels {

// Formats with nibbles in pieces of 4 bytes. Lane t holds bytes 4t … 4t + 3 of a block: their low
// nibbles are inputs 4t … 4t + 3, their high nibbles inputs 16 + 4t … 16 + 4t + 3. With kFifth,
// field 1 has a fifth bit of each code. With kHasM, the last field has d and m, and w = d * q + m;
// otherwise it has d, and w = d * (q - offset).
template <TensorType kType, bool kFifth, bool kHasM>
struct NibbleTile {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(kType);
  static constexpr Ownership kOwnership = Ownership::kSplit;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = kHasM ? 0 : kFifth ? 16 : 8;
  static constexpr bool kHasMin = kHasM;
  struct Raw {
    uint4 qs[2];                  // of a packed tile: block 0 of rows g and g + 8, block 1
    uint32_t qh[kFifth ? 8 : 1];  // (group, row): bit j of input j
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    Raw raw;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint8_t* packed_tile = k_tile + (2 * half + i) * kLayout.packed_tile_bytes();
      raw.qs[i] = read_16(packed_tile + lane * 16);
      if constexpr (kFifth) {
        const uint8_t* qh = packed_tile + field_base(kLayout, 1) + lane / 4 * 4;
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) raw.qh[4 * i + j] = read_4(qh + 32 * j) >> (lane % 4 * 4);
      }
    }
    return raw;
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    const uint4 qs = raw.qs[m / 2];
    const uint32_t row_g = m % 2 ? qs.z : qs.x, row_g8 = m % 2 ? qs.w : qs.y;
    a[0] = row_g & 0x0f0f0f0f;
    a[1] = row_g8 & 0x0f0f0f0f;
    a[2] = row_g >> 4 & 0x0f0f0f0f;
    a[3] = row_g8 >> 4 & 0x0f0f0f0f;
    if constexpr (kFifth) {
      a[0] |= spread(raw.qh[2 * m]);
      a[1] |= spread(raw.qh[2 * m + 1]);
      a[2] |= spread(raw.qh[2 * m] >> 16);
      a[3] |= spread(raw.qh[2 * m + 1] >> 16);
    }
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&min)[2]) {
    constexpr uint32_t kBytes = kHasM ? 4 : 2;
    const uint8_t* d = k_tile + (2 * half + m / 2) * kLayout.packed_tile_bytes() +
                       field_base(kLayout, kFifth ? 2 : 1) + (m % 2 * 16 + lane / 4) * kBytes;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i)
      if constexpr (kHasM) {
        const uint32_t pair = read_4(d + i * 8 * kBytes);
        scale[i] = half_to_float(static_cast<uint16_t>(pair));
        min[i] = -half_to_float(static_cast<uint16_t>(pair >> 16));
      } else {
        scale[i] = half_to_float(read_2(d + i * 8 * kBytes));
      }
  }

 private:
  // Returns bits 0 … 3, each as bit 4 of a byte.
  static __device__ uint32_t spread(uint32_t bits) {
    // The low nibble times 1 + 2^7 + 2^14 + 2^21 has bit i at 8i.
    return ((bits & 15) * 0x00204081u & 0x01010101u) << 4;
  }
};

template <>
struct Tile<TensorType::kQ4_0> : NibbleTile<TensorType::kQ4_0, false, false> {};  // Q4_0
template <>
struct Tile<TensorType::kQ4_1> : NibbleTile<TensorType::kQ4_1, false, true> {};  // Q4_1
template <>
struct Tile<TensorType::kQ5_0> : NibbleTile<TensorType::kQ5_0, true, false> {};  // Q5_0
template <>
struct Tile<TensorType::kQ5_1> : NibbleTile<TensorType::kQ5_1, true, true> {};  // Q5_1

}  // namespace wcuda::kernels

#endif
