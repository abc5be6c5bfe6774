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

// Tokens up to which each kernel computes a layer; above all, dequantize + GEMM. One H200,
// 2026-11-22, 8B, prefill in 1,000 tokens/s by packed_gemm and by dequantize + GEMM
// (2026-11-22-h200/packed_gemm.txt):
//
//   tokens         128           256           512         2,048
//   Q4_K_M           –       29.4 20.6     36.7 29.4     37.2 35.0
//   Q8_0         21.8 10.8   30.4 18.8     34.9 26.9     36.7 35.7
//   Q2_K         22.9 11.3   31.4 19.5     37.4 28.9     38.6 35.6
//   MXFP4        21.8 10.6   30.6 18.6     37.6 29.1     39.0 37.3
//   IQ2_XXS      19.0 10.8   27.0 18.7     32.7 27.8     36.0 35.6
//   IQ3_S        19.6 10.5   27.5 18.3     31.9 26.5     35.1 34.7
//
// F16, a layer at 2,048 tokens: 1.61 ms by packed_gemm; of a step by dequantize + GEMM, which takes
// 59 ms, 1.7. All layers of 8B Q4_K_M: 64 tokens by linear_batch 3.7 ms, 65 by packed_gemm 4.5.
constexpr uint32_t kVectorTokensMax = 8;
constexpr uint32_t kGemmTokensMin = 129;  // on devices without the other two
struct LinearSwitches {
  uint32_t batch_tokens_max = 64;
  uint32_t packed_gemm_tokens_max = UINT32_MAX;
};
LinearSwitches linear_switches(const DeviceTraits& device);
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
                     const LinearSwitches& switches = {});
// Whether kDequantizeGemm computes layers of so many tokens wherever sizes are multiples of 8.
bool is_gemm_step(uint32_t token_count, const Limits& limits, const LinearSwitches& switches = {});
bool fits_gemm(const LinearShape& shape);
// Pieces of f16 weights that kDequantizeGemm goes through, of matrices that are one product.
uint32_t gemm_piece_count(uint32_t rows, uint32_t cols, uint64_t weight_bytes);
// Rows of such a piece.
uint32_t gemm_piece_rows(uint32_t rows, uint32_t cols, uint64_t weight_bytes);
// `total` in equal parts of at most `most`, multiples of a tile where those fit.
uint32_t even_part(uint32_t total, uint64_t most);

}  // namespace wcuda::ops
