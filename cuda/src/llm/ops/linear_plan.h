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
  bool is_gate = false;   // gate and up, with one output
  bool is_added = false;  // the result is added to the residual
  bool has_norm = false;
  bool has_bias = false;
};

// Maximum tokens for which linear_vector and, with WGMMA, linear_batch compute a layer; packed_gemm
// computes more. One H200, 2026-11-22, all layers of 8B Q4_K_M: 64 tokens with linear_batch
// take 3.7 ms, 65 with packed_gemm 4.5 (2026-11-22-h200/packed_gemm.txt).
constexpr uint32_t kVectorTokensMax = 8;
constexpr uint32_t kBatchTokensMax = 64;
// linear_batch, whose tiles are smaller, also computes more tokens of a layer with few inputs and
// outputs (tokens times rows), for which packed_gemm has too few tiles for all SMs: of fewer
// outputs than kSmallOutputs for kFewInputs inputs or less, and for more inputs as many products.
// One H200, 2026-11-29: layers of 135M in Q4_1 and of 0.5B, 0.6B and 1B in Q4_K_M at 72 to 1,024
// tokens; with 4,096 inputs a step of 128 sequences of 8B is 1 % slower
// (2026-11-29-h200/small_layers.txt). Not measured: other types, and batch_invariant, which keeps
// to packed_gemm.
constexpr uint32_t kSmallInputsMax = 3072, kFewInputs = 2048;
constexpr uint64_t kSmallOutputs = 1u << 20;

// Returns the kernel for a layer.
Kernel linear_kernel(const LinearShape& shape, const Limits& limits, const DeviceTraits& device);
// The same, with linear_batch for up to batch_tokens_max tokens: for tests and benches.
Kernel linear_kernel(const LinearShape& shape, const Limits& limits, const DeviceTraits& device,
                     uint32_t batch_tokens_max);

// Returns whether gate_up writes the f16 operand of down, scaled by a bound of each token's outputs
// (GateNorms), so that no kernel need convert them. Not with batch_invariant: linear_batch, which
// computes few tokens, scales by the largest output.
bool gate_writes_operand(const LinearShape& gate_up, const Limits& limits,
                         const DeviceTraits& device);
// Returns whether steps of any shape may do so, and so need GateNorms.
bool needs_gate_norms(const Limits& limits, const DeviceTraits& device);

// Returns whether attention writes the f16 operand of the output projection (kernels/attention/
// attention_operand.cuh). In a decode step all rows have one token. With batch_invariant the step's
// shape does not matter: the operand's constant scale rounds small values differently.
bool attention_writes_operand(const LinearShape& output, bool is_decode, const Limits& limits,
                              const DeviceTraits& device);

}  // namespace wcuda::ops
