// Cosine and sine table and the rotation itself.
#include "llm/ops/host/rope.h"

#include <cmath>

namespace wcuda::ops::host {

void fill_rope_table(const Rope& rope, const uint32_t* positions, uint32_t token_count,
                     float* table) {
  const uint32_t half = rope.dimension_count / 2;
  for (uint32_t t = 0; t < token_count; ++t) {
    float* cosines = table + uint64_t{t} * rope.dimension_count;
    for (uint32_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * rope.frequencies[i];
      cosines[i] = static_cast<float>(std::cos(angle)) * rope.magnitude;
      cosines[half + i] = static_cast<float>(std::sin(angle)) * rope.magnitude;
    }
  }
}

void rotate_head(const Rope& rope, const float* table, uint32_t token, float* head) {
  const uint32_t half = rope.dimension_count / 2;
  const float* cosines = table + uint64_t{token} * rope.dimension_count;
  const float* sines = cosines + half;
  if (rope.pairing == RopePairing::kAdjacent) {
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
