// repack: converts rows of a file's blocks to packed tiles (kernels/shared/packed_tile.h).
//
//   file                                       packed tiles of one M-tile
//   row  0   | tile 0 | tile 1 | …             | tile 0, all 16 rows | tile 1, all 16 rows | …
//   row  1   | tile 0 | tile 1 | …      ─→       within a tile, pieces of the rows alternate in
//    …                                           the order in which lanes read them
//   row 15   | tile 0 | tile 1 | …
//
// A block converts 8 packed tiles of an M-tile at a time through shared memory. Bytes moved: the
// matrix is read once and written once, with the padding of the last M-tile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace wcuda::kernels {

// Queues the repacking of rows first_row … first_row + row_count - 1 of a matrix of `rows` by
// `cols`. `file_rows` has these rows as in the file, at any alignment; 16 bytes is fastest.
// `packed_tiles` is the whole matrix, aligned to 16 bytes. first_row is a multiple of 16, and so is
// row_count unless it reaches the last row, because whole M-tiles are written, with their padding.
// Returns cudaErrorInvalidValue for anything else, and for a type without packed tiles.
cudaError_t repack(uint32_t type, uint32_t rows, uint32_t cols, uint32_t first_row,
                   uint32_t row_count, const uint8_t* file_rows, uint8_t* packed_tiles,
                   cudaStream_t stream);

// Queues the conversion of a vector of type F32, F16 or BF16 to f32. Returns cudaErrorInvalidValue
// for any other type.
cudaError_t expand_vector(uint32_t type, uint32_t count, const uint8_t* elements, float* out,
                          cudaStream_t stream);

}  // namespace wcuda::kernels
