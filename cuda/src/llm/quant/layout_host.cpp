// Permuting rows of blocks into packed tiles of 16 rows, and back.
#include "llm/quant/layout_host.h"

#include <cinttypes>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "core/base/checked.h"
#include "llm/quant/format.h"

namespace wcuda::quant {
namespace {

// Fields by offset, piece bytes, piece count; together they are the whole block.
constexpr HostTileLayout kHostTileLayouts[] = {
    {TensorType::kF32, 1, {{0, 4, 1}}},
    {TensorType::kF16, 1, {{0, 2, 1}}},
    {TensorType::kBF16, 1, {{0, 2, 1}}},
    {TensorType::kQ4_0, 2, {{0, 2, 1}, {2, 4, 4}}},                // d, qs
    {TensorType::kQ4_1, 2, {{0, 2, 2}, {4, 4, 4}}},                // d m, qs
    {TensorType::kQ5_0, 3, {{0, 2, 1}, {2, 4, 1}, {6, 4, 4}}},     // d, qh, qs
    {TensorType::kQ5_1, 3, {{0, 2, 2}, {4, 4, 1}, {8, 4, 4}}},     // d m, qh, qs
    {TensorType::kQ8_0, 2, {{0, 2, 1}, {2, 4, 8}}},                // d, qs
    {TensorType::kQ2_K, 3, {{0, 4, 4}, {16, 4, 16}, {80, 2, 2}}},  // scales, qs, d dmin
    {TensorType::kQ3_K,
     4,
     {{0, 4, 8}, {32, 4, 16}, {96, 4, 3}, {108, 2, 1}}},          // hmask, qs, scales, d
    {TensorType::kQ4_K, 3, {{0, 2, 2}, {4, 4, 3}, {16, 4, 32}}},  // d dmin, scales, qs
    {TensorType::kQ5_K,
     4,
     {{0, 2, 2}, {4, 4, 3}, {16, 4, 8}, {48, 4, 32}}},  // d dmin, scales, qh, qs
    {TensorType::kQ6_K,
     4,
     {{0, 4, 32}, {128, 4, 16}, {192, 4, 4}, {208, 2, 1}}},        // ql, qh, scales, d
    {TensorType::kIQ4_NL, 2, {{0, 2, 1}, {2, 4, 4}}},              // d, qs
    {TensorType::kIQ4_XS, 3, {{0, 2, 2}, {4, 4, 1}, {8, 4, 32}}},  // d scales_h, scales_l, qs
    {TensorType::kMXFP4, 2, {{0, 1, 1}, {1, 4, 4}}},               // e, qs
    {TensorType::kIQ3_S,
     5,
     {{0, 2, 1}, {2, 4, 16}, {66, 4, 2}, {74, 4, 8}, {106, 4, 1}}},  // d, qs, qh, signs, scales
};

struct HostShape {
  const HostTileLayout* format = nullptr;
  uint32_t block_bytes = 0;
  uint64_t block_count = 0;  // of a row
  uint64_t row_bytes = 0;
};

Result<HostShape> find_shape(uint32_t type, Layout layout, uint32_t cols) {
  HostShape shape;
  const Format* format = find_format(type);
  if (format == nullptr) return unsupported("unknown tensor type %u", type);
  WCUDA_ASSIGN(shape.row_bytes, row_bytes(*format, cols));
  shape.block_bytes = format->block_bytes;
  shape.block_count = cols / format->block_elements;
  if (layout == Layout::kRows) return shape;
  if (layout != Layout::kHost16)
    return unsupported("layout %u is not one of the host's", static_cast<uint32_t>(layout));
  shape.format = find_host_tile_layout(type);
  if (shape.format == nullptr)
    return unsupported("tensor type %s has no packed layout for the host", format->name);
  return shape;
}

// Copies one field of `lane_count` rows, the first of which is lane `lane` of its M-tile.
template <class Piece, bool kPack>
void copy_field(const HostTileField& field, uint32_t lane, uint32_t lane_count, uint64_t row_bytes,
                std::conditional_t<kPack, const uint8_t, uint8_t>* blocks,
                std::conditional_t<kPack, uint8_t, const uint8_t>* packed_tile) {
  auto* source = blocks + field.offset;
  auto* packed = packed_tile + uint64_t{field.offset} * kMTileRows + lane * sizeof(Piece);
  for (uint32_t p = 0; p < field.piece_count; ++p) {
    for (uint32_t i = 0; i < lane_count; ++i) {
      if constexpr (kPack)
        std::memcpy(packed + i * sizeof(Piece), source + i * row_bytes, sizeof(Piece));
      else
        std::memcpy(source + i * row_bytes, packed + i * sizeof(Piece), sizeof(Piece));
    }
    source += sizeof(Piece);
    packed += kMTileRows * sizeof(Piece);
  }
}

// Moves rows between file order and packed tiles; `rows` is at the first of them.
template <bool kPack>
void copy_rows(const HostShape& shape, uint32_t first_row, uint32_t row_count,
               std::conditional_t<kPack, const uint8_t, uint8_t>* rows,
               std::conditional_t<kPack, uint8_t, const uint8_t>* matrix) {
  while (row_count > 0) {
    const uint32_t lane = first_row % kMTileRows;
    const uint32_t lane_count = row_count < kMTileRows - lane ? row_count : kMTileRows - lane;
    auto* packed_tile = matrix + uint64_t{first_row / kMTileRows} * kMTileRows * shape.row_bytes;
    auto* blocks = rows;
    for (uint64_t block = 0; block < shape.block_count; ++block) {
      for (uint32_t i = 0; i < shape.format->field_count; ++i) {
        const HostTileField& field = shape.format->fields[i];
        if (field.piece_bytes == 4)
          copy_field<uint32_t, kPack>(field, lane, lane_count, shape.row_bytes, blocks,
                                      packed_tile);
        else if (field.piece_bytes == 2)
          copy_field<uint16_t, kPack>(field, lane, lane_count, shape.row_bytes, blocks,
                                      packed_tile);
        else
          copy_field<uint8_t, kPack>(field, lane, lane_count, shape.row_bytes, blocks, packed_tile);
      }
      blocks += shape.block_bytes;
      packed_tile += uint64_t{shape.block_bytes} * kMTileRows;
    }
    rows += lane_count * shape.row_bytes;
    first_row += lane_count;
    row_count -= lane_count;
  }
}

}  // namespace

const HostTileLayout* find_host_tile_layout(uint32_t type) {
  for (const HostTileLayout& format : kHostTileLayouts)
    if (format.type == type) return &format;
  return nullptr;
}

Result<uint64_t> host_layout_bytes(uint32_t type, Layout layout, uint32_t rows, uint32_t cols) {
  WCUDA_ASSIGN(const HostShape shape, find_shape(type, layout, cols));
  const uint64_t stored = layout == Layout::kRows ? rows : align_up(rows, kMTileRows);
  uint64_t bytes = 0;
  if (!checked_mul(stored, shape.row_bytes, &bytes))
    return unsupported("a matrix of %u rows of %" PRIu64 " bytes is too large", rows,
                       shape.row_bytes);
  return bytes;
}

Status pack_host(uint32_t type, Layout layout, uint32_t rows, uint32_t cols, uint32_t first_row,
                 uint32_t row_count, const uint8_t* file_rows, uint8_t* target) {
  WCUDA_ASSIGN(const HostShape shape, find_shape(type, layout, cols));
  WCUDA_TRY(check_rows(rows, first_row, row_count));
  if (layout == Layout::kRows) {
    std::memcpy(target + first_row * shape.row_bytes, file_rows, row_count * shape.row_bytes);
    return {};
  }
  copy_rows<true>(shape, first_row, row_count, file_rows, target);
  if (row_count == 0 || first_row + row_count != rows) return {};
  // The padding: one row of zero bytes for each lane past the end.
  const std::unique_ptr<uint8_t[]> zeros(new (std::nothrow) uint8_t[shape.row_bytes]());
  if (rows % kMTileRows != 0 && !zeros)
    return Status::error(WCUDA_OUT_OF_HOST_MEMORY, "no %" PRIu64 " bytes for a row of padding",
                         shape.row_bytes);
  for (uint64_t row = rows; row < align_up(rows, kMTileRows); ++row)
    copy_rows<true>(shape, static_cast<uint32_t>(row), 1, zeros.get(), target);
  return {};
}

Status unpack_host(uint32_t type, Layout layout, uint32_t rows, uint32_t cols, uint32_t first_row,
                   uint32_t row_count, const uint8_t* matrix, uint8_t* file_rows) {
  WCUDA_ASSIGN(const HostShape shape, find_shape(type, layout, cols));
  WCUDA_TRY(check_rows(rows, first_row, row_count));
  if (layout == Layout::kRows)
    std::memcpy(file_rows, matrix + first_row * shape.row_bytes, row_count * shape.row_bytes);
  else
    copy_rows<false>(shape, first_row, row_count, file_rows, matrix);
  return {};
}

}  // namespace wcuda::quant
