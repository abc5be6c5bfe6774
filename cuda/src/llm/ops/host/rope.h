// Rotary position embedding on the host.
#pragma once

#include <cstdint>

#include "llm/ops/ops.h"

namespace wcuda::ops::host {

// Returns the floats of a table of cosines and sines for `token_count` tokens.
inline uint64_t rope_table_floats(uint32_t token_count, uint32_t head_length) {
  return uint64_t{token_count} * head_length;
}
// Fills table (token_count, 2, dimension_count / 2) with the cosines, then sines, of each position.
void fill_rope_table(const Rope& rope, const uint32_t* positions, uint32_t token_count,
                     float* table);
// Rotates the first dimensions of one head of token `token`.
void rotate_head(const Rope& rope, const float* table, uint32_t token, float* head);

}  // namespace wcuda::ops::host
