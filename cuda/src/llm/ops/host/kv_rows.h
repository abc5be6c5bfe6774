// Rows of the key-value pool on the host: one head's keys or values of one position.
#pragma once

#include <cstdint>

#include "llm/ops/ops.h"

namespace wcuda::ops::host {

// Writes `head_length` values as the row of a slot, of kv_row_bytes(type, head_length) bytes, each
// rounded to nearest. q8_0 and int10: a block with a value that is not finite becomes NaN as a
// whole. e4m3 saturates at 448.
void write_kv_row(KvType type, const float* values, uint32_t head_length, uint32_t slot,
                  uint8_t* row);

// Multiplies each 64 elements of a query or key by a Hadamard matrix, as int10 needs it.
void hadamard_head(float* head, uint32_t head_length);

}  // namespace wcuda::ops::host
