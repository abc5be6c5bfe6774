// Rounding keys and values to the types of the pool.
#include "llm/ops/host/kv_rows.h"

#include <cmath>
#include <cstring>

#include "kernels/shared/int10_row.h"
#include "kernels/shared/numeric.h"

namespace wcuda::ops {

uint32_t kv_row_bytes(KvType type, uint32_t head_length) {
  constexpr uint32_t kHeadLengthMax = 1u << 16;
  if (head_length == 0 || head_length > kHeadLengthMax) return 0;
  const bool has_rows = type == KvType::kF16 || type == KvType::kFp8E4m3 ||
                        (type == KvType::kQ8_0 && head_length % 32 == 0) ||
                        (type == KvType::kInt10 && head_length % kernels::kInt10Block == 0);
  return has_rows ? kernels::bytes_of_row(type, head_length) : 0;
}

namespace host {
namespace {

void write_half(float value, uint8_t* out) {
  const uint16_t bits = float_to_half(value);
  std::memcpy(out, &bits, sizeof(bits));
}

// The codes of a block of values: value = scale * code, with codes of -code_max to code_max.
class BlockCodes {
 public:
  BlockCodes(const float* values, uint32_t count, int32_t code_max)
      : values_(values), most_(static_cast<float>(code_max)) {
    float largest = 0.0f;
    for (uint32_t i = 0; i < count; ++i) {
      is_finite_ = is_finite_ && std::isfinite(values[i]);
      largest = std::fmax(largest, std::fabs(values[i]));
    }
    scale_ = is_finite_ ? half_to_float(float_to_half(largest / most_)) : NAN;
    inverse_ = scale_ > 0.0f ? 1.0f / scale_ : 0.0f;
  }
  float scale() const { return scale_; }
  // The scale is rounded, so the largest value may exceed the last code.
  int32_t operator[](uint32_t i) const {
    const float code = is_finite_ ? std::nearbyint(values_[i] * inverse_) : 0.0f;
    return static_cast<int32_t>(std::fmin(most_, std::fmax(-most_, code)));
  }

 private:
  const float* values_;
  float most_, scale_, inverse_;
  bool is_finite_ = true;
};

void write_q8_0_block(const float* values, uint8_t* block) {
  const BlockCodes codes(values, 32, 127);
  write_half(codes.scale(), block);
  for (uint32_t i = 0; i < 32; ++i) block[2 + i] = static_cast<uint8_t>(codes[i]);
}

void write_int10_row(const float* values, uint32_t head_length, uint32_t slot, uint8_t* row) {
  using kernels::kInt10Block;
  const kernels::Int10Row at(head_length, slot % 2 == 1);
  std::memset(row + at.high, 0, head_length / 4);
  for (uint32_t first = 0; first < head_length; first += kInt10Block) {
    const BlockCodes codes(values + first, kInt10Block, kernels::kInt10CodeMax);
    write_half(codes.scale(), row + at.scales + first / kInt10Block * 2);
    for (uint32_t i = 0; i < kInt10Block; ++i) {
      const auto stored = static_cast<uint32_t>(codes[i] + kernels::kInt10Offset);
      row[at.low + first + i] = static_cast<uint8_t>(stored);
      row[at.high + first / 4 + i % 16] |= static_cast<uint8_t>(stored >> 8 << i / 16 * 2);
    }
  }
}

}  // namespace

void write_kv_row(KvType type, const float* values, uint32_t head_length, uint32_t slot,
                  uint8_t* row) {
  switch (type) {
    case KvType::kF16:
      for (uint32_t i = 0; i < head_length; ++i) write_half(values[i], row + 2 * i);
      return;
    case KvType::kQ8_0:
      for (uint32_t i = 0; i < head_length; i += 32)
        write_q8_0_block(values + i, row + i / 32 * 34);
      return;
    case KvType::kFp8E4m3:
      for (uint32_t i = 0; i < head_length; ++i) row[i] = float_to_e4m3(values[i]);
      return;
    case KvType::kInt10:
      write_int10_row(values, head_length, slot, row);
      return;
  }
}

void hadamard_head(float* head, uint32_t head_length) {
  constexpr uint32_t n = kernels::kInt10Block;
  for (float* block = head; block < head + head_length; block += n) {
    for (uint32_t step = 1; step < n; step *= 2)
      for (uint32_t first = 0; first < n; first += 2 * step)
        for (uint32_t i = first; i < first + step; ++i) {
          const float a = block[i], b = block[i + step];
          block[i] = a + b;
          block[i + step] = a - b;
        }
    for (uint32_t i = 0; i < n; ++i) block[i] *= 0.125f;
  }
}

}  // namespace host
}  // namespace wcuda::ops
