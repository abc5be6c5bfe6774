// A vector of floats as wide as the instruction set of the file that includes this header, and the
// operations that the loops use. Everything here is internal to that file.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr uint32_t kLanes = 16;
#elif defined(__AVX__)
constexpr uint32_t kLanes = 8;
#else
constexpr uint32_t kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UintVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfWordVec __attribute__((vector_size(kLanes * 2)));
typedef int8_t ByteVec __attribute__((vector_size(kLanes)));

#define WCUDA_INLINE static inline __attribute__((always_inline))
#define WCUDA_INLINE_MEMBER inline __attribute__((always_inline))

// Written before a loop over an array that must stay in registers.
#if defined(__clang__)
#define WCUDA_UNROLL _Pragma("unroll")
#else
#define WCUDA_UNROLL _Pragma("GCC unroll 16")
#endif

WCUDA_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
WCUDA_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
#if defined(__AVX512F__)
WCUDA_INLINE Vec load_halves(const uint8_t* p) {
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
WCUDA_INLINE void store_halves(uint8_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
WCUDA_INLINE Vec load_halves(const uint8_t* p) {
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
WCUDA_INLINE void store_halves(uint8_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}
#endif
// Vec{} + value would be an addition, which turns -0 into 0.
WCUDA_INLINE Vec broadcast(float value) { return value - Vec{}; }

// Returns a * b + c, rounded once if the instruction set can. It is explicit, and these files are
// compiled with -ffp-contract=off, because a compiler that chooses which operations to fuse would
// give a token different bits in loops of different width.
WCUDA_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

template <int32_t... kLane>
WCUDA_INLINE IntVec number_lanes(std::integer_sequence<int32_t, kLane...>) {
  return IntVec{kLane...};
}
WCUDA_INLINE IntVec lane_numbers() {
  return number_lanes(std::make_integer_sequence<int32_t, kLanes>{});
}

WCUDA_INLINE Vec select(IntVec mask, Vec a, Vec b) {
  return (Vec)(((IntVec)a & mask) | ((IntVec)b & ~mask));
}

// Lane l of the result is lane l ^ kSetXor of b if bit kBit of l is set, else lane l ^ kClearXor of
// a.
template <uint32_t kBit, uint32_t kClearXor, uint32_t kSetXor, uint32_t... kLane>
WCUDA_INLINE Vec pick(Vec a, Vec b, std::integer_sequence<uint32_t, kLane...>) {
  return __builtin_shufflevector(
      a, b, static_cast<int>((kLane & kBit) ? (kLane ^ kSetXor) + kLanes : kLane ^ kClearXor)...);
}

constexpr auto kAllLanes = std::make_integer_sequence<uint32_t, kLanes>{};

// Returns the sum of the lanes, always in the same order.
template <uint32_t kBit = kLanes / 2>
WCUDA_INLINE float sum(Vec v) {
  v += pick<kBit, kBit, kBit>(v, v, kAllLanes);
  if constexpr (kBit > 1)
    return sum<kBit / 2>(v);
  else
    return v[0];
}

// Returns the larger of a and b, or a if one of them is NaN.
WCUDA_INLINE Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_ps((__m512)b, (__m512)a);
#elif defined(__AVX__)
  return (Vec)_mm256_max_ps((__m256)b, (__m256)a);
#else
  return select(b > a, b, a);
#endif
}
// Returns the smaller of a and b, or a if one of them is NaN.
WCUDA_INLINE Vec smaller(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_min_ps((__m512)b, (__m512)a);
#elif defined(__AVX__)
  return (Vec)_mm256_min_ps((__m256)b, (__m256)a);
#else
  return select(b < a, b, a);
#endif
}
template <uint32_t kBit = kLanes / 2>
WCUDA_INLINE float largest_lane(Vec v) {
  v = larger(v, pick<kBit, kBit, kBit>(v, v, kAllLanes));
  if constexpr (kBit > 1)
    return largest_lane<kBit / 2>(v);
  else
    return v[0];
}

// Returns e^x with an error of about 2 ulp: 0 or nearly 0 below -87, e^88 above 88, NaN for NaN.
WCUDA_INLINE Vec exp_vec(Vec x) {
  x = smaller(larger(x, broadcast(-87.0f)), broadcast(88.0f));
  const Vec magic = broadcast(12582912.0f);  // adding it rounds to an integer
  const Vec shifted = multiply_add(x, broadcast(1.44269504f), magic);
  const Vec n = shifted - magic;
  Vec r = multiply_add(n, broadcast(-0.693359375f), x);
  r = multiply_add(n, broadcast(2.12194440e-4f), r);
  Vec p = multiply_add(r, broadcast(1.9875691500e-4f), broadcast(1.3981999507e-3f));
  p = multiply_add(p, r, broadcast(8.3334519073e-3f));
  p = multiply_add(p, r, broadcast(4.1665795894e-2f));
  p = multiply_add(p, r, broadcast(1.6666665459e-1f));
  p = multiply_add(p, r, broadcast(5.0000001201e-1f));
  p = multiply_add(p * r, r, r) + 1.0f;
  return (Vec)((UintVec)p + ((UintVec)shifted << 23));  // the low bits of `shifted` are n
}

// Swaps rows and columns of a square of kLanes vectors, one bit of the index at a time.
template <uint32_t kBit>
WCUDA_INLINE void transpose_bit(Vec* rows) {
  WCUDA_UNROLL
  for (uint32_t i = 0; i < kLanes; ++i) {
    if (i & kBit) continue;
    const Vec a = rows[i];
    const Vec b = rows[i + kBit];
    rows[i] = pick<kBit, 0, kBit>(a, b, kAllLanes);
    rows[i + kBit] = pick<kBit, kBit, 0>(a, b, kAllLanes);
  }
}
WCUDA_INLINE void transpose(Vec* rows) {
  if constexpr (kLanes > 8) transpose_bit<8>(rows);
  if constexpr (kLanes > 4) transpose_bit<4>(rows);
  transpose_bit<2>(rows);
  transpose_bit<1>(rows);
}

}  // namespace
