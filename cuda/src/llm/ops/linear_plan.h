// Which kernels compute a linear layer on a CUDA device, and the scratch memory of those of many
// tokens. Pure.
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

// Tokens up to which linear_vector and linear_batch compute a layer; above, dequantize + GEMM.
constexpr uint32_t kVectorTokensMax = 8;
constexpr uint32_t kBatchTokensMax = 128;
// Inputs of a layer that dequantize + GEMM takes.
constexpr uint32_t kGemmInputsMax = 32768;

// Memory of the layers of many tokens.
struct GemmMemory {
  uint64_t weight_bytes = 0;  // of each of two buffers of f16 weights
  uint64_t sum_bytes = 0;     // f32 sums of kDequantizeGemmF32
  uint32_t tokens = 0;        // that are worked on at once
  uint32_t all_tokens = 0;    // of a step
  uint32_t cols_max = 0;      // inputs of any layer, a multiple of 8
};
GemmMemory gemm_memory(const Limits& limits);

Kernel linear_kernel(const LinearShape& shape, const Limits& limits, const DeviceTraits& device,
                     uint32_t batch_tokens_max = kBatchTokensMax);
// Whether kDequantizeGemm computes layers of so many tokens wherever sizes are multiples of 8.
bool is_gemm_step(uint32_t token_count, const Limits& limits,
                  uint32_t batch_tokens_max = kBatchTokensMax);
bool fits_gemm(const LinearShape& shape);
// Pieces of f16 weights that kDequantizeGemm goes through, of matrices that are one product.
uint32_t gemm_piece_count(uint32_t rows, uint32_t cols, uint64_t weight_bytes);
// Rows of such a piece.
uint32_t gemm_piece_rows(uint32_t rows, uint32_t cols, uint64_t weight_bytes);
// `total` in equal parts of at most `most`, multiples of a tile where those fit.
uint32_t even_part(uint32_t total, uint64_t most);

}  // namespace wcuda::ops
