// Tiles of the formats with codebooks: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S.
// Interface: kernels/linear/tile.cuh, and prepare(), which fills the table of the codebook in
// shared memory. The threads of a block call it before the first use, followed by a barrier.
//
// IQ1 and IQ2: an entry of the table has 8 nibbles. They are selectors of a byte permutation, which
// returns the levels of 8 weights; IQ2 adds the signs to the selectors. IQ3: an entry is the 4
// levels themselves. Of a group's 32 inputs, lane t owns inputs 8t … 8t + 7.
#pragma once

#include "kernels/linear/tile.cuh"
#include "kernels/ptx/permute_bytes.h"
#include "kernels/shared/quant_unpack_iq.h"

#if defined(__CUDACC__)

namespace wcuda::kernels {

// Expands 8 codes of 2 bits to one nibble each.
WCUDA_HD inline uint32_t nibbles_of(uint32_t entry) {
  entry = (entry | entry << 8) & 0x00ff00ff;
  entry = (entry | entry << 4) & 0x0f0f0f0f;
  return (entry | entry << 2) & 0x33333333;
}

// Returns the table of a type in shared memory.
template <TensorType kType, uint32_t kCount>
__device__ inline uint32_t* shared_table() {
  __shared__ uint32_t table[kCount];
  return table;
}

template <TensorType kType, uint32_t kCount, class Entry>
__device__ inline void fill_table(const Entry& entry) {
  uint32_t* const table = shared_table<kType, kCount>();
  for (uint32_t i = threadIdx.x; i < kCount; i += blockDim.x) table[i] = entry(i);
}

// Codes of a lane's half K-tile: for each group and for rows g and g + 8, the table index and the
// signs.
struct RawGrid {
  uint32_t index[4][2];
};

struct TileOfGrid {
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr bool kHasMin = false;
  using Raw = RawGrid;
};

// Returns a set of 8 signs from its 7 stored bits. There may be more bits above the eighth.
__device__ inline uint32_t signs_of_7_bits(uint32_t bits) {
  return bits + (static_cast<uint32_t>(__popc(static_cast<int32_t>(bits))) << 7);
}

// Returns byte t of a word.
__device__ inline uint32_t byte_of(uint32_t word, uint32_t t) {
  return __byte_perm(word, 0, 0x4440 | t);
}

// IQ2: codes are levels with their signs, as int8.
template <TensorType kType, uint32_t kCount>
struct TileOfIq2 : TileOfGrid {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(kType);
  static constexpr bool kSigned = true;
  static constexpr int32_t kOffset = 0;
  // `raw` has the index and, from bit 16 on, the signs.
  static __device__ void codes(const RawGrid& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      // Moves sign j to bit 4j + 2, because selectors 4 … 6 are the negative levels.
      uint32_t signs = raw.index[m][i] >> 16;
      signs = signs * 0x1001 & 0x000f000f;
      signs = signs * 0x41 & 0x03030303;
      const uint32_t select =
          shared_table<kType, kCount>()[raw.index[m][i] & 0xffff] | (signs * 0x24 & 0x44444444);
      a[i] = __byte_perm(0x002b1908, 0x00d5e7f8, select);
      a[i + 2] = __byte_perm(0x002b1908, 0x00d5e7f8, select >> 16);
    }
  }
  static __device__ float scale_of(uint16_t d, uint32_t code) {
    return half_to_float(d) * (0.125f + 0.25f * static_cast<float>(code));
  }
};

template <>
struct Tile<TensorType::kIQ2_XXS> : TileOfIq2<TensorType::kIQ2_XXS, 256> {  // IQ2_XXS
  static constexpr uint32_t kGroup = 32;
  static __device__ void prepare() {
    fill_table<TensorType::kIQ2_XXS, 256>(
        [](uint32_t i) { return nibbles_of(quant::iq2_xxs_grid()[i]); });
  }
  static __device__ RawGrid load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    RawGrid raw;
    const uint32_t t = lane % 4;
#pragma unroll
    for (uint32_t m = 0; m < 4; ++m)
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint2 group = read_8(place(k_tile, half, m, lane / 4 + 8 * i));
        raw.index[m][i] = byte_of(group.x, t) | signs_of_7_bits(group.y >> (7 * t) & 127) << 16;
      }
    return raw;
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      scale[i] = scale_of(read_2(k_tile + field_base(kLayout, 1) + row * 2),
                          read_4(place(k_tile, half, m, row) + 4) >> 28);
    }
  }

 private:
  static __device__ const uint8_t* place(const uint8_t* k_tile, uint32_t half, uint32_t m,
                                         uint32_t row) {
    return k_tile + ((2 * half + m / 2) * 16 + row) * 16 + m % 2 * 8;
  }
};

template <>
struct Tile<TensorType::kIQ2_XS> : TileOfIq2<TensorType::kIQ2_XS, 512> {  // IQ2_XS
  static constexpr uint32_t kGroup = 16;
  static __device__ void prepare() {
    fill_table<TensorType::kIQ2_XS, 512>(
        [](uint32_t i) { return nibbles_of(quant::iq2_xs_grid()[i]); });
  }
  static __device__ RawGrid load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    RawGrid raw;
#pragma unroll
    for (uint32_t m = 0; m < 4; ++m)
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t row = lane / 4 + 8 * i;
        const uint32_t code =
            read_2(k_tile + ((2 * half + m / 2) * 16 + row) * 16 + m % 2 * 8 + lane % 4 * 2);
        raw.index[m][i] = (code & 511) | signs_of_7_bits(code >> 9) << 16;
      }
    return raw;
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      const uint32_t codes = k_tile[field_base(kLayout, 1) + (half * 16 + row) * 4 + m / 2];
      scale[i] =
          scale_of(read_2(k_tile + field_base(kLayout, 2) + row * 2), codes >> (m % 2 * 4) & 15);
    }
  }
};

template <>
struct Tile<TensorType::kIQ2_S> : TileOfIq2<TensorType::kIQ2_S, 1024> {  // IQ2_S
  static constexpr uint32_t kGroup = 16;
  static __device__ void prepare() {
    fill_table<TensorType::kIQ2_S, 1024>(
        [](uint32_t i) { return nibbles_of(quant::iq2_s_grid()[i]); });
  }
  static __device__ RawGrid load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    RawGrid raw;
    const uint32_t t = lane % 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t place = half * 16 + lane / 4 + 8 * i;
      const uint4 low = read_16(k_tile + place * 16);
      const uint4 signs = read_16(k_tile + field_base(kLayout, 1) + place * 16);
      // Byte m has the two high bits of group m.
      const uint32_t high = read_4(k_tile + field_base(kLayout, 2) + place * 4) >> (2 * t);
      raw.index[0][i] = byte_of(low.x, t) | (high << 8 & 0x300) | byte_of(signs.x, t) << 16;
      raw.index[1][i] = byte_of(low.y, t) | (high & 0x300) | byte_of(signs.y, t) << 16;
      raw.index[2][i] = byte_of(low.z, t) | (high >> 8 & 0x300) | byte_of(signs.z, t) << 16;
      raw.index[3][i] = byte_of(low.w, t) | (high >> 16 & 0x300) | byte_of(signs.w, t) << 16;
    }
    return raw;
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      const uint32_t codes = k_tile[field_base(kLayout, 3) + (half * 16 + row) * 4 + m / 2];
      scale[i] =
          scale_of(read_2(k_tile + field_base(kLayout, 4) + row * 2), codes >> (m % 2 * 4) & 15);
    }
  }
};

// IQ3: codes are levels with their signs: a[0] and a[1] of one table entry, a[2] and a[3] of
// another.
template <TensorType kType, uint32_t kCount>
struct TileOfIq3 : TileOfGrid {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(kType);
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = true;
  static constexpr int32_t kOffset = 0;
  // `raw` has two indices of 9 bits, from bits 0 and 9 on, and the signs from bit 24 on.
  static __device__ void codes(const RawGrid& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    const uint32_t* const table = shared_table<kType, kCount>();
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t code = raw.index[m][i];
      a[i] = with_signs(table[code & 511], code >> 24 & 15);
      a[i + 2] = with_signs(table[code >> 9 & 511], code >> 28);
    }
  }

 protected:
  // Fills the table with the four levels of each entry, whose codes are 4 bits.
  template <class Entry, class Level>
  static __device__ void fill_levels(const Entry& entry, const Level& level) {
    fill_table<kType, kCount>([&](uint32_t i) {
      uint32_t bytes = 0;
      for (uint32_t j = 0; j < 4; ++j)
        bytes |= static_cast<uint32_t>(level(entry(i) >> (4 * j) & 15)) << (8 * j);
      return bytes;
    });
  }
  // rest(i, m, word) returns the ninth bits and the signs of row g (i = 0) or g + 8 (i = 1). `word`
  // is that of group m in the second field.
  template <class Rest>
  static __device__ RawGrid load_pairs(const uint8_t* k_tile, uint32_t half, uint32_t lane,
                                       const Rest& rest) {
    RawGrid raw;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      const uint4 words = read_16(k_tile + field_base(kLayout, 1) + (half * 16 + row) * 16);
#pragma unroll
      for (uint32_t m = 0; m < 4; ++m) {
        const uint32_t pair =
            read_2(k_tile + ((2 * half + m / 2) * 16 + row) * 16 + m % 2 * 8 + lane % 4 * 2);
        const uint32_t word = m == 0 ? words.x : m == 1 ? words.y : m == 2 ? words.z : words.w;
        raw.index[m][i] = (pair & 255) | (pair & 0xff00) << 1 | rest(i, m, word);
      }
    }
    return raw;
  }

 private:
  // Negates the levels whose bit in `signs` is set. -v differs from v in all bits above the lowest
  // 1 bit of v. That is bit 0 for the odd levels of IQ3_S, bit 2 for IQ3_XXS, and bit 1 for its 62.
  static __device__ uint32_t with_signs(uint32_t levels, uint32_t signs) {
    // Moves bit j of 4 to the top of byte j; the permutation copies it to the whole byte.
    const uint32_t negative = permute_bytes(signs * 0x10204080, 0, 0xba98);
    if constexpr (kType == TensorType::kIQ3_S)
      return levels ^ (negative & 0xfefefefe);
    else
      return levels ^ (negative & ((levels & 0x02020202) << 1 | 0xf8f8f8f8));
  }
};

template <>
struct Tile<TensorType::kIQ3_XXS> : TileOfIq3<TensorType::kIQ3_XXS, 256> {
  static __device__ void prepare() {
    fill_levels([](uint32_t i) { return quant::iq3_xxs_grid()[i]; },
                [](uint32_t code) { return quant::iq3_xxs_level(code); });
  }
  static __device__ RawGrid load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    return load_pairs(k_tile, half, lane, [&](uint32_t, uint32_t, uint32_t word) {
      return signs_of_7_bits(word >> (7 * (lane % 4)) & 127) << 24;
    });
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      const uint32_t word =
          read_4(k_tile + field_base(kLayout, 1) + (half * 16 + row) * 16 + m * 4);
      scale[i] = half_to_float(read_2(k_tile + field_base(kLayout, 2) + row * 2)) *
                 (0.25f + 0.5f * static_cast<float>(word >> 28));
    }
  }
};

template <>
struct Tile<TensorType::kIQ3_S> : TileOfIq3<TensorType::kIQ3_S, 512> {
  static __device__ void prepare() {
    fill_levels([](uint32_t i) { return quant::iq3_s_grid()[i]; },
                [](uint32_t code) { return quant::iq3_s_level(code); });
  }
  static __device__ RawGrid load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    const uint32_t t = lane % 4;
    // Bits 0 and 1 of byte m are the ninth bits of the pair of group m.
    uint32_t high[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      high[i] = read_4(k_tile + field_base(kLayout, 2) + (half * 16 + row) * 4) >> (2 * t);
    }
    return load_pairs(k_tile, half, lane, [&](uint32_t i, uint32_t m, uint32_t word) {
      const uint32_t bits = high[i] >> (8 * m);
      return (bits & 1) << 8 | (bits & 2) << 16 | byte_of(word, t) << 24;
    });
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      const uint32_t codes = k_tile[field_base(kLayout, 3) + (half * 16 + row) * 2 + m / 2];
      scale[i] = half_to_float(read_2(k_tile + field_base(kLayout, 4) + row * 2)) *
                 static_cast<float>(1 + 2 * (codes >> (m % 2 * 4) & 15));
    }
  }
};

// IQ1: a weight is scale / 8 * n with n = 8 * grid ± 1; a code is n + 9, which is 0 … 18.
template <TensorType kType>
struct TileOfIq1 : TileOfGrid {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(kType);
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 9;
  static __device__ void prepare() {
    fill_table<kType, 2048>([](uint32_t i) { return nibbles_of(quant::iq1_s_grid()[i]); });
  }
  static __device__ RawGrid load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    RawGrid raw;
    const uint32_t t = lane % 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t place = half * 16 + lane / 4 + 8 * i;
      const uint4 low = read_16(k_tile + place * 16);
      const uint2 high = read_8(k_tile + field_base(kLayout, 1) + place * 8);
      raw.index[0][i] = Tile<kType>::index(low.x, high.x, t);
      raw.index[1][i] = Tile<kType>::index(low.y, high.x >> 16, t);
      raw.index[2][i] = Tile<kType>::index(low.z, high.y, t);
      raw.index[3][i] = Tile<kType>::index(low.w, high.y >> 16, t);
    }
    return raw;
  }
  // `raw` has the index, and bit 15 if the shift is negative.
  static __device__ void codes(const RawGrid& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t index = raw.index[m][i];
      const uint32_t select = shared_table<kType, 2048>()[index & 2047];
      const uint32_t levels = (index & 0x8000) != 0 ? 0x00100800 : 0x00120a02;
      a[i] = __byte_perm(levels, 0, select);
      a[i + 2] = __byte_perm(levels, 0, select >> 16);
    }
  }
};

template <>
struct Tile<TensorType::kIQ1_S> : TileOfIq1<TensorType::kIQ1_S> {  // IQ1_S
  static constexpr uint32_t kGroup = 32;
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + 8 * i;
      const uint32_t word = read_2(k_tile + field_base(kLayout, 1) + (half * 16 + row) * 8 + m * 2);
      scale[i] = half_to_float(read_2(k_tile + field_base(kLayout, 2) + row * 2)) *
                 (0.125f + 0.25f * static_cast<float>(word >> 12 & 7));
    }
  }

  // Returns the index for lane t of a quad, from a word of low bytes and one of high bits.
  static __device__ uint32_t index(uint32_t low, uint32_t high, uint32_t t) {
    return byte_of(low, t) | (high >> (3 * t) & 7) << 8 | (high & 0x8000);
  }
};

template <>
struct Tile<TensorType::kIQ1_M> : TileOfIq1<TensorType::kIQ1_M> {  // IQ1_M
  static constexpr uint32_t kGroup = 16;
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint2 words = read_8(k_tile + field_base(kLayout, 2) + (lane / 4 + 8 * i) * 8);
      const uint32_t d = (words.x >> 12 & 0xf) | (words.x >> 24 & 0xf0) | (words.y >> 4 & 0xf00) |
                         (words.y >> 16 & 0xf000);
      const uint32_t code = (half == 0 ? words.x : words.y) >> (m / 4 * 16 + m % 4 * 3) & 7;
      scale[i] =
          half_to_float(static_cast<uint16_t>(d)) * (0.125f + 0.25f * static_cast<float>(code));
    }
  }

  // Returns the index for lane t of a quad, from a word of low bytes and one of high bits.
  static __device__ uint32_t index(uint32_t low, uint32_t high, uint32_t t) {
    const uint32_t nibble = high >> (4 * t);
    return byte_of(low, t) | (nibble & 7) << 8 | (nibble & 8) << 12;
  }
};

}  // namespace wcuda::kernels

#endif
