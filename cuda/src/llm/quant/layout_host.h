// The weight layout of the host's matrix products: the file's bytes, permuted.
//
// 16 consecutive rows are an M-tile. An M-tile is a run of packed tiles, one for each block of a
// row, in the order of the columns; a packed tile holds that block of all 16 rows. In a packed tile
// the fields of the block keep their order, and within a field piece p of row r (a piece is 1, 2 or
// 4 bytes) is at (p * 16 + r): one vector load gives the same piece of 16 rows. Rows past the end
// of the matrix are zero bytes.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "kernels/shared/packed_tile.h"
#include "llm/quant/layout.h"

namespace wcuda::quant {

// One field of a block, as pieces of `piece_bytes` (1, 2 or 4).
struct HostTileField {
  uint16_t offset;  // bytes from the start of the block; in the tile at offset * kMTileRows
  uint16_t piece_bytes;
  uint16_t piece_count;
};

struct HostTileLayout {
  TensorType type;
  uint32_t field_count;
  HostTileField fields[5];
};

// The packed tile format of a type; null for types without one.
const HostTileLayout* find_host_tile_layout(uint32_t type);

// Bytes of a matrix in this layout. WCUDA_UNSUPPORTED for a type that has no such layout.
Result<uint64_t> host_layout_bytes(uint32_t type, Layout layout, uint32_t rows, uint32_t cols);

// Puts rows first_row … first_row + row_count - 1, whose bytes as in the file are at `file_rows`,
// into their places in the matrix of `rows` rows at `target`. The call that brings the last row
// also clears the padding. Calls for different rows may run at the same time.
Status pack_host(uint32_t type, Layout layout, uint32_t rows, uint32_t cols, uint32_t first_row,
                 uint32_t row_count, const uint8_t* file_rows, uint8_t* target);

// The reverse: writes the file's bytes of those rows to `file_rows`.
Status unpack_host(uint32_t type, Layout layout, uint32_t rows, uint32_t cols, uint32_t first_row,
                   uint32_t row_count, const uint8_t* matrix, uint8_t* file_rows);

}  // namespace wcuda::quant
