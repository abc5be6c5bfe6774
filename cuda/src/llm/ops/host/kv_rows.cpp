// Rounding keys and values to the types of the pool.
#include "llm/ops/host/kv_rows.h"

#include <cmath>
#include <cstring>

#include "kernels/shared/numeric.h"

namespace wcuda::ops {

uint32_t kv_row_bytes(KvType type, uint32_t head_length) {
  constexpr uint32_t kHeadLengthMax = 1u << 16;
  if (head_length == 0 || head_length > kHeadLengthMax) return 0;
  switch (type) {
    case KvType::kF16:
      return head_length * 2;
    case KvType::kQ8_0:
      return head_length % 32 == 0 ? head_length / 32 * 34 : 0;
    case KvType::kFp8E4m3:
      return head_length;
  }
  return 0;
}

namespace host {
namespace {

void write_half(float value, uint8_t* out) {
  const uint16_t bits = float_to_half(value);
  std::memcpy(out, &bits, sizeof(bits));
}

// Writes an f16 scale, then 32 codes: value = scale * code.
void write_q8_0_block(const float* values, uint8_t* block) {
  float largest = 0.0f;
  bool is_finite = true;
  for (uint32_t i = 0; i < 32; ++i) {
    is_finite = is_finite && std::isfinite(values[i]);
    largest = std::fmax(largest, std::fabs(values[i]));
  }
  const float scale = is_finite ? half_to_float(float_to_half(largest / 127.0f)) : NAN;
  write_half(scale, block);
  // The scale is rounded, so the largest value may exceed the last code.
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (uint32_t i = 0; i < 32; ++i) {
    const float code = is_finite ? std::nearbyint(values[i] * inverse) : 0.0f;
    block[2 + i] =
        static_cast<uint8_t>(static_cast<int8_t>(std::fmin(127.0f, std::fmax(-127.0f, code))));
  }
}

}  // namespace

void write_kv_row(KvType type, const float* values, uint32_t head_length, uint8_t* row) {
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
  }
}

}  // namespace host
}  // namespace wcuda::ops
