// Unpackers of the plain, K, ternary and FP4 tensor types: convert 32 consecutive elements of a
// block to f32, bit for bit as the reference dequantizer of the format. Host and device.
#pragma once

#include "kernels/shared/numeric.h"
#include "kernels/shared/quant_blocks.h"

namespace wcuda::quant {

// unpack32(block, part, out) writes elements 32 * part … 32 * part + 31 to out (32); part <
// kElements / 32.

WCUDA_HD inline uint16_t load_u16(const uint8_t* bytes) {
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}
WCUDA_HD inline uint32_t load_u32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 |
         uint32_t{bytes[3]} << 24;
}
WCUDA_HD inline float load_half(const uint8_t* bytes) { return half_to_float(load_u16(bytes)); }

// Scale and min number j (0 … 7) of Q4_K and Q5_K: 6 bits each.
struct ScaleMin {
  uint32_t scale;
  uint32_t min;
};
WCUDA_HD inline ScaleMin k_scale_min(const uint8_t* scales, uint32_t j) {
  if (j < 4) return {scales[j] & 63u, scales[j + 4] & 63u};
  return {(scales[j + 4] & 15u) | (scales[j - 4] >> 6 << 4),
          (uint32_t{scales[j + 4]} >> 4) | (scales[j] >> 6 << 4)};
}

// Scale number j (0 … 15) of Q3_K, already less 32.
WCUDA_HD inline int32_t q3_k_scale(const uint8_t* scales, uint32_t j) {
  const uint32_t low = (scales[j % 8] >> (4 * (j / 8))) & 15u;
  const uint32_t high = (scales[8 + j % 4] >> (2 * (j / 4))) & 3u;
  return static_cast<int32_t>(low | high << 4) - 32;
}

// Twice the value of an e2m1 code: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives; code 8 is +0.
WCUDA_HD inline int32_t e2m1_doubled(uint32_t code) {
  const int32_t magnitude = static_cast<int32_t>(0xc8643210u >> (4 * (code & 7)) & 15u);
  return code & 8 ? -magnitude : magnitude;
}

// Level of an IQ4 code.
WCUDA_HD inline int32_t iq4_level(uint32_t code) {
  static const int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
  return kLevels[code];
}

WCUDA_HD inline void unpack32(const BlockQ4_0& block, uint32_t, float* out) {
  const float d = load_half(block.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((block.qs[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((block.qs[j] >> 4) - 8);
  }
}

WCUDA_HD inline void unpack32(const BlockQ4_1& block, uint32_t, float* out) {
  const float d = load_half(block.d);
  const float m = load_half(block.m);
  for (int j = 0; j < 16; ++j) {
    out[j] = mul_add_rounded(d, static_cast<float>(block.qs[j] & 15), m);
    out[j + 16] = mul_add_rounded(d, static_cast<float>(block.qs[j] >> 4), m);
  }
}

WCUDA_HD inline void unpack32(const BlockQ5_0& block, uint32_t, float* out) {
  const float d = load_half(block.d);
  const uint32_t high = load_u32(block.qh);
  for (int j = 0; j < 16; ++j) {
    const uint32_t q0 = (block.qs[j] & 15u) | (high >> j & 1) << 4;
    const uint32_t q1 = (uint32_t{block.qs[j]} >> 4) | (high >> (j + 16) & 1) << 4;
    out[j] = d * static_cast<float>(static_cast<int32_t>(q0) - 16);
    out[j + 16] = d * static_cast<float>(static_cast<int32_t>(q1) - 16);
  }
}

WCUDA_HD inline void unpack32(const BlockQ5_1& block, uint32_t, float* out) {
  const float d = load_half(block.d);
  const float m = load_half(block.m);
  const uint32_t high = load_u32(block.qh);
  for (int j = 0; j < 16; ++j) {
    const uint32_t q0 = (block.qs[j] & 15u) | (high >> j & 1) << 4;
    const uint32_t q1 = (uint32_t{block.qs[j]} >> 4) | (high >> (j + 16) & 1) << 4;
    out[j] = mul_add_rounded(d, static_cast<float>(q0), m);
    out[j + 16] = mul_add_rounded(d, static_cast<float>(q1), m);
  }
}

WCUDA_HD inline void unpack32(const BlockQ8_0& block, uint32_t, float* out) {
  const float d = load_half(block.d);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block.qs[j]));
}

WCUDA_HD inline void unpack32(const BlockQ2_K& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  const float dmin = load_half(block.dmin);
  const uint8_t* qs = block.qs + part / 4 * 32;
  for (int half = 0; half < 2; ++half) {
    const uint8_t scale_min = block.scales[2 * part + half];
    const float scale = d * static_cast<float>(scale_min & 15);
    const float min = dmin * static_cast<float>(scale_min >> 4);
    for (int j = 16 * half; j < 16 * half + 16; ++j)
      out[j] = mul_add_rounded(scale, static_cast<float>(qs[j] >> (2 * (part % 4)) & 3), -min);
  }
}

WCUDA_HD inline void unpack32(const BlockQ3_K& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  const uint8_t* qs = block.qs + part / 4 * 32;
  for (int half = 0; half < 2; ++half) {
    const float scale = d * static_cast<float>(q3_k_scale(block.scales, 2 * part + half));
    for (int j = 16 * half; j < 16 * half + 16; ++j) {
      const int32_t low = qs[j] >> (2 * (part % 4)) & 3;
      const int32_t high = block.hmask[j] >> part & 1;
      out[j] = scale * static_cast<float>(low + 4 * high - 4);
    }
  }
}

WCUDA_HD inline void unpack32(const BlockQ4_K& block, uint32_t part, float* out) {
  const ScaleMin scale_min = k_scale_min(block.scales, part);
  const float scale = load_half(block.d) * static_cast<float>(scale_min.scale);
  const float min = load_half(block.dmin) * static_cast<float>(scale_min.min);
  const uint8_t* qs = block.qs + part / 2 * 32;
  for (int j = 0; j < 32; ++j)
    out[j] = mul_add_rounded(scale, static_cast<float>(qs[j] >> (4 * (part % 2)) & 15), -min);
}

WCUDA_HD inline void unpack32(const BlockQ5_K& block, uint32_t part, float* out) {
  const ScaleMin scale_min = k_scale_min(block.scales, part);
  const float scale = load_half(block.d) * static_cast<float>(scale_min.scale);
  const float min = load_half(block.dmin) * static_cast<float>(scale_min.min);
  const uint8_t* qs = block.qs + part / 2 * 32;
  for (int j = 0; j < 32; ++j) {
    const int32_t q = (qs[j] >> (4 * (part % 2)) & 15) | (block.qh[j] >> part & 1) << 4;
    out[j] = mul_add_rounded(scale, static_cast<float>(q), -min);
  }
}

WCUDA_HD inline void unpack32(const BlockQ6_K& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  const uint8_t* ql = block.ql + part / 4 * 64 + part % 2 * 32;
  const uint8_t* qh = block.qh + part / 4 * 32;
  const uint32_t low_shift = part / 2 % 2 * 4;
  const uint32_t high_shift = part % 4 * 2;
  for (int half = 0; half < 2; ++half) {
    const float scale = d * static_cast<float>(static_cast<int8_t>(block.scales[2 * part + half]));
    for (int j = 16 * half; j < 16 * half + 16; ++j) {
      const int32_t q = (ql[j] >> low_shift & 15) | (qh[j] >> high_shift & 3) << 4;
      out[j] = scale * static_cast<float>(q - 32);
    }
  }
}

WCUDA_HD inline void unpack32(const BlockTQ1_0& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  for (uint32_t j = 0; j < 32; ++j) {
    const uint32_t element = 32 * part + j;
    uint32_t byte;
    uint32_t digit;  // place in base 3, the first leading
    if (element < 160) {
      byte = block.qs[j];
      digit = part;
    } else if (element < 240) {
      byte = block.qs[32 + (element - 160) % 16];
      digit = (element - 160) / 16;
    } else {
      byte = block.qh[(element - 240) % 4];
      digit = (element - 240) / 4;
    }
    const auto power = static_cast<uint32_t>(0x511b090301u >> (8 * digit) & 255u);  // 3^digit
    const int32_t q = static_cast<int32_t>((byte * power & 255) * 3 >> 8);
    out[j] = d * static_cast<float>(q - 1);
  }
}

WCUDA_HD inline void unpack32(const BlockTQ2_0& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  const uint8_t* qs = block.qs + part / 4 * 32;
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>((qs[j] >> (2 * (part % 4)) & 3) - 1);
}

WCUDA_HD inline void unpack32(const BlockIQ4_NL& block, uint32_t, float* out) {
  const float d = load_half(block.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(iq4_level(block.qs[j] & 15));
    out[j + 16] = d * static_cast<float>(iq4_level(block.qs[j] >> 4));
  }
}

WCUDA_HD inline void unpack32(const BlockIQ4_XS& block, uint32_t part, float* out) {
  const uint32_t low = block.scales_l[part / 2] >> (4 * (part % 2)) & 15u;
  const uint32_t high = uint32_t{load_u16(block.scales_h)} >> (2 * part) & 3u;
  const int32_t scale = static_cast<int32_t>(low | high << 4) - 32;
  const float d = load_half(block.d) * static_cast<float>(scale);
  const uint8_t* qs = block.qs + 16 * part;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(iq4_level(qs[j] & 15));
    out[j + 16] = d * static_cast<float>(iq4_level(qs[j] >> 4));
  }
}

WCUDA_HD inline void unpack32(const BlockMXFP4& block, uint32_t, float* out) {
  const float d = e8m0_half_to_float(block.e);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(e2m1_doubled(block.qs[j] & 15));
    out[j + 16] = d * static_cast<float>(e2m1_doubled(block.qs[j] >> 4));
  }
}

WCUDA_HD inline void unpack32(const BlockNVFP4& block, uint32_t part, float* out) {
  for (int half = 0; half < 2; ++half) {
    const float d = ue4m3_half_to_float(block.d[2 * part + half]);
    const uint8_t* qs = block.qs + 16 * part + 8 * half;
    for (int j = 0; j < 8; ++j) {
      out[16 * half + j] = d * static_cast<float>(e2m1_doubled(qs[j] & 15));
      out[16 * half + j + 8] = d * static_cast<float>(e2m1_doubled(qs[j] >> 4));
    }
  }
}

WCUDA_HD inline void unpack32(const BlockQ1_0& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  const uint32_t bits = load_u32(block.qs + 4 * part);
  for (int j = 0; j < 32; ++j) out[j] = bits >> j & 1 ? d : -d;
}

WCUDA_HD inline void unpack32(const BlockQ2_0& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  const uint8_t* qs = block.qs + 8 * part;
  for (int j = 0; j < 32; ++j)
    out[j] = d * static_cast<float>((qs[j / 4] >> (2 * (j % 4)) & 3) - 1);
}

}  // namespace wcuda::quant
