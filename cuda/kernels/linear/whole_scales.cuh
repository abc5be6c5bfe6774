// Formats whose scales are integers times one factor per row and packed tile. Sums over several
// groups can then be accumulated as integers, and so can mins.
//
//   w = factor * scale * code - min_factor * min
//
// WholeScales<Tile> has, besides kIs,
//
//   Header      the scales of rows g and g + 8 of a packed tile, as stored
//   load        loads a lane's Header
//   scale       returns the scale of group m of half K-tile `half` (both compile-time) for row g
//               (row = 0) or g + 8 (row = 1); a group has Tile::kGroup inputs. The sum of scale *
//               code * 128 over a packed tile stays below 2^31
//   codes       returns operand A as Tile::codes does, with codes for which these scales are meant
//   kCodesSigned
//   factor      returns the factor of a row
// and, if the tile has mins,
//   min, min_factor  likewise; m may differ from lane to lane
#pragma once

#include "kernels/linear/tile_k.cuh"

namespace wcuda::kernels::vector {

template <class Tile>
struct WholeScales {
  static constexpr bool kIs = false;
};

// Q4_K and Q5_K have one header: d, dmin, 8 scales and 8 mins of 6 bits (k_header_scale).
struct KHeader {
  uint32_t factors[2];    // of rows g and g + 8: d, dmin
  uint32_t scales[2][2];  // half, row: those of the four groups of a half K-tile, a byte each
  uint32_t mins[2][2];

  static __device__ KHeader load(const uint8_t* headers, uint32_t lane) {
    KHeader header;
#pragma unroll
    for (uint32_t row = 0; row < 2; ++row) {
      const uint4 words = read_16(headers + lane / 4 * 16 + row * 128);
      header.factors[row] = words.x;
      header.scales[0][row] = words.y & 0x3f3f3f3f;
      header.scales[1][row] = (words.w & 0x0f0f0f0f) | (words.y >> 2 & 0x30303030);
      header.mins[0][row] = words.z & 0x3f3f3f3f;
      header.mins[1][row] = (words.w >> 4 & 0x0f0f0f0f) | (words.z >> 2 & 0x30303030);
      // Makes the compiler mask four bytes at a time, before single bytes are extracted.
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half)
        asm("" : "+r"(header.scales[half][row]), "+r"(header.mins[half][row]));
    }
    return header;
  }
  // Returns the scale of a group from its byte.
  __device__ int32_t scale(uint32_t half, uint32_t m, uint32_t row) const {
    return static_cast<int32_t>(__byte_perm(scales[half][row], 0, 0x4440 | m));
  }
  __device__ float d(uint32_t row) const {
    return half_to_float(static_cast<uint16_t>(factors[row]));
  }
  __device__ float min_factor(uint32_t row) const {
    return half_to_float(static_cast<uint16_t>(factors[row] >> 16));
  }
  __device__ float min(uint32_t half, uint32_t m, uint32_t row) const {
    return static_cast<float>(mins[half][row] >> (8 * m) & 0xff);
  }
};

// Q4_K and Q5_K: unsigned codes, scales and mins in the last field of the packed tile.
template <class Tile>
struct KWholeScales {
  static constexpr bool kIs = true;
  static constexpr bool kCodesSigned = false;
  using Header = KHeader;
  static __device__ Header load(const uint8_t* k_tile, uint32_t lane) {
    return KHeader::load(k_tile + field_base(Tile::kLayout, Tile::kLayout.field_count - 1), lane);
  }
};

template <>
struct WholeScales<Tile<TensorType::kQ4_K>> : KWholeScales<Tile<TensorType::kQ4_K>> {
  using Tile = kernels::Tile<TensorType::kQ4_K>;
  // Codes of odd groups are 16 times too large. So are the scales of even groups; factor() divides.
  static __device__ void codes(const Tile::Raw& raw, uint32_t half, uint32_t m, uint32_t (&a)[4]) {
    Tile::shifted_codes(raw, half, m, a);
  }
  static __device__ int32_t scale(const Header& header, uint32_t half, uint32_t m, uint32_t row) {
    if (m % 2 != 0) return header.scale(half, m, row);
    const uint32_t scales = header.scales[half][row];
    return static_cast<int32_t>((m == 0 ? scales << 4 : scales >> 12) & 0x3f0);
  }
  static __device__ float factor(const Header& header, uint32_t row) {
    return header.d(row) * (1.0f / 16);
  }
};

template <>
struct WholeScales<Tile<TensorType::kQ5_K>> : KWholeScales<Tile<TensorType::kQ5_K>> {
  using Tile = kernels::Tile<TensorType::kQ5_K>;
  static __device__ void codes(const Tile::Raw& raw, uint32_t half, uint32_t m, uint32_t (&a)[4]) {
    Tile::codes(raw, half, m, a);
  }
  static __device__ int32_t scale(const Header& header, uint32_t half, uint32_t m, uint32_t row) {
    return header.scale(half, m, row);
  }
  static __device__ float factor(const Header& header, uint32_t row) { return header.d(row); }
};

template <>
struct WholeScales<Tile<TensorType::kQ6_K>> {
  using Tile = kernels::Tile<TensorType::kQ6_K>;
  static constexpr bool kIs = true;
  static constexpr bool kCodesSigned = true;
  struct Header {
    uint2 scales[2][2];  // half, row: int8, a byte a group
    uint16_t d[2];
  };
  static __device__ Header load(const uint8_t* k_tile, uint32_t lane) {
    Header header;
    const uint8_t* const scales = k_tile + field_base(Tile::kLayout, 2) + lane / 4 * 8;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half)
#pragma unroll
      for (uint32_t row = 0; row < 2; ++row)
        header.scales[half][row] = read_8(scales + half * 128 + row * 64);
    const uint8_t* const d = k_tile + field_base(Tile::kLayout, 3) + lane / 4 * 2;
    header.d[0] = read_2(d);
    header.d[1] = read_2(d + 16);
    return header;
  }
  // Returns 4 * (code - 32) as int8: the six bits of a code at the top, with the sign bit flipped.
  static __device__ void codes(const Tile::Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    const uint4 ql = raw.ql[m % 2], qh = raw.qh;
    a[0] = code(ql.x, qh.x, m);
    a[1] = code(ql.z, qh.z, m);
    a[2] = code(ql.y, qh.y, m);
    a[3] = code(ql.w, qh.w, m);
  }
  static __device__ int32_t scale(const Header& header, uint32_t half, uint32_t m, uint32_t row) {
    const uint2 scales = header.scales[half][row];
    // Sign-extends the byte.
    int32_t scale;
    asm("prmt.b32 %0, %1, 0, %2;"
        : "=r"(scale)
        : "r"(m < 4 ? scales.x : scales.y), "r"(m % 4 | (8 + m % 4) * 0x1110));
    return scale;
  }
  static __device__ float factor(const Header& header, uint32_t row) {
    return half_to_float(header.d[row]) * 0.25f;
  }

 private:
  static __device__ uint32_t code(uint32_t low, uint32_t high, uint32_t m) {
    const uint32_t nibbles = m < 2 ? low << 2 : low >> 2;
    // Computes ((high << …) & 0xc0c0c0c0) ^ 0x80808080 with one instruction.
    uint32_t tops;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;"
        : "=r"(tops)
        : "r"(high << (6 - 2 * m)), "r"(0xc0c0c0c0), "r"(0x80808080));
    return (nibbles & 0x3c3c3c3c) | tops;
  }
};

}  // namespace wcuda::kernels::vector
