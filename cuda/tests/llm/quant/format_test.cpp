#include "llm/quant/format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <iterator>

namespace wcuda::quant {
namespace {

struct Expected {
  uint32_t id;
  const char* name;
  uint32_t block_elements;
  uint32_t block_bytes;
};
constexpr Expected kExpected[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18}};

TEST(Format, has_the_published_id_name_and_sizes_of_every_type) {
  for (const Expected& expected : kExpected) {
    const Format* format = find_format(expected.id);

    ASSERT_NE(format, nullptr) << expected.name;
    EXPECT_STREQ(format->name, expected.name);
    EXPECT_EQ(format->block_elements, expected.block_elements) << expected.name;
    EXPECT_EQ(format->block_bytes, expected.block_bytes) << expected.name;
    EXPECT_EQ(format->is_loadable, format->unpack != nullptr) << expected.name;
  }
}

TEST(Format, answers_null_for_removed_and_unknown_ids) {
  for (uint32_t id :
       {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 100u, 142u, 0x80000000u, UINT32_MAX})
    EXPECT_EQ(find_format(id), nullptr) << id;
}

TEST(Format, has_no_entry_beyond_the_published_ones) {
  size_t count = 0;
  for (uint32_t id = 0; id < 1000; ++id) count += find_format(id) != nullptr;

  EXPECT_EQ(count, std::size(kExpected));
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
