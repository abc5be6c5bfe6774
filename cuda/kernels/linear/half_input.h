// half_input: h[c] = 2^s(c) * x[c], or 2^s(c) * rms_norm(x[c]) * norm, as f16 for tensor cores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/input_order.h"

namespace wcuda::kernels {

constexpr uint32_t kNoPlace = UINT32_MAX;

struct HalfInputArgs {
  uint32_t tokens = 0;
  uint32_t cols = 0;                 // inputs
  const float* x = nullptr;          // (…, cols); token c reads row c, or row x_rows[c]
  const uint32_t* x_rows = nullptr;  // (tokens), device memory; may be null
  // (tokens), device memory: where in `out.h` a token is stored, or kNoPlace; null: token c at c,
  // and zeros up to the end of the last tile. Scales and norms stay in the order of the tokens.
  const uint32_t* places = nullptr;
  const float* norm = nullptr;  // (cols) gain of an RMS norm; null: none
  float epsilon = 0.0f;
  // The depth is at least cols. Inputs and the last tile are filled up with zeros; scales are 2^-s.
  HalfOperand out;
  float* norms = nullptr;  // (tokens) L2 norm of the normed x; may be null
};

// s(c) scales the largest magnitude of a token to 2^14 … 2^15. Thus nothing overflows, and only
// values below 2^-28 of the largest underflow. A token's bits depend only on its own x.
cudaError_t half_input(const HalfInputArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
