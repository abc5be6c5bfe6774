// The bounded reader of little-endian numbers.
#include "core/base/bytes.h"

#include <gtest/gtest.h>

namespace wcuda {
namespace {

TEST(Bytes, numbers_are_little_endian_at_any_alignment) {
  uint8_t bytes[16] = {};
  store_le<uint32_t>(bytes + 3, 0x11223344);

  EXPECT_EQ(bytes[3], 0x44);
  EXPECT_EQ(bytes[6], 0x11);
  EXPECT_EQ(load_le<uint32_t>(bytes + 3), 0x11223344u);
}

TEST(Bytes, reader_stops_at_the_end_and_changes_nothing) {
  const uint8_t bytes[7] = {1, 0, 0, 0, 'a', 'b', 'c'};
  ByteReader reader(bytes, sizeof(bytes));

  uint32_t number = 0;
  EXPECT_TRUE(reader.read(&number));
  EXPECT_EQ(number, 1u);
  EXPECT_FALSE(reader.read(&number));
  EXPECT_EQ(number, 1u);
  EXPECT_EQ(reader.position(), 4u);

  std::string_view text = "before";
  EXPECT_FALSE(reader.take(4, &text));
  EXPECT_FALSE(reader.take(UINT64_MAX, &text));
  EXPECT_EQ(text, "before");
  EXPECT_FALSE(reader.skip(4));
  EXPECT_TRUE(reader.skip(1));
  EXPECT_TRUE(reader.take(2, &text));
  EXPECT_EQ(text, "bc");
  EXPECT_TRUE(reader.take(0, &text));
  EXPECT_EQ(text, "");
  EXPECT_EQ(reader.bytes_left(), 0u);
}

}  // namespace
}  // namespace wcuda
