#include "kernels/shared/numeric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/shared/scale_factor.h"

namespace wcuda {
namespace {

// The value of a small float from the definition of its fields, in double.
double by_definition(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(code & ((1u << mantissa_bits) - 1), -mantissa_bits);
  const double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, exponent - bias);
}

TEST(Numeric, half_to_float_is_the_definition_for_every_code) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = half_to_float(static_cast<uint16_t>(code));

    if ((code & 0x7c00) != 0x7c00) {
      ASSERT_EQ(value, by_definition(code, 5, 10, 15)) << code;
      ASSERT_EQ(std::signbit(value), (code & 0x8000) != 0) << code;
    } else if (code & 0x3ff) {
      ASSERT_TRUE(std::isnan(value)) << code;
    } else {
      ASSERT_EQ(value, code & 0x8000 ? -INFINITY : INFINITY);
    }
  }
}

// Checks that `round` maps each code's value to itself, what lies between two neighbours to the
// nearer one, and the middle to the even code. Codes 0 … last are ascending, non-negative and
// finite.
template <class Code, class Decode, class Round>
void expect_rounds_to_nearest_even(Code last, Decode decode, Round round) {
  for (uint32_t code = 0; code < last; ++code) {
    const float low = decode(static_cast<Code>(code));
    const float high = decode(static_cast<Code>(code + 1));
    const float middle = low + (high - low) / 2;  // exact: f32 has more bits
    ASSERT_EQ(round(low), code);
    ASSERT_EQ(round(middle), code + (code & 1)) << low;
    ASSERT_EQ(round(std::nextafter(middle, 0.0f)), code) << low;
    ASSERT_EQ(round(std::nextafter(middle, INFINITY)), code + 1) << low;
  }
  ASSERT_EQ(round(decode(last)), last);
}

TEST(Numeric, float_to_half_rounds_to_nearest_even) {
  expect_rounds_to_nearest_even<uint16_t>(0x7bff, half_to_float, float_to_half);
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e10f), 0xfc00);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_EQ(float_to_half(-1e-30f), 0x8000);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(-NAN))));
}

TEST(Numeric, float_to_bf16_rounds_to_nearest_even) {
  expect_rounds_to_nearest_even<uint16_t>(0x7f7f, bf16_to_float, float_to_bf16);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(float_to_bf16(bits_float(0x7f800001)), 0x7fc0);  // NaN with low payload bits only
}

TEST(Numeric, e4m3_to_float_is_the_definition_for_every_code) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f)
      ASSERT_TRUE(std::isnan(value));
    else
      ASSERT_EQ(value, by_definition(code, 4, 3, 7)) << code;
  }
}

TEST(Numeric, float_to_e4m3_rounds_to_nearest_even_and_saturates) {
  expect_rounds_to_nearest_even<uint8_t>(0x7e, e4m3_to_float, float_to_e4m3);
  EXPECT_EQ(float_to_e4m3(449.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(464.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(float_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(float_to_e4m3(NAN) & 0x7f, 0x7f);
}

TEST(Numeric, e8m0_is_half_a_power_of_two_down_to_subnormals) {
  for (int code = 0; code < 256; ++code)
    ASSERT_EQ(e8m0_half_to_float(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 128)) << code;
}

TEST(Numeric, ue4m3_is_half_of_e4m3_without_a_sign_and_without_nan) {
  for (uint32_t code = 0; code < 127; ++code)
    ASSERT_EQ(ue4m3_half_to_float(static_cast<uint8_t>(code)), by_definition(code, 4, 3, 7) / 2);
  EXPECT_EQ(ue4m3_half_to_float(0x7f), 0.0f);
  EXPECT_EQ(ue4m3_half_to_float(0x80), 0.0f);
  EXPECT_EQ(ue4m3_half_to_float(0xff), 240.0f);
}

TEST(Numeric, mul_add_rounds_the_product_first) {
  const float a = 1.0f + 0x1p-12f;

  const float result = mul_add_rounded(a, a, -(1.0f + 0x1p-11f));  // fused: 2^-24

  EXPECT_EQ(result, 0.0f);
}

TEST(ScaleFactor, keeps_products_with_codes_in_the_range_of_f16) {
  for (uint32_t exponent = 0; exponent < 31; ++exponent)
    for (const uint16_t low : {0u, 1u, 0x200u, 0x3ffu}) {
      const auto d = static_cast<uint16_t>(exponent << 10 | low);
      for (const uint16_t d_min : {uint16_t{0}, d, uint16_t{0x7bff}}) {
        const float factor = kernels::scale_factor(kernels::scale_bound(d, d_min));
        EXPECT_EQ(factor, half_to_float(float_to_half(factor)));
        EXPECT_LE(factor, 1024.0f);
        EXPECT_LE(half_to_float(d) * factor * 63.0f * kernels::kScaleFactorDivisor, 65504.0f);
        EXPECT_LE(half_to_float(d_min) * factor * 63.0f, 65504.0f);
        // No smaller than it must be.
        if (factor < 1024.0f) {
          EXPECT_TRUE(half_to_float(d) * factor * 2.0f >= 0.25f ||
                      half_to_float(d_min) * factor * 2.0f >= 1024.0f);
        }
      }
    }
  EXPECT_EQ(kernels::scale_factor(0.0f), 1024.0f);
  EXPECT_EQ(kernels::scale_bound(0x7c00, 0), 0.0f);
  EXPECT_EQ(kernels::scale_bound(0, 0x7e00), 0.0f);
  EXPECT_EQ(kernels::scale_bound(0xbc00, 0), kernels::scale_bound(0x3c00, 0));
}

}  // namespace
}  // namespace wcuda
