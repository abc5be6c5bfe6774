// Number formats narrower than f32, converted exactly on host and device alike. Includes nothing of
// the toolkit's: it compiles under g++, clang, nvcc and NVRTC.
#pragma once

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#else
#include <cstdint>
#endif

// Marks a function that is compiled for the host and, by a CUDA compiler, for the device too.
#if defined(__CUDACC__)
#define WCUDA_HD __host__ __device__
#else
#define WCUDA_HD
#endif

namespace wcuda {

WCUDA_HD inline uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

WCUDA_HD inline float bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// a * b + c with both results rounded: never one fused operation, so that every compiler and device
// gives the same bits.
WCUDA_HD inline float mul_add_rounded(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(__fmul_rn(a, b), c);
#else
  float product = a * b;
#if defined(__FMA__)
  __asm__("" : "+x"(product));
#endif
  return product + c;
#endif
}

// IEEE binary16 to f32: exact. A NaN stays a NaN; its payload may change.
WCUDA_HD inline float half_to_float(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0)  // zero or subnormal: mantissa * 2^-24
    return bits_float(sign | float_bits(static_cast<float>(mantissa) * 0x1p-24f));
  if (exponent == 31) return bits_float(sign | 0x7f800000u | mantissa << 13);
  return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
#endif
}

// f32 to IEEE binary16, to nearest, ties to even; overflow gives infinity, NaN a quiet NaN.
WCUDA_HD inline uint16_t float_to_half(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u)  // below 2^-14: the unit of 0.5 is that of the subnormals, 2^-24
    return static_cast<uint16_t>(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u));
  magnitude += 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((magnitude >> 13) - (112u << 10)));
#endif
}

// bfloat16 to f32: exact.
WCUDA_HD inline float bf16_to_float(uint16_t bits) { return bits_float(uint32_t{bits} << 16); }

// f32 to bfloat16, to nearest, ties to even; NaN gives a quiet NaN.
WCUDA_HD inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// Half of 2^(code - 127), the scale of an MXFP4 block whose codes are doubled. Code 255 is 2^127.
WCUDA_HD inline float e8m0_half_to_float(uint8_t code) {
  return bits_float(code < 2 ? 0x00200000u << code : (uint32_t{code} - 1) << 23);
}

// Unsigned e4m3 (bias 7) halved, the scale of NVFP4 codes, which are doubled. The top bit is
// ignored and 0x7f is 0, as in the file format.
WCUDA_HD inline float ue4m3_half_to_float(uint8_t code) {
  if (code == 0x7f) return 0.0f;
  const uint32_t exponent = (code >> 3) & 15;
  const uint32_t mantissa = code & 7;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
  return bits_float((exponent + 119) << 23 | mantissa << 20);
}

// FP8 e4m3 (bias 7, no infinity, 0x7f and 0xff NaN) to f32: exact.
WCUDA_HD inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t exponent = (code >> 3) & 15;
  const uint32_t mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return bits_float(sign | 0x7fc00000u);
  if (exponent == 0) return bits_float(sign | float_bits(static_cast<float>(mantissa) * 0x1p-9f));
  return bits_float(sign | (exponent + 120) << 23 | mantissa << 20);
}

// f32 to FP8 e4m3, to nearest, ties to even, saturating at ±448 (infinities too); NaN gives NaN.
WCUDA_HD inline uint8_t float_to_e4m3(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448 and above
  if (magnitude < 0x3c800000u)  // below 2^-6: the unit of 2^14 is that of the subnormals, 2^-9
    return static_cast<uint8_t>(sign | (float_bits(bits_float(magnitude) + 0x1p14f) - 0x46800000u));
  magnitude += 0x7ffffu + ((magnitude >> 20) & 1);
  return static_cast<uint8_t>(sign | ((magnitude >> 20) - (120u << 3)));
}

}  // namespace wcuda
