// Products of 16-row M-tiles, written over the vectors of vector.h: one lane a row, weights as
// unsigned bytes, activations as 16-bit integers, sums of 32 columns exact in int32, everything
// after in f32. Included by the instruction sets that can multiply integers fast; kLanes
// divides 16.
//
// With AVX-512 VNNI 32 columns of an M-tile need 16 dot products of 64 weights and 5 other
// operations a token, and the unpacking, which up to 8 tokens share. VDPBF16PS has the same rate
// (Zen 4) at half the precision of the activations.
#pragma once

#include <immintrin.h>

#include "llm/ops/host/kernels.h"
#include "llm/ops/host/vector.h"

namespace {

using wcuda::ops::host::InputBlock;
using wcuda::ops::host::MTileKernel;

constexpr uint32_t kMTileRows = 16;

// A packed tile of 16 blocks, of which the rows from `first_row` on are wanted, one a lane.
struct PackedTile {
  const uint8_t* bytes;
  uint32_t first_row;

  // 4-byte unit `unit` of the field at `offset` in the block.
  WCUDA_INLINE_MEMBER UintVec units(uint32_t offset, uint32_t unit) const {
    UintVec v;
    __builtin_memcpy(&v, bytes + (offset + unit * 4) * kMTileRows + first_row * 4, sizeof v);
    return v;
  }
  // The f16 at `offset` in the block.
  WCUDA_INLINE_MEMBER Vec halves(uint32_t offset) const {
    return load_halves(bytes + offset * kMTileRows + first_row * 2);
  }
};

WCUDA_INLINE UintVec low_nibbles(UintVec v) { return v & 0x0f0f0f0fu; }
WCUDA_INLINE UintVec high_nibbles(UintVec v) { return v >> 4 & 0x0f0f0f0fu; }
WCUDA_INLINE Vec to_float(UintVec v) { return __builtin_convertvector((IntVec)v, Vec); }

// 32 columns: weight = scale * q + minimum. Columns 4c … 4c + 3 of a row are the bytes of q[c].
struct Part {
  UintVec q[8];
  Vec scale[2];  // of the first and last 16 columns; where kHalves is false, [0] is of all
  Vec minimum[2];
};

// ---- the step that each instruction set has its own way for ----

#if defined(__AVX512VNNI__)

// Bytes of bit `4 * kChunk + i` of each lane, as 16 or 0 in byte i.
template <uint32_t kChunk>
WCUDA_INLINE UintVec spread_bits(UintVec bits) {
  constexpr char k = kChunk / 2;
  const __m512i copies = _mm512_shuffle_epi8(
      (__m512i)bits,
      _mm512_broadcast_i32x4(_mm_setr_epi8(k, k, k, k, k + 4, k + 4, k + 4, k + 4, k + 8, k + 8,
                                           k + 8, k + 8, k + 12, k + 12, k + 12, k + 12)));
  const int which = kChunk % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010u);
  return (UintVec)_mm512_maskz_mov_epi8(_mm512_test_epi8_mask(copies, _mm512_set1_epi32(which)),
                                        _mm512_set1_epi8(16));
}

// codes: the upper signed bytes of the 32 columns, then the lower ones.
WCUDA_INLINE void write_codes(const int32_t* codes, uint32_t* words) {
  for (uint32_t half = 0; half < 2; ++half) {
    const __m512i code = _mm512_loadu_si512(codes + half * 16);
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words + half * 4), _mm512_cvtepi32_epi8(upper));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words + 8 + half * 4), _mm512_cvtepi32_epi8(code));
  }
}

constexpr uint32_t kTokensMax = 8;

// sums[t] = sum of q * code over chunks kFirst … of 4 columns.
template <uint32_t kTokens, uint32_t kFirst, uint32_t kCount>
WCUDA_INLINE void sum_codes(const UintVec* q, const InputBlock* input, uint64_t stride,
                            IntVec* sums) {
  __m512i totals[kTokens];
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) totals[t] = _mm512_setzero_si512();
  WCUDA_UNROLL
  for (uint32_t c = kFirst; c < kFirst + kCount; ++c) {
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t)
      totals[t] =
          _mm512_dpbusd_epi32(totals[t], (__m512i)q[c],
                              _mm512_set1_epi32(static_cast<int>(input[t * stride].codes[c])));
  }
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) totals[t] = _mm512_slli_epi32(totals[t], 8);
  WCUDA_UNROLL
  for (uint32_t c = kFirst; c < kFirst + kCount; ++c) {
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t)
      totals[t] =
          _mm512_dpbusd_epi32(totals[t], (__m512i)q[c],
                              _mm512_set1_epi32(static_cast<int>(input[t * stride].codes[8 + c])));
  }
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) sums[t] = (IntVec)totals[t];
}

#else  // AVX2

template <uint32_t kChunk>
WCUDA_INLINE UintVec spread_bits(UintVec bits) {
  constexpr char k = kChunk / 2;
  const __m256i copies =
      _mm256_shuffle_epi8((__m256i)bits, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                             k, k, k, k, k + 4, k + 4, k + 4, k + 4, k + 8, k + 8,
                                             k + 8, k + 8, k + 12, k + 12, k + 12, k + 12)));
  const __m256i which =
      _mm256_set1_epi32(kChunk % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010u));
  const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(copies, which), which);
  return (UintVec)_mm256_and_si256(is_set, _mm256_set1_epi8(16));
}

// codes: signed words of columns 4c and 4c + 2, then of 4c + 1 and 4c + 3.
WCUDA_INLINE void write_codes(const int32_t* codes, uint32_t* words) {
  for (uint32_t c = 0; c < 8; ++c)
    for (uint32_t odd = 0; odd < 2; ++odd)
      words[2 * c + odd] = (static_cast<uint32_t>(codes[4 * c + odd]) & 0xffffu) |
                           static_cast<uint32_t>(codes[4 * c + 2 + odd]) << 16;
}

constexpr uint32_t kTokensMax = 4;

template <uint32_t kTokens, uint32_t kFirst, uint32_t kCount>
WCUDA_INLINE void sum_codes(const UintVec* q, const InputBlock* input, uint64_t stride,
                            IntVec* sums) {
  __m256i totals[kTokens];
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) totals[t] = _mm256_setzero_si256();
  WCUDA_UNROLL
  for (uint32_t c = kFirst; c < kFirst + kCount; ++c) {
    const __m256i even = _mm256_and_si256((__m256i)q[c], _mm256_set1_epi16(0xff));
    const __m256i odd = _mm256_srli_epi16((__m256i)q[c], 8);
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      const uint32_t* codes = input[t * stride].codes + 2 * c;
      const __m256i a = _mm256_madd_epi16(even, _mm256_set1_epi32(static_cast<int>(codes[0])));
      const __m256i b = _mm256_madd_epi16(odd, _mm256_set1_epi32(static_cast<int>(codes[1])));
      totals[t] = _mm256_add_epi32(totals[t], _mm256_add_epi32(a, b));
    }
  }
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) sums[t] = (IntVec)totals[t];
}

#endif

// y += scale * sums + minimum * (sum of the activations).
template <uint32_t kTokens>
WCUDA_INLINE void add_sums(const IntVec* sums, Vec scale, Vec minimum, const InputBlock* input,
                           uint64_t stride, const float* input_sum, Vec* y) {
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    const Vec both = scale * input[t * stride].scale;
    const float block_sum = input_sum[t * stride * (sizeof(InputBlock) / sizeof(float))];
    y[t] = multiply_add(__builtin_convertvector(sums[t], Vec), both, y[t]);
    y[t] = multiply_add(minimum, broadcast(block_sum), y[t]);
  }
}

template <uint32_t kTokens, bool kHalves>
WCUDA_INLINE void add_part(const Part& part, const InputBlock* input, uint64_t stride, Vec* y) {
  IntVec sums[kTokens];
  if constexpr (kHalves) {
    sum_codes<kTokens, 0, 4>(part.q, input, stride, sums);
    add_sums<kTokens>(sums, part.scale[0], part.minimum[0], input, stride, &input->half_sums[0], y);
    sum_codes<kTokens, 4, 4>(part.q, input, stride, sums);
    add_sums<kTokens>(sums, part.scale[1], part.minimum[1], input, stride, &input->half_sums[1], y);
  } else {
    sum_codes<kTokens, 0, 8>(part.q, input, stride, sums);
    add_sums<kTokens>(sums, part.scale[0], part.minimum[0], input, stride, &input->sum, y);
  }
}

// ---- formats: kParts parts of 32 columns a packed tile ----

template <bool kHasMinimum>
struct Q4 {  // Q4_0, Q4_1
  static constexpr uint32_t kParts = 1;
  static constexpr bool kHalves = false;
  static constexpr uint32_t kBlockBytes = kHasMinimum ? 20 : 18;
  struct Head {};
  WCUDA_INLINE Head head(const PackedTile&) { return {}; }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const PackedTile& packed_tile, const Head&, Part* part) {
    part->scale[0] = packed_tile.halves(0);
    part->minimum[0] = kHasMinimum ? packed_tile.halves(2) : part->scale[0] * -8.0f;
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 4; ++c) {
      const UintVec units = packed_tile.units(kHasMinimum ? 4 : 2, c);
      part->q[c] = low_nibbles(units);
      part->q[4 + c] = high_nibbles(units);
    }
  }
};

struct Q5_0 {
  static constexpr uint32_t kParts = 1;
  static constexpr bool kHalves = false;
  static constexpr uint32_t kBlockBytes = 22;
  struct Head {};
  WCUDA_INLINE Head head(const PackedTile&) { return {}; }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const PackedTile& packed_tile, const Head&, Part* part) {
    part->scale[0] = packed_tile.halves(0);
    part->minimum[0] = part->scale[0] * -16.0f;
    const UintVec bits = packed_tile.units(2, 0);
    unpack_chunks(packed_tile, bits, part, std::make_integer_sequence<uint32_t, 4>{});
  }
  template <uint32_t... kChunk>
  WCUDA_INLINE void unpack_chunks(const PackedTile& packed_tile, UintVec bits, Part* part,
                                  std::integer_sequence<uint32_t, kChunk...>) {
    ((part->q[kChunk] = low_nibbles(packed_tile.units(6, kChunk)) | spread_bits<kChunk>(bits)),
     ...);
    ((part->q[4 + kChunk] =
          high_nibbles(packed_tile.units(6, kChunk)) | spread_bits<4 + kChunk>(bits)),
     ...);
  }
};

struct Q8_0 {
  static constexpr uint32_t kParts = 1;
  static constexpr bool kHalves = false;
  static constexpr uint32_t kBlockBytes = 34;
  struct Head {};
  WCUDA_INLINE Head head(const PackedTile&) { return {}; }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const PackedTile& packed_tile, const Head&, Part* part) {
    part->scale[0] = packed_tile.halves(0);
    part->minimum[0] = part->scale[0] * -128.0f;
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 8; ++c) part->q[c] = packed_tile.units(2, c) ^ 0x80808080u;
  }
};

template <bool kHasFifthBit>
struct QK {  // Q4_K, Q5_K: each part has a scale and a minimum of 6 bits
  static constexpr uint32_t kParts = 8;
  static constexpr bool kHalves = false;
  static constexpr uint32_t kBlockBytes = kHasFifthBit ? 176 : 144;
  struct Head {
    Vec scale, minimum;              // d, -dmin
    UintVec scales[2], minimums[2];  // bytes: of parts 0 … 3 and 4 … 7
  };
  WCUDA_INLINE Head head(const PackedTile& packed_tile) {
    const UintVec low = packed_tile.units(4, 0);
    const UintVec middle = packed_tile.units(4, 1);
    const UintVec high = packed_tile.units(4, 2);
    Head head;
    head.scale = packed_tile.halves(0);
    head.minimum = -packed_tile.halves(2);
    head.scales[0] = low & 0x3f3f3f3fu;
    head.minimums[0] = middle & 0x3f3f3f3fu;
    head.scales[1] = low_nibbles(high) | (low >> 2 & 0x30303030u);
    head.minimums[1] = high_nibbles(high) | (middle >> 2 & 0x30303030u);
    return head;
  }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const PackedTile& packed_tile, const Head& head, Part* part) {
    constexpr uint32_t kShift = kPart % 4 * 8;
    part->scale[0] = head.scale * to_float(head.scales[kPart / 4] >> kShift & 0xffu);
    part->minimum[0] = head.minimum * to_float(head.minimums[kPart / 4] >> kShift & 0xffu);
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 8; ++c) {
      const UintVec units = packed_tile.units(kHasFifthBit ? 48 : 16, kPart / 2 * 8 + c);
      part->q[c] = kPart % 2 == 0 ? low_nibbles(units) : high_nibbles(units);
      if constexpr (kHasFifthBit) {
        const UintVec bits = packed_tile.units(16, c);
        const UintVec fifth = kPart < 4 ? bits << (4 - kPart % 4) : bits >> (kPart % 4);
        part->q[c] |= fifth & 0x10101010u;
      }
    }
  }
};

struct Q6_K {  // a signed 8-bit scale for 16 columns
  static constexpr uint32_t kParts = 8;
  static constexpr bool kHalves = true;
  static constexpr uint32_t kBlockBytes = 210;
  struct Head {
    Vec scale;
  };
  WCUDA_INLINE Head head(const PackedTile& packed_tile) { return {packed_tile.halves(208)}; }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const PackedTile& packed_tile, const Head& head, Part* part) {
    const UintVec scales = packed_tile.units(192, kPart / 2);
    WCUDA_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const IntVec code = (IntVec)(scales << (24 - 8 * (kPart % 2 * 2 + half))) >> 24;
      part->scale[half] = head.scale * __builtin_convertvector(code, Vec);
      part->minimum[half] = part->scale[half] * -32.0f;
    }
    constexpr uint32_t kQuarter = kPart % 4;
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 8; ++c) {
      const UintVec low = packed_tile.units(0, kPart / 4 * 16 + kQuarter % 2 * 8 + c);
      const UintVec high = packed_tile.units(128, kPart / 4 * 8 + c);
      const UintVec moved = kQuarter < 3 ? high << (4 - kQuarter * 2) % 8 : high >> 2;
      part->q[c] = (kQuarter < 2 ? low_nibbles(low) : high_nibbles(low)) | (moved & 0x30303030u);
    }
  }
};

// ---- an M-tile ----

template <class Format, uint32_t kTokens, uint32_t kPart>
WCUDA_INLINE void add_parts(const PackedTile& packed_tile, const typename Format::Head& head,
                            const InputBlock* input, uint64_t stride, Vec* y) {
  if constexpr (kPart < Format::kParts) {
    Part part;
    Format::template unpack<kPart>(packed_tile, head, &part);
    add_part<kTokens, Format::kHalves>(part, input + kPart, stride, y);
    add_parts<Format, kTokens, kPart + 1>(packed_tile, head, input, stride, y);
  }
}

template <class Format, uint32_t kTokens>
void m_tile_tokens(const uint8_t* m_tile, uint32_t cols, const InputBlock* input, uint64_t stride,
                   float* tile) {
  for (uint32_t first_row = 0; first_row < kMTileRows; first_row += kLanes) {
    PackedTile packed_tile = {m_tile, first_row};
    Vec y[kTokens] = {};
    for (uint32_t block = 0; block < cols / 32; block += Format::kParts) {
      const typename Format::Head head = Format::head(packed_tile);
      add_parts<Format, kTokens, 0>(packed_tile, head, input + block, stride, y);
      packed_tile.bytes += Format::kBlockBytes * kMTileRows;
    }
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) store(tile + t * kMTileRows + first_row, y[t]);
  }
}

template <class Format>
void m_tile_blocks(const uint8_t* m_tile, uint32_t cols, const InputBlock* input, uint64_t stride,
                   uint32_t token_count, float* tile) {
  uint32_t t = 0;
  for (; t + kTokensMax <= token_count; t += kTokensMax)
    m_tile_tokens<Format, kTokensMax>(m_tile, cols, input + t * stride, stride, tile + t * 16);
  if constexpr (kTokensMax > 4)
    for (; t + 4 <= token_count; t += 4)
      m_tile_tokens<Format, 4>(m_tile, cols, input + t * stride, stride, tile + t * 16);
  for (; t + 2 <= token_count; t += 2)
    m_tile_tokens<Format, 2>(m_tile, cols, input + t * stride, stride, tile + t * 16);
  if (t < token_count)
    m_tile_tokens<Format, 1>(m_tile, cols, input + t * stride, stride, tile + t * 16);
}

// ---- float weights: a packed tile is one column ----

struct F32 {
  static constexpr uint32_t kBytes = 4;
  WCUDA_INLINE Vec column(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct F16 {
  static constexpr uint32_t kBytes = 2;
  WCUDA_INLINE Vec column(const uint8_t* p) { return load_halves(p); }
};
struct BF16 {
  static constexpr uint32_t kBytes = 2;
  WCUDA_INLINE Vec column(const uint8_t* p) {
    HalfWordVec bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return (Vec)(__builtin_convertvector(bits, UintVec) << 16);
  }
};

// Two sums a token, of the even and of the odd columns.
template <class Format, uint32_t kTokens>
void m_tile_float_tokens(const uint8_t* m_tile, uint32_t cols, const float* input, uint64_t stride,
                         float* tile) {
  constexpr uint32_t kPackedTileBytes = kMTileRows * Format::kBytes;
  for (uint32_t first_row = 0; first_row < kMTileRows; first_row += kLanes) {
    const uint8_t* packed_tile = m_tile + first_row * Format::kBytes;
    Vec even[kTokens] = {};
    Vec odd[kTokens] = {};
    uint32_t col = 0;
    for (; col + 2 <= cols; col += 2, packed_tile += 2 * kPackedTileBytes) {
      const Vec w0 = Format::column(packed_tile);
      const Vec w1 = Format::column(packed_tile + kPackedTileBytes);
      WCUDA_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        even[t] = multiply_add(w0, broadcast(input[t * stride + col]), even[t]);
        odd[t] = multiply_add(w1, broadcast(input[t * stride + col + 1]), odd[t]);
      }
    }
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      if (col < cols)
        even[t] =
            multiply_add(Format::column(packed_tile), broadcast(input[t * stride + col]), even[t]);
      store(tile + t * kMTileRows + first_row, even[t] + odd[t]);
    }
  }
}

template <class Format>
void m_tile_floats(const uint8_t* m_tile, uint32_t cols, const float* input, uint64_t stride,
                   uint32_t token_count, float* tile) {
  uint32_t t = 0;
  for (; t + kTokensMax <= token_count; t += kTokensMax)
    m_tile_float_tokens<Format, kTokensMax>(m_tile, cols, input + t * stride, stride,
                                            tile + t * 16);
  for (; t + 2 <= token_count; t += 2)
    m_tile_float_tokens<Format, 2>(m_tile, cols, input + t * stride, stride, tile + t * 16);
  if (t < token_count)
    m_tile_float_tokens<Format, 1>(m_tile, cols, input + t * stride, stride, tile + t * 16);
}

MTileKernel find_m_tile_kernel(uint32_t type) {
  switch (type) {
    case 0:
      return {nullptr, m_tile_floats<F32>};
    case 1:
      return {nullptr, m_tile_floats<F16>};
    case 30:
      return {nullptr, m_tile_floats<BF16>};
    case 2:
      return {m_tile_blocks<Q4<false>>, nullptr};
    case 3:
      return {m_tile_blocks<Q4<true>>, nullptr};
    case 6:
      return {m_tile_blocks<Q5_0>, nullptr};
    case 8:
      return {m_tile_blocks<Q8_0>, nullptr};
    case 12:
      return {m_tile_blocks<QK<false>>, nullptr};
    case 13:
      return {m_tile_blocks<QK<true>>, nullptr};
    case 14:
      return {m_tile_blocks<Q6_K>, nullptr};
    default:
      return {nullptr, nullptr};
  }
}

// ---- activations ----

// 127 * 256 + 127: the upper byte of a code, rounded, stays within a signed byte.
constexpr float kCodeMax = 32639.0f;
constexpr float kSmallestMagnitude = 1e-30f;  // below it a block counts as 0

void make_blocks(const float* x, uint32_t cols, InputBlock* blocks) {
  for (uint32_t col = 0; col < cols; col += 32, x += 32, ++blocks) {
    // Magnitudes compare as integers; infinity and NaN are above all others.
    IntVec largest = {};
    for (uint32_t i = 0; i < 32; i += kLanes) {
      const IntVec magnitude = (IntVec)load(x + i) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
    int32_t bits = 0;
    for (uint32_t i = 0; i < kLanes; ++i) bits = largest[i] > bits ? largest[i] : bits;
    float limit;
    __builtin_memcpy(&limit, &bits, sizeof limit);
    if (bits >= 0x7f800000 || limit < kSmallestMagnitude) {
      *blocks = InputBlock{};
      if (bits >= 0x7f800000)
        blocks->scale = blocks->sum = blocks->half_sums[0] = blocks->half_sums[1] =
            __builtin_nanf("");
      continue;
    }
    const float inverse = kCodeMax / limit;
    int32_t codes[32];
    int32_t sums[2];
    for (uint32_t half = 0; half < 2; ++half) {
      IntVec total = {};
      for (uint32_t i = half * 16; i < half * 16 + 16; i += kLanes) {
        // 1.5 * 2^23: rounds
        const Vec shifted = multiply_add(load(x + i), broadcast(inverse), broadcast(12582912.0f));
        const IntVec code = (IntVec)shifted - 0x4b400000;
        __builtin_memcpy(codes + i, &code, sizeof code);
        total += code;
      }
      sums[half] = 0;
      for (uint32_t i = 0; i < kLanes; ++i) sums[half] += total[i];
    }
    write_codes(codes, blocks->codes);
    blocks->scale = limit / kCodeMax;
    blocks->half_sums[0] = blocks->scale * static_cast<float>(sums[0]);
    blocks->half_sums[1] = blocks->scale * static_cast<float>(sums[1]);
    blocks->sum = blocks->scale * static_cast<float>(sums[0] + sums[1]);
  }
}

}  // namespace
