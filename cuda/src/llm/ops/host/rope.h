// Rotary position embedding on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "llm/ops/ops.h"

namespace wcuda::ops::host {

// Cosines and sines of a step's positions, kept from layer to layer.
class RopeTable {
 public:
  // Floats of memory for `token_count` tokens.
  static uint64_t floats(uint32_t token_count, uint32_t head_length) {
    return uint64_t{token_count} * head_length;
  }
  // So that update() of no more than this allocates nothing.
  void reserve(uint32_t token_count, uint32_t head_length) {
    positions_.reserve(token_count);
    frequencies_.reserve(head_length / 2);
  }
  // The memory given to update() has been written over.
  void forget() { memory_ = nullptr; }
  // Makes the table hold these positions, if it does not yet.
  void update(const Rope& rope, const uint32_t* positions, uint32_t token_count, float* memory);
  // Turns the first dimensions of one head of token `token`.
  void turn(uint32_t token, float* head) const;

 private:
  Rope rope_;
  std::vector<uint32_t> positions_;
  std::vector<float> frequencies_;
  const float* memory_ = nullptr;  // (token_count, 2, dimension_count / 2): cosines, then sines
};

}  // namespace wcuda::ops::host
