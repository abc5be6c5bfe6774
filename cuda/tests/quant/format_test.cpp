#include "quant/format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace wcuda::quant {
namespace {

TEST(Format, knows_the_sizes_of_the_reference) {
  EXPECT_EQ(find_format(3)->block_bytes, 20u);
  EXPECT_STREQ(find_format(12)->name, "Q4_K");
  EXPECT_EQ(find_format(12)->block_bytes, 144u);
  EXPECT_EQ(find_format(14)->block_elements, 256u);
  EXPECT_EQ(find_format(40)->block_elements, 64u);
  EXPECT_EQ(find_format(41)->block_elements, 128u);
}

TEST(Format, answers_null_for_removed_and_unknown_ids) {
  for (uint32_t id :
       {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 100u, 142u, 0x80000000u, UINT32_MAX})
    EXPECT_EQ(find_format(id), nullptr) << id;
}

TEST(Format, lists_every_living_id_once_under_its_own_name) {
  std::set<std::string> names;
  int count = 0;
  for (uint32_t id = 0; id < 43; ++id) {
    const Format* format = find_format(id);
    if (format == nullptr) continue;
    EXPECT_EQ(format->id, id);
    EXPECT_TRUE(format->block_elements == 1 || format->block_elements % 32 == 0) << format->name;
    names.insert(format->name);
    ++count;
  }
  EXPECT_EQ(count, 35);
  EXPECT_EQ(names.size(), 35u);
}

TEST(Format, integers_doubles_and_intermediates_are_not_loadable) {
  for (uint32_t id : {9u, 15u, 24u, 25u, 26u, 27u, 28u}) EXPECT_FALSE(find_format(id)->is_loadable);
}

TEST(Format, row_bytes_counts_whole_blocks) {
  const Format& q4_k = *find_format(12);

  EXPECT_EQ(*row_bytes(q4_k, 0), 0u);
  EXPECT_EQ(*row_bytes(q4_k, 512), 288u);
  EXPECT_EQ(row_bytes(q4_k, 511).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(row_bytes(q4_k, 257).status().message(), "257"), nullptr);
}

TEST(Format, row_bytes_refuses_a_product_past_64_bits) {
  const Format& f32 = *find_format(0);

  EXPECT_EQ(*row_bytes(f32, UINT64_MAX / 4), UINT64_MAX / 4 * 4);
  EXPECT_FALSE(row_bytes(f32, UINT64_MAX / 4 + 1).ok());
}

TEST(Format, unpack_row_refuses_types_that_hold_no_weights) {
  const uint8_t bytes[36] = {};
  float out[32] = {7.0f};

  EXPECT_EQ(unpack_row(*find_format(9), bytes, 32, out).code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(out[0], 7.0f);
}

}  // namespace
}  // namespace wcuda::quant
