// Repacking: weights from the order of a file into that of a device, on the device.
#pragma once

#include "core/backend/backend.h"
#include "kernels/shared/quant_blocks.h"

namespace wcuda::quant {

// A weight as in its file, at `source`, and where it belongs: matrices in packed tiles
// (kernels/shared/packed_tile.h), aligned to 256 bytes; vectors (rows elements, cols 1) as f32.
struct Repack {
  const void* source = nullptr;
  void* target = nullptr;
  uint32_t type = 0;  // ggml type id; of a vector F32, F16 or BF16
  bool is_vector = false;
  uint32_t rows = 0;
  uint32_t cols = 1;
  // For a type that has a scale factor, receives the bound that the factor follows from
  // (kernels/shared/scale_factor.h); in the backend's memory, may be null.
  float* scale_bound = nullptr;
};

// Returns the number of superblocks of a weight of type Q4_K.
inline uint64_t superblock_count(const Repack& weight) {
  return uint64_t{weight.rows} * (weight.cols / BlockQ4_K::kElements);
}

// Returns the largest scale_bound of the superblocks of a weight as in its file; 0 if its type has
// no scale factor.
float scale_bound(uint32_t type, const uint8_t* blocks, uint64_t bytes);

// Queued, of a whole weight; both in device memory. WCUDA_INVALID_ARGUMENT for a type or shape that
// has no such order; WCUDA_UNSUPPORTED on a caller's table.
Status repack(Backend& backend, const Repack& weight, Stream stream);

// The same on a CUDA device, which is current.
Status repack_on_cuda(Backend& device, const Repack& weight, Stream stream);

}  // namespace wcuda::quant
