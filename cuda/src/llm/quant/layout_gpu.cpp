// Permuting rows of blocks into the packed tiles of a CUDA device, piece by piece, and back.
#include "llm/quant/layout_gpu.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <type_traits>

#include "core/base/checked.h"
#include "kernels/shared/packed_tile.h"
#include "kernels/shared/quant_blocks.h"
#include "llm/quant/format.h"
#include "llm/quant/layout.h"

namespace wcuda::quant {
namespace {

// What readers of packed tiles rely on: the parts are the block, cut into whole pieces, and every
// 16 bytes that a lane reads at once lie in one packed tile.
constexpr bool is_sound(const TileLayout& layout) {
  uint32_t bytes = 0;
  for (uint32_t p = 0; p < layout.field_count; ++p) {
    const TileField& part = layout.fields[p];
    bytes += part.bytes;
    const uint32_t run = part.piece_bytes * (part.by_lane ? 4 : 1);
    if (part.bytes % run != 0) return false;
    if (!part.by_lane) continue;
    if (part.piece_bytes != 4 && part.piece_bytes != 8 && part.piece_bytes != 16) return false;
    if (part.piece_bytes == 4 && layout.blocks * (part.bytes / run) % 2 != 0) return false;
  }
  return bytes == layout.block_bytes && layout.packed_tile_bytes() % 16 == 0 &&
         layout.packed_tile_bytes() <= 4096 && layout.packed_tile_inputs() % 64 == 0;
}
constexpr bool all_are_sound() {
  for (const TileLayout& layout : kTileLayouts)
    if (!is_sound(layout)) return false;
  return true;
}
static_assert(all_are_sound());

template <class Block>
constexpr bool holds(uint32_t type, uint32_t packed_tile_bytes) {
  const TileLayout layout = tile_layout(type);
  return layout.type == type && layout.block_bytes == sizeof(Block) &&
         layout.block_elements == Block::kElements &&
         layout.packed_tile_bytes() == packed_tile_bytes;
}
static_assert(tile_layout(TensorType::kF32).packed_tile_bytes() == 4096);   // F32
static_assert(tile_layout(TensorType::kF16).packed_tile_bytes() == 2048);   // F16
static_assert(tile_layout(TensorType::kBF16).packed_tile_bytes() == 2048);  // BF16
static_assert(holds<BlockQ4_0>(TensorType::kQ4_0, 576));
static_assert(holds<BlockQ4_1>(TensorType::kQ4_1, 640));
static_assert(holds<BlockQ5_0>(TensorType::kQ5_0, 704));
static_assert(holds<BlockQ5_1>(TensorType::kQ5_1, 768));
static_assert(holds<BlockQ8_0>(TensorType::kQ8_0, 1088));
static_assert(holds<BlockQ2_K>(TensorType::kQ2_K, 1344));
static_assert(holds<BlockQ3_K>(TensorType::kQ3_K, 1760));
static_assert(holds<BlockQ4_K>(TensorType::kQ4_K, 2304));
static_assert(holds<BlockQ5_K>(TensorType::kQ5_K, 2816));
static_assert(holds<BlockQ6_K>(TensorType::kQ6_K, 3360));
static_assert(holds<BlockTQ1_0>(TensorType::kTQ1_0, 864));
static_assert(holds<BlockTQ2_0>(TensorType::kTQ2_0, 1056));
static_assert(holds<BlockIQ2_XXS>(TensorType::kIQ2_XXS, 1056));
static_assert(holds<BlockIQ2_XS>(TensorType::kIQ2_XS, 1184));
static_assert(holds<BlockIQ2_S>(TensorType::kIQ2_S, 1312));
static_assert(holds<BlockIQ3_XXS>(TensorType::kIQ3_XXS, 1568));
static_assert(holds<BlockIQ3_S>(TensorType::kIQ3_S, 1760));
static_assert(holds<BlockIQ1_S>(TensorType::kIQ1_S, 800));
static_assert(holds<BlockIQ1_M>(TensorType::kIQ1_M, 896));
static_assert(holds<BlockIQ4_NL>(TensorType::kIQ4_NL, 576));
static_assert(holds<BlockIQ4_XS>(TensorType::kIQ4_XS, 2176));
static_assert(holds<BlockMXFP4>(TensorType::kMXFP4, 544));
static_assert(holds<BlockNVFP4>(TensorType::kNVFP4, 576));
static_assert(holds<BlockQ1_0>(TensorType::kQ1_0, 288));
static_assert(holds<BlockQ2_0>(TensorType::kQ2_0, 288));

struct TileShape {
  const TileLayout* layout = nullptr;
  uint64_t row_bytes = 0;  // in the file
  uint64_t m_tile_bytes = 0;
};

Result<TileShape> find_shape(uint32_t type, uint32_t cols) {
  const Format* format = find_format(type);
  if (format == nullptr) return unsupported("unknown tensor type %u", type);
  TileShape shape;
  for (const TileLayout& layout : kTileLayouts)
    if (layout.type == type) shape.layout = &layout;
  if (shape.layout == nullptr)
    return unsupported("tensor type %s has no layout of packed_tiles", format->name);
  WCUDA_ASSIGN(shape.row_bytes, row_bytes(*format, cols));
  shape.m_tile_bytes = shape.layout->m_tile_bytes(cols);
  return shape;
}

// Calls move(place, offset, bytes) for each piece of row `row` of an M-tile: bytes [offset, offset
// + bytes) of the row lie at `place` of the M-tile. Offsets go past the row's end, up to its last
// packed tile's.
template <class Move>
void for_each_piece(const TileShape& shape, uint32_t row, const Move& move) {
  const TileLayout& layout = *shape.layout;
  const uint64_t packed_tile_count = shape.m_tile_bytes / layout.packed_tile_bytes();
  for (uint64_t packed_tile = 0; packed_tile < packed_tile_count; ++packed_tile) {
    for (uint32_t block = 0; block < layout.blocks; ++block) {
      const uint64_t offset = (packed_tile * layout.blocks + block) * layout.block_bytes;
      for (uint32_t p = 0; p < layout.field_count; ++p) {
        const TileField& part = layout.fields[p];
        for (uint32_t byte = 0; byte < part.bytes; byte += part.piece_bytes) {
          const uint32_t at = part.offset + byte;
          const uint64_t place =
              packed_tile * layout.packed_tile_bytes() + packed_tile_offset(layout, row, block, at);
          move(place, offset + at, part.piece_bytes);
        }
      }
    }
  }
}

}  // namespace

Result<uint64_t> gpu_layout_bytes(uint32_t type, uint32_t rows, uint32_t cols) {
  WCUDA_ASSIGN(const TileShape shape, find_shape(type, cols));
  uint64_t bytes = 0;
  if (!checked_mul((uint64_t{rows} + kMTileRows - 1) / kMTileRows, shape.m_tile_bytes, &bytes))
    return unsupported("a matrix of %u rows of %" PRIu64 " bytes is too large", rows,
                       shape.row_bytes);
  return bytes;
}

Status pack_gpu(uint32_t type, uint32_t rows, uint32_t cols, uint32_t first_row, uint32_t row_count,
                const uint8_t* file_rows, uint8_t* packed_tiles) {
  WCUDA_ASSIGN(const TileShape shape, find_shape(type, cols));
  WCUDA_TRY(check_rows(rows, first_row, row_count));
  const auto m_tile = [&](uint64_t row) {
    return packed_tiles + row / kMTileRows * shape.m_tile_bytes;
  };
  for (uint64_t row = first_row; row < uint64_t{first_row} + row_count; ++row) {
    const uint8_t* source = file_rows + (row - first_row) * shape.row_bytes;
    for_each_piece(shape, row % kMTileRows, [&](uint64_t place, uint64_t offset, uint32_t bytes) {
      const uint64_t left = shape.row_bytes - std::min(shape.row_bytes, offset);
      const uint64_t present = std::min<uint64_t>(left, bytes);
      if (present > 0) std::memcpy(m_tile(row) + place, source + offset, present);
      if (present < bytes) std::memset(m_tile(row) + place + present, 0, bytes - present);
    });
  }
  if (row_count == 0 || first_row + row_count != rows) return {};
  for (uint64_t row = rows; row % kMTileRows != 0; ++row)
    for_each_piece(shape, row % kMTileRows, [&](uint64_t place, uint64_t, uint32_t bytes) {
      std::memset(m_tile(row) + place, 0, bytes);
    });
  return {};
}

}  // namespace wcuda::quant
