// Parameters of the RMS norm and the rope of query and key heads, shared by two kernels.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

// A query or key head becomes rope(norm(head)).
struct HeadRope {
  // Gains (head_length) of an RMS norm of each head; null: none.
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float epsilon = 0.0f;
  // Pairs (0, 1), (2, 3), … or (i, i + rope_dimensions / 2).
  bool has_adjacent_pairs = true;
  uint32_t rope_dimensions = 0;             // even, at most head_length
  const float* rope_frequencies = nullptr;  // (rope_dimensions / 2) radians a position
  float rope_magnitude = 1.0f;
};

}  // namespace wcuda::kernels
