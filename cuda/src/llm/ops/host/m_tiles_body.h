// Products of 16-row M-tiles, with the vectors of vector.h. Each lane is a row. Weights and
// activations are 16-bit integers; sums over 32 columns are exact in int32, and the rest is
// computed in f32. Included for instruction sets with fast integer products; kLanes divides 16.
//
// With few tokens, the loops read the packed tiles directly. With more, they unpack the weights of
// 256 columns into a panel, which stays in the first-level cache while all tokens use it. Both ways
// add the same terms in the same order.
#pragma once

#include <immintrin.h>

#include "llm/ops/host/kernels.h"
#include "llm/ops/host/vector.h"

namespace {

using wcuda::ops::host::InputBlock;
using wcuda::ops::host::kMTilesMax;
using wcuda::ops::host::kSumFactor;
using wcuda::ops::host::kTileFloats;
using wcuda::ops::host::kTokenBlock;
using wcuda::ops::host::MTileKernel;
using wcuda::quant::kMTileRows;

constexpr uint32_t kVectors = kMTileRows / kLanes;  // of an M-tile's rows

typedef int16_t WordVec __attribute__((vector_size(kLanes * 4)));
typedef int8_t CodeVec __attribute__((vector_size(kLanes * 4)));

// Loads 16-bit integers as 32-bit ones. gcc 12 would convert each half of a vector separately.
WCUDA_INLINE UintVec load_words(const uint8_t* p) {
#if defined(__AVX512VNNI__)
  return (UintVec)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#else
  return (UintVec)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
}

// A packed tile of 16 blocks. The functions return the rows from `first_row` on, one per lane.
struct PackedTile {
  const uint8_t* bytes;
  uint32_t first_row;

  // Returns dword `index` (4 bytes) of the field at `offset` in the block.
  WCUDA_INLINE_MEMBER UintVec dwords(uint32_t offset, uint32_t index) const {
    UintVec v;
    __builtin_memcpy(&v, bytes + (offset + index * 4) * kMTileRows + first_row * 4, sizeof v);
    return v;
  }
  // Returns the 16 bits at `offset` in the block.
  WCUDA_INLINE_MEMBER UintVec words(uint32_t offset) const {
    return load_words(bytes + offset * kMTileRows + first_row * 2);
  }
  // Returns the byte at `offset` in the block.
  WCUDA_INLINE_MEMBER UintVec single_bytes(uint32_t offset) const {
    unsigned char v __attribute__((vector_size(kLanes)));
    __builtin_memcpy(&v, bytes + offset * kMTileRows + first_row, sizeof v);
    return __builtin_convertvector(v, UintVec);
  }
  // Returns the f16 at `offset` in the block.
  WCUDA_INLINE_MEMBER Vec halves(uint32_t offset) const {
    return load_halves(bytes + offset * kMTileRows + first_row * 2);
  }
  // Returns the same, divided by kSumFactor, for factors of sums that are multiplied by it.
  WCUDA_INLINE_MEMBER Vec sum_halves(uint32_t offset) const {
    return halves(offset) * (1.0f / kSumFactor);
  }
};

// Prefetches the kBytes that are needed some microseconds after `bytes`, even in the next page.
template <uint32_t kBytes>
WCUDA_INLINE void prefetch(const uint8_t* bytes) {
  constexpr uint32_t kAhead = 4096;
  for (uint32_t i = 0; i < kBytes; i += 64) __builtin_prefetch(bytes + kAhead + i);
}

// The addresses of kTokens tokens, each in a register; gcc would compute one for each load.
template <uint32_t kTokens, class T>
struct TokenRows {
  const T* rows[kTokens];

  WCUDA_INLINE_MEMBER TokenRows(const T* input, uint64_t stride) {
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      rows[t] = input + t * stride;
      asm("" : "+r"(rows[t]));
    }
  }
  WCUDA_INLINE_MEMBER const T* operator[](uint32_t t) const { return rows[t]; }
};

WCUDA_INLINE UintVec low_nibbles(UintVec v) { return v & 0x0f0f0f0fu; }
WCUDA_INLINE UintVec high_nibbles(UintVec v) { return v >> 4 & 0x0f0f0f0fu; }
WCUDA_INLINE Vec to_float(UintVec v) { return __builtin_convertvector((IntVec)v, Vec); }

// ---- operations that differ between instruction sets ----

// Adds w0 * x0 + w1 * x1 of the 16-bit integers in each lane.
WCUDA_INLINE IntVec add_products(IntVec sum, UintVec w, UintVec x) {
#if defined(__AVX512VNNI__)
  return (IntVec)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(__AVXVNNI__)
  return (IntVec)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#else
  sum += (IntVec)_mm256_madd_epi16((__m256i)w, (__m256i)x);
  asm("" : "+x"(sum));  // otherwise gcc computes all products first, and spills
  return sum;
#endif
}

// Permutes each 16 bytes of v by `pattern`.
WCUDA_INLINE UintVec shuffle_bytes(UintVec v, __m128i pattern) {
#if defined(__AVX512VNNI__)
  return (UintVec)_mm512_shuffle_epi8((__m512i)v, _mm512_broadcast_i32x4(pattern));
#else
  return (UintVec)_mm256_shuffle_epi8((__m256i)v, _mm256_broadcastsi128_si256(pattern));
#endif
}

// Returns the entry of a table of 16 bytes for each byte of `indices`.
WCUDA_INLINE UintVec look_up(__m128i table, UintVec indices) {
#if defined(__AVX512VNNI__)
  return (UintVec)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)indices);
#else
  return (UintVec)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)indices);
#endif
}

// Returns the levels of IQ3_S in columns 4c … 4c + 3, one per byte: an entry of its codebook of
// 512. `low` has the low bytes of the entry numbers for four values of c; bit c of `high` is bit 8.
#if defined(__AVX512VNNI__)
WCUDA_INLINE UintVec look_up_iq3_s(const uint16_t* table, UintVec low, UintVec high, uint32_t c) {
  // Loads one word for c and its neighbour; the compiler computes it once for both. Gathers are far
  // slower on processors that prevent them from leaking data.
  const UintVec bytes = low >> (c % 4 / 2 * 16), bits = high >> (c & ~1u);
  const __m512i indices =
      (__m512i)((bytes & 0xffu) | (bytes & 0xff00u) << 8 | (bits & 1u) << 8 | (bits & 2u) << 23);
  __m512i found[8];
  WCUDA_UNROLL
  for (uint32_t i = 0; i < 8; ++i)
    found[i] = _mm512_permutex2var_epi16(_mm512_loadu_si512(table + i * 64), indices,
                                         _mm512_loadu_si512(table + i * 64 + 32));
  WCUDA_UNROLL
  for (uint32_t half = 4; half > 0; half /= 2) {
    const __mmask32 is_upper =
        _mm512_test_epi16_mask(indices, _mm512_set1_epi16(static_cast<int16_t>(512 * half / 8)));
    WCUDA_UNROLL
    for (uint32_t i = 0; i < half; ++i)
      found[i] = _mm512_mask_blend_epi16(is_upper, found[i], found[i + half]);
  }
  UintVec codes = (UintVec)found[0] >> (c % 2 * 16) & 0xffffu;
  codes = (codes | codes << 8) & 0x00ff00ffu;
  codes = (codes | codes << 4) & 0x0f0f0f0fu;
  return codes << 1 | 0x01010101u;
}
WCUDA_INLINE const uint16_t* iq3_s_table() { return wcuda::ops::host::iq3_s_codes(); }
#else
WCUDA_INLINE UintVec look_up_iq3_s(const uint32_t* table, UintVec low, UintVec high, uint32_t c) {
  const UintVec numbers = (low >> (c % 4 * 8) & 0xffu) | (high >> c & 1u) << 8;
  uint32_t n[kLanes];
  __builtin_memcpy(n, &numbers, sizeof n);
  asm("" : "+m"(n));  // otherwise gcc extracts them from the vector, which is slower
  return UintVec{table[n[0]], table[n[1]], table[n[2]], table[n[3]],
                 table[n[4]], table[n[5]], table[n[6]], table[n[7]]};
}
WCUDA_INLINE const uint32_t* iq3_s_table() { return wcuda::ops::host::iq3_s_levels(); }
#endif

// Returns 0xff in byte i if bit 4 * chunk + i of the lane is set, otherwise 0.
WCUDA_INLINE UintVec spread_bits(UintVec bits, uint32_t chunk) {
  const char k = static_cast<char>(chunk / 2);
  const UintVec copies =
      shuffle_bytes(bits, _mm_setr_epi8(k, k, k, k, k + 4, k + 4, k + 4, k + 4, k + 8, k + 8, k + 8,
                                        k + 8, k + 12, k + 12, k + 12, k + 12));
  const UintVec which = UintVec{} + (chunk % 2 == 0 ? 0x08040201u : 0x80402010u);
  return (UintVec)((CodeVec)(copies & which) == (CodeVec)which);
}

// ---- formats: kParts parts of 32 columns per packed tile ----

// The scales of kLanes rows in 32 columns: weight = scale * factor * (code - kOffset) + minimum.
// The minimums, and the scale of a format with factors, are divided by kSumFactor.
struct Scales {
  Vec scale;
  IntVec factors[2];  // of the first and last 16 columns if kFactors is 2; [0] of all if it is 1
  Vec minimums[2];    // likewise, by kMinimums
};

// The constants of a format. A format also has
//   Head, head(tile): the data that its parts have in common;
//   scales<kPart>(head, first): returns the scales of part first + kPart;
//   codes<kPart>(tile, head, first, c): returns columns 4c … 4c + 3 of that part, one per byte.
// `first` is a multiple of kUnrolled, and kPart is below kUnrolled.
template <uint32_t kBytes, uint32_t kPartCount, uint32_t kUnrolledParts, int16_t kCodeOffset,
          uint32_t kFactorCount, uint32_t kMinimumCount>
struct Format {
  static constexpr uint32_t kBlockBytes = kBytes;
  static constexpr uint32_t kParts = kPartCount;
  static constexpr uint32_t kUnrolled = kUnrolledParts;
  static constexpr int16_t kOffset = kCodeOffset;
  static constexpr uint32_t kFactors = kFactorCount;
  static constexpr uint32_t kMinimums = kMinimumCount;
  // If parts have factors, a block has one scale: sums of factor * product are scaled at the end.
  static constexpr bool kSharesScale = kFactors > 0;  // |factor * (code - kOffset)| <= 4096
};

// Formats of one part, which follows its scale and, with kHasMinimum, its minimum.
template <uint32_t kCodeBytes, int16_t kOffset, bool kHasMinimum>
struct Simple : Format<kCodeBytes + (kHasMinimum ? 4 : 2), 1, 1, kOffset, 0, kHasMinimum> {
  static constexpr uint32_t kCodesAt = kHasMinimum ? 4 : 2;
  using Head = Scales;
  WCUDA_INLINE Head head(const PackedTile& tile) {
    Head head;
    head.scale = tile.halves(0);
    if constexpr (kHasMinimum) head.minimums[0] = tile.sum_halves(2);
    return head;
  }
  template <uint32_t>
  WCUDA_INLINE Scales scales(const Head& head, uint32_t) {
    return head;
  }
};

// Returns codes of 4 bits: the low nibbles of 16 bytes, then the high nibbles.
WCUDA_INLINE UintVec nibbles(const PackedTile& tile, uint32_t offset, uint32_t first, uint32_t c) {
  const UintVec dwords = tile.dwords(offset, first + c % 4);
  return c < 4 ? low_nibbles(dwords) : high_nibbles(dwords);
}

template <bool kHasMinimum>
struct Q4 : Simple<16, kHasMinimum ? 0 : 8, kHasMinimum> {  // Q4_0, Q4_1
  template <uint32_t>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Scales&, uint32_t, uint32_t c) {
    return nibbles(tile, Q4::kCodesAt, 0, c);
  }
};

template <bool kHasMinimum>
struct Q5 : Simple<20, kHasMinimum ? 0 : 16, kHasMinimum> {  // Q5_0, Q5_1
  template <uint32_t>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Scales&, uint32_t, uint32_t c) {
    const UintVec fifth = spread_bits(tile.dwords(Q5::kCodesAt, 0), c) & 0x10101010u;
    return nibbles(tile, Q5::kCodesAt + 4, 0, c) | fifth;
  }
};

struct Q8_0 : Simple<32, 128, false> {
  template <uint32_t>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Scales&, uint32_t, uint32_t c) {
    return tile.dwords(kCodesAt, c) ^ 0x80808080u;
  }
};

template <bool kHasFifthBit>
struct QK : Format<kHasFifthBit ? 176 : 144, 8, 2, 0, 1, 1> {  // Q4_K, Q5_K: factors of 6 bits
  struct Head {
    Vec scale;
    IntVec factors[8];
    Vec minimums[8];
  };
  WCUDA_INLINE Head head(const PackedTile& tile) {
    const UintVec low = tile.dwords(4, 0), middle = tile.dwords(4, 1), high = tile.dwords(4, 2);
    const Vec minimum = -tile.sum_halves(2);
    const UintVec factors[2] = {low & 0x3f3f3f3fu, low_nibbles(high) | (low >> 2 & 0x30303030u)};
    const UintVec minimums[2] = {middle & 0x3f3f3f3fu,
                                 high_nibbles(high) | (middle >> 2 & 0x30303030u)};
    Head head;
    head.scale = tile.sum_halves(0);
    WCUDA_UNROLL
    for (uint32_t p = 0; p < 8; ++p) {
      head.factors[p] = (IntVec)(factors[p / 4] >> (p % 4 * 8) & 0xffu);
      head.minimums[p] = minimum * to_float(minimums[p / 4] >> (p % 4 * 8) & 0xffu);
    }
    return head;
  }
  template <uint32_t kPart>
  WCUDA_INLINE Scales scales(const Head& head, uint32_t first) {
    return {head.scale, {head.factors[first + kPart]}, {head.minimums[first + kPart]}};
  }
  template <uint32_t kPart>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Head&, uint32_t first, uint32_t c) {
    const UintVec dwords = tile.dwords(kHasFifthBit ? 48 : 16, first / 2 * 8 + c);
    const UintVec low = kPart == 0 ? low_nibbles(dwords) : high_nibbles(dwords);
    if constexpr (!kHasFifthBit) return low;
    return low | (tile.dwords(16, c) >> first << (4 - kPart) & 0x10101010u);
  }
};

// Returns byte `byte` of each lane as a signed integer.
WCUDA_INLINE IntVec signed_byte(UintVec v, uint32_t byte) {
  return (IntVec)(v << (24 - 8 * byte)) >> 24;
}

struct Q6_K : Format<210, 8, 4, 32, 2, 0> {  // a signed 8-bit factor for 16 columns
  struct Head {
    Vec scale;
    UintVec factors[4];
  };
  WCUDA_INLINE Head head(const PackedTile& tile) {
    return {tile.sum_halves(208),
            {tile.dwords(192, 0), tile.dwords(192, 1), tile.dwords(192, 2), tile.dwords(192, 3)}};
  }
  template <uint32_t kPart>
  WCUDA_INLINE Scales scales(const Head& head, uint32_t first) {
    const UintVec factors = head.factors[(first + kPart) / 2];
    return {head.scale,
            {signed_byte(factors, kPart % 2 * 2), signed_byte(factors, kPart % 2 * 2 + 1)},
            {}};
  }
  template <uint32_t kPart>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Head&, uint32_t first, uint32_t c) {
    const UintVec low = tile.dwords(0, first * 4 + kPart % 2 * 8 + c);
    const UintVec high = tile.dwords(128, first * 2 + c);
    const UintVec moved = kPart < 3 ? high << (4 - kPart * 2) % 8 : high >> 2;
    return (kPart < 2 ? low_nibbles(low) : high_nibbles(low)) | (moved & 0x30303030u);
  }
};

struct Q2_K : Format<84, 8, 4, 0, 2, 2> {  // a factor and a minimum of 4 bits for 16 columns
  struct Head {
    Vec scale, minimum;  // d, -dmin
    UintVec scales[4];   // two parts in each: a factor and above it a minimum in a byte
  };
  WCUDA_INLINE Head head(const PackedTile& tile) {
    return {tile.sum_halves(80),
            -tile.sum_halves(82),
            {tile.dwords(0, 0), tile.dwords(0, 1), tile.dwords(0, 2), tile.dwords(0, 3)}};
  }
  template <uint32_t kPart>
  WCUDA_INLINE Scales scales(const Head& head, uint32_t first) {
    const UintVec bytes = head.scales[(first + kPart) / 2] >> (kPart % 2 * 16);
    return {
        head.scale,
        {(IntVec)(bytes & 15u), (IntVec)(bytes >> 8 & 15u)},
        {head.minimum * to_float(bytes >> 4 & 15u), head.minimum * to_float(bytes >> 12 & 15u)}};
  }
  template <uint32_t kPart>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Head&, uint32_t first, uint32_t c) {
    return tile.dwords(16, first * 2 + c) >> (2 * kPart) & 0x03030303u;
  }
};

struct Q3_K : Format<110, 8, 4, 4, 2, 0> {  // a factor of 6 bits for 16 columns
  struct Head {
    Vec scale;
    UintVec factors[4];  // of two parts each, signed bytes
  };
  WCUDA_INLINE Head head(const PackedTile& tile) {
    const UintVec low[2] = {tile.dwords(96, 0), tile.dwords(96, 1)}, high = tile.dwords(96, 2);
    Head head;
    head.scale = tile.sum_halves(108);
    WCUDA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const UintVec bits =
          (low[i % 2] >> (i / 2 * 4) & 0x0f0f0f0fu) | (high >> (2 * i) & 0x03030303u) << 4;
      head.factors[i] = (UintVec)((CodeVec)bits - static_cast<int8_t>(32));
    }
    return head;
  }
  template <uint32_t kPart>
  WCUDA_INLINE Scales scales(const Head& head, uint32_t first) {
    const UintVec factors = head.factors[(first + kPart) / 2];
    return {head.scale,
            {signed_byte(factors, kPart % 2 * 2), signed_byte(factors, kPart % 2 * 2 + 1)},
            {}};
  }
  template <uint32_t kPart>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Head&, uint32_t first, uint32_t c) {
    const UintVec low = tile.dwords(32, first * 2 + c) >> (2 * kPart) & 0x03030303u;
    return low | (tile.dwords(0, c) >> first >> kPart & 0x01010101u) << 2;
  }
};

// Return the levels of IQ4 codes, and twice those of FP4 codes, minus kOffset.
WCUDA_INLINE UintVec iq4_levels(UintVec codes) {
  return look_up(
      _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15),
      codes);
}
WCUDA_INLINE UintVec fp4_levels(UintVec codes) {
  return look_up(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), codes);
}

struct IQ4_NL : Simple<16, 128, false> {
  template <uint32_t>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Scales&, uint32_t, uint32_t c) {
    return iq4_levels(nibbles(tile, kCodesAt, 0, c));
  }
};

struct IQ4_XS : Format<136, 8, 1, 128, 1, 0> {  // a factor of 6 bits for 32 columns
  struct Head {
    Vec scale;
    IntVec factors[8];
  };
  WCUDA_INLINE Head head(const PackedTile& tile) {
    const UintVec low = tile.dwords(4, 0), high = tile.words(2);
    Head head;
    head.scale = tile.sum_halves(0);
    WCUDA_UNROLL
    for (uint32_t p = 0; p < 8; ++p) {
      const UintVec bits = (low >> (4 * p) & 15u) | (high >> (2 * p) & 3u) << 4;
      head.factors[p] = (IntVec)(bits - 32u);
    }
    return head;
  }
  template <uint32_t>
  WCUDA_INLINE Scales scales(const Head& head, uint32_t first) {
    return {head.scale, {head.factors[first]}, {}};
  }
  template <uint32_t>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Head&, uint32_t first, uint32_t c) {
    return iq4_levels(nibbles(tile, 8, first * 4, c));
  }
};

struct MXFP4 : Format<17, 1, 1, 12, 0, 0> {
  using Head = Scales;
  WCUDA_INLINE Head head(const PackedTile& tile) {  // half of 2^(e - 127)
    const UintVec e = tile.single_bytes(0);
    return {select(e < 2u, (Vec)((UintVec{} + 0x00200000u) << e), (Vec)((e - 1u) << 23)), {}, {}};
  }
  template <uint32_t>
  WCUDA_INLINE Scales scales(const Head& head, uint32_t) {
    return head;
  }
  template <uint32_t>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Head&, uint32_t, uint32_t c) {
    return fp4_levels(nibbles(tile, 1, 0, c));
  }
};

struct IQ3_S : Format<110, 8, 1, 16, 1, 0> {  // an odd factor of 5 bits for 32 columns
  struct Head {
    Vec scale;
    IntVec factors[8];
    decltype(iq3_s_table()) table;
  };
  WCUDA_INLINE Head head(const PackedTile& tile) {
    const UintVec bits = tile.dwords(106, 0);
    Head head;
    head.scale = tile.sum_halves(0);
    head.table = iq3_s_table();
    WCUDA_UNROLL
    for (uint32_t p = 0; p < 8; ++p) head.factors[p] = (IntVec)((bits >> (4 * p) & 15u) * 2u + 1u);
    return head;
  }
  template <uint32_t>
  WCUDA_INLINE Scales scales(const Head& head, uint32_t first) {
    return {head.scale, {head.factors[first]}, {}};
  }
  template <uint32_t>
  WCUDA_INLINE UintVec codes(const PackedTile& tile, const Head& head, uint32_t first, uint32_t c) {
    const CodeVec levels = (CodeVec)look_up_iq3_s(head.table, tile.dwords(2, first * 2 + c / 4),
                                                  tile.dwords(66, first / 4) >> (first % 4 * 8), c);
    const UintVec signs = spread_bits(tile.dwords(74, first), c);
    return (UintVec)((levels ^ (CodeVec)signs) - (CodeVec)signs + static_cast<int8_t>(16));
  }
};

// ---- one M-tile of integers ----

// y += minimum * sum of the activations, in 32 columns.
template <uint32_t kMinimums>
WCUDA_INLINE Vec add_minimums(const Vec* minimums, const InputBlock& input, Vec y) {
  if constexpr (kMinimums == 1) y = multiply_add(minimums[0], broadcast(input.sum), y);
  if constexpr (kMinimums == 2) {
    y = multiply_add(minimums[0], broadcast(input.half_sums[0]), y);
    y = multiply_add(minimums[1], broadcast(input.half_sums[1]), y);
  }
  return y;
}

// y += scale * sum of the products.
WCUDA_INLINE Vec add_sum(IntVec sum, Vec scale, Vec y) {
  return multiply_add(__builtin_convertvector(sum, Vec), scale, y);
}

WCUDA_INLINE UintVec even_bytes(UintVec v) { return v & 0x00ff00ffu; }
WCUDA_INLINE UintVec odd_bytes(UintVec v) { return v >> 8 & 0x00ff00ffu; }

// The results of kTokens tokens and 16 rows, and the sums that are not yet scaled.
template <uint32_t kTokens>
struct Totals {
  Vec y[kTokens][kVectors];
  Vec unscaled[kTokens][kVectors];
};

// Adds parts first + kPart … first + kUnrolled - 1.
template <class Format, uint32_t kTokens, uint32_t kPart = 0>
WCUDA_INLINE void add_parts(const uint8_t* bytes, const typename Format::Head* heads,
                            uint32_t first, const InputBlock* input, uint64_t stride,
                            Totals<kTokens>* totals) {
  if constexpr (kPart < Format::kUnrolled) {
    IntVec sums[kTokens][kVectors][2] = {};
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 8; ++c) {
      WCUDA_UNROLL
      for (uint32_t v = 0; v < kVectors; ++v) {
        const UintVec codes =
            Format::template codes<kPart>(PackedTile{bytes, v * kLanes}, heads[v], first, c);
        WCUDA_UNROLL
        for (uint32_t t = 0; t < kTokens; ++t) {
          const uint32_t* pairs = input[t * stride].codes + 2 * c;
          IntVec& sum = sums[t][v][c / 4];
          sum = add_products(sum, even_bytes(codes), UintVec{} + pairs[0]);
          sum = add_products(sum, odd_bytes(codes), UintVec{} + pairs[1]);
        }
      }
    }
    WCUDA_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      const Scales scales = Format::template scales<kPart>(heads[v], first);
      WCUDA_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        const InputBlock& block = input[t * stride];
        IntVec* halves = sums[t][v];
        for (uint32_t half = 0; half < 2; ++half) {
          halves[half] -= block.code_sums[half] * Format::kOffset;
          if constexpr (Format::kFactors == 2) halves[half] *= scales.factors[half];
        }
        IntVec sum = halves[0] + halves[1];
        if constexpr (Format::kFactors == 1) sum *= scales.factors[0];
        Vec& y = totals->y[t][v];
        y = add_minimums<Format::kMinimums>(scales.minimums, block, y);
        if constexpr (Format::kSharesScale)
          totals->unscaled[t][v] = add_sum(sum, broadcast(block.sum_scale), totals->unscaled[t][v]);
        else
          y = add_sum(sum, scales.scale * block.scale, y);
      }
    }
    add_parts<Format, kTokens, kPart + 1>(bytes, heads, first, input + 1, stride, totals);
  }
}

// For few tokens: reads the packed tiles directly.
template <class Format, uint32_t kTokens>
void m_tile_tokens(const uint8_t* m_tile, uint32_t cols, const InputBlock* input, uint64_t stride,
                   float* tile) {
  constexpr uint32_t kBytes = Format::kBlockBytes * kMTileRows * Format::kUnrolled / Format::kParts;
  Totals<kTokens> totals = {};
  for (uint32_t block = 0; block < cols / 32; block += Format::kParts) {
    typename Format::Head heads[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) heads[v] = Format::head({m_tile, v * kLanes});
    for (uint32_t first = 0; first < Format::kParts; first += Format::kUnrolled) {
      prefetch<kBytes>(m_tile + first / Format::kUnrolled * kBytes);
      add_parts<Format, kTokens>(m_tile, heads, first, input + block + first, stride, &totals);
    }
    for (uint32_t v = 0; Format::kSharesScale && v < kVectors; ++v)
      for (uint32_t t = 0; t < kTokens; ++t) {
        totals.y[t][v] = multiply_add(totals.unscaled[t][v], heads[v].scale, totals.y[t][v]);
        totals.unscaled[t][v] = Vec{};
      }
    m_tile += Format::kBlockBytes * kMTileRows;
  }
  for (uint32_t t = 0; t < kTokens; ++t)
    for (uint32_t v = 0; v < kVectors; ++v)
      store(tile + t * kMTileRows + v * kLanes, totals.y[t][v]);
}

constexpr uint32_t kPanelParts = 8;
// M-tiles per panel. If an M-tile has one vector of rows, two M-tiles use each load of activations.
constexpr uint32_t kPanelMTiles = kVectors == 1 ? 2 : 1;

// Unpacked weights of kWidth vectors of rows: factor * (code - kOffset) of 256 columns or fewer.
template <uint32_t kWidth>
struct Panel {
  UintVec words[kPanelParts][16][kWidth];  // of pairs of columns, in the order of the codes
  Vec scale[kPanelParts][kWidth];
  Vec minimums[kPanelParts][kWidth][2];
};

// Unpacks parts first + kPart … first + kUnrolled - 1 of a packed tile into parts p, p + 1, … of
// the panel's vector v.
template <class Format, uint32_t kPart = 0, class Panel>
WCUDA_INLINE void unpack_parts(const PackedTile& tile, const typename Format::Head& head,
                               uint32_t first, uint32_t p, uint32_t v, Panel* panel) {
  if constexpr (kPart < Format::kUnrolled) {
    const Scales scales = Format::template scales<kPart>(head, first);
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 8; ++c) {
      const UintVec codes = Format::template codes<kPart>(tile, head, first, c);
      WordVec even = (WordVec)even_bytes(codes) - Format::kOffset;
      WordVec odd = (WordVec)odd_bytes(codes) - Format::kOffset;
      if constexpr (Format::kFactors > 0) {
        const UintVec factor = (UintVec)scales.factors[Format::kFactors == 2 ? c / 4 : 0];
        even *= (WordVec)(factor << 16 | (factor & 0xffffu));
        odd *= (WordVec)(factor << 16 | (factor & 0xffffu));
      }
      panel->words[p][2 * c][v] = (UintVec)even;
      panel->words[p][2 * c + 1][v] = (UintVec)odd;
    }
    panel->scale[p][v] = scales.scale;
    for (uint32_t i = 0; i < Format::kMinimums; ++i) panel->minimums[p][v][i] = scales.minimums[i];
    unpack_parts<Format, kPart + 1>(tile, head, first, p + 1, v, panel);
  }
}

// Returns the address of vector v of a token. Tiles are (token, 16), at intervals of kTileFloats.
WCUDA_INLINE float* tile_vector(float* tiles, uint32_t t, uint32_t v) {
  return tiles + v / kVectors * kTileFloats + t * kMTileRows + v % kVectors * kLanes;
}

// Calls function(t, v) for kTokens tokens and kWidth vectors.
template <uint32_t kTokens, uint32_t kWidth, class Function>
WCUDA_INLINE void for_each(const Function& function) {
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    WCUDA_UNROLL
    for (uint32_t v = 0; v < kWidth; ++v) function(t, v);
  }
}

// tiles += the panel times the tokens.
template <bool kSharesScale, uint32_t kMinimums, uint32_t kTokens, uint32_t kWidth>
void add_panel(const Panel<kWidth>& panel, uint32_t parts, const InputBlock* input, uint64_t stride,
               float* tiles) {
  constexpr uint32_t kChains = kTokens * kWidth < 8 ? 8 / (kTokens * kWidth) : 1;
  Vec unscaled[kTokens][kWidth] = {};
  for (uint32_t p = 0; p < parts; ++p) {
    const TokenRows<kTokens, InputBlock> tokens(input + p, stride);
    IntVec sums[kTokens][kWidth][kChains] = {};
    WCUDA_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {
      WCUDA_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        const UintVec code = UintVec{} + tokens[t]->codes[i];
        WCUDA_UNROLL
        for (uint32_t v = 0; v < kWidth; ++v) {
          IntVec& sum = sums[t][v][i % kChains];
          sum = add_products(sum, panel.words[p][i][v], code);
        }
      }
    }
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      WCUDA_UNROLL
      for (uint32_t v = 0; v < kWidth; ++v) {
        for (uint32_t i = 1; i < kChains; ++i) sums[t][v][0] += sums[t][v][i];
        if constexpr (kSharesScale) {
          unscaled[t][v] = add_sum(sums[t][v][0], broadcast(tokens[t]->sum_scale), unscaled[t][v]);
        } else {
          float* y = tile_vector(tiles, t, v);
          const Vec others = add_minimums<kMinimums>(panel.minimums[p][v], *tokens[t], load(y));
          store(y, add_sum(sums[t][v][0], panel.scale[p][v] * tokens[t]->scale, others));
        }
      }
    }
  }
  if constexpr (kSharesScale) {
    const TokenRows<kTokens, InputBlock> tokens(input, stride);
    Vec y[kTokens][kWidth];
    for_each<kTokens, kWidth>(
        [&](uint32_t t, uint32_t v) { y[t][v] = load(tile_vector(tiles, t, v)); });
    WCUDA_UNROLL
    for (uint32_t p = 0; p < kPanelParts; ++p)
      for_each<kTokens, kWidth>([&](uint32_t t, uint32_t v) {
        y[t][v] = add_minimums<kMinimums>(panel.minimums[p][v], tokens[t][p], y[t][v]);
      });
    for_each<kTokens, kWidth>([&](uint32_t t, uint32_t v) {
      store(tile_vector(tiles, t, v), multiply_add(unscaled[t][v], panel.scale[0][v], y[t][v]));
    });
  }
}

// Calls function(count, first) for groups of kTokens tokens, then of half as many for the rest, ….
template <uint32_t kTokens, class Function>
WCUDA_INLINE void group_tokens(uint32_t first, uint32_t token_count, const Function& function) {
  for (; first + kTokens <= token_count; first += kTokens)
    function(std::integral_constant<uint32_t, kTokens>{}, first);
  if constexpr (kTokens > 1) group_tokens<kTokens / 2>(first, token_count, function);
}
constexpr uint32_t kTokensMax = kLanes == 16 ? 8 : 4;

// Tokens at a time without a panel, so that all sums stay in registers, and the tokens from which
// on a panel is faster. One thread of a Zen 5 server, weights in memory, GMAC/s without and with a
// panel (2026-11-24-epyc-zen5-2cpu/host_linear.txt): AVX-512, 16 tokens, Q4_1 164 and 142, Q8_0 149
// and 126, Q4_K 147 and 144; 32 tokens 163 and 166, 153 and 153, 145 and 162. AVX2, 4 tokens, Q4_1
// 65 and 68, Q4_K 59 and 65.
constexpr uint32_t kDirectTokens = kLanes == 16 ? 8 : 2;
constexpr uint32_t kPanelTokensMin = kLanes == 16 ? 24 : 4;

// Computes kMTiles M-tiles at a time, from a panel.
template <class Format, uint32_t kMTiles>
void m_tile_panels(const uint8_t* m_tiles, uint32_t cols, const InputBlock* input, uint64_t stride,
                   uint32_t token_count, float* tiles) {
  constexpr uint32_t kWidth = kMTiles * kVectors;
  for (uint32_t v = 0; v < kWidth; ++v)
    for (uint32_t t = 0; t < token_count; ++t) store(tile_vector(tiles, t, v), Vec{});
  const uint64_t m_tile_bytes =
      uint64_t{cols} / (32 * Format::kParts) * Format::kBlockBytes * kMTileRows;
  Panel<kWidth> panel;
  for (uint32_t block = 0; block < cols / 32; block += kPanelParts) {
    const uint32_t rest = cols / 32 - block;
    const uint32_t parts = rest < kPanelParts ? rest : kPanelParts;
    for (uint32_t p = 0; p < parts; p += Format::kParts) {
      for (uint32_t v = 0; v < kWidth; ++v) {
        const PackedTile packed_tile = {m_tiles + v / kVectors * m_tile_bytes,
                                        v % kVectors * kLanes};
        const typename Format::Head head = Format::head(packed_tile);
        if (v % kVectors == 0) prefetch<Format::kBlockBytes * kMTileRows>(packed_tile.bytes);
        for (uint32_t first = 0; first < Format::kParts; first += Format::kUnrolled)
          unpack_parts<Format>(packed_tile, head, first, p + first, v, &panel);
      }
      m_tiles += Format::kBlockBytes * kMTileRows;
    }
    static_assert(!Format::kSharesScale || Format::kParts == kPanelParts);
    group_tokens<kTokensMax>(0, token_count, [&](auto count, uint32_t first) {
      add_panel<Format::kSharesScale, Format::kMinimums, count.value>(
          panel, parts, input + first * stride + block, stride, tiles + first * kMTileRows);
    });
  }
}

template <class Format>
void m_tile_blocks(const uint8_t* m_tiles, uint32_t m_tile_count, uint32_t cols,
                   const InputBlock* input, uint64_t stride, uint32_t token_count, float* tiles) {
  const uint64_t m_tile_bytes =
      uint64_t{cols} / (32 * Format::kParts) * Format::kBlockBytes * kMTileRows;
  for (uint32_t i = 0, count = 1; i < m_tile_count; i += count) {
    count = 1;
    if (token_count < kPanelTokensMin) {
      group_tokens<kDirectTokens>(0, token_count, [&](auto tokens, uint32_t first) {
        m_tile_tokens<Format, tokens.value>(m_tiles, cols, input + first * stride, stride,
                                            tiles + first * kMTileRows);
      });
    } else if (m_tile_count - i < kPanelMTiles) {
      m_tile_panels<Format, 1>(m_tiles, cols, input, stride, token_count, tiles);
    } else {
      m_tile_panels<Format, kPanelMTiles>(m_tiles, cols, input, stride, token_count, tiles);
      count = kPanelMTiles;
    }
    m_tiles += count * m_tile_bytes;
    tiles += count * kTileFloats;
  }
}

// ---- float weights: a packed tile is one column ----

struct F32 {
  static constexpr uint32_t kColumnBytes = 4 * kMTileRows;
  WCUDA_INLINE Vec column(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct F16 {
  static constexpr uint32_t kColumnBytes = 2 * kMTileRows;
  WCUDA_INLINE Vec column(const uint8_t* p) { return load_halves(p); }
};
struct BF16 {
  static constexpr uint32_t kColumnBytes = 2 * kMTileRows;
  WCUDA_INLINE Vec column(const uint8_t* p) { return (Vec)(load_words(p) << 16); }
};

// Columns that are summed in registers before the sum is added to the result. As f32, those of a
// panel take up half of the first-level cache with AVX-512, a quarter with AVX2. Runs of 16 columns
// reach 75 % of the multiply-adds between registers, these 83 to 87 % (Cascade Lake, 2026-11-23).
constexpr uint32_t kRunCols = kLanes == 16 ? 64 : 128;
constexpr uint32_t kFloatTokens = 6;  // at a time

// M-tiles at a time, so that the sums of `tokens` tokens stay in registers.
constexpr uint32_t float_m_tiles(uint32_t tokens) {
  return kLanes == 16 || tokens == 1 ? kMTilesMax : tokens <= 3 ? 2 : 1;
}

// tiles += the sums of a run of columns. M-tiles are m_tile_bytes apart. Prefetches the columns
// `ahead` bytes further on unless that is 0.
template <class Format, uint32_t kTokens, uint32_t kMTiles>
WCUDA_INLINE void add_run(const uint8_t* m_tiles, uint64_t m_tile_bytes, uint32_t cols,
                          uint64_t ahead, const float* input, uint64_t stride, float* tiles) {
  constexpr uint32_t kWidth = kMTiles * kVectors, kUnrolled = 4;
  const TokenRows<kTokens, float> tokens(input, stride);
  Vec sums[kTokens][kWidth] = {};
  const auto add_column = [&](uint32_t col) {
    Vec w[kWidth];
    WCUDA_UNROLL
    for (uint32_t v = 0; v < kWidth; ++v)
      w[v] = Format::column(m_tiles + v / kVectors * m_tile_bytes + col * Format::kColumnBytes +
                            v % kVectors * (Format::kColumnBytes / kVectors));
    for_each<kTokens, kWidth>([&](uint32_t t, uint32_t v) {
      sums[t][v] = multiply_add(w[v], broadcast(tokens[t][col]), sums[t][v]);
    });
  };
  uint32_t col = 0;
  for (; col + kUnrolled <= cols; col += kUnrolled) {
    if (ahead != 0)
      for (uint32_t i = 0; i < kMTiles; ++i)
        for (uint32_t byte = 0; byte < kUnrolled * Format::kColumnBytes; byte += 64)
          __builtin_prefetch(m_tiles + i * m_tile_bytes + col * Format::kColumnBytes + ahead +
                             byte);
    WCUDA_UNROLL
    for (uint32_t i = 0; i < kUnrolled; ++i) add_column(col + i);
  }
  for (; col < cols; ++col) add_column(col);
  for_each<kTokens, kWidth>([&](uint32_t t, uint32_t v) {
    float* y = tile_vector(tiles, t, v);
    store(y, load(y) + sums[t][v]);
  });
}

// For few tokens: reads the packed tiles directly.
template <class Format, uint32_t kTokens, uint32_t kMTiles>
void m_tile_float_tokens(const uint8_t* m_tiles, uint32_t cols, const float* input, uint64_t stride,
                         float* tiles) {
  const uint64_t m_tile_bytes = uint64_t{cols} * Format::kColumnBytes;
  for (uint32_t col = 0; col < cols; col += kRunCols) {
    const uint64_t done_bytes = uint64_t{col} * Format::kColumnBytes;
    const bool is_last = cols - col <= kRunCols;
    // The next run is that of these M-tiles or the first one of those that follow them.
    const uint64_t ahead =
        is_last ? kMTiles * m_tile_bytes - done_bytes : uint64_t{kRunCols} * Format::kColumnBytes;
    add_run<Format, kTokens, kMTiles>(m_tiles + done_bytes, m_tile_bytes,
                                      is_last ? cols - col : kRunCols, ahead, input + col, stride,
                                      tiles);
  }
}

template <uint32_t kMTiles>
using FloatPanel = float[kMTiles][kRunCols][kMTileRows];

// tiles += the panel times the tokens.
template <uint32_t kTokens, uint32_t kMTiles>
void add_float_panel(const FloatPanel<kMTiles>& panel, uint32_t cols, const float* input,
                     uint64_t stride, float* tiles) {
  add_run<F32, kTokens, kMTiles>(reinterpret_cast<const uint8_t*>(panel), sizeof panel[0], cols, 0,
                                 input, stride, tiles);
}

// Calls function(count) with token_count, which is 1 to kTokens, as a constant.
template <uint32_t kTokens, class Function>
WCUDA_INLINE void with_count(uint32_t token_count, const Function& function) {
  if (token_count == kTokens) return function(std::integral_constant<uint32_t, kTokens>{});
  if constexpr (kTokens > 1) with_count<kTokens - 1>(token_count, function);
}

// Computes kMTiles M-tiles at a time, from a panel of f32. The inputs of a run stay in the caches
// while all M-tiles use them.
template <class Format, uint32_t kMTiles>
void m_tile_float_panels(const uint8_t* m_tiles, uint32_t m_tile_count, uint32_t cols,
                         const float* input, uint64_t stride, uint32_t token_count, float* tiles) {
  const uint64_t m_tile_bytes = uint64_t{cols} * Format::kColumnBytes;
  alignas(64) FloatPanel<kMTiles> panel;
  for (uint32_t first_col = 0; first_col < cols; first_col += kRunCols) {
    const uint32_t rest = cols - first_col;
    const uint32_t run_cols = rest < kRunCols ? rest : kRunCols;
    for (uint32_t i = 0; i < m_tile_count; i += kMTiles) {
      const uint8_t* columns = m_tiles + i * m_tile_bytes + first_col * Format::kColumnBytes;
      for (uint32_t k = 0; k < kMTiles; ++k)
        for (uint32_t col = 0; col < run_cols; ++col)
          for (uint32_t v = 0; v < kVectors; ++v)
            store(panel[k][col] + v * kLanes,
                  Format::column(columns + k * m_tile_bytes + col * Format::kColumnBytes +
                                 v * (Format::kColumnBytes / kVectors)));
      // Prefetches the next run of these M-tiles bit by bit: all at once would wait for memory.
      constexpr uint32_t kLines = kRunCols * Format::kColumnBytes / 64;
      for (uint32_t first = 0, line = 0; first < token_count; first += kFloatTokens) {
        for (; line < (first + kFloatTokens) * kMTiles * kLines / kTokenBlock; ++line)
          __builtin_prefetch(columns + line / kLines * m_tile_bytes +
                             (kLines + line % kLines) * 64);
        const uint32_t tokens = token_count - first;
        with_count<kFloatTokens>(tokens < kFloatTokens ? tokens : kFloatTokens, [&](auto count) {
          add_float_panel<count.value, kMTiles>(panel, run_cols, input + first * stride + first_col,
                                                stride,
                                                tiles + i * kTileFloats + first * kMTileRows);
        });
      }
    }
  }
}

// Calls function(count, first) for groups of kMTiles M-tiles, then for the rest one by one.
template <uint32_t kMTiles, class Function>
WCUDA_INLINE void group_m_tiles(uint32_t m_tile_count, const Function& function) {
  uint32_t first = 0;
  for (; first + kMTiles <= m_tile_count; first += kMTiles)
    function(std::integral_constant<uint32_t, kMTiles>{}, first);
  for (; first < m_tile_count; ++first) function(std::integral_constant<uint32_t, 1>{}, first);
}

template <class Format>
void m_tile_floats(const uint8_t* m_tiles, uint32_t m_tile_count, uint32_t cols, const float* input,
                   uint64_t stride, uint32_t token_count, float* tiles) {
  const uint64_t m_tile_bytes = uint64_t{cols} * Format::kColumnBytes;
  for (uint32_t v = 0; v < m_tile_count * kVectors; ++v)
    for (uint32_t t = 0; t < token_count; ++t) store(tile_vector(tiles, t, v), Vec{});
  if (token_count <= kFloatTokens)
    return with_count<kFloatTokens>(token_count, [&](auto tokens) {
      group_m_tiles<float_m_tiles(tokens.value)>(m_tile_count, [&](auto count, uint32_t first) {
        m_tile_float_tokens<Format, tokens.value, count.value>(
            m_tiles + first * m_tile_bytes, cols, input, stride, tiles + first * kTileFloats);
      });
    });
  constexpr uint32_t kMTiles = float_m_tiles(kFloatTokens);
  const uint32_t grouped = m_tile_count / kMTiles * kMTiles;
  m_tile_float_panels<Format, kMTiles>(m_tiles, grouped, cols, input, stride, token_count, tiles);
  m_tile_float_panels<Format, 1>(m_tiles + grouped * m_tile_bytes, m_tile_count - grouped, cols,
                                 input, stride, token_count, tiles + grouped * kTileFloats);
}

MTileKernel find_m_tile_kernel(uint32_t type) {
  switch (type) {
    case 0:
      return {nullptr, m_tile_floats<F32>};
    case 1:
      return {nullptr, m_tile_floats<F16>};
    case 30:
      return {nullptr, m_tile_floats<BF16>};
#define WCUDA_BLOCKS(type, Format) \
  case type:                       \
    return {m_tile_blocks<Format>, nullptr};
      WCUDA_BLOCKS(2, Q4<false>)
      WCUDA_BLOCKS(3, Q4<true>)
      WCUDA_BLOCKS(6, Q5<false>)
      WCUDA_BLOCKS(7, Q5<true>)
      WCUDA_BLOCKS(8, Q8_0)
      WCUDA_BLOCKS(10, Q2_K)
      WCUDA_BLOCKS(11, Q3_K)
      WCUDA_BLOCKS(12, QK<false>)
      WCUDA_BLOCKS(13, QK<true>)
      WCUDA_BLOCKS(14, Q6_K)
      WCUDA_BLOCKS(20, IQ4_NL)
      WCUDA_BLOCKS(21, IQ3_S)
      WCUDA_BLOCKS(23, IQ4_XS)
      WCUDA_BLOCKS(39, MXFP4)
#undef WCUDA_BLOCKS
    default:
      return {nullptr, nullptr};
  }
}

// ---- activations ----

constexpr float kSmallestMagnitude = 1e-30f;  // a block of smaller values becomes 0

// Combines the lanes, each with the lane that differs in kBit.
template <uint32_t kBit = kLanes / 2, class Function>
WCUDA_INLINE int32_t combine_lanes(IntVec v, const Function& function) {
  v = function(v, (IntVec)pick<kBit, kBit, kBit>((Vec)v, (Vec)v, kAllLanes));
  if constexpr (kBit > 1)
    return combine_lanes<kBit / 2>(v, function);
  else
    return v[0];
}

// Converts 32 columns, whose scale is known.
WCUDA_INLINE void make_block(const float* x, float scale, InputBlock* block) {
  const float inverse = 1.0f / scale;
  int16_t codes[32];
  int32_t sums[2];
  for (uint32_t half = 0; half < 2; ++half) {
    IntVec total = {};
    for (uint32_t i = half * 16; i < half * 16 + 16; i += kLanes) {
      // Adding 1.5 * 2^23 rounds to an integer.
      const Vec shifted = multiply_add(load(x + i), broadcast(inverse), broadcast(12582912.0f));
      const IntVec code = (IntVec)shifted - 0x4b400000;
      const HalfWordVec narrow = __builtin_convertvector((UintVec)code, HalfWordVec);
      __builtin_memcpy(codes + i, &narrow, sizeof narrow);
      total += code;
    }
    sums[half] = combine_lanes(total, [](IntVec a, IntVec b) { return a + b; });
  }
  for (uint32_t i = 0; i < 16; i += kLanes) {
    UintVec pairs;
    __builtin_memcpy(&pairs, codes + 2 * i, sizeof pairs);
    pairs =
        shuffle_bytes(pairs, _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    __builtin_memcpy(block->codes + i, &pairs, sizeof pairs);
  }
  const float sum_scale = scale * kSumFactor;
  block->scale = scale;
  block->sum_scale = sum_scale;
  block->code_sums[0] = sums[0];
  block->code_sums[1] = sums[1];
  block->half_sums[0] = sum_scale * static_cast<float>(sums[0]);
  block->half_sums[1] = sum_scale * static_cast<float>(sums[1]);
  block->sum = sum_scale * static_cast<float>(sums[0] + sums[1]);
}

// The sum of the magnitudes of 32 codes, times the largest weight (4096), stays below 2^31, also
// after rounding. This limits the mean of the codes; few blocks reach it.
constexpr float kCodeMax = 32767.0f;
constexpr float kCodeMeanMax = 16375.0f;

void make_blocks(const float* x, uint32_t cols, InputBlock* blocks) {
  for (uint32_t col = 0; col < cols; col += 32, x += 32, ++blocks) {
    // Magnitudes are compared as integers; infinity and NaN are above all others.
    IntVec largest = {};
    Vec mean = {};
    for (uint32_t i = 0; i < 32; i += kLanes) {
      const IntVec magnitude = (IntVec)load(x + i) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
      mean = multiply_add((Vec)magnitude, broadcast(1.0f / 32), mean);
    }
    const int32_t bits = combine_lanes(largest, [](IntVec a, IntVec b) { return a > b ? a : b; });
    float limit;
    __builtin_memcpy(&limit, &bits, sizeof limit);
    if (bits >= 0x7f800000 || limit < kSmallestMagnitude) {
      *blocks = InputBlock{};
      if (bits >= 0x7f800000)
        blocks->scale = blocks->sum_scale = blocks->sum = blocks->half_sums[0] =
            blocks->half_sums[1] = __builtin_nanf("");
      continue;
    }
    const float of_limit = limit / kCodeMax, of_mean = sum(mean) / kCodeMeanMax;
    make_block(x, of_limit > of_mean ? of_limit : of_mean, blocks);
  }
}

}  // namespace
