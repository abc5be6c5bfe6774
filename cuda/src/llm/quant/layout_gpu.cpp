// Permuting rows of blocks into the records of a CUDA device, piece by piece, and back.
#include "llm/quant/layout_gpu.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <type_traits>

#include "core/base/checked.h"
#include "kernels/shared/packed_tile.h"
#include "kernels/shared/quant_blocks.h"
#include "llm/quant/format.h"

namespace wcuda::quant {
namespace {

// What readers of records rely on: the parts are the block, cut into whole pieces, and every 16
// bytes that a lane reads at once lie in one record.
constexpr bool is_sound(const RecordLayout& layout) {
  uint32_t bytes = 0;
  for (uint32_t p = 0; p < layout.part_count; ++p) {
    const RecordPart& part = layout.parts[p];
    bytes += part.bytes;
    const uint32_t run = part.piece_bytes * (part.by_lane ? 4 : 1);
    if (part.bytes % run != 0) return false;
    if (!part.by_lane) continue;
    if (part.piece_bytes != 4 && part.piece_bytes != 8 && part.piece_bytes != 16) return false;
    if (part.piece_bytes == 4 && layout.blocks * (part.bytes / run) % 2 != 0) return false;
  }
  return bytes == layout.block_bytes && layout.record_bytes() % 16 == 0 &&
         layout.record_bytes() <= 4096 && layout.record_elements() % 64 == 0;
}
constexpr bool all_are_sound() {
  for (const RecordLayout& layout : kRecordLayouts)
    if (!is_sound(layout)) return false;
  return true;
}
static_assert(all_are_sound());

template <class Block>
constexpr bool holds(uint32_t type, uint32_t record_bytes) {
  const RecordLayout layout = record_layout(type);
  return layout.type == type && layout.block_bytes == sizeof(Block) &&
         layout.block_elements == Block::kElements && layout.record_bytes() == record_bytes;
}
static_assert(record_layout(0).record_bytes() == 4096);   // F32
static_assert(record_layout(1).record_bytes() == 2048);   // F16
static_assert(record_layout(30).record_bytes() == 2048);  // BF16
static_assert(holds<BlockQ4_0>(2, 576));
static_assert(holds<BlockQ4_1>(3, 640));
static_assert(holds<BlockQ5_0>(6, 704));
static_assert(holds<BlockQ5_1>(7, 768));
static_assert(holds<BlockQ8_0>(8, 1088));
static_assert(holds<BlockQ2_K>(10, 1344));
static_assert(holds<BlockQ3_K>(11, 1760));
static_assert(holds<BlockQ4_K>(12, 2304));
static_assert(holds<BlockQ5_K>(13, 2816));
static_assert(holds<BlockQ6_K>(14, 3360));
static_assert(holds<BlockTQ1_0>(34, 864));
static_assert(holds<BlockTQ2_0>(35, 1056));
static_assert(holds<BlockIQ2_XXS>(16, 1056));
static_assert(holds<BlockIQ2_XS>(17, 1184));
static_assert(holds<BlockIQ2_S>(22, 1312));
static_assert(holds<BlockIQ3_XXS>(18, 1568));
static_assert(holds<BlockIQ3_S>(21, 1760));
static_assert(holds<BlockIQ1_S>(19, 800));
static_assert(holds<BlockIQ1_M>(29, 896));
static_assert(holds<BlockIQ4_NL>(20, 576));
static_assert(holds<BlockIQ4_XS>(23, 2176));
static_assert(holds<BlockMXFP4>(39, 544));
static_assert(holds<BlockNVFP4>(40, 576));
static_assert(holds<BlockQ1_0>(41, 288));
static_assert(holds<BlockQ2_0>(42, 288));

struct Shape {
  const RecordLayout* layout = nullptr;
  uint64_t row_bytes = 0;  // in the file
  uint64_t strip_bytes = 0;
};

Result<Shape> find_shape(uint32_t type, uint32_t cols) {
  const Format* format = find_format(type);
  if (format == nullptr) return Status::error(WCUDA_UNSUPPORTED, "unknown tensor type %u", type);
  Shape shape;
  for (const RecordLayout& layout : kRecordLayouts)
    if (layout.type == type) shape.layout = &layout;
  if (shape.layout == nullptr)
    return Status::error(WCUDA_UNSUPPORTED, "tensor type %s has no layout of records",
                         format->name);
  WCUDA_ASSIGN(shape.row_bytes, row_bytes(*format, cols));
  shape.strip_bytes = shape.layout->strip_bytes(cols);
  return shape;
}

Status check_rows(uint32_t rows, uint32_t first_row, uint32_t row_count) {
  if (first_row > rows || row_count > rows - first_row)
    return Status::error(WCUDA_OUT_OF_RANGE, "rows %u to %" PRIu64 " of a matrix of %u", first_row,
                         uint64_t{first_row} + row_count, rows);
  return {};
}

// Calls move(place, offset, bytes) for each piece of row `row` of a strip: bytes [offset, offset +
// bytes) of the row lie at `place` of the strip. Offsets go past the row's end, up to its last
// record's.
template <class Move>
void for_each_piece(const Shape& shape, uint32_t row, const Move& move) {
  const RecordLayout& layout = *shape.layout;
  const uint64_t record_count = shape.strip_bytes / layout.record_bytes();
  for (uint64_t record = 0; record < record_count; ++record) {
    for (uint32_t block = 0; block < layout.blocks; ++block) {
      const uint64_t offset = (record * layout.blocks + block) * layout.block_bytes;
      for (uint32_t p = 0; p < layout.part_count; ++p) {
        const RecordPart& part = layout.parts[p];
        for (uint32_t byte = 0; byte < part.bytes; byte += part.piece_bytes) {
          const uint32_t at = part.offset + byte;
          const uint64_t place =
              record * layout.record_bytes() + record_place(layout, row, block, at);
          move(place, offset + at, part.piece_bytes);
        }
      }
    }
  }
}

}  // namespace

Result<uint64_t> gpu_layout_bytes(uint32_t type, uint32_t rows, uint32_t cols) {
  WCUDA_ASSIGN(const Shape shape, find_shape(type, cols));
  uint64_t bytes = 0;
  if (!checked_mul((uint64_t{rows} + kRecordRows - 1) / kRecordRows, shape.strip_bytes, &bytes))
    return Status::error(WCUDA_UNSUPPORTED, "a matrix of %u rows of %" PRIu64 " bytes is too large",
                         rows, shape.row_bytes);
  return bytes;
}

Status pack_gpu(uint32_t type, uint32_t rows, uint32_t cols, uint32_t first_row, uint32_t row_count,
                const uint8_t* file_rows, uint8_t* records) {
  WCUDA_ASSIGN(const Shape shape, find_shape(type, cols));
  WCUDA_TRY(check_rows(rows, first_row, row_count));
  const auto strip = [&](uint64_t row) { return records + row / kRecordRows * shape.strip_bytes; };
  for (uint64_t row = first_row; row < uint64_t{first_row} + row_count; ++row) {
    const uint8_t* source = file_rows + (row - first_row) * shape.row_bytes;
    for_each_piece(shape, row % kRecordRows, [&](uint64_t place, uint64_t offset, uint32_t bytes) {
      const uint64_t left = shape.row_bytes - std::min(shape.row_bytes, offset);
      const uint64_t present = std::min<uint64_t>(left, bytes);
      if (present > 0) std::memcpy(strip(row) + place, source + offset, present);
      if (present < bytes) std::memset(strip(row) + place + present, 0, bytes - present);
    });
  }
  if (row_count == 0 || first_row + row_count != rows) return {};
  for (uint64_t row = rows; row % kRecordRows != 0; ++row)
    for_each_piece(shape, row % kRecordRows, [&](uint64_t place, uint64_t, uint32_t bytes) {
      std::memset(strip(row) + place, 0, bytes);
    });
  return {};
}

Status unpack_gpu(uint32_t type, uint32_t rows, uint32_t cols, uint32_t first_row,
                  uint32_t row_count, const uint8_t* records, uint8_t* file_rows) {
  WCUDA_ASSIGN(const Shape shape, find_shape(type, cols));
  WCUDA_TRY(check_rows(rows, first_row, row_count));
  for (uint64_t row = first_row; row < uint64_t{first_row} + row_count; ++row) {
    const uint8_t* strip = records + row / kRecordRows * shape.strip_bytes;
    uint8_t* target = file_rows + (row - first_row) * shape.row_bytes;
    for_each_piece(shape, row % kRecordRows, [&](uint64_t place, uint64_t offset, uint32_t bytes) {
      const uint64_t left = shape.row_bytes - std::min(shape.row_bytes, offset);
      const uint64_t present = std::min<uint64_t>(left, bytes);
      if (present > 0) std::memcpy(target + offset, strip + place, present);
    });
  }
  return {};
}

}  // namespace wcuda::quant
