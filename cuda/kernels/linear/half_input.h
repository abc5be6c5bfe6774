// half_input: h[c] = 2^s(c) * x[c], or 2^s(c) * rms_norm(x[c]) * norm, as f16 for tensor cores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"
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

struct HalfInputArgs {
  uint32_t tokens = 0;
  uint32_t cols = 0;                 // inputs
  uint32_t depth = 0;                // at least cols, a multiple of 64; filled up with zeros
  const float* x = nullptr;          // (…, cols); token c reads row c, or row x_rows[c]
  const uint32_t* x_rows = nullptr;  // (tokens), device memory; may be null
  const float* norm = nullptr;       // (cols) gain of an RMS norm; null: none
  float epsilon = 0.0f;
  InputOrder order = InputOrder::kContiguous8;
  uint32_t tile_tokens = 0;  // a multiple of 8; the last tile is filled up with zeros
  uint16_t* h = nullptr;     // aligned to 16 bytes
  float* scales = nullptr;   // (tokens) 2^-s; the sums must be multiplied by it
};

// s(c) scales the largest magnitude of a token to 2^14 … 2^15. Thus nothing overflows, and only
// values below 2^-28 of the largest underflow. A token's bits depend only on its own x.
cudaError_t half_input(const HalfInputArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
