// hash_many on a vector word, one lane per input. Included by files compiled for one instruction
// set each; uses nothing of the standard library, whose inline functions would be compiled for it
// too.
#pragma once

#include "core/base/blake3.h"

namespace wcuda::blake3 {

template <class Vector>
inline __attribute__((always_inline)) void hash_lanes(const ManyArgs& args) {
  constexpr uint32_t kLanes = sizeof(Vector) / 4;
  for (uint32_t first = 0; first < args.count; first += kLanes) {
    const uint32_t lanes = args.count - first < kLanes ? args.count - first : kLanes;
    // A short last group hashes its first input again in the unused lanes.
    const uint8_t* data[kLanes];
    Vector chain[8], counter_low, counter_high;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t index = first + (lane < lanes ? lane : 0);
      data[lane] = args.data + index * args.stride;
      const uint64_t counter = args.counter + uint64_t{index} * args.counter_step;
      counter_low[lane] = static_cast<uint32_t>(counter);
      counter_high[lane] = static_cast<uint32_t>(counter >> 32);
    }
    const Vector zero = {};
    set_initial_chain<Vector>(chain, zero);
    for (uint32_t block = 0; block < args.block_count; ++block) {
      alignas(64) uint32_t words[16][kLanes];
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        uint32_t line[16];
        __builtin_memcpy(line, data[lane] + block * kBlockBytes, kBlockBytes);
        for (int i = 0; i < 16; ++i) words[i][lane] = line[i];
      }
      Vector message[16];
      __builtin_memcpy(message, words, sizeof(words));
      const uint32_t flags = args.flags | (block == 0 ? args.start_flags : 0) |
                             (block + 1 == args.block_count ? args.end_flags : 0);
      compress<Vector>(chain, message, counter_low, counter_high, zero + kBlockBytes, zero + flags);
    }
    for (uint32_t lane = 0; lane < lanes; ++lane)
      for (int i = 0; i < 8; ++i) args.chains[8 * (first + lane) + i] = chain[i][lane];
  }
}

}  // namespace wcuda::blake3
