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

// The place of four consecutive inputs, the first a multiple of 4: words (two inputs each) `word`
// of pieces `piece` and piece + 1 of the group. The first word has inputs 0 and 1 of the four, with
// kCross 0 and 2; the second has the others.
struct QuarterPlace {
  uint32_t piece, word;
};
WCUDA_HD constexpr QuarterPlace place_of_quarter(InputOrder order, uint32_t quarter) {
  switch (order) {
    case InputOrder::kSplit:
      return {quarter / 4 * 2, quarter % 4};
    case InputOrder::kNested:
      return {quarter / 2 % 2 * 2, quarter / 4 * 2 + quarter % 2};
    default:
      return {quarter % 2 * 2, quarter / 2};
  }
}

// Where the f16 activations of a product lie.
struct HalfOperand {
  uint16_t* h = nullptr;    // aligned to 16 bytes
  float* scales = nullptr;  // (tokens) by which the sums of a token must be multiplied
  InputOrder order = InputOrder::kContiguous8;
  uint32_t tile_tokens = 0;  // a power of two, at least 8
  uint32_t depth = 0;        // inputs, a multiple of 64

  WCUDA_HD uint32_t tile_of(uint32_t token) const {
#if defined(__CUDA_ARCH__)
    return token >> (__ffs(static_cast<int>(tile_tokens)) - 1);
#else
    return token / tile_tokens;
#endif
  }
  // Returns the index of piece `piece` (8 inputs) of a token.
  WCUDA_HD uint64_t piece_index(uint32_t token, uint32_t piece) const {
    const uint64_t panel = uint64_t{tile_of(token)} * (depth / 64) + piece / 8;
    return (panel * tile_tokens + (token & (tile_tokens - 1))) * 8 + (piece % 8 ^ token % 8);
  }
};

}  // namespace wcuda::kernels
