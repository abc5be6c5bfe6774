// Packed weight tiles: the layout of a weight matrix in VRAM. It is the file's bytes, permuted so
// that 16-byte loads of a warp yield operand A of an MMA.
//
//                 columns (inputs, K)
//            +--------+--------+-- … --+
//   M-tile 0 | tile 0 | tile 1 |       |  16 rows. The tiles of an M-tile are consecutive;
//            +--------+--------+-- … --+  those of the next M-tile follow.
//   M-tile 1 |        |        |       |  A tile holds `blocks` consecutive blocks of each of its
//            +--------+--------+-- … --+  16 rows, field by field.
//
// A field is a range of the block's bytes (codes, high bits, scales …), cut into pieces, and comes
// in one of two orders:
//
//   rows   [piece][row 0 … 15][piece_bytes], for data that all four lanes of a quad read (scales,
//          offsets).
//   lanes  the bytes are runs of 4 pieces, one for each lane t of a quad. Run i begins at byte
//          4 * piece_bytes * i, and its piece t belongs to lane t. Lane (g, t) = 4g + t of a warp
//          holds rows g and g + 8. Pieces are ordered so that a lane loads 16 bytes at once:
//            piece 16   [run][row / 8][g][t][16]
//            piece 8    [run][g][t][row / 8][8]
//            piece 4    [run / 2][g][t][run % 2][row / 8][4]
//
// Q4_K, one block of 256 inputs a row; bytes of a tile (2304):
//
//      0  qs, piece 8: run i (inputs 64i … 64i + 63), 16 bytes a lane:
//         lane      0                  1                  …  31
//         run 0     row 0 t 0 | row 8  row 0 t 1 | row 8     row 7 t 3 | row 15
//         run 1     …                                      lane 4g + t of run i: bytes 32i + 8t …
//         run 2     …                                      + 7 of qs of row g, then of row g + 8
//         run 3     …
//   2048  d dmin scales, by rows: 16 bytes of row 0, of row 1 … of row 15
//
// Pieces and runs are numbered across the blocks of a tile, block by block. Rows past the end of
// the matrix and blocks past the end of a row are zero bytes. For F32, F16 and BF16 a block is 64
// elements.
#pragma once

#include "kernels/shared/numeric.h"
#include "kernels/shared/tensor_type.h"
#include "kernels/shared/tile_sizes.h"

namespace wcuda::quant {

struct TileField {
  uint16_t offset;  // bytes from the start of the block
  uint16_t bytes;   // of one block
  uint16_t piece_bytes;
  bool by_lane;
};

struct TileLayout {
  TensorType type;
  uint16_t block_elements;
  uint16_t block_bytes;
  uint16_t blocks;  // of a row in a packed tile
  uint16_t field_count;
  TileField fields[5];

  WCUDA_HD constexpr uint32_t packed_tile_bytes() const {
    return kMTileRows * blocks * block_bytes;
  }
  WCUDA_HD constexpr uint32_t packed_tile_inputs() const {
    return uint32_t{blocks} * block_elements;
  }
  // Packed tiles of one M-tile.
  WCUDA_HD constexpr uint32_t packed_tile_count(uint32_t cols) const {
    return (cols + packed_tile_inputs() - 1) / packed_tile_inputs();
  }
  WCUDA_HD constexpr uint64_t m_tile_bytes(uint32_t cols) const {
    return uint64_t{packed_tile_count(cols)} * packed_tile_bytes();
  }
};

// Returns the offset in a packed tile of byte `byte` of block `block` of row `row`.
WCUDA_HD constexpr uint32_t packed_tile_offset(const TileLayout& layout, uint32_t row,
                                               uint32_t block, uint32_t byte) {
  uint32_t base = 0;
  for (uint32_t f = 0; f < layout.field_count; ++f) {
    const TileField& field = layout.fields[f];
    const uint32_t piece = field.piece_bytes;
    if (byte >= field.offset && byte < uint32_t{field.offset} + field.bytes) {
      const uint32_t at = byte - field.offset, in_piece = at % piece;
      if (!field.by_lane) {
        const uint32_t index = block * (field.bytes / piece) + at / piece;
        return base + (index * kMTileRows + row) * piece + in_piece;
      }
      const uint32_t run = block * (field.bytes / (4 * piece)) + at / (4 * piece);
      const uint32_t lane = (row % 8) * 4 + at / piece % 4, half = row / 8;
      if (piece == 16) return base + ((run * 2 + half) * 32 + lane) * 16 + in_piece;
      if (piece == 8) return base + (run * 32 + lane) * 16 + half * 8 + in_piece;
      return base + (run / 2 * 32 + lane) * 16 + run % 2 * 8 + half * 4 + in_piece;
    }
    base += kMTileRows * layout.blocks * field.bytes;
  }
  return base;  // not a byte of the block
}

constexpr TileField by_rows(uint16_t offset, uint16_t bytes, uint16_t piece_bytes) {
  return {offset, bytes, piece_bytes, false};
}
constexpr TileField by_lanes(uint16_t offset, uint16_t bytes, uint16_t piece_bytes) {
  return {offset, bytes, piece_bytes, true};
}
template <class... Fields>
constexpr TileLayout layout_of(TensorType type, uint16_t block_elements, uint16_t block_bytes,
                               uint16_t blocks, Fields... fields) {
  return {type, block_elements, block_bytes, blocks, sizeof...(fields), {fields...}};
}

// Fields are in the order of the packed tile, with their names in the block as comments.
constexpr TileLayout kTileLayouts[] = {
    layout_of(TensorType::kF32, 64, 256, 1, by_lanes(0, 256, 16)),
    layout_of(TensorType::kF16, 64, 128, 1, by_lanes(0, 128, 16)),
    layout_of(TensorType::kBF16, 64, 128, 1, by_lanes(0, 128, 16)),
    layout_of(TensorType::kQ4_0, 32, 18, 2, by_lanes(2, 16, 4), by_rows(0, 2, 2)),  // qs, d
    layout_of(TensorType::kQ4_1, 32, 20, 2, by_lanes(4, 16, 4), by_rows(0, 4, 4)),  // qs, d m
    // qs, qh, d
    layout_of(TensorType::kQ5_0, 32, 22, 2, by_lanes(6, 16, 4), by_rows(2, 4, 4), by_rows(0, 2, 2)),
    // qs, qh, d m
    layout_of(TensorType::kQ5_1, 32, 24, 2, by_lanes(8, 16, 4), by_rows(4, 4, 4), by_rows(0, 4, 4)),
    layout_of(TensorType::kQ8_0, 32, 34, 2, by_lanes(2, 32, 8), by_rows(0, 2, 2)),  // qs, d
    // qs, scales, d dmin
    layout_of(TensorType::kQ2_K, 256, 84, 1, by_lanes(16, 64, 8), by_rows(0, 16, 8),
              by_rows(80, 4, 4)),
    // qs, hmask, scales, d
    layout_of(TensorType::kQ3_K, 256, 110, 1, by_lanes(32, 64, 8), by_lanes(0, 32, 8),
              by_rows(96, 12, 4), by_rows(108, 2, 2)),
    // qs, d dmin scales
    layout_of(TensorType::kQ4_K, 256, 144, 1, by_lanes(16, 128, 8), by_rows(0, 16, 16)),
    // qs, qh, d dmin scales
    layout_of(TensorType::kQ5_K, 256, 176, 1, by_lanes(48, 128, 8), by_lanes(16, 32, 8),
              by_rows(0, 16, 16)),
    // ql, qh, scales, d
    layout_of(TensorType::kQ6_K, 256, 210, 1, by_lanes(0, 128, 8), by_lanes(128, 64, 8),
              by_rows(192, 16, 8), by_rows(208, 2, 2)),
    // qs (160 elements), qs (80 elements), qh, d
    layout_of(TensorType::kTQ1_0, 256, 54, 1, by_lanes(0, 32, 8), by_rows(32, 16, 16),
              by_rows(48, 4, 4), by_rows(52, 2, 2)),
    layout_of(TensorType::kTQ2_0, 256, 66, 1, by_lanes(0, 64, 8), by_rows(64, 2, 2)),   // qs, d
    layout_of(TensorType::kIQ2_XXS, 256, 66, 1, by_rows(2, 64, 16), by_rows(0, 2, 2)),  // qs, d
    // qs, scales, d
    layout_of(TensorType::kIQ2_XS, 256, 74, 1, by_rows(2, 64, 16), by_rows(66, 8, 4),
              by_rows(0, 2, 2)),
    // qs, signs, qh, scales, d
    layout_of(TensorType::kIQ2_S, 256, 82, 1, by_rows(2, 32, 16), by_rows(34, 32, 16),
              by_rows(66, 8, 4), by_rows(74, 8, 4), by_rows(0, 2, 2)),
    // qs, scales, d
    layout_of(TensorType::kIQ3_XXS, 256, 98, 1, by_rows(2, 64, 16), by_rows(66, 32, 16),
              by_rows(0, 2, 2)),
    // qs, signs, qh, scales, d
    layout_of(TensorType::kIQ3_S, 256, 110, 1, by_rows(2, 64, 16), by_rows(74, 32, 16),
              by_rows(66, 8, 4), by_rows(106, 4, 2), by_rows(0, 2, 2)),
    // qs, qh, d
    layout_of(TensorType::kIQ1_S, 256, 50, 1, by_rows(2, 32, 16), by_rows(34, 16, 8),
              by_rows(0, 2, 2)),
    // qs, qh, scales
    layout_of(TensorType::kIQ1_M, 256, 56, 1, by_rows(0, 32, 16), by_rows(32, 16, 8),
              by_rows(48, 8, 8)),
    layout_of(TensorType::kIQ4_NL, 32, 18, 2, by_lanes(2, 16, 4), by_rows(0, 2, 2)),  // qs, d
    // qs, d scales_h scales_l
    layout_of(TensorType::kIQ4_XS, 256, 136, 1, by_lanes(8, 128, 4), by_rows(0, 8, 8)),
    layout_of(TensorType::kMXFP4, 32, 17, 2, by_lanes(1, 16, 4), by_rows(0, 1, 1)),  // qs, e
    layout_of(TensorType::kNVFP4, 64, 36, 1, by_lanes(4, 32, 4), by_rows(0, 4, 4)),  // qs, d
    layout_of(TensorType::kQ1_0, 128, 18, 1, by_rows(2, 16, 16), by_rows(0, 2, 2)),  // qs, d
    layout_of(TensorType::kQ2_0, 64, 18, 1, by_rows(2, 16, 16), by_rows(0, 2, 2)),   // qs, d
};

// Returns the layout of a type in a constant expression. The type must be in the table.
constexpr TileLayout tile_layout(uint32_t type) {
  for (const TileLayout& layout : kTileLayouts)
    if (layout.type == type) return layout;
  return TileLayout{};
}

}  // namespace wcuda::quant
