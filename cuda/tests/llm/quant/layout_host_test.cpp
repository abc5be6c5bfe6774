#include "llm/quant/layout_host.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "llm/quant/format.h"

namespace wcuda::quant {
namespace {

constexpr uint32_t kTypes[] = {0, 1, 30, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 21, 23, 39};

std::vector<uint8_t> random_bytes(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST(LayoutHost, fields_cover_each_block_exactly) {
  for (uint32_t type : kTypes) {
    const HostTileLayout* format = find_host_tile_layout(type);
    ASSERT_NE(format, nullptr);
    uint32_t end = 0;
    for (uint32_t i = 0; i < format->field_count; ++i) {
      EXPECT_EQ(format->fields[i].offset, end) << type;
      end += format->fields[i].piece_bytes * format->fields[i].piece_count;
    }
    EXPECT_EQ(end, find_format(type)->block_bytes) << type;
  }
}

TEST(LayoutHost, unpack_restores_the_bytes_of_the_file) {
  for (uint32_t type : kTypes) {
    for (uint32_t rows : {1u, 15u, 16u, 17u, 48u, 53u}) {
      const uint32_t cols = find_format(type)->block_elements == 1 ? 37 : 768;
      const uint64_t row = *row_bytes(*find_format(type), cols);
      const auto file = random_bytes(rows * row, type * 100 + rows);
      const auto bytes = host_layout_bytes(type, Layout::kHost16, rows, cols);
      ASSERT_TRUE(bytes.ok());
      ASSERT_EQ(*bytes, (rows + 15) / 16 * 16 * row);
      std::vector<uint8_t> packed(*bytes, 0xaa);
      std::vector<uint8_t> back(file.size(), 0x55);

      ASSERT_TRUE(
          pack_host(type, Layout::kHost16, rows, cols, 0, rows, file.data(), packed.data()).ok());
      ASSERT_TRUE(
          unpack_host(type, Layout::kHost16, rows, cols, 0, rows, packed.data(), back.data()).ok());

      EXPECT_EQ(back, file) << "type " << type << " rows " << rows;
    }
  }
}

TEST(LayoutHost, packing_in_parts_equals_packing_at_once_and_clears_padding) {
  const uint32_t type = 12, rows = 53, cols = 512;
  const uint64_t row = *row_bytes(*find_format(type), cols);
  const auto file = random_bytes(rows * row, 7);
  std::vector<uint8_t> once(*host_layout_bytes(type, Layout::kHost16, rows, cols), 0xaa);
  std::vector<uint8_t> parts(once.size(), 0x33);
  ASSERT_TRUE(pack_host(type, Layout::kHost16, rows, cols, 0, rows, file.data(), once.data()).ok());

  const uint32_t cuts[] = {0, 3, 16, 40, 53};
  for (int i = 3; i >= 0; --i)
    ASSERT_TRUE(pack_host(type, Layout::kHost16, rows, cols, cuts[i], cuts[i + 1] - cuts[i],
                          file.data() + cuts[i] * row, parts.data())
                    .ok());

  EXPECT_EQ(parts, once);
}

TEST(LayoutHost, a_piece_of_16_rows_is_contiguous) {
  const uint32_t cols = 64;  // two Q4_1 blocks: d m (2 bytes each), 16 bytes of quants
  const auto file = random_bytes(16 * 40, 3);
  std::vector<uint8_t> packed(16 * 40);

  ASSERT_TRUE(pack_host(3, Layout::kHost16, 16, cols, 0, 16, file.data(), packed.data()).ok());

  for (uint32_t row = 0; row < 16; ++row) {
    const uint8_t* block = file.data() + row * 40 + 20;  // the second of the row
    const uint8_t* packed_tile = packed.data() + 16 * 20;
    EXPECT_EQ(packed_tile[row * 2], block[0]);                                  // d
    EXPECT_EQ(packed_tile[32 + row * 2 + 1], block[3]);                         // m
    EXPECT_EQ(packed_tile[64 + (2 * 16 + row) * 4 + 1], block[4 + 2 * 4 + 1]);  // piece 2 of qs
  }
}

TEST(LayoutHost, refuses_what_it_cannot_hold) {
  std::vector<uint8_t> bytes(4096);

  EXPECT_EQ(host_layout_bytes(16, Layout::kHost16, 16, 256).status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(host_layout_bytes(99, Layout::kRows, 16, 256).status().code(), WCUDA_UNSUPPORTED);
  EXPECT_FALSE(host_layout_bytes(3, Layout::kHost16, 16, 33).ok());
  EXPECT_EQ(pack_host(3, Layout::kHost16, 16, 64, 10, 7, bytes.data(), bytes.data()).code(),
            WCUDA_OUT_OF_RANGE);
}

TEST(LayoutHost, rows_layout_copies) {
  const auto file = random_bytes(5 * 36, 9);
  std::vector<uint8_t> target(5 * 36), back(2 * 36);

  ASSERT_TRUE(pack_host(2, Layout::kRows, 5, 64, 0, 5, file.data(), target.data()).ok());
  ASSERT_TRUE(unpack_host(2, Layout::kRows, 5, 64, 3, 2, target.data(), back.data()).ok());

  EXPECT_EQ(target, file);
  EXPECT_EQ(back, std::vector<uint8_t>(file.begin() + 3 * 36, file.end()));
}

}  // namespace
}  // namespace wcuda::quant
