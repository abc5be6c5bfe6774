// The matrices that tools/golden/packed_tiles.py takes digests of, for tests on host and device.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "llm/quant/format.h"
#include "llm/quant/random_blocks.h"

namespace wcuda::testing {

// A line of packed_tiles.txt.
struct TileCase {
  uint32_t type = 0, rows = 0, cols = 0;
  uint64_t tiles_bytes = 0;
  uint32_t crc32 = 0;         // of the packed tiles
  std::vector<uint8_t> file;  // the rows as in a file

  std::string name() const {
    return std::string(quant::find_format(type)->name) + " " + std::to_string(rows) + " x " +
           std::to_string(cols);
  }
};

inline TileCase tile_case(uint32_t type, uint32_t rows, uint32_t cols) {
  TileCase made;
  made.type = type;
  made.rows = rows;
  made.cols = cols;
  const uint64_t bytes = rows * *quant::row_bytes(*quant::find_format(type), cols);
  made.file.resize((bytes + 7) / 8 * 8);
  for (uint64_t i = 0; i * 8 < made.file.size(); ++i) {
    const uint64_t word = splitmix64(i);
    std::memcpy(&made.file[i * 8], &word, 8);
  }
  made.file.resize(bytes);
  return made;
}

inline std::vector<TileCase> read_tile_cases() {
  std::ifstream file(WCUDA_TEST_DATA "/quant/packed_tiles.txt");
  std::vector<TileCase> all;
  uint32_t type = 0, rows = 0, cols = 0;
  uint64_t bytes = 0;
  std::string digest;
  while (file >> type >> rows >> cols >> bytes >> digest) {
    TileCase read = tile_case(type, rows, cols);
    read.tiles_bytes = bytes;
    read.crc32 = static_cast<uint32_t>(std::stoul(digest, nullptr, 16));
    all.push_back(std::move(read));
  }
  return all;
}

}  // namespace wcuda::testing
