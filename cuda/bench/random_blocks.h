// Blocks of random weights of every tensor type, of a plausible size: values of about 0.02, mean 0.
#pragma once

#include <cstdint>
#include <vector>

namespace wcuda::bench {

// Number `counter` of one stream of random 64-bit words (SplitMix64).
inline uint64_t random_word(uint64_t counter) {
  uint64_t z = (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

// `count` blocks (values, for a type without blocks) as in a file; the same ones each time. The
// type must be loadable. Codes are random bytes; the scales of a block are set so that its values
// have the size wanted, a quarter up or down, and offsets so that they have mean 0.
std::vector<uint8_t> random_blocks(uint32_t type, uint64_t count);

}  // namespace wcuda::bench
