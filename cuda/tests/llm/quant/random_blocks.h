// The random blocks that tools/golden/quant.py takes digests of, for tests on host and device.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "llm/quant/format.h"

namespace wcuda::testing {

// A line of digests.txt.
struct RandomBlocks {
  const quant::Format* format = nullptr;
  uint64_t element_count = 0;
  uint32_t crc32 = 0;           // of the f32 values
  std::vector<uint8_t> blocks;  // no f16 scale in them is infinite or NaN
};

inline uint64_t splitmix64(uint64_t counter) {
  uint64_t z = (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

inline std::vector<const quant::Format*> loadable_formats() {
  std::vector<const quant::Format*> formats;
  for (uint32_t id = 0; id < 43; ++id) {
    const quant::Format* format = quant::find_format(id);
    if (format != nullptr && format->is_loadable) formats.push_back(format);
  }
  return formats;
}

inline std::vector<RandomBlocks> read_random_blocks() {
  std::ifstream file(WCUDA_TEST_DATA "/quant/digests.txt");
  std::vector<RandomBlocks> all;
  std::string name, offsets, digest;
  uint64_t count = 0;
  while (file >> name >> count >> offsets >> digest) {
    RandomBlocks random;
    for (const quant::Format* format : loadable_formats())
      if (format->name == name) random.format = format;
    if (random.format == nullptr) return {};
    random.element_count = count * random.format->block_elements;
    random.crc32 = static_cast<uint32_t>(std::stoul(digest, nullptr, 16));
    random.blocks.resize((count * random.format->block_bytes + 7) / 8 * 8);
    for (uint64_t i = 0; i * 8 < random.blocks.size(); ++i) {
      const uint64_t word = splitmix64(i);
      std::memcpy(&random.blocks[i * 8], &word, 8);
    }
    random.blocks.resize(count * random.format->block_bytes);
    std::istringstream list(offsets == "-" ? "" : offsets);
    for (std::string offset; std::getline(list, offset, ',');)  // high bytes of f16 scales
      for (uint64_t i = 0; i < count; ++i)
        random.blocks[i * random.format->block_bytes + std::stoul(offset)] &= 0xBF;
    all.push_back(std::move(random));
  }
  return all;
}

}  // namespace wcuda::testing
