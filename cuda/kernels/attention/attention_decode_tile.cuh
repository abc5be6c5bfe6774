// DecodeTile: the 16 or 32 positions that a warp of attention_decode works on at a time, their
// layout in shared memory, and their use as MMA operands, for each format of the KV cache. Only for
// .cu files.
//
// A sub-tile is 16 positions of a tile. Its keys are operand A of shape (16 positions, 16
// elements), its values operand A of shape (16 elements, 16 positions). Each format chooses which
// elements a lane holds, because the sum over elements may be computed in any order: query_element
// and sum_element return the element of a register for queries and for results. f16 uses ldmatrix;
// the other formats load words of four codes.
#pragma once

#include "kernels/attention/attention_tile.cuh"

namespace wcuda::kernels {

// Positions of an MMA.
constexpr int kSubTilePositions = 16;

__device__ __forceinline__ __half2 as_halves(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__half2 halves) {
  return *reinterpret_cast<const uint32_t*>(&halves);
}

template <int kPositions>
__device__ __forceinline__ bool is_whole(RowRange valid) {
  return valid.begin == 0 && valid.end == kPositions;
}

// kExact: heads have exactly kLength elements, otherwise at most kLength. kPositions: 16 or 32.
template <int kLength, KvFormat kFormat, bool kExact, int kPositions>
struct DecodeTile;

template <int kLength, bool kExact, int kPositions>
struct DecodeTile<kLength, KvFormat::kF16, kExact, kPositions> {
  static constexpr uint32_t kBytes = kPositions * kLength * 2;  // of keys, and again of values

  // Returns the first of the two elements in register j of operand B of MMA i.
  __device__ static uint32_t query_element(int i, int j, uint32_t lane) {
    return i * 16 + j * 8 + lane % 4 * 2;
  }
  // Returns the element of sum i: j = 0 for the first pair of registers, 1 for the second.
  __device__ static uint32_t sum_element(int i, int j, uint32_t lane) {
    return i * 16 + j * 8 + lane / 4;
  }
  __device__ static uint32_t row_bytes(const KvPages& pages) {
    return kExact ? kLength * 2 : pages.row_bytes;
  }

  __device__ static __forceinline__ void copy(uint32_t target, const uint8_t* source,
                                              const KvPages& pages, RowRange valid, uint32_t lane) {
    if (kExact && is_whole<kPositions>(valid))
      copy_whole_rows<kLength * 2, kPositions>(target, source, lane);
    else
      copy_rows<kLength * 2, kPositions, 32>(target, source, row_bytes(pages), valid, lane);
  }
  // Stores row `row` of a tile. `source` is in shared memory.
  __device__ static __forceinline__ void put_row(uint32_t target, uint32_t row,
                                                 const uint8_t* source, const KvPages& pages,
                                                 uint32_t lane) {
    for (uint32_t i = lane; i < row_bytes(pages) / 2; i += 32)
      store_shared_16(target + tile_offset<kLength * 2>(row, i / 8) + i % 8 * 2,
                      reinterpret_cast<const uint16_t*>(source)[i]);
  }

  __device__ static __forceinline__ void score(uint32_t keys, int sub_tile, const KvPages&,
                                               const uint32_t (&queries)[kLength / 16][2],
                                               uint32_t lane, float (&scores)[4]) {
    float odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint32_t row = sub_tile * kSubTilePositions + lane % 16;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i) {
      uint32_t k[4];
      load_tiles(k, keys + tile_offset<kLength * 2>(row, 2 * i + lane / 16));
      mma_f16(i % 2 == 0 ? scores : odd, k, queries[i][0], queries[i][1]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[j] += odd[j];
  }

  // Computes sums += values * numerators. p0 and p1 are the registers of the numerators.
  __device__ static __forceinline__ void add(uint32_t values, int sub_tile, const KvPages&,
                                             uint32_t p0, uint32_t p1, uint32_t lane,
                                             float (&sums)[kLength / 16][4]) {
    const uint32_t row = sub_tile * kSubTilePositions + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i) {
      uint32_t v[4];
      load_tiles_transposed(v, values + tile_offset<kLength * 2>(row, 2 * i + lane / 8 % 2));
      mma_f16(sums[i], v, p0, p1);
    }
  }
};

// The assignment of elements to lanes where each load is a word of four codes. Every 32 elements
// are 8 words. Of these, lane 4g + t loads
//
//   keys     words t and 4 + t of positions g and g + 8
//   values   word g of positions 2t, 2t + 1, 2t + 8 and 2t + 9
struct ByteElements {
  __device__ static uint32_t query_element(int i, int j, uint32_t lane) {
    return i * 16 + lane % 4 * 4 + j * 2;
  }
  __device__ static uint32_t sum_element(int i, int j, uint32_t lane) {
    return i / 2 * 32 + lane / 4 * 4 + i % 2 * 2 + j;
  }
  __device__ static uint32_t value_row(int i, uint32_t lane) {
    return lane % 4 * 2 + i % 2 + i / 2 * 8;
  }
};

// (16, kLength) codes; chunks of 16 are permuted by tile_offset.
template <int kLength, bool kExact, int kPositions>
struct DecodeTile<kLength, KvFormat::kFp8E4m3, kExact, kPositions> : ByteElements {
  static constexpr uint32_t kBytes = kPositions * kLength;

  __device__ static uint32_t row_bytes(const KvPages& pages) {
    return kExact ? kLength : pages.row_bytes;
  }

  __device__ static __forceinline__ void copy(uint32_t target, const uint8_t* source,
                                              const KvPages& pages, RowRange valid, uint32_t lane) {
    if (kExact && is_whole<kPositions>(valid))
      copy_whole_rows<kLength, kPositions>(target, source, lane);
    else
      copy_rows<kLength, kPositions, 32>(target, source, row_bytes(pages), valid, lane);
  }
  __device__ static __forceinline__ void put_row(uint32_t target, uint32_t row,
                                                 const uint8_t* source, const KvPages& pages,
                                                 uint32_t lane) {
    for (uint32_t i = lane; i < row_bytes(pages); i += 32)
      store_shared_8(target + tile_offset<kLength>(row, i / 16) + i % 16, source[i]);
  }

  __device__ static __forceinline__ uint32_t expand(uint32_t codes) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(codes);
    return as_bits(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  }

  __device__ static __forceinline__ void score(uint32_t keys, int sub_tile, const KvPages&,
                                               const uint32_t (&queries)[kLength / 16][2],
                                               uint32_t lane, float (&scores)[4]) {
    float odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint32_t row = sub_tile * kSubTilePositions + lane / 4;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i) {
      const uint32_t low = load_shared_32(keys + tile_offset<kLength>(row, i) + lane % 4 * 4);
      const uint32_t high = load_shared_32(keys + tile_offset<kLength>(row + 8, i) + lane % 4 * 4);
      const uint32_t k[4] = {expand(low), expand(high), expand(low >> 16), expand(high >> 16)};
      mma_f16(i % 2 == 0 ? scores : odd, k, queries[i][0], queries[i][1]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[j] += odd[j];
  }

  __device__ static __forceinline__ void add(uint32_t values, int sub_tile, const KvPages&,
                                             uint32_t p0, uint32_t p1, uint32_t lane,
                                             float (&sums)[kLength / 16][4]) {
#pragma unroll
    for (int b = 0; b < kLength / 32; ++b) {
      uint32_t codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        codes[i] =
            load_shared_32(values +
                           tile_offset<kLength>(sub_tile * kSubTilePositions + value_row(i, lane),
                                                2 * b + lane / 16) +
                           lane / 4 % 4 * 4);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t low = __byte_perm(codes[0], codes[1], m == 0 ? 0x5140 : 0x7362);
        const uint32_t high = __byte_perm(codes[2], codes[3], m == 0 ? 0x5140 : 0x7362);
        const uint32_t v[4] = {expand(low), expand(low >> 16), expand(high), expand(high >> 16)};
        mma_f16(sums[2 * b + m], v, p0, p1);
      }
    }
  }
};

// Tiles whose rows keep the layout of the KV cache.
template <uint32_t kRowBytes, bool kExact, int kPositions>
struct RawRows : ByteElements {
  static constexpr uint32_t kBytes = kPositions * kRowBytes;

  __device__ static uint32_t row_bytes(const KvPages& pages) {
    return kExact ? kRowBytes : pages.row_bytes;
  }

  __device__ static __forceinline__ void copy(uint32_t target, const uint8_t* source,
                                              const KvPages& pages, RowRange valid, uint32_t lane) {
    if (!kExact || !is_whole<kPositions>(valid)) {
      copy_raw_rows<kPositions, 32>(target, source, row_bytes(pages), valid, lane);
      return;
    }
    constexpr int kChunks = kBytes / 16;
#pragma unroll
    for (int i = 0; i < (kChunks + 31) / 32; ++i)
      if (i * 32 + 31 < kChunks || i * 32 + lane < kChunks)
        copy_async_16(target + lane * 16 + i * 512, source + lane * 16 + i * 512);
  }
  __device__ static __forceinline__ void put_row(uint32_t target, uint32_t row,
                                                 const uint8_t* source, const KvPages& pages,
                                                 uint32_t lane) {
    for (uint32_t i = lane; i < row_bytes(pages) / 2; i += 32)
      store_shared_16(target + row * row_bytes(pages) + i * 2,
                      reinterpret_cast<const uint16_t*>(source)[i]);
  }
};

// Blocks of an f16 scale (d) and 32 codes. Even blocks begin on a 32-bit word, odd ones in the
// middle of one:
//
//   word     0       1       …   8       | 8       9       10    …
//   even     d 0 1   2 3 4 5 …   30 31   |
//   odd                                  | d       0 1 2 3 4 5 6 7
//
// "Word k of the codes" of an odd block is codes 4k … 4k + 3. Word k of an even block is codes
// 4k + 2 … 4k + 5 for k < 7, and codes 0, 1, 30 and 31 for k = 7.
template <int kLength, bool kExact, int kPositions>
struct DecodeTile<kLength, KvFormat::kQ8_0, kExact, kPositions>
    : RawRows<kLength / 32 * 34, kExact, kPositions> {
  using Rows = RawRows<kLength / 32 * 34, kExact, kPositions>;

  // Returns true for even blocks if kExact. Without kExact, a row may itself begin in the middle of
  // a word. Then every block is treated as odd, and each word is assembled from two loads.
  __device__ static bool has_split_word(int block) { return kExact && block % 2 == 0; }

  // Returns the index of the first code of pair `pair` (0 or 1) in word `word` of a block's codes.
  __device__ static uint32_t code_of(int block, uint32_t word, uint32_t pair) {
    if (!has_split_word(block)) return word * 4 + pair * 2;
    return word < 7 ? word * 4 + 2 + pair * 2 : pair * 30;
  }
  __device__ static uint32_t query_element(int i, int j, uint32_t lane) {
    return i / 2 * 32 + code_of(i / 2, i % 2 * 4 + lane % 4, j);
  }
  __device__ static uint32_t sum_element(int i, int j, uint32_t lane) {
    return i / 2 * 32 + code_of(i / 2, lane / 4, i % 2) + j;
  }
  // Converts the low (half = 0) or high (half = 1) two bytes, each a code plus 128, to f16.
  __device__ static __forceinline__ __half2 expand(uint32_t codes, int half) {
    const uint32_t word = __byte_perm(codes, 0x64646464u, half == 0 ? 0x4140 : 0x4342);
    return __hsub2(as_halves(word), as_halves(0x64806480u));
  }

  // A word of a block's codes, each code plus 128. The low half of `scale` is the block's scale.
  struct Word {
    uint32_t scale;
    uint32_t codes;
  };
  __device__ static __forceinline__ Word load_word(uint32_t row, int block, uint32_t word) {
    const uint32_t address = row + block * 34;
    Word out;
    if (!kExact) {
      out.scale = load_shared_16(address);
      const uint32_t at = address + 2 + word * 4;
      out.codes = __byte_perm(load_shared_32(at & ~3u), load_shared_32((at + 3) & ~3u),
                              at & 2 ? 0x5432 : 0x3210);
    } else if (has_split_word(block)) {
      out.scale = load_shared_32(address);
      out.codes = __byte_perm(out.scale, load_shared_32(address + 4 + word * 4),
                              word == 7 ? 0x5432 : 0x7654);
    } else {
      out.scale = load_shared_32(address - 2) >> 16;
      out.codes = load_shared_32(address + 2 + word * 4);
    }
    out.codes ^= 0x80808080u;
    return out;
  }
  __device__ static __forceinline__ float scale_of(const Word& word) {
    return half_to_float(static_cast<uint16_t>(word.scale));
  }

  __device__ static __forceinline__ void score(uint32_t keys, int sub_tile, const KvPages& pages,
                                               const uint32_t (&queries)[kLength / 16][2],
                                               uint32_t lane, float (&scores)[4]) {
    const uint32_t low_row =
        keys + (sub_tile * kSubTilePositions + lane / 4) * Rows::row_bytes(pages);
    const uint32_t high_row = low_row + 8 * Rows::row_bytes(pages);
#pragma unroll
    for (int b = 0; b < kLength / 32; ++b) {
      if (!kExact && b * 32u >= pages.head_length) break;
      float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      float low_scale = 0.0f, high_scale = 0.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Word low = load_word(low_row, b, i * 4 + lane % 4);
        const Word high = load_word(high_row, b, i * 4 + lane % 4);
        if (i == 0) {
          low_scale = scale_of(low);
          high_scale = scale_of(high);
        }
        const uint32_t k[4] = {as_bits(expand(low.codes, 0)), as_bits(expand(high.codes, 0)),
                               as_bits(expand(low.codes, 1)), as_bits(expand(high.codes, 1))};
        mma_f16(sums, k, queries[2 * b + i][0], queries[2 * b + i][1]);
      }
      scores[0] += sums[0] * low_scale;
      scores[1] += sums[1] * low_scale;
      scores[2] += sums[2] * high_scale;
      scores[3] += sums[3] * high_scale;
    }
  }

  __device__ static __forceinline__ void add(uint32_t values, int sub_tile, const KvPages& pages,
                                             uint32_t p0, uint32_t p1, uint32_t lane,
                                             float (&sums)[kLength / 16][4]) {
    uint32_t rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows[i] = values +
                (sub_tile * kSubTilePositions + Rows::value_row(i, lane)) * Rows::row_bytes(pages);
#pragma unroll
    for (int b = 0; b < kLength / 32; ++b) {
      if (!kExact && b * 32u >= pages.head_length) break;
      Word words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = load_word(rows[i], b, lane / 4);
      const __half2 low_scale = as_halves(__byte_perm(words[0].scale, words[1].scale, 0x5410));
      const __half2 high_scale = as_halves(__byte_perm(words[2].scale, words[3].scale, 0x5410));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t order = m == 0 ? 0x5140 : 0x7362;
        const uint32_t low = __byte_perm(words[0].codes, words[1].codes, order);
        const uint32_t high = __byte_perm(words[2].codes, words[3].codes, order);
        const uint32_t v[4] = {as_bits(__hmul2(expand(low, 0), low_scale)),
                               as_bits(__hmul2(expand(low, 1), low_scale)),
                               as_bits(__hmul2(expand(high, 0), high_scale)),
                               as_bits(__hmul2(expand(high, 1), high_scale))};
        mma_f16(sums[2 * b + m], v, p0, p1);
      }
    }
  }
};

// Rows as int10_row.h describes them. The loads of codes are those of ByteElements; a lane's words
// of 64 elements have their high bits in one word.
template <int kLength, bool kExact, int kPositions>
struct DecodeTile<kLength, KvFormat::kInt10, kExact, kPositions>
    : RawRows<kLength / kInt10Block * kInt10BlockBytes, kExact, kPositions> {
  using Rows = RawRows<kLength / kInt10Block * kInt10BlockBytes, kExact, kPositions>;

  __device__ static Int10Row offsets(const KvPages& pages, bool is_odd_row) {
    return {kExact ? uint32_t{kLength} : pages.head_length, is_odd_row};
  }

  __device__ static __forceinline__ void score(uint32_t keys, int sub_tile, const KvPages& pages,
                                               const uint32_t (&queries)[kLength / 16][2],
                                               uint32_t lane, float (&scores)[4]) {
    const Int10Row at = offsets(pages, lane / 4 % 2 == 1);
    const uint32_t low_row =
        keys + (sub_tile * kSubTilePositions + lane / 4) * Rows::row_bytes(pages);
    const uint32_t high_row = low_row + 8 * Rows::row_bytes(pages);
#pragma unroll
    for (int b = 0; b < kLength / 64; ++b) {
      if (!kExact && b * 64u >= pages.head_length) break;
      const uint32_t high_bits = at.high + b * 16 + lane % 4 * 4;
      const uint32_t bits[2] = {load_shared_32(low_row + high_bits),
                                load_shared_32(high_row + high_bits)};
      float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = at.low + b * 64 + i * 16 + lane % 4 * 4;
        const Int10Codes low(load_shared_32(low_row + word), bits[0], 2 * i);
        const Int10Codes high(load_shared_32(high_row + word), bits[1], 2 * i);
        const uint32_t k[4] = {as_bits(low.halves(0)), as_bits(high.halves(0)),
                               as_bits(low.halves(1)), as_bits(high.halves(1))};
        mma_f16(sums, k, queries[4 * b + i][0], queries[4 * b + i][1]);
      }
      const float low_scale = half_to_float(load_shared_16(low_row + at.scales + b * 2));
      const float high_scale = half_to_float(load_shared_16(high_row + at.scales + b * 2));
      scores[0] += sums[0] * low_scale;
      scores[1] += sums[1] * low_scale;
      scores[2] += sums[2] * high_scale;
      scores[3] += sums[3] * high_scale;
    }
  }

  __device__ static __forceinline__ void add(uint32_t values, int sub_tile, const KvPages& pages,
                                             uint32_t p0, uint32_t p1, uint32_t lane,
                                             float (&sums)[kLength / 16][4]) {
    // Rows 0 and 1, and 2 and 3, are neighbours: an even and an odd one.
    const Int10Row at[2] = {offsets(pages, false), offsets(pages, true)};
    uint32_t rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows[i] = values +
                (sub_tile * kSubTilePositions + Rows::value_row(i, lane)) * Rows::row_bytes(pages);
#pragma unroll
    for (int b = 0; b < kLength / 64; ++b) {
      if (!kExact && b * 64u >= pages.head_length) break;
      uint32_t bits[4], scales[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = load_shared_32(rows[i] + at[i % 2].high + b * 16 + lane / 4 % 4 * 4);
        bits[i] = word >> lane / 16 * 2;
        scales[i] = load_shared_16(rows[i] + at[i % 2].scales + b * 2);
      }
      const __half2 low_scale = as_halves(scales[0] | scales[1] << 16);
      const __half2 high_scale = as_halves(scales[2] | scales[3] << 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = load_shared_32(rows[i] + at[i % 2].low + b * 64 + half * 32 + lane / 4 * 4);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint32_t order = m == 0 ? 0x5140 : 0x7362;
          const Int10Codes low(__byte_perm(words[0], words[1], order),
                               __byte_perm(bits[0], bits[1], order), 4 * half);
          const Int10Codes high(__byte_perm(words[2], words[3], order),
                                __byte_perm(bits[2], bits[3], order), 4 * half);
          const uint32_t v[4] = {as_bits(__hmul2(low.halves(0), low_scale)),
                                 as_bits(__hmul2(low.halves(1), low_scale)),
                                 as_bits(__hmul2(high.halves(0), high_scale)),
                                 as_bits(__hmul2(high.halves(1), high_scale))};
          mma_f16(sums[4 * b + 2 * half + m], v, p0, p1);
        }
      }
    }
  }
};

}  // namespace wcuda::kernels
