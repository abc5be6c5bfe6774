// The 16 positions that a warp of attention_decode works on at a time: how they lie in shared
// memory and become operands of products, for each type of the pool. Only for .cu files.
//
// Keys enter as a (16 positions, 16 elements), values as a (16 elements, 16 positions). Which
// element a lane's registers hold is the type's choice, as long as queries and results follow it:
// f16 takes tiles as they lie; q8_0 and e4m3 take four neighbouring codes with one load.
#pragma once

#include "kernels/attention_tile.h"

namespace wcuda::kernels {

constexpr int kStepRows = 16;

__device__ __forceinline__ uint32_t load_shared_32(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_shared_16(uint32_t address) {
  uint16_t value;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ __half2 as_halves(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__half2 halves) {
  return *reinterpret_cast<const uint32_t*>(&halves);
}

template <int kLength, KvFormat kFormat>
struct StepTile;

template <int kLength>
struct StepTile<kLength, KvFormat::kF16> {
  static constexpr uint32_t kBytes = kStepRows * kLength * 2;  // keys; as much of values

  // First of the two elements that register j of product i of the queries holds.
  __device__ static uint32_t query_element(int i, int j, uint32_t lane) {
    return i * 16 + j * 8 + lane % 4 * 2;
  }
  // Element of sum i, of its first (0) or second (1) pair.
  __device__ static uint32_t sum_element(int i, int j, uint32_t lane) {
    return i * 16 + j * 8 + lane / 4;
  }

  __device__ static __forceinline__ void copy(uint32_t target, const uint8_t* source,
                                              const KvPages& pages, RowRange valid, uint32_t lane) {
    copy_rows<kLength * 2, kStepRows, 32>(target, source, pages.row_bytes, valid, lane);
  }

  __device__ static __forceinline__ void score(uint32_t keys, const KvPages&,
                                               const uint32_t (&queries)[kLength / 16][2],
                                               uint32_t lane, float (&scores)[4]) {
    float odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint32_t row = lane % 16;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i) {
      uint32_t k[4];
      load_tiles(k, keys + tile_offset<kLength * 2>(row, 2 * i + lane / 16));
      multiply_tiles(i % 2 == 0 ? scores : odd, k, queries[i][0], queries[i][1]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[j] += odd[j];
  }

  // sums += values * weights, whose registers are w0 and w1.
  __device__ static __forceinline__ void add(uint32_t values, const KvPages&, uint32_t w0,
                                             uint32_t w1, uint32_t lane,
                                             float (&sums)[kLength / 16][4]) {
    const uint32_t row = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i) {
      uint32_t v[4];
      load_tiles_transposed(v, values + tile_offset<kLength * 2>(row, 2 * i + lane / 8 % 2));
      multiply_tiles(sums[i], v, w0, w1);
    }
  }
};

// What q8_0 and e4m3 share. Lane 4g + t takes of 32 keys' elements 4t … 4t + 3 and 16 + 4t …
// 16 + 4t + 3 of positions g and g + 8; of 32 values' elements 4g … 4g + 3 of positions 2t, 2t + 1,
// 2t + 8, 2t + 9.
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

// (16, kLength) codes, chunks of 16 in the order of tile_offset.
template <int kLength>
struct StepTile<kLength, KvFormat::kFp8E4m3> : ByteElements {
  static constexpr uint32_t kBytes = kStepRows * kLength;

  __device__ static __forceinline__ void copy(uint32_t target, const uint8_t* source,
                                              const KvPages& pages, RowRange valid, uint32_t lane) {
    copy_rows<kLength, kStepRows, 32>(target, source, pages.row_bytes, valid, lane);
  }

  __device__ static __forceinline__ uint32_t expand(uint32_t codes) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(codes);
    return as_bits(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  }

  __device__ static __forceinline__ void score(uint32_t keys, const KvPages&,
                                               const uint32_t (&queries)[kLength / 16][2],
                                               uint32_t lane, float (&scores)[4]) {
    float odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint32_t row = lane / 4;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i) {
      const uint32_t low = load_shared_32(keys + tile_offset<kLength>(row, i) + lane % 4 * 4);
      const uint32_t high = load_shared_32(keys + tile_offset<kLength>(row + 8, i) + lane % 4 * 4);
      const uint32_t k[4] = {expand(low), expand(high), expand(low >> 16), expand(high >> 16)};
      multiply_tiles(i % 2 == 0 ? scores : odd, k, queries[i][0], queries[i][1]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[j] += odd[j];
  }

  __device__ static __forceinline__ void add(uint32_t values, const KvPages&, uint32_t w0,
                                             uint32_t w1, uint32_t lane,
                                             float (&sums)[kLength / 16][4]) {
#pragma unroll
    for (int b = 0; b < kLength / 32; ++b) {
      uint32_t codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        codes[i] =
            load_shared_32(values + tile_offset<kLength>(value_row(i, lane), 2 * b + lane / 16) +
                           lane / 4 % 4 * 4);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t low = __byte_perm(codes[0], codes[1], m == 0 ? 0x5140 : 0x7362);
        const uint32_t high = __byte_perm(codes[2], codes[3], m == 0 ? 0x5140 : 0x7362);
        const uint32_t v[4] = {expand(low), expand(low >> 16), expand(high), expand(high >> 16)};
        multiply_tiles(sums[2 * b + m], v, w0, w1);
      }
    }
  }
};

// Rows as they lie in the pool: blocks of an f16 scale and 32 codes, at even addresses.
template <int kLength>
struct StepTile<kLength, KvFormat::kQ8_0> : ByteElements {
  static constexpr uint32_t kBytes = kStepRows * kLength / 32 * 34;

  __device__ static __forceinline__ void copy(uint32_t target, const uint8_t* source,
                                              const KvPages& pages, RowRange valid, uint32_t lane) {
    copy_raw_rows<kStepRows, 32>(target, source, pages.row_bytes, valid, lane);
  }

  // Four codes at an even address, which is 0 or 2 modulo 4.
  __device__ static __forceinline__ uint32_t load_codes(uint32_t address, bool is_aligned) {
    if (is_aligned) return load_shared_32(address);
    const uint32_t first = load_shared_32(address & ~3u);
    const uint32_t second = load_shared_32((address & ~3u) + 4);
    return __byte_perm(first, second, address & 2 ? 0x5432 : 0x3210);
  }
  // Codes plus 128 in the low (0) or high (1) half of a word, as f16 numbers without the 128.
  __device__ static __forceinline__ __half2 expand(uint32_t codes, int half) {
    const uint32_t word = __byte_perm(codes, 0x64646464u, half == 0 ? 0x4140 : 0x4342);
    return __hsub2(as_halves(word), as_halves(0x64806480u));
  }

  __device__ static __forceinline__ void score(uint32_t keys, const KvPages& pages,
                                               const uint32_t (&queries)[kLength / 16][2],
                                               uint32_t lane, float (&scores)[4]) {
    // With an even number of blocks a row, those of odd index have their codes on words.
    const bool has_words = pages.row_bytes % 4 == 0;
    const uint32_t low_row = keys + lane / 4 * pages.row_bytes;
    const uint32_t high_row = low_row + 8 * pages.row_bytes;
#pragma unroll
    for (int b = 0; b < kLength / 32; ++b) {
      if (b * 32u >= pages.head_length) break;
      const bool is_aligned = has_words && b % 2 == 1;
      float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t offset = b * 34 + 2 + i * 16 + lane % 4 * 4;
        const uint32_t low = load_codes(low_row + offset, is_aligned) ^ 0x80808080u;
        const uint32_t high = load_codes(high_row + offset, is_aligned) ^ 0x80808080u;
        const uint32_t k[4] = {as_bits(expand(low, 0)), as_bits(expand(high, 0)),
                               as_bits(expand(low, 1)), as_bits(expand(high, 1))};
        multiply_tiles(sums, k, queries[2 * b + i][0], queries[2 * b + i][1]);
      }
      const float low_scale = half_to_float(load_shared_16(low_row + b * 34));
      const float high_scale = half_to_float(load_shared_16(high_row + b * 34));
      scores[0] += sums[0] * low_scale;
      scores[1] += sums[1] * low_scale;
      scores[2] += sums[2] * high_scale;
      scores[3] += sums[3] * high_scale;
    }
  }

  __device__ static __forceinline__ void add(uint32_t values, const KvPages& pages, uint32_t w0,
                                             uint32_t w1, uint32_t lane,
                                             float (&sums)[kLength / 16][4]) {
    const bool has_words = pages.row_bytes % 4 == 0;
#pragma unroll
    for (int b = 0; b < kLength / 32; ++b) {
      if (b * 32u >= pages.head_length) break;
      const bool is_aligned = has_words && b % 2 == 1;
      uint32_t codes[4], scales[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t block = values + value_row(i, lane) * pages.row_bytes + b * 34;
        codes[i] = load_codes(block + 2 + lane / 4 * 4, is_aligned);
        scales[i] = load_shared_16(block);
      }
      const __half2 low_scale = as_halves(scales[0] | scales[1] << 16);
      const __half2 high_scale = as_halves(scales[2] | scales[3] << 16);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t order = m == 0 ? 0x5140 : 0x7362;
        const uint32_t low = __byte_perm(codes[0], codes[1], order) ^ 0x80808080u;
        const uint32_t high = __byte_perm(codes[2], codes[3], order) ^ 0x80808080u;
        const uint32_t v[4] = {as_bits(__hmul2(expand(low, 0), low_scale)),
                               as_bits(__hmul2(expand(low, 1), low_scale)),
                               as_bits(__hmul2(expand(high, 0), high_scale)),
                               as_bits(__hmul2(expand(high, 1), high_scale))};
        multiply_tiles(sums[2 * b + m], v, w0, w1);
      }
    }
  }
};

}  // namespace wcuda::kernels
