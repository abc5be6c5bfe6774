// A vector of floats as wide as the instruction set of the file that includes this, and what the
// loops need of it. Everything here is internal to that file.
#pragma once

#include <cstdint>

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

#define WCUDA_INLINE static inline __attribute__((always_inline))

// Before a loop over an array that must live in registers.
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
WCUDA_INLINE Vec broadcast(float value) { return Vec{} + value; }

// Sum of the lanes, always in the same order.
WCUDA_INLINE float sum(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (uint32_t width = kLanes / 2; width > 0; width /= 2)
    for (uint32_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

WCUDA_INLINE Vec select(IntVec mask, Vec a, Vec b) {
  return (Vec)(((IntVec)a & mask) | ((IntVec)b & ~mask));
}

// e^x to about 2 units in the last place; below -87 it is 0 or nearly, above 88 it stays at e^88.
// NaN stays NaN.
WCUDA_INLINE Vec exp_vec(Vec x) {
  x = select(x < -87.0f, broadcast(-87.0f), x);
  x = select(x > 88.0f, broadcast(88.0f), x);
  const Vec shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return (Vec)((UintVec)p + ((UintVec)shifted << 23));  // the low bits of `shifted` are n
}

}  // namespace
