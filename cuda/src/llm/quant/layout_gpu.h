// The weight layout of CUDA devices on the host: rows of a file into packed tiles and back, in the
// order that kernels/shared/packed_tile.h defines. The loader's kernel is kernels/memory/repack.h;
// this is what it is checked against, and what the host needs to look into a copy of device memory.
#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace wcuda::quant {

// Bytes of a matrix in Layout::kGpu16. WCUDA_UNSUPPORTED for a type that no weight may have;
// WCUDA_INVALID_ARGUMENT for columns that are no whole number of blocks.
Result<uint64_t> gpu_layout_bytes(uint32_t type, uint32_t rows, uint32_t cols);

// Puts rows first_row … first_row + row_count - 1, whose bytes as in the file are at `file_rows`,
// into their places in the matrix of `rows` rows at `packed tiles`. The call that brings the last
// row also clears the padding. Calls for different rows may run at the same time.
Status pack_gpu(uint32_t type, uint32_t rows, uint32_t cols, uint32_t first_row, uint32_t row_count,
                const uint8_t* file_rows, uint8_t* packed_tiles);

// The reverse: writes the file's bytes of those rows to `file_rows`.
Status unpack_gpu(uint32_t type, uint32_t rows, uint32_t cols, uint32_t first_row,
                  uint32_t row_count, const uint8_t* packed_tiles, uint8_t* file_rows);

}  // namespace wcuda::quant
