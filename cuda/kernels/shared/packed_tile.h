// Records: how a weight matrix lies in VRAM. The file's bytes, permuted so that a warp reads whole
// 16-byte pieces and finds the operand of a tensor-core product in its registers.
//
// 16 consecutive rows are a strip; a strip is a run of records along the columns. A record holds
// `blocks` consecutive blocks of each of its 16 rows, part by part. A part is a range of the
// block's bytes, cut into pieces, and comes in one of two orders:
//
//   rows   [piece][row 0 … 15][piece_bytes]: what all four lanes of a quad read (scales, offsets).
//   lanes  the bytes are runs of 4 pieces, one for each lane t of a quad: run i is the bytes
//          4 * piece_bytes * i …, piece t of it is lane t's. Lane (g, t) of a warp holds rows g and
//          g + 8. Its pieces lie so that it reads 16 bytes at once:
//            piece 16   [run][row / 8][g][t][16]
//            piece 8    [run][g][t][row / 8][8]
//            piece 4    [run / 2][g][t][run % 2][row / 8][4]
//
// Pieces and runs are counted through the blocks of a record, block by block. Rows past the end of
// the matrix, and blocks past the end of a row, are zero bytes. F32, F16 and BF16 count 64 elements
// as a block here.
#pragma once

#include "kernels/shared/numeric.h"

namespace wcuda::quant {

constexpr uint32_t kRecordRows = 16;

struct RecordPart {
  uint16_t offset;  // bytes from the start of the block
  uint16_t bytes;   // of one block
  uint16_t piece_bytes;
  bool by_lane;
};

struct RecordLayout {
  uint32_t type;  // ggml type id
  uint16_t block_elements;
  uint16_t block_bytes;
  uint16_t blocks;  // of a row in a record
  uint16_t part_count;
  RecordPart parts[5];

  WCUDA_HD constexpr uint32_t record_bytes() const { return kRecordRows * blocks * block_bytes; }
  WCUDA_HD constexpr uint32_t record_elements() const { return uint32_t{blocks} * block_elements; }
  // Records of one strip.
  WCUDA_HD constexpr uint32_t record_count(uint32_t cols) const {
    return (cols + record_elements() - 1) / record_elements();
  }
  WCUDA_HD constexpr uint64_t strip_bytes(uint32_t cols) const {
    return uint64_t{record_count(cols)} * record_bytes();
  }
};

// Where byte `byte` of block `block` (of the record's) of row `row` (of the strip's) lies.
WCUDA_HD constexpr uint32_t record_place(const RecordLayout& layout, uint32_t row, uint32_t block,
                                         uint32_t byte) {
  uint32_t base = 0;
  for (uint32_t p = 0; p < layout.part_count; ++p) {
    const RecordPart& part = layout.parts[p];
    const uint32_t piece = part.piece_bytes;
    if (byte >= part.offset && byte < uint32_t{part.offset} + part.bytes) {
      const uint32_t at = byte - part.offset, in_piece = at % piece;
      if (!part.by_lane) {
        const uint32_t index = block * (part.bytes / piece) + at / piece;
        return base + (index * kRecordRows + row) * piece + in_piece;
      }
      const uint32_t run = block * (part.bytes / (4 * piece)) + at / (4 * piece);
      const uint32_t lane = (row % 8) * 4 + at / piece % 4, half = row / 8;
      if (piece == 16) return base + ((run * 2 + half) * 32 + lane) * 16 + in_piece;
      if (piece == 8) return base + (run * 32 + lane) * 16 + half * 8 + in_piece;
      return base + (run / 2 * 32 + lane) * 16 + run % 2 * 8 + half * 4 + in_piece;
    }
    base += kRecordRows * layout.blocks * part.bytes;
  }
  return base;  // not a byte of the block
}

// A row of the table: parts in the order of the record.
constexpr RecordLayout kRecordLayouts[] = {
    {0, 64, 256, 1, 1, {{0, 256, 16, true}}},                                   // F32
    {1, 64, 128, 1, 1, {{0, 128, 16, true}}},                                   // F16
    {30, 64, 128, 1, 1, {{0, 128, 16, true}}},                                  // BF16
    {2, 32, 18, 2, 2, {{2, 16, 4, true}, {0, 2, 2, false}}},                    // Q4_0: qs, d
    {3, 32, 20, 2, 2, {{4, 16, 4, true}, {0, 4, 4, false}}},                    // Q4_1: qs, d m
    {6, 32, 22, 2, 3, {{6, 16, 4, true}, {2, 4, 4, false}, {0, 2, 2, false}}},  // Q5_0: qs, qh, d
    {7, 32, 24, 2, 3, {{8, 16, 4, true}, {4, 4, 4, false}, {0, 4, 4, false}}},  // Q5_1: qs, qh, d m
    {8, 32, 34, 2, 2, {{2, 32, 8, true}, {0, 2, 2, false}}},                    // Q8_0: qs, d
    // Q2_K: qs, scales, d dmin
    {10, 256, 84, 1, 3, {{16, 64, 8, true}, {0, 16, 8, false}, {80, 4, 4, false}}},
    // Q3_K: qs, hmask, scales, d
    {11,
     256,
     110,
     1,
     4,
     {{32, 64, 8, true}, {0, 32, 8, true}, {96, 12, 4, false}, {108, 2, 2, false}}},
    // Q4_K: qs, d dmin scales
    {12, 256, 144, 1, 2, {{16, 128, 8, true}, {0, 16, 16, false}}},
    // Q5_K: qs, qh, d dmin scales
    {13, 256, 176, 1, 3, {{48, 128, 8, true}, {16, 32, 8, true}, {0, 16, 16, false}}},
    // Q6_K: ql, qh, scales, d
    {14,
     256,
     210,
     1,
     4,
     {{0, 128, 8, true}, {128, 64, 8, true}, {192, 16, 8, false}, {208, 2, 2, false}}},
    // TQ1_0: qs (160 elements), qs (80 elements), qh, d
    {34,
     256,
     54,
     1,
     4,
     {{0, 32, 8, true}, {32, 16, 16, false}, {48, 4, 4, false}, {52, 2, 2, false}}},
    {35, 256, 66, 1, 2, {{0, 64, 8, true}, {64, 2, 2, false}}},   // TQ2_0: qs, d
    {16, 256, 66, 1, 2, {{2, 64, 16, false}, {0, 2, 2, false}}},  // IQ2_XXS: qs, d
    {17, 256, 74, 1, 3, {{2, 64, 16, false}, {66, 8, 4, false}, {0, 2, 2, false}}},  // IQ2_XS: qs,
                                                                                     // scales, d
    // IQ2_S: qs, signs, qh, scales, d
    {22,
     256,
     82,
     1,
     5,
     {{2, 32, 16, false},
      {34, 32, 16, false},
      {66, 8, 4, false},
      {74, 8, 4, false},
      {0, 2, 2, false}}},
    {18, 256, 98, 1, 3, {{2, 64, 16, false}, {66, 32, 16, false}, {0, 2, 2, false}}},  // IQ3_XXS
    // IQ3_S: qs, signs, qh, scales, d
    {21,
     256,
     110,
     1,
     5,
     {{2, 64, 16, false},
      {74, 32, 16, false},
      {66, 8, 4, false},
      {106, 4, 2, false},
      {0, 2, 2, false}}},
    {19, 256, 50, 1, 3, {{2, 32, 16, false}, {34, 16, 8, false}, {0, 2, 2, false}}},   // IQ1_S
    {29, 256, 56, 1, 3, {{0, 32, 16, false}, {32, 16, 8, false}, {48, 8, 8, false}}},  // IQ1_M
    {20, 32, 18, 2, 2, {{2, 16, 4, true}, {0, 2, 2, false}}},     // IQ4_NL: qs, d
    {23, 256, 136, 1, 2, {{8, 128, 4, true}, {0, 8, 8, false}}},  // IQ4_XS: qs, d scales_h scales_l
    {39, 32, 17, 2, 2, {{1, 16, 4, true}, {0, 1, 1, false}}},     // MXFP4: qs, e
    {40, 64, 36, 1, 2, {{4, 32, 4, true}, {0, 4, 4, false}}},     // NVFP4: qs, d
    {41, 128, 18, 1, 2, {{2, 16, 16, false}, {0, 2, 2, false}}},  // Q1_0: qs, d
    {42, 64, 18, 1, 2, {{2, 16, 16, false}, {0, 2, 2, false}}},   // Q2_0: qs, d
};

// By constant expression, for kernels that are compiled for one type. The type must be in the
// table.
constexpr RecordLayout record_layout(uint32_t type) {
  for (const RecordLayout& layout : kRecordLayouts)
    if (layout.type == type) return layout;
  return RecordLayout{};
}

}  // namespace wcuda::quant
