// A row of keys or values in the format int10: codes of 10 bits with an f16 scale for 64 elements.
//
// A code is an integer of -511 to 511, stored plus 512: its low 8 bits as a byte for each element,
// its high 2 bits in a byte for each four elements. A block of 64 elements has 16 such bytes; byte
// b holds, from its lowest bits on, those of elements b, b + 16, b + 32 and b + 48. The scales of a
// row with an even slot come last, those of the next row first, so that the codes of both begin on
// a 32-bit word. With n elements and s = n / 64 blocks:
//
//   slot 0, 2, …   n bytes low bits │ n / 4 bytes high bits │ s scales
//   slot 1, 3, …   s scales │ n bytes low bits │ n / 4 bytes high bits
//
// Before keys are rounded, each block of 64 of their elements is multiplied by the Hadamard matrix
// of that size (entries of 1/8 and -1/8), which spreads a large element over all; so is that block
// of the queries, because a product of two such blocks is that of the original ones.
#pragma once

#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

constexpr uint32_t kInt10Block = 64;  // elements that have a scale
constexpr uint32_t kInt10BlockBytes = 82;
constexpr int32_t kInt10CodeMax = 511;
constexpr int32_t kInt10Offset = 512;

// Offsets from the first byte of a row.
struct Int10Row {
  uint32_t low, high, scales;
  WCUDA_HD constexpr Int10Row(uint32_t head_length, bool is_odd_slot)
      : low(is_odd_slot ? head_length / 32 : 0),
        high(low + head_length),
        scales(is_odd_slot ? 0 : head_length / 4 * 5) {}
};

}  // namespace wcuda::kernels
