// The unpackers of all weight formats against vectors of an independent implementation; see
// tools/golden/quant.py for their making.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "llm/quant/format.h"
#include "llm/quant/random_blocks.h"

namespace wcuda::quant {
namespace {

using testing::loadable_formats;

struct Golden {
  std::vector<uint8_t> blocks;
  std::vector<float> values;
};

Golden read_golden(const Format& format) {
  std::ifstream file(std::string(WCUDA_TEST_DATA "/quant/") + format.name + ".bin",
                     std::ios::binary);
  const std::string data((std::istreambuf_iterator<char>(file)), {});
  uint32_t count = 0;
  if (data.size() >= 4) std::memcpy(&count, data.data(), 4);
  Golden golden;
  golden.blocks.resize(size_t{count} * format.block_bytes);
  golden.values.resize(size_t{count} * format.block_elements);
  const size_t value_bytes = golden.values.size() * 4;
  EXPECT_EQ(data.size(), 4 + golden.blocks.size() + value_bytes) << format.name;
  if (data.size() != 4 + golden.blocks.size() + value_bytes || count == 0) return {};
  std::memcpy(golden.blocks.data(), data.data() + 4, golden.blocks.size());
  std::memcpy(golden.values.data(), data.data() + 4 + golden.blocks.size(), value_bytes);
  return golden;
}

TEST(Unpack, equals_the_reference_to_the_bit_at_the_limits_of_every_format) {
  for (const Format* format : loadable_formats()) {
    const Golden golden = read_golden(*format);
    ASSERT_FALSE(golden.values.empty()) << format->name;
    std::vector<float> values(golden.values.size());

    ASSERT_TRUE(unpack_row(*format, golden.blocks.data(), values.size(), values.data()).ok());

    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::memcmp(&values[i], &golden.values[i], 4), 0)
          << format->name << " element " << i << ": " << values[i] << ", not " << golden.values[i];
  }
}

uint32_t crc32(const void* data, size_t bytes) {
  uint32_t crc = ~0u;
  for (const uint8_t* p = static_cast<const uint8_t*>(data); bytes > 0; ++p, --bytes) {
    crc ^= *p;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

TEST(Unpack, equals_the_reference_on_many_random_blocks_of_every_format) {
  const auto all = testing::read_random_blocks();
  EXPECT_EQ(all.size(), loadable_formats().size() - 2);  // F32 and BF16 have no scales to speak of
  for (const testing::RandomBlocks& random : all) {
    std::vector<float> values(random.element_count);

    ASSERT_TRUE(
        unpack_row(*random.format, random.blocks.data(), values.size(), values.data()).ok());

    EXPECT_EQ(crc32(values.data(), values.size() * 4), random.crc32) << random.format->name;
  }
}

TEST(Unpack, reads_blocks_at_any_address_and_nothing_beyond_them) {
  for (const Format* format : loadable_formats()) {
    std::vector<uint8_t> aligned(format->block_bytes, 0x2A);
    std::vector<uint8_t> shifted(format->block_bytes + 1, 0x2A);
    std::vector<float> a(format->block_elements), b(format->block_elements);

    format->unpack(aligned.data(), a.data());
    format->unpack(shifted.data() + 1, b.data());

    EXPECT_EQ(a, b) << format->name;
  }
}

}  // namespace
}  // namespace wcuda::quant
