// The tensor types of GGUF: one table, from type id to block size, name and unpacker.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "kernels/shared/tensor_type.h"

namespace wcuda::quant {

// One tensor type. A tensor is rows of whole blocks, without padding.
struct Format {
  TensorType id;
  const char* name;         // "Q4_K"; static text
  uint32_t block_elements;  // 1, or a multiple of 32
  uint32_t block_bytes;
  bool is_loadable;  // a model may hold weights of this type
  // Writes block_elements values at `out` from the block_bytes bytes at `block` (any alignment).
  // Null when the type is not loadable.
  void (*unpack)(const uint8_t* block, float* out);
};

// Entry of a type id; null for ids that were removed (4, 5, 31 to 33, 36 to 38) or are not known.
const Format* find_format(uint32_t id);

// Bytes of `elements` consecutive elements, which must be a whole number of blocks; the product
// must fit in 64 bits. The message names the type and the numbers.
Result<uint64_t> row_bytes(const Format& format, uint64_t elements);

// Expands elements 0 … elements - 1 of `blocks` to f32; `elements` is a whole number of blocks and
// the format is loadable (else WCUDA_INVALID_ARGUMENT, WCUDA_UNSUPPORTED, and nothing is written).
Status unpack_row(const Format& format, const uint8_t* blocks, uint64_t elements, float* out);

}  // namespace wcuda::quant
