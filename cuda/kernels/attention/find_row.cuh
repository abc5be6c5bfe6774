// The row of a step that an element of a list belongs to. Only for .cu files.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

// Returns the last row of `count` whose prefix sum, prefix[row], is at most `value`; empty rows are
// skipped.
template <class Prefix>
__device__ inline uint32_t find_row(const Prefix& prefix, uint32_t count, uint32_t value) {
  uint32_t low = 0, high = count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (prefix[middle] <= value)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace wcuda::kernels
