// Random matrices: rows as in the file, their values, and the packed tiles of
// kernels/shared/packed_tile.h, placed byte by byte.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/shared/numeric.h"
#include "kernels/shared/packed_tile.h"
#include "kernels/shared/scale_factor.h"
#include "llm/quant/format.h"
#include "llm/quant/random_blocks.h"
#include "llm/quant/repack.h"

namespace wcuda::testing {

struct RandomMatrix {
  const quant::Format* format = nullptr;
  uint32_t rows = 0;
  uint32_t cols = 0;
  std::vector<uint8_t> file;          // (rows) whole blocks
  std::vector<uint8_t> packed_tiles;  // with their padding
  std::vector<float> values;          // (rows, cols)
};

inline float scale_factor_of(const RandomMatrix& matrix) {
  const uint32_t type = matrix.format->id;
  return kernels::has_scale_factor(type) ? kernels::scale_factor(quant::scale_bound(
                                               type, matrix.file.data(), matrix.file.size()))
                                         : 1.0f;
}

// Permutes rows of the file into packed tiles, one byte after the other.
inline std::vector<uint8_t> pack_tiles(const quant::Format& format, uint32_t rows, uint32_t cols,
                                       const std::vector<uint8_t>& file) {
  const quant::TileLayout layout = quant::tile_layout(format.id);
  const uint64_t m_tiles = (rows + quant::kMTileRows - 1) / quant::kMTileRows;
  std::vector<uint8_t> packed_tiles(m_tiles * layout.m_tile_bytes(cols));
  const uint64_t row_bytes = uint64_t{cols} / format.block_elements * format.block_bytes;
  for (uint32_t row = 0; row < rows; ++row)
    for (uint64_t i = 0; i < row_bytes; ++i) {
      const uint64_t block = i / layout.block_bytes;
      const auto byte = static_cast<uint32_t>(i % layout.block_bytes);
      const uint64_t start = row / quant::kMTileRows * layout.m_tile_bytes(cols) +
                             block / layout.blocks * layout.packed_tile_bytes();
      packed_tiles[start + packed_tile_offset(layout, row % quant::kMTileRows,
                                              static_cast<uint32_t>(block % layout.blocks), byte)] =
          file[row * row_bytes + i];
    }
  return packed_tiles;
}

// From the blocks of digests.txt, whose f16 scales are finite; plain types count random numbers.
// `cols` is a whole number of the format's blocks.
inline RandomMatrix random_matrix(const quant::Format& format, uint32_t rows, uint32_t cols) {
  RandomMatrix matrix;
  matrix.format = &format;
  matrix.rows = rows;
  matrix.cols = cols;
  const uint64_t row_bytes = uint64_t{cols} / format.block_elements * format.block_bytes;
  matrix.file.resize(rows * row_bytes);
  static const std::vector<RandomBlocks> all = read_random_blocks();
  for (const RandomBlocks& random : all)
    for (uint64_t i = 0; random.format == &format && i < matrix.file.size(); ++i)
      matrix.file[i] = random.blocks[i % random.blocks.size()];
  if (format.id == 39)  // MXFP4: exponents of ordinary sizes
    for (uint64_t i = 0; i < matrix.file.size(); i += format.block_bytes)
      matrix.file[i] = static_cast<uint8_t>(112 + matrix.file[i] % 32);
  if (format.block_elements == 1)
    for (uint64_t i = 0; i < uint64_t{rows} * cols; ++i) {
      const float value = static_cast<float>(splitmix64(i) >> 40) * 0x1p-23f - 1.0f;
      const uint16_t half = format.id == 30 ? float_to_bf16(value) : float_to_half(value);
      if (format.id == 0)
        std::memcpy(&matrix.file[i * 4], &value, 4);
      else
        std::memcpy(&matrix.file[i * 2], &half, 2);
    }
  matrix.values.resize(uint64_t{rows} * cols);
  for (uint32_t row = 0; row < rows; ++row)
    if (!unpack_row(format, &matrix.file[row * row_bytes], cols,
                    &matrix.values[uint64_t{row} * cols])
             .ok())
      return {};
  matrix.packed_tiles = pack_tiles(format, rows, cols, matrix.file);
  return matrix;
}

}  // namespace wcuda::testing
