// half_input: h[c] = 2^s(c) * x[c], or 2^s(c) * rms_norm(x[c]) * norm, as f16 for tensor cores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear/input_order.h"
#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

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
  float* norms = nullptr;    // (tokens) L2 norm of the normed x; may be null
};

// s(c) scales the largest magnitude of a token to 2^14 … 2^15. Thus nothing overflows, and only
// values below 2^-28 of the largest underflow. A token's bits depend only on its own x.
cudaError_t half_input(const HalfInputArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
