// Unpackers of the tensor types with codebooks (IQ1, IQ2, IQ3): as quant_unpack.h. Host and device.
#pragma once

#include "kernels/shared/iq_tables.h"
#include "kernels/shared/quant_unpack.h"

namespace wcuda::quant {

// Value of a code in the grids of IQ2 (8, 25, 43), IQ3_XXS (4, 12 … 52, 62), IQ3_S (1, 3 … 15) and
// IQ1
// (-1, 0, 1).
WCUDA_HD inline int32_t iq2_level(uint32_t code) {
  return static_cast<int32_t>(8 + 17 * code + (code >> 1));
}
WCUDA_HD inline int32_t iq3_xxs_level(uint32_t code) {
  return static_cast<int32_t>(4 + 8 * code + (code == 7 ? 2 : 0));
}
WCUDA_HD inline int32_t iq3_s_level(uint32_t code) { return static_cast<int32_t>(1 + 2 * code); }
WCUDA_HD inline int32_t iq1_level(uint32_t code) { return static_cast<int32_t>(code) - 1; }

// A set of 8 signs from its 7 stored bits: the number of negative weights is even.
WCUDA_HD inline uint32_t even_signs(uint32_t bits) {
  uint32_t parity = bits ^ bits >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return bits | (parity & 1) << 7;
}

// 8 weights of IQ2 from a grid entry and a bit for each sign.
WCUDA_HD inline void unpack8_iq2(float scale, uint32_t entry, uint32_t signs, float* out) {
  for (int j = 0; j < 8; ++j) {
    const float value = scale * static_cast<float>(iq2_level(entry >> (2 * j) & 3));
    out[j] = signs >> j & 1 ? -value : value;
  }
}

// 8 weights of IQ1 from a grid entry.
WCUDA_HD inline void unpack8_iq1(float scale, uint32_t entry, bool is_shift_negative, float* out) {
  const float shift = is_shift_negative ? -0.125f : 0.125f;
  for (int j = 0; j < 8; ++j)
    out[j] = scale * (static_cast<float>(iq1_level(entry >> (2 * j) & 3)) + shift);
}

WCUDA_HD inline void unpack32(const BlockIQ2_XXS& block, uint32_t part, float* out) {
  const uint8_t* indices = block.qs + 8 * part;
  const uint32_t word = load_u32(indices + 4);
  const float scale = load_half(block.d) * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
  for (int k = 0; k < 4; ++k)
    unpack8_iq2(scale, iq2_xxs_grid()[indices[k]], even_signs(word >> (7 * k) & 127), out + 8 * k);
}

WCUDA_HD inline void unpack32(const BlockIQ2_XS& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  for (int k = 0; k < 4; ++k) {
    const uint32_t code = load_u16(block.qs + 8 * part + 2 * k);
    const int32_t nibble = block.scales[part] >> (4 * (k / 2)) & 15;
    const float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
    unpack8_iq2(scale, iq2_xs_grid()[code & 511], even_signs(code >> 9), out + 8 * k);
  }
}

WCUDA_HD inline void unpack32(const BlockIQ2_S& block, uint32_t part, float* out) {
  const float d = load_half(block.d);
  for (int k = 0; k < 4; ++k) {
    const uint32_t high = block.qh[part] >> (2 * k) & 3u;
    const uint32_t index = block.qs[4 * part + k] | high << 8;
    const int32_t nibble = block.scales[part] >> (4 * (k / 2)) & 15;
    const float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
    unpack8_iq2(scale, iq2_s_grid()[index], block.signs[4 * part + k], out + 8 * k);
  }
}

WCUDA_HD inline void unpack32(const BlockIQ3_XXS& block, uint32_t part, float* out) {
  const uint32_t word = load_u32(block.scales + 4 * part);
  const float scale = load_half(block.d) * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
  for (int k = 0; k < 8; ++k) {
    const uint32_t entry = iq3_xxs_grid()[block.qs[8 * part + k]];
    const uint32_t signs = even_signs(word >> (7 * (k / 2)) & 127) >> (4 * (k % 2));
    for (int j = 0; j < 4; ++j) {
      const float value = scale * static_cast<float>(iq3_xxs_level(entry >> (4 * j) & 15));
      out[4 * k + j] = signs >> j & 1 ? -value : value;
    }
  }
}

WCUDA_HD inline void unpack32(const BlockIQ3_S& block, uint32_t part, float* out) {
  const int32_t nibble = block.scales[part / 2] >> (4 * (part % 2)) & 15;
  const float scale = load_half(block.d) * static_cast<float>(1 + 2 * nibble);
  for (int k = 0; k < 8; ++k) {
    const uint32_t high = block.qh[part] >> k & 1u;
    const uint32_t entry = iq3_s_grid()[block.qs[8 * part + k] | high << 8];
    const uint32_t signs = uint32_t{block.signs[4 * part + k / 2]} >> (4 * (k % 2));
    for (int j = 0; j < 4; ++j) {
      const float value = scale * static_cast<float>(iq3_s_level(entry >> (4 * j) & 15));
      out[4 * k + j] = signs >> j & 1 ? -value : value;
    }
  }
}

WCUDA_HD inline void unpack32(const BlockIQ1_S& block, uint32_t part, float* out) {
  const uint32_t word = load_u16(block.qh + 2 * part);
  const float scale = load_half(block.d) * static_cast<float>(2 * (word >> 12 & 7) + 1);
  for (int k = 0; k < 4; ++k) {
    const uint32_t index = block.qs[4 * part + k] | (word >> (3 * k) & 7) << 8;
    unpack8_iq1(scale, iq1_s_grid()[index], (word & 0x8000) != 0, out + 8 * k);
  }
}

WCUDA_HD inline void unpack32(const BlockIQ1_M& block, uint32_t part, float* out) {
  uint32_t d_bits = 0;
  for (int i = 0; i < 4; ++i) d_bits |= uint32_t{load_u16(block.scales + 2 * i)} >> 12 << (4 * i);
  const float d = half_to_float(static_cast<uint16_t>(d_bits));
  const uint32_t scales = load_u16(block.scales + part / 2 * 2) >> (6 * (part % 2));
  for (int k = 0; k < 4; ++k) {
    const uint32_t nibble = block.qh[2 * part + k / 2] >> (4 * (k % 2)) & 15u;
    const uint32_t index = block.qs[4 * part + k] | (nibble & 7) << 8;
    const float scale = d * static_cast<float>(2 * (scales >> (3 * (k / 2)) & 7) + 1);
    unpack8_iq1(scale, iq1_s_grid()[index], (nibble & 8) != 0, out + 8 * k);
  }
}

}  // namespace wcuda::quant
