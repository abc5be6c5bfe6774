// Cosine and sine table and the rotation itself.
#include "llm/ops/host/rope.h"

#include <algorithm>
#include <cmath>

namespace wcuda::ops::host {

void RopeTable::update(const Rope& rope, const uint32_t* positions, uint32_t token_count,
                       float* memory) {
  const uint32_t half = rope.dimension_count / 2;
  const bool is_current = memory_ == memory && rope_.pairing == rope.pairing &&
                          rope_.dimension_count == rope.dimension_count &&
                          rope_.magnitude == rope.magnitude && positions_.size() == token_count &&
                          std::equal(positions_.begin(), positions_.end(), positions) &&
                          std::equal(frequencies_.begin(), frequencies_.end(), rope.frequencies);
  if (is_current) return;
  rope_ = rope;
  positions_.assign(positions, positions + token_count);
  frequencies_.assign(rope.frequencies, rope.frequencies + half);
  memory_ = memory;
  for (uint32_t t = 0; t < token_count; ++t) {
    float* cosines = memory + uint64_t{t} * rope.dimension_count;
    for (uint32_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * rope.frequencies[i];
      cosines[i] = static_cast<float>(std::cos(angle)) * rope.magnitude;
      cosines[half + i] = static_cast<float>(std::sin(angle)) * rope.magnitude;
    }
  }
}

void RopeTable::turn(uint32_t token, float* head) const {
  const uint32_t half = rope_.dimension_count / 2;
  const float* cosines = memory_ + uint64_t{token} * rope_.dimension_count;
  const float* sines = cosines + half;
  if (rope_.pairing == RopePairing::kAdjacent) {
    for (uint32_t i = 0; i < half; ++i) {
      const float a = head[2 * i];
      const float b = head[2 * i + 1];
      head[2 * i] = a * cosines[i] - b * sines[i];
      head[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
  } else {
    for (uint32_t i = 0; i < half; ++i) {
      const float a = head[i];
      const float b = head[half + i];
      head[i] = a * cosines[i] - b * sines[i];
      head[half + i] = a * sines[i] + b * cosines[i];
    }
  }
}

}  // namespace wcuda::ops::host
