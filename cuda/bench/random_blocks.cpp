// Where each tensor type keeps its scales, and random blocks around them.
#include "bench/random_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/shared/numeric.h"
#include "kernels/shared/quant_blocks.h"
#include "llm/quant/format.h"

namespace wcuda::bench {
namespace {

constexpr float kWantedRms = 0.02f;
constexpr uint64_t kMeasuredBlocks = 64;

enum class ScaleKind {
  kHalf,       // f16 at `offset`
  kHalfPair,   // the same, and an f16 at `second` that is `ratio` of it
  kSplitHalf,  // f16 in the top nibbles of four uint16 at `offset`
  kE8m0,       // a power of two at `offset`
  kUe4m3,      // four of them from `offset` on
};

struct ScaleRule {
  uint32_t type;
  ScaleKind kind;
  size_t offset;
  size_t second = 0;
  float ratio = 0.0f;  // of the offset that takes the mean of the codes away
};

using namespace quant;
constexpr ScaleRule kRules[] = {
    {2, ScaleKind::kHalf, offsetof(BlockQ4_0, d)},
    {3, ScaleKind::kHalfPair, offsetof(BlockQ4_1, d), offsetof(BlockQ4_1, m), -7.5f},
    {6, ScaleKind::kHalf, offsetof(BlockQ5_0, d)},
    {7, ScaleKind::kHalfPair, offsetof(BlockQ5_1, d), offsetof(BlockQ5_1, m), -15.5f},
    {8, ScaleKind::kHalf, offsetof(BlockQ8_0, d)},
    {10, ScaleKind::kHalfPair, offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin), 1.5f},
    {11, ScaleKind::kHalf, offsetof(BlockQ3_K, d)},
    {12, ScaleKind::kHalfPair, offsetof(BlockQ4_K, d), offsetof(BlockQ4_K, dmin), 7.5f},
    {13, ScaleKind::kHalfPair, offsetof(BlockQ5_K, d), offsetof(BlockQ5_K, dmin), 15.5f},
    {14, ScaleKind::kHalf, offsetof(BlockQ6_K, d)},
    {16, ScaleKind::kHalf, offsetof(BlockIQ2_XXS, d)},
    {17, ScaleKind::kHalf, offsetof(BlockIQ2_XS, d)},
    {18, ScaleKind::kHalf, offsetof(BlockIQ3_XXS, d)},
    {19, ScaleKind::kHalf, offsetof(BlockIQ1_S, d)},
    {20, ScaleKind::kHalf, offsetof(BlockIQ4_NL, d)},
    {21, ScaleKind::kHalf, offsetof(BlockIQ3_S, d)},
    {22, ScaleKind::kHalf, offsetof(BlockIQ2_S, d)},
    {23, ScaleKind::kHalf, offsetof(BlockIQ4_XS, d)},
    {29, ScaleKind::kSplitHalf, offsetof(BlockIQ1_M, scales)},
    {34, ScaleKind::kHalf, offsetof(BlockTQ1_0, d)},
    {35, ScaleKind::kHalf, offsetof(BlockTQ2_0, d)},
    {39, ScaleKind::kE8m0, offsetof(BlockMXFP4, e)},
    {40, ScaleKind::kUe4m3, offsetof(BlockNVFP4, d)},
    {41, ScaleKind::kHalf, offsetof(BlockQ1_0, d)},
    {42, ScaleKind::kHalf, offsetof(BlockQ2_0, d)},
};

void put_half(uint8_t* target, float value) {
  const uint16_t bits = float_to_half(value);
  std::memcpy(target, &bits, sizeof bits);
}

// The code above 0 whose value is nearest to `wanted`, which is above 0.
uint8_t nearest_ue4m3(float wanted) {
  uint8_t best = 1;
  for (uint8_t code = 1; code < 127; ++code) {
    const float value = 2.0f * ue4m3_half_to_float(code), held = 2.0f * ue4m3_half_to_float(best);
    if (std::fabs(value - wanted) < std::fabs(held - wanted)) best = code;
  }
  return best;
}

void set_scale(const ScaleRule& rule, float scale, uint8_t* block) {
  uint8_t* const at = block + rule.offset;
  switch (rule.kind) {
    case ScaleKind::kHalfPair:
      put_half(block + rule.second, scale * rule.ratio);
      put_half(at, scale);
      break;
    case ScaleKind::kHalf:
      put_half(at, scale);
      break;
    case ScaleKind::kSplitHalf:
      for (uint32_t i = 0; i < 4; ++i) {
        const auto nibble = static_cast<uint8_t>(float_to_half(scale) >> 4 * i & 0xF);
        at[2 * i + 1] = static_cast<uint8_t>((at[2 * i + 1] & 0x0F) | nibble << 4);
      }
      break;
    case ScaleKind::kE8m0:
      at[0] = static_cast<uint8_t>(127 + std::lround(std::log2(std::fabs(scale))));
      break;
    case ScaleKind::kUe4m3:
      std::fill(at, at + 4, nearest_ue4m3(std::fabs(scale)));
      break;
  }
}

// Root of the mean square of the first blocks' values at scale 1.
float unit_rms(const Format& format, const ScaleRule& rule, std::vector<uint8_t> blocks) {
  std::vector<float> values(format.block_elements);
  double sum = 0.0;
  uint64_t count = 0;
  for (uint64_t i = 0; i < kMeasuredBlocks && (i + 1) * format.block_bytes <= blocks.size(); ++i) {
    set_scale(rule, 1.0f, &blocks[i * format.block_bytes]);
    format.unpack(&blocks[i * format.block_bytes], values.data());
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
    count += values.size();
  }
  return static_cast<float>(std::sqrt(sum / static_cast<double>(count)));
}

// Nearly normal: the sum of four uniform numbers.
float random_value(uint64_t counter) {
  const uint64_t word = random_word(counter);
  float sum = 0.0f;
  for (uint32_t i = 0; i < 4; ++i) sum += static_cast<float>(word >> 16 * i & 0xFFFF) / 65536.0f;
  return (sum - 2.0f) * std::sqrt(3.0f) * kWantedRms;
}

std::vector<uint8_t> random_values(const Format& format, uint64_t count) {
  std::vector<uint8_t> data(count * format.block_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    const float value = random_value(i);
    const uint32_t bits = float_bits(value);
    const uint16_t narrow =
        std::strcmp(format.name, "BF16") == 0 ? float_to_bf16(value) : float_to_half(value);
    if (format.block_bytes == 4) std::memcpy(&data[i * 4], &bits, 4);
    if (format.block_bytes == 2) std::memcpy(&data[i * 2], &narrow, 2);
  }
  return data;
}

}  // namespace

std::vector<uint8_t> random_blocks(uint32_t type, uint64_t count) {
  const Format& format = *find_format(type);
  if (format.block_elements == 1) return random_values(format, count);
  const auto* const rule = std::find_if(std::begin(kRules), std::end(kRules),
                                        [&](const ScaleRule& r) { return r.type == type; });
  if (rule == std::end(kRules)) return {};
  std::vector<uint8_t> data((count * format.block_bytes + 7) / 8 * 8);
  for (uint64_t i = 0; i * 8 < data.size(); ++i) {
    const uint64_t word = random_word(i);
    std::memcpy(&data[i * 8], &word, 8);
  }
  data.resize(count * format.block_bytes);
  const float scale = kWantedRms / unit_rms(format, *rule, data);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t word = random_word(UINT32_MAX + i);
    const float factor = 0.75f + static_cast<float>(word & 0xFF) / 512.0f;
    const float sign = (word & 0x100) != 0 ? -1.0f : 1.0f;
    set_scale(*rule, sign * scale * factor, &data[i * format.block_bytes]);
  }
  return data;
}

}  // namespace wcuda::bench
