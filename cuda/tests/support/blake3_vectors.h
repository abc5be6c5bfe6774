// Golden BLAKE3 digests, made by tools/oracle/blake3_vectors.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wcuda::testing {

struct Blake3Vector {
  uint64_t bytes;
  std::string digest;  // 64 hexadecimal digits
};
// All vectors, by ascending length.
std::vector<Blake3Vector> blake3_vectors();
// The input of every vector: byte i is i % 251.
std::vector<uint8_t> blake3_input(uint64_t bytes);
std::string hex(const uint8_t digest[32]);

}  // namespace wcuda::testing
