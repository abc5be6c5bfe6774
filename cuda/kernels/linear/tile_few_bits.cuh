// Tiles of the formats of one to three bits a weight without codebooks: Q2_K, Q3_K, TQ1_0, TQ2_0,
// Q1_0 and Q2_0. Interface: kernels/linear/tile.cuh.
#pragma once

#include "kernels/linear/tile.cuh"

#if defined(__CUDACC__)

namespace wcuda::kernels {

// Returns 16 2-bit codes from a lane's 8 bytes of rows g and g + 8. Group m has bits 2m and 2m + 1
// of each byte. Used by Q2_K, Q3_K and TQ2_0.
__device__ inline void codes_2bit(const uint4& qs, uint32_t m, uint32_t (&a)[4]) {
  a[0] = qs.x >> (2 * m) & 0x03030303;
  a[1] = qs.z >> (2 * m) & 0x03030303;
  a[2] = qs.y >> (2 * m) & 0x03030303;
  a[3] = qs.w >> (2 * m) & 0x03030303;
}

template <>
struct Tile<TensorType::kQ2_K> {  // Q2_K
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ2_K);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 16;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 0;
  static constexpr bool kHasMin = true;
  struct Raw {
    uint4 qs;
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    return {read_16(k_tile + half * 512 + lane * 16)};
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    codes_2bit(raw.qs, m, a);
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&min)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      const uint32_t code = k_tile[field_base(kLayout, 1) + (half * 16 + row) * 8 + m];
      const uint32_t d = read_4(k_tile + field_base(kLayout, 2) + row * 4);
      scale[i] = half_to_float(static_cast<uint16_t>(d)) * static_cast<float>(code & 15);
      min[i] = half_to_float(static_cast<uint16_t>(d >> 16)) * static_cast<float>(code >> 4);
    }
  }
};

template <>
struct Tile<TensorType::kQ3_K> {  // Q3_K
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ3_K);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 16;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 4;
  static constexpr bool kHasMin = false;
  struct Raw {
    uint4 qs;
    uint4 high;  // bit 4 * half + m of each byte belongs to group m
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    return {read_16(k_tile + half * 512 + lane * 16),
            read_16(k_tile + field_base(kLayout, 1) + lane * 16)};
  }
  static __device__ void codes(const Raw& raw, uint32_t half, uint32_t m, uint32_t (&a)[4]) {
    codes_2bit(raw.qs, m, a);
    const uint32_t bit = 4 * half + m;
    a[0] |= high_bits(raw.high.x, bit);
    a[1] |= high_bits(raw.high.z, bit);
    a[2] |= high_bits(raw.high.y, bit);
    a[3] |= high_bits(raw.high.w, bit);
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      const uint8_t* codes = k_tile + field_base(kLayout, 2) + row * 4;
      const uint32_t low = codes[m / 4 * 64 + m % 4] >> (4 * half) & 15u;
      const uint32_t high = codes[128 + m % 4] >> (4 * half + m / 4 * 2) & 3u;
      const float d = half_to_float(read_2(k_tile + field_base(kLayout, 3) + row * 2));
      scale[i] = d * static_cast<float>(static_cast<int32_t>(low | high << 4) - 32);
    }
  }

 private:
  // Returns bit `bit` of each byte as the third bit of a code.
  static __device__ uint32_t high_bits(uint32_t word, uint32_t bit) {
    return (bit >= 2 ? word >> (bit - 2) : word << (2 - bit)) & 0x04040404;
  }
};

// Loads the scales of rows g and g + 8 for formats with one scale per block (d), in the last field.
template <TensorType kType>
__device__ inline void block_scales(const uint8_t* packed_tile, uint32_t lane, float (&scale)[2]) {
  constexpr quant::TileLayout kLayout = Tile<kType>::kLayout;
  constexpr uint32_t kBase = field_base(kLayout, kLayout.field_count - 1);
  scale[0] = half_to_float(read_2(packed_tile + kBase + lane / 4 * 2));
  scale[1] = half_to_float(read_2(packed_tile + kBase + lane / 4 * 2 + 16));
}

template <>
struct Tile<TensorType::kTQ1_0> {  // TQ1_0
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kTQ1_0);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 1;
  static constexpr bool kHasMin = false;
  // Bytes whose digits in base 3 are codes; digit 0 is the leading one. Group m of half 0 is digit
  // m of qs. Of half 1, group 0 is digit 4 of qs, groups 1 and 2 are digits 0 and 2 of tail, and
  // group 3 is digit 0 of last.
  struct Raw {
    uint4 qs, tail, last;  // 8 bytes of row g, 8 of row g + 8
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    Raw raw{};
    raw.qs = read_16(k_tile + lane * 16);
    if (half == 0) return raw;
    const uint32_t t = lane % 4;
    uint32_t* const tail = &raw.tail.x;
    uint32_t* const last = &raw.last.x;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      // Elements 160 … 239: 16 bytes, 16 elements per digit.
      const uint2 bytes = read_8(k_tile + field_base(kLayout, 1) + row * 16 + t % 2 * 8);
      tail[2 * i] = t < 2 ? bytes.x : shifted(bytes.x, 3);
      tail[2 * i + 1] = t < 2 ? bytes.y : shifted(bytes.y, 3);
      // Elements 240 … 255: 4 bytes, 4 elements per digit.
      const uint32_t end = read_4(k_tile + field_base(kLayout, 2) + row * 4);
      last[2 * i] = t < 2 ? shifted(bytes.x, 81) : shifted(end, t == 2 ? 1 : 9);
      last[2 * i + 1] = t < 2 ? shifted(bytes.y, 81) : shifted(end, t == 2 ? 3 : 27);
    }
    return raw;
  }
  static __device__ void codes(const Raw& raw, uint32_t half, uint32_t m, uint32_t (&a)[4]) {
    constexpr uint32_t kPowers[] = {1, 3, 9, 27, 81};
    if (half == 0)
      digits(raw.qs, kPowers[m], a);
    else if (m == 0)
      digits(raw.qs, 81, a);
    else if (m == 3)
      digits(raw.last, 1, a);
    else
      digits(raw.tail, m == 1 ? 1 : 9, a);
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t, uint32_t, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    block_scales<TensorType::kTQ1_0>(k_tile, lane, scale);
  }

 private:
  // Returns each byte times `power` (at most 81), modulo 256.
  static __device__ uint32_t shifted(uint32_t bytes, uint32_t power) {
    const uint32_t even = (bytes & 0x00ff00ff) * power & 0x00ff00ff;
    const uint32_t odd = (bytes >> 8 & 0x00ff00ff) * power & 0x00ff00ff;
    return even | odd << 8;
  }
  static __device__ uint32_t digit(uint32_t bytes, uint32_t power) {
    const uint32_t even = ((bytes & 0x00ff00ff) * power & 0x00ff00ff) * 3;
    const uint32_t odd = ((bytes >> 8 & 0x00ff00ff) * power & 0x00ff00ff) * 3;
    return (even >> 8 & 0x00030003) | (odd & 0x03000300);
  }
  static __device__ void digits(const uint4& bytes, uint32_t power, uint32_t (&a)[4]) {
    a[0] = digit(bytes.x, power);
    a[1] = digit(bytes.z, power);
    a[2] = digit(bytes.y, power);
    a[3] = digit(bytes.w, power);
  }
};

template <>
struct Tile<TensorType::kTQ2_0> {  // TQ2_0
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kTQ2_0);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 1;
  static constexpr bool kHasMin = false;
  struct Raw {
    uint4 qs;
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    return {read_16(k_tile + half * 512 + lane * 16)};
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    codes_2bit(raw.qs, m, a);
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t, uint32_t, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    block_scales<TensorType::kTQ2_0>(k_tile, lane, scale);
  }
};

template <>
struct Tile<TensorType::kQ1_0> {  // Q1_0; a code is 0 or 2
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ1_0);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 1;
  static constexpr bool kHasMin = false;
  struct Raw {
    uint32_t bits[2];  // of rows g and g + 8; byte m: the lane's 8 inputs of group m
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    const uint8_t* qs = k_tile + half * kLayout.packed_tile_bytes() + lane / 4 * 16;
    return {{bytes_of(read_16(qs), lane % 4), bytes_of(read_16(qs + 128), lane % 4)}};
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      // Moves bit j of 4 to bit 8j + 1. The copies in the product do not overlap.
      a[i] = (raw.bits[i] >> (8 * m) & 15) * 0x00408102 & 0x02020202;
      a[i + 2] = (raw.bits[i] >> (8 * m + 4) & 15) * 0x00408102 & 0x02020202;
    }
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    block_scales<TensorType::kQ1_0>(k_tile + half * kLayout.packed_tile_bytes(), lane, scale);
  }

 private:
  // Returns byte t of each word.
  static __device__ uint32_t bytes_of(const uint4& words, uint32_t t) {
    const uint32_t select = t | (t + 4) << 4;
    return __byte_perm(__byte_perm(words.x, words.y, select), __byte_perm(words.z, words.w, select),
                       0x5410);
  }
};

template <>
struct Tile<TensorType::kQ2_0> {  // Q2_0
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ2_0);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 1;
  static constexpr bool kHasMin = false;
  struct Raw {
    uint16_t qs[4][2];  // of a group: 8 inputs of row g, of row g + 8
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    Raw raw;
#pragma unroll
    for (uint32_t m = 0; m < 4; ++m) {
      const uint8_t* qs = packed_tile(k_tile, half, m) + lane / 4 * 16 + m % 2 * 8 + lane % 4 * 2;
      raw.qs[m][0] = read_2(qs);
      raw.qs[m][1] = read_2(qs + 128);
    }
    return raw;
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      a[i] = spread(raw.qs[m][i] & 255u);
      a[i + 2] = spread(raw.qs[m][i] >> 8);
    }
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    block_scales<TensorType::kQ2_0>(packed_tile(k_tile, half, m), lane, scale);
  }

 private:
  static __device__ const uint8_t* packed_tile(const uint8_t* k_tile, uint32_t half, uint32_t m) {
    return k_tile + (2 * half + m / 2) * kLayout.packed_tile_bytes();
  }
  // Expands 4 codes of 2 bits to one byte each.
  static __device__ uint32_t spread(uint32_t byte) {
    return (byte * 0x1001 & 0x000f000f) * 0x41 & 0x03030303;
  }
};

}  // namespace wcuda::kernels

#endif
