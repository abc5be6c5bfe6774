#include "support/blake3_vectors.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace wcuda::testing {

std::vector<Blake3Vector> blake3_vectors() {
  std::vector<Blake3Vector> vectors;
  // A test program copied to another machine finds its data through WCUDA_TEST_DATA.
  const char* const folder = std::getenv("WCUDA_TEST_DATA");
  std::ifstream file(std::string(folder ? folder : WCUDA_TEST_DATA) + "/blake3.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    Blake3Vector vector;
    fields >> vector.bytes >> vector.digest;
    vectors.push_back(vector);
  }
  return vectors;
}

std::vector<uint8_t> blake3_input(uint64_t bytes) {
  std::vector<uint8_t> input(bytes);
  for (uint64_t i = 0; i < bytes; ++i) input[i] = static_cast<uint8_t>(i % 251);
  return input;
}

std::string hex(const uint8_t digest[32]) {
  std::string text;
  for (int i = 0; i < 32; ++i) {
    static constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace wcuda::testing
