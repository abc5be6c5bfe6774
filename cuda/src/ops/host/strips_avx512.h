// Products of 16-row strips with AVX-512 VNNI: one lane a row, weights as unsigned bytes,
// activations as two signed bytes a value, sums of 32 columns exact in int32, everything after in
// f32.
//
// 32 columns of a strip need 16 dot products of 64 weights and about 5 vector operations a token;
// the unpacking is shared by up to 8 tokens. VDPBF16PS has the same rate here (Zen 4) at half the
// precision.
#pragma once

#include <immintrin.h>

#include "ops/host/kernels.h"
#include "ops/host/vector.h"

namespace {

using wcuda::ops::host::InputBlock;
using wcuda::ops::host::StripKernel;

WCUDA_INLINE __m512i load_units(const uint8_t* record, uint32_t unit) {
  return _mm512_loadu_si512(record + unit * 64);
}
WCUDA_INLINE __m512 load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
WCUDA_INLINE __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
WCUDA_INLINE __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi32(v, 4)); }
// a | (b & c)
WCUDA_INLINE __m512i or_masked(__m512i a, __m512i b, __m512i c) {
  return _mm512_ternarylogic_epi32(a, b, c, 0xf8);
}

// 32 columns of 16 rows: weight = scale * q + minimum.
struct Part {
  __m512i q[8];     // columns 4c … 4c + 3 of each row, unsigned bytes
  __m512 scale[2];  // of the first and last 16 columns
  __m512 minimum[2];
};

// One token's 32 columns of 16 rows, exact: sum of q * code over kChunks * 4 columns.
template <uint32_t kTokens, uint32_t kFirst, uint32_t kCount>
WCUDA_INLINE void sum_codes(const Part& part, const InputBlock* input, uint64_t stride,
                            __m512i* sums) {
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) sums[t] = _mm512_setzero_si512();
  WCUDA_UNROLL
  for (uint32_t c = kFirst; c < kFirst + kCount; ++c) {
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      const __m512i codes = _mm512_set1_epi32(static_cast<int>(input[t * stride].codes[c]));
      sums[t] = _mm512_dpbusd_epi32(sums[t], part.q[c], codes);
    }
  }
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) sums[t] = _mm512_slli_epi32(sums[t], 8);
  WCUDA_UNROLL
  for (uint32_t c = kFirst; c < kFirst + kCount; ++c) {
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      const __m512i codes = _mm512_set1_epi32(static_cast<int>(input[t * stride].codes[8 + c]));
      sums[t] = _mm512_dpbusd_epi32(sums[t], part.q[c], codes);
    }
  }
}

// y += scale * sums, and the minimum times the sum of the activations.
template <uint32_t kTokens>
WCUDA_INLINE void add_sums(const __m512i* sums, __m512 scale, __m512 minimum,
                           const InputBlock* input, uint64_t stride, const float* input_sum,
                           __m512* y) {
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(input[t * stride].scale));
    const __m512 sum = _mm512_set1_ps(input_sum[t * stride * (sizeof(InputBlock) / 4)]);
    y[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[t]), both, y[t]);
    y[t] = _mm512_fmadd_ps(minimum, sum, y[t]);
  }
}

template <uint32_t kTokens, bool kHalves>
WCUDA_INLINE void add_part(const Part& part, const InputBlock* input, uint64_t stride, __m512* y) {
  __m512i sums[kTokens];
  if constexpr (kHalves) {
    sum_codes<kTokens, 0, 4>(part, input, stride, sums);
    add_sums<kTokens>(sums, part.scale[0], part.minimum[0], input, stride, &input->half_sums[0], y);
    sum_codes<kTokens, 4, 4>(part, input, stride, sums);
    add_sums<kTokens>(sums, part.scale[1], part.minimum[1], input, stride, &input->half_sums[1], y);
  } else {
    sum_codes<kTokens, 0, 8>(part, input, stride, sums);
    add_sums<kTokens>(sums, part.scale[0], part.minimum[0], input, stride, &input->sum, y);
  }
}

// ---- formats: kParts parts of 32 columns a record, one scale for 32 columns or for each 16 ----

template <bool kHasMinimum>
struct Q4 {  // Q4_0, Q4_1
  static constexpr uint32_t kParts = 1;
  static constexpr bool kHalves = false;
  static constexpr uint32_t kRecordBytes = 16 * (kHasMinimum ? 20 : 18);
  struct Head {};
  WCUDA_INLINE Head head(const uint8_t*) { return {}; }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const uint8_t* record, const Head&, Part* part) {
    part->scale[0] = load_halves(record);
    part->minimum[0] = kHasMinimum ? load_halves(record + 32)
                                   : _mm512_mul_ps(part->scale[0], _mm512_set1_ps(-8.0f));
    const uint8_t* quants = record + (kHasMinimum ? 64 : 32);
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 4; ++c) {
      const __m512i units = load_units(quants, c);
      part->q[c] = low_nibbles(units);
      part->q[4 + c] = high_nibbles(units);
    }
  }
};

struct Q5_0 {
  static constexpr uint32_t kParts = 1;
  static constexpr bool kHalves = false;
  static constexpr uint32_t kRecordBytes = 16 * 22;
  struct Head {};
  WCUDA_INLINE Head head(const uint8_t*) { return {}; }
  // Sets bit 4 of the bytes whose bit `kByte * 8 + first + (byte % 4)` of `high` is set.
  template <uint32_t kByte>
  WCUDA_INLINE void set_high(__m512i high, __m512i* low, __m512i* next) {
    const __m512i select = _mm512_broadcast_i32x4(_mm_setr_epi8(
        kByte, kByte, kByte, kByte, 4 + kByte, 4 + kByte, 4 + kByte, 4 + kByte, 8 + kByte,
        8 + kByte, 8 + kByte, 8 + kByte, 12 + kByte, 12 + kByte, 12 + kByte, 12 + kByte));
    const __m512i bytes = _mm512_shuffle_epi8(high, select);
    const __m512i sixteen = _mm512_set1_epi8(16);
    *low = _mm512_or_si512(
        *low, _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(bytes, _mm512_set1_epi32(0x08040201)),
                                    sixteen));
    *next = _mm512_or_si512(
        *next, _mm512_maskz_mov_epi8(
                   _mm512_test_epi8_mask(bytes, _mm512_set1_epi32(static_cast<int>(0x80402010u))),
                   sixteen));
  }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const uint8_t* record, const Head&, Part* part) {
    part->scale[0] = load_halves(record);
    part->minimum[0] = _mm512_mul_ps(part->scale[0], _mm512_set1_ps(-16.0f));
    const __m512i high = load_units(record + 32, 0);
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 4; ++c) {
      const __m512i units = load_units(record + 96, c);
      part->q[c] = low_nibbles(units);
      part->q[4 + c] = high_nibbles(units);
    }
    set_high<0>(high, &part->q[0], &part->q[1]);
    set_high<1>(high, &part->q[2], &part->q[3]);
    set_high<2>(high, &part->q[4], &part->q[5]);
    set_high<3>(high, &part->q[6], &part->q[7]);
  }
};

struct Q8_0 {
  static constexpr uint32_t kParts = 1;
  static constexpr bool kHalves = false;
  static constexpr uint32_t kRecordBytes = 16 * 34;
  struct Head {};
  WCUDA_INLINE Head head(const uint8_t*) { return {}; }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const uint8_t* record, const Head&, Part* part) {
    part->scale[0] = load_halves(record);
    part->minimum[0] = _mm512_mul_ps(part->scale[0], _mm512_set1_ps(-128.0f));
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 8; ++c)
      part->q[c] = _mm512_xor_si512(load_units(record + 32, c), _mm512_set1_epi8(-128));
  }
};

// Q4_K and Q5_K: 8 parts, 6-bit scales and minima of which one byte of each lane's words is one
// part's.
struct ScalesK {
  __m512 scale, minimum;         // d, -dmin
  __m512i scales[2], minima[2];  // parts 0 … 3 and 4 … 7
};
WCUDA_INLINE ScalesK unpack_scales(const uint8_t* record) {
  ScalesK head;
  head.scale = load_halves(record);
  head.minimum = _mm512_sub_ps(_mm512_setzero_ps(), load_halves(record + 32));
  const __m512i low = load_units(record + 64, 0);
  const __m512i middle = load_units(record + 64, 1);
  const __m512i high = load_units(record + 64, 2);
  const __m512i six_bits = _mm512_set1_epi8(0x3f);
  const __m512i top_bits = _mm512_set1_epi8(0x30);
  head.scales[0] = _mm512_and_si512(low, six_bits);
  head.minima[0] = _mm512_and_si512(middle, six_bits);
  head.scales[1] = or_masked(low_nibbles(high), _mm512_srli_epi32(low, 2), top_bits);
  head.minima[1] = or_masked(high_nibbles(high), _mm512_srli_epi32(middle, 2), top_bits);
  return head;
}
template <uint32_t kByte>
WCUDA_INLINE __m512 byte_as_float(__m512i words) {
  return _mm512_cvtepi32_ps(
      _mm512_and_si512(_mm512_srli_epi32(words, kByte * 8), _mm512_set1_epi32(0xff)));
}

template <bool kHasFifthBit>
struct QK {  // Q4_K, Q5_K
  static constexpr uint32_t kParts = 8;
  static constexpr bool kHalves = false;
  static constexpr uint32_t kRecordBytes = 16 * (kHasFifthBit ? 176 : 144);
  using Head = ScalesK;
  WCUDA_INLINE Head head(const uint8_t* record) { return unpack_scales(record); }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const uint8_t* record, const Head& head, Part* part) {
    part->scale[0] = _mm512_mul_ps(head.scale, byte_as_float<kPart % 4>(head.scales[kPart / 4]));
    part->minimum[0] =
        _mm512_mul_ps(head.minimum, byte_as_float<kPart % 4>(head.minima[kPart / 4]));
    const uint8_t* quants = record + 16 * (kHasFifthBit ? 48 : 16);
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 8; ++c) {
      const __m512i units = load_units(quants, kPart / 2 * 8 + c);
      __m512i q = kPart % 2 == 0 ? low_nibbles(units) : high_nibbles(units);
      if constexpr (kHasFifthBit) {
        const __m512i bits = load_units(record + 16 * 16, c);
        const __m512i moved = kPart < 4 ? _mm512_slli_epi32(bits, kPart < 4 ? 4 - kPart : 0)
                                        : _mm512_srli_epi32(bits, kPart < 4 ? 0 : kPart - 4);
        q = or_masked(q, moved, _mm512_set1_epi8(16));
      }
      part->q[c] = q;
    }
  }
};

struct Q6_K {
  static constexpr uint32_t kParts = 8;
  static constexpr bool kHalves = true;
  static constexpr uint32_t kRecordBytes = 16 * 210;
  struct Head {
    __m512 scale;
  };
  WCUDA_INLINE Head head(const uint8_t* record) { return {load_halves(record + 16 * 208)}; }
  template <uint32_t kPart>
  WCUDA_INLINE void unpack(const uint8_t* record, const Head& head, Part* part) {
    // Four signed bytes a unit; this part's are bytes 2 * kPart % 4 and the one after.
    const __m512i scales = load_units(record + 16 * 192, kPart / 2);
    WCUDA_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t up = 24 - 8 * (kPart % 2 * 2 + half);
      const __m512i code = _mm512_srai_epi32(_mm512_slli_epi32(scales, up), 24);
      part->scale[half] = _mm512_mul_ps(head.scale, _mm512_cvtepi32_ps(code));
      part->minimum[half] = _mm512_mul_ps(part->scale[half], _mm512_set1_ps(-32.0f));
    }
    constexpr uint32_t kQuarter = kPart % 4;
    WCUDA_UNROLL
    for (uint32_t c = 0; c < 8; ++c) {
      const __m512i low = load_units(record, kPart / 4 * 16 + kQuarter % 2 * 8 + c);
      const __m512i high = load_units(record + 16 * 128, kPart / 4 * 8 + c);
      const __m512i moved = kQuarter < 2 ? _mm512_slli_epi32(high, kQuarter == 0 ? 4 : 2)
                                         : _mm512_srli_epi32(high, kQuarter == 3 ? 2 : 0);
      part->q[c] = or_masked(kQuarter < 2 ? low_nibbles(low) : high_nibbles(low), moved,
                             _mm512_set1_epi8(0x30));
    }
  }
};

// ---- a strip ----

template <class Format, uint32_t kTokens, uint32_t kPart>
WCUDA_INLINE void add_parts(const uint8_t* record, const typename Format::Head& head,
                            const InputBlock* input, uint64_t stride, __m512* y) {
  if constexpr (kPart < Format::kParts) {
    Part part;
    Format::template unpack<kPart>(record, head, &part);
    add_part<kTokens, Format::kHalves>(part, input + kPart, stride, y);
    add_parts<Format, kTokens, kPart + 1>(record, head, input, stride, y);
  }
}

template <class Format, uint32_t kTokens>
void strip_tokens(const uint8_t* strip, uint32_t cols, const InputBlock* input, uint64_t stride,
                  float* tile) {
  __m512 y[kTokens];
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) y[t] = _mm512_setzero_ps();
  for (uint32_t col = 0; col < cols; col += Format::kParts * 32) {
    const typename Format::Head head = Format::head(strip);
    add_parts<Format, kTokens, 0>(strip, head, input, stride, y);
    strip += Format::kRecordBytes;
    input += Format::kParts;
  }
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) _mm512_storeu_ps(tile + t * 16, y[t]);
}

template <class Format>
void strip_blocks(const uint8_t* strip, uint32_t cols, const InputBlock* input, uint64_t stride,
                  uint32_t token_count, float* tile) {
  uint32_t t = 0;
  for (; t + 8 <= token_count; t += 8)
    strip_tokens<Format, 8>(strip, cols, input + t * stride, stride, tile + t * 16);
  for (; t + 4 <= token_count; t += 4)
    strip_tokens<Format, 4>(strip, cols, input + t * stride, stride, tile + t * 16);
  for (; t + 2 <= token_count; t += 2)
    strip_tokens<Format, 2>(strip, cols, input + t * stride, stride, tile + t * 16);
  if (t < token_count)
    strip_tokens<Format, 1>(strip, cols, input + t * stride, stride, tile + t * 16);
}

// ---- float weights: a record is one column ----

struct F32 {
  static constexpr uint32_t kRecordBytes = 64;
  WCUDA_INLINE __m512 column(const uint8_t* p) { return _mm512_loadu_ps(p); }
};
struct F16 {
  static constexpr uint32_t kRecordBytes = 32;
  WCUDA_INLINE __m512 column(const uint8_t* p) { return load_halves(p); }
};
struct BF16 {
  static constexpr uint32_t kRecordBytes = 32;
  WCUDA_INLINE __m512 column(const uint8_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
};

// Two sums a token, of the even and of the odd columns.
template <class Format, uint32_t kTokens>
void strip_float_tokens(const uint8_t* strip, uint32_t cols, const float* input, uint64_t stride,
                        float* tile) {
  __m512 even[kTokens];
  __m512 odd[kTokens];
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) even[t] = odd[t] = _mm512_setzero_ps();
  uint32_t col = 0;
  for (; col + 2 <= cols; col += 2) {
    const __m512 w0 = Format::column(strip);
    const __m512 w1 = Format::column(strip + Format::kRecordBytes);
    strip += 2 * Format::kRecordBytes;
    WCUDA_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      const float* x = input + t * stride + col;
      even[t] = _mm512_fmadd_ps(w0, _mm512_set1_ps(x[0]), even[t]);
      odd[t] = _mm512_fmadd_ps(w1, _mm512_set1_ps(x[1]), odd[t]);
    }
  }
  WCUDA_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    if (col < cols)
      even[t] =
          _mm512_fmadd_ps(Format::column(strip), _mm512_set1_ps(input[t * stride + col]), even[t]);
    _mm512_storeu_ps(tile + t * 16, _mm512_add_ps(even[t], odd[t]));
  }
}

template <class Format>
void strip_floats(const uint8_t* strip, uint32_t cols, const float* input, uint64_t stride,
                  uint32_t token_count, float* tile) {
  uint32_t t = 0;
  for (; t + 8 <= token_count; t += 8)
    strip_float_tokens<Format, 8>(strip, cols, input + t * stride, stride, tile + t * 16);
  for (; t + 2 <= token_count; t += 2)
    strip_float_tokens<Format, 2>(strip, cols, input + t * stride, stride, tile + t * 16);
  if (t < token_count)
    strip_float_tokens<Format, 1>(strip, cols, input + t * stride, stride, tile + t * 16);
}

StripKernel find_strip(uint32_t type) {
  switch (type) {
    case 0:
      return {nullptr, strip_floats<F32>};
    case 1:
      return {nullptr, strip_floats<F16>};
    case 30:
      return {nullptr, strip_floats<BF16>};
    case 2:
      return {strip_blocks<Q4<false>>, nullptr};
    case 3:
      return {strip_blocks<Q4<true>>, nullptr};
    case 6:
      return {strip_blocks<Q5_0>, nullptr};
    case 8:
      return {strip_blocks<Q8_0>, nullptr};
    case 12:
      return {strip_blocks<QK<false>>, nullptr};
    case 13:
      return {strip_blocks<QK<true>>, nullptr};
    case 14:
      return {strip_blocks<Q6_K>, nullptr};
    default:
      return {nullptr, nullptr};
  }
}

// ---- activations ----

constexpr float kCodeMax = 32639.0f;  // 127 * 256 + 127: its upper byte stays within a signed byte

// codes: upper signed bytes of the 32 values, then the lower ones, four columns a word.
void make_blocks(const float* x, uint32_t cols, InputBlock* blocks) {
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (uint32_t col = 0; col < cols; col += 32, ++blocks) {
    const __m512 v[2] = {_mm512_loadu_ps(x + col), _mm512_loadu_ps(x + col + 16)};
    // Magnitudes compare as integers; infinity and NaN are above all others.
    const __m512i largest =
        _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(v[0]), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(v[1]), magnitude));
    const int32_t largest_bits = _mm512_reduce_max_epi32(largest);
    float limit;
    __builtin_memcpy(&limit, &largest_bits, sizeof limit);
    if (largest_bits >= _mm512_cvtsi512_si32(exponent) || limit < 1e-30f) {
      const bool is_finite = largest_bits < 0x7f800000;
      *blocks = InputBlock{};
      if (!is_finite) {
        blocks->scale = __builtin_nanf("");
        blocks->sum = blocks->half_sums[0] = blocks->half_sums[1] = blocks->scale;
      }
      continue;
    }
    const __m512 inverse = _mm512_set1_ps(kCodeMax / limit);
    blocks->scale = limit / kCodeMax;
    int32_t sums[2];
    for (uint32_t half = 0; half < 2; ++half) {
      const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(v[half], inverse));
      sums[half] = _mm512_reduce_add_epi32(code);
      const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(blocks->codes + half * 4),
                       _mm512_cvtepi32_epi8(upper));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(blocks->codes + 8 + half * 4),
                       _mm512_cvtepi32_epi8(code));
      blocks->half_sums[half] = blocks->scale * static_cast<float>(sums[half]);
    }
    blocks->sum = blocks->scale * static_cast<float>(sums[0] + sums[1]);
  }
}

}  // namespace
