// The order in which the f16 activations of a product lie in memory. Host and device.
#pragma once

#include <cstdint>

#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

// The order in which the inputs of a token are stored.
enum class InputOrder : uint32_t {
  // (tiles, depth / 64, tile_tokens, 64): panels of 64 inputs. Each group of 32 inputs is in the
  // order in which the lanes of a quad own them (Ownership, kernels/linear/tile.cuh). Piece p (8
  // inputs) of a token is stored at p ^ token % 8, as the 128-byte swizzle of wgmma requires.
  kContiguous8,
  kCross,  // as kContiguous8, but the second and third of every four inputs are exchanged
  kSplit,
  kNested,
};

// Returns which input of a group of 32 is stored at place `place`. Places 0 … 15 belong to the
// first m16n8k16 MMA of the group, places 16 … 31 to the second. Of the 16 places of an MMA, lane t
// of a quad holds 2t, 2t + 1, 8 + 2t and 8 + 2t + 1.
WCUDA_HD constexpr uint32_t input_of_place(InputOrder order, uint32_t place) {
  const uint32_t four = place / 16, t = place % 8 / 2, r = place / 8 % 2 * 2 + place % 2;
  switch (order) {
    case InputOrder::kContiguous8:
      return 8 * t + 4 * four + r;
    case InputOrder::kCross:
      return 8 * t + 4 * four + r % 2 * 2 + r / 2;
    case InputOrder::kSplit:
      return 16 * four + 4 * t + r;
    case InputOrder::kNested:
      return t / 2 * 16 + four * 8 + t % 2 * 4 + r;
  }
  return place;
}

}  // namespace wcuda::kernels
