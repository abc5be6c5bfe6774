// The unpackers of all weight formats against vectors of an independent implementation; see
// tools/golden/quant.py for their making.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "quant/format.h"

namespace wcuda::quant {
namespace {

const std::string kFolder = std::string(WCUDA_TEST_DATA) + "/quant/";

std::vector<const Format*> loadable_formats() {
  std::vector<const Format*> formats;
  for (uint32_t id = 0; id < 43; ++id) {
    const Format* format = find_format(id);
    if (format != nullptr && format->is_loadable) formats.push_back(format);
  }
  return formats;
}

struct Golden {
  std::vector<uint8_t> blocks;
  std::vector<float> values;
};

Golden read_golden(const Format& format) {
  std::ifstream file(kFolder + format.name + ".bin", std::ios::binary);
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

uint64_t splitmix64(uint64_t counter) {
  uint64_t z = (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
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
  std::ifstream file(kFolder + "digests.txt");
  std::string name, offsets, digest;
  size_t count = 0, seen = 0;
  while (file >> name >> count >> offsets >> digest) {
    const Format* format = nullptr;
    for (const Format* candidate : loadable_formats())
      if (candidate->name == name) format = candidate;
    ASSERT_NE(format, nullptr) << name;
    std::vector<uint8_t> blocks(count * format->block_bytes + 8);
    for (size_t i = 0; i * 8 < count * format->block_bytes; ++i) {
      const uint64_t word = splitmix64(i);
      std::memcpy(&blocks[i * 8], &word, 8);
    }
    std::istringstream list(offsets == "-" ? "" : offsets);
    for (std::string offset; std::getline(list, offset, ',');)  // keeps scales finite
      for (size_t i = 0; i < count; ++i)
        blocks[i * format->block_bytes + std::stoul(offset)] &= 0xBF;
    std::vector<float> values(count * format->block_elements);

    ASSERT_TRUE(unpack_row(*format, blocks.data(), values.size(), values.data()).ok());

    EXPECT_EQ(crc32(values.data(), values.size() * 4), std::stoul(digest, nullptr, 16)) << name;
    ++seen;
  }
  EXPECT_EQ(seen, loadable_formats().size() - 2);  // F32 and BF16 have no scales to speak of
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
