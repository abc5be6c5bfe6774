// Which kernel computes a linear layer on a CUDA device. Pure.
#pragma once

#include <cstdint>

#include "llm/ops/step_plan.h"

namespace wcuda::ops {

// A linear layer of matrices that read the same input.
struct LinearShape {
  uint32_t token_count = 0;
  uint32_t matrix_count = 0;
  uint32_t types[3] = {};  // ggml type ids
  uint32_t rows[3] = {};
  uint32_t cols = 0;
  bool is_gate = false;   // of gate and up one output
  bool is_added = false;  // to the residual
  bool has_norm = false;
};

// Tokens up to which linear_vector and, with WGMMA, linear_batch compute a layer; packed_gemm
// above. One H200, 2026-11-22, all layers of 8B Q4_K_M, ms by linear_batch and by packed_gemm: 16
// tokens 2.37 and 2.51, 32 tokens 2.74 and 2.76, 64 tokens 3.70 and 3.50
// (2026-11-22-h200/few_tokens_clusters.txt).
constexpr uint32_t kVectorTokensMax = 8;
constexpr uint32_t kBatchTokensMax = 32;

Kernel linear_kernel(const LinearShape& shape, const Limits& limits, const DeviceTraits& device);

}  // namespace wcuda::ops
