// Repacks rows of a file into packed tiles (kernels/shared/packed_tile.h) on the host: for a host
// backend that acts as a device, and as the reference for the loader's kernel
// (kernels/memory/repack.h).
#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace wcuda::quant {

// Returns the bytes of a matrix in Layout::kGpu16. WCUDA_UNSUPPORTED for a type that no weight may
// have; WCUDA_INVALID_ARGUMENT if the columns are not a whole number of blocks.
Result<uint64_t> gpu_layout_bytes(uint32_t type, uint32_t rows, uint32_t cols);

// Repacks rows first_row … first_row + row_count - 1 of a matrix of `rows` rows from `file_rows`,
// as in the file, to the whole matrix at `packed_tiles`. The call with the last row also clears the
// padding. Calls for different rows may run at the same time.
Status pack_gpu(uint32_t type, uint32_t rows, uint32_t cols, uint32_t first_row, uint32_t row_count,
                const uint8_t* file_rows, uint8_t* packed_tiles);

}  // namespace wcuda::quant
