#include "llm/quant/layout_gpu.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "kernels/shared/packed_tile.h"
#include "llm/quant/tile_cases.h"

namespace wcuda::quant {
namespace {

using testing::tile_case;
using testing::TileCase;

uint32_t crc32(const std::vector<uint8_t>& bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

std::vector<uint8_t> pack(const TileCase& from) {
  std::vector<uint8_t> packed_tiles(*gpu_layout_bytes(from.type, from.rows, from.cols), 0xAA);
  EXPECT_TRUE(
      pack_gpu(from.type, from.rows, from.cols, 0, from.rows, from.file.data(), packed_tiles.data())
          .ok());
  return packed_tiles;
}

TEST(LayoutGpu, has_tiles_for_every_type_that_a_weight_may_have) {
  for (const Format* format : testing::loadable_formats()) {
    EXPECT_EQ(tile_layout(format->id).type, format->id) << format->name;
    const uint32_t elements = format->block_elements == 1 ? 64 : 1;
    EXPECT_EQ(tile_layout(format->id).block_bytes, format->block_bytes * elements) << format->name;
  }
}

TEST(LayoutGpu, gives_each_byte_of_a_tile_one_place) {
  for (const TileLayout& layout : kTileLayouts) {
    std::set<uint32_t> places;
    for (uint32_t row = 0; row < kMTileRows; ++row)
      for (uint32_t block = 0; block < layout.blocks; ++block)
        for (uint32_t byte = 0; byte < layout.block_bytes; ++byte)
          places.insert(packed_tile_offset(layout, row, block, byte));
    EXPECT_EQ(places.size(), layout.packed_tile_bytes()) << layout.type;
    EXPECT_EQ(*places.rbegin(), layout.packed_tile_bytes() - 1) << layout.type;
  }
}

TEST(LayoutGpu, tiles_are_those_of_the_specification) {
  const std::vector<TileCase> cases = testing::read_tile_cases();
  ASSERT_EQ(cases.size(), 3 * testing::loadable_formats().size());
  for (const TileCase& expected : cases) {
    const std::vector<uint8_t> packed_tiles = pack(expected);

    EXPECT_EQ(packed_tiles.size(), expected.tiles_bytes) << expected.name();
    EXPECT_EQ(crc32(packed_tiles), expected.crc32) << expected.name();
  }
}

TEST(LayoutGpu, packing_in_parts_equals_packing_at_once_and_clears_padding) {
  const TileCase from = tile_case(14, 53, 512);
  const std::vector<uint8_t> once = pack(from);
  std::vector<uint8_t> parts(once.size(), 0x33);

  const uint32_t cuts[] = {0, 3, 16, 40, 53};
  for (int i = 3; i >= 0; --i)
    ASSERT_TRUE(pack_gpu(14, 53, 512, cuts[i], cuts[i + 1] - cuts[i],
                         from.file.data() + cuts[i] * 420, parts.data())
                    .ok());

  EXPECT_EQ(parts, once);
}

TEST(LayoutGpu, refuses_what_it_cannot_hold) {
  std::vector<uint8_t> bytes(4096);

  EXPECT_EQ(gpu_layout_bytes(9, 16, 256).status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(gpu_layout_bytes(99, 16, 256).status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(gpu_layout_bytes(3, 16, 33).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(pack_gpu(3, 16, 64, 10, 7, bytes.data(), bytes.data()).code(), WCUDA_OUT_OF_RANGE);
}

}  // namespace
}  // namespace wcuda::quant
