// gemm: y[c][r] = Σ_k w[r][k] h[c][k], f16 operands, f32 sums.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

struct GemmArgs {
  uint32_t rows = 0;  // of w: outputs
  uint32_t tokens = 0;
  uint32_t depth = 0;           // inputs
  const uint16_t* w = nullptr;  // (rows, depth) f16, aligned to 16 bytes
  const uint16_t* h = nullptr;  // (tokens, h_stride) f16, aligned to 16 bytes
  uint32_t h_stride = 0;        // depth rounded up to a multiple of 8; zeros past depth
  float* y = nullptr;           // (tokens, y_stride)
  uint16_t* y_half = nullptr;   // the same as f16, in its place; null: none
  uint32_t y_stride = 0;        // at least rows
  bool is_added = false;        // y += instead of y =; not of y_half
};

// For devices without cuBLASLt, and where a token's bits may not depend on how many there are: the
// order of sums is fixed by `depth` alone.
cudaError_t gemm(const GemmArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
