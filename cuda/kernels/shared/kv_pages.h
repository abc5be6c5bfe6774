// The rows of a step and the pages of the KV cache, as kernels see them.
#pragma once

#include <cstdint>

#include "kernels/shared/int10_row.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

constexpr uint32_t kPagePositions = 64;
constexpr uint32_t kDeadToken = 0xffffffffu;  // in token_rows: a token that does nothing

enum class KvFormat : uint32_t { kF16 = 0, kQ8_0 = 1, kFp8E4m3 = 2, kInt10 = 3 };

// Returns the bytes of a row of keys or values whose blocks are whole.
inline uint32_t bytes_of_row(KvFormat format, uint32_t head_length) {
  return format == KvFormat::kF16     ? head_length * 2
         : format == KvFormat::kQ8_0  ? head_length / 32 * 34
         : format == KvFormat::kInt10 ? head_length / kInt10Block * kInt10BlockBytes
                                      : head_length;
}

// Key-value pages of all layers. Row (layer, page, head, slot) of keys is at
//   data + ((((layer * page_count + page) * 2 + 0) * head_count + head) * 64 + slot) * row_bytes
// and of values with 1 instead of 0. `data` is aligned to 256 bytes, so that the 64 rows of one
// head in a page are contiguous and aligned to 64.
struct KvPages {
  uint8_t* data = nullptr;
  KvFormat format = KvFormat::kF16;
  uint32_t page_count = 0;
  uint32_t head_count = 0;   // key-value heads
  uint32_t head_length = 0;  // elements of one head, keys and values alike
  uint32_t row_bytes = 0;
};

// The arrays of a step, in device memory.
struct StepRows {
  uint32_t token_count = 0;
  uint32_t row_count = 0;
  uint32_t page_table_stride = 0;        // entries per row of page_tables
  const uint32_t* positions = nullptr;   // (token_count)
  const uint32_t* token_rows = nullptr;  // (token_count) row of each token, or kDeadToken
  const StepRow* rows = nullptr;         // (row_count) rows of 0 tokens do nothing
  // (row_count, page_table_stride) page of each 64 positions
  const uint32_t* page_tables = nullptr;
};

}  // namespace wcuda::kernels
