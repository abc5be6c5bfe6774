// dequant_gemm_input: h[c] = 2^s(c) * v[c] as f16, for products of many tokens. v[c] is x[c], or
// rms_norm(x[c]) * norm, or what a gate makes of its two sums: activation(gate[c]) * up[c].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// With M the largest magnitude of a token. A token's s depends on nothing but its own values.
enum class ScaleRule : uint32_t {
  // 2^s M lies in 2^-2 … 2^-1: what underflows is below 2^-22 of M, and sums fit into f16 unless a
  // row of weights is longer than 130,000 / sqrt(cols) at the least.
  kAlways,
  // s = 0 where M lies in 2^-4 … 2^15, which is all but always so; else as above. Then outputs
  // need no second look.
  kRarely,
};

struct DequantGemmInputArgs {
  uint32_t tokens = 0;
  uint32_t cols = 0;         // inputs: a multiple of 8, at most kDequantGemmInputsMax
  const float* x = nullptr;  // (…, cols), aligned to 16; token c reads row c, or x_rows[c]
  const uint32_t* x_rows = nullptr;  // (tokens), device memory; may be null
  const float* norm = nullptr;       // (cols) gain of an RMS norm, aligned to 16; null: none
  float epsilon = 0.0f;
  // In place of x: sums of a gate and of its up, 2^s times what they should be.
  const uint16_t* gate = nullptr;      // (tokens, 2, cols) f16, aligned to 16
  const float* gate_scales = nullptr;  // (tokens) 2^-s
  const float* gate_bias = nullptr;    // (cols); may be null
  const float* up_bias = nullptr;      // (cols); may be null
  Epilogue activation = Epilogue::kSiluGate;

  ScaleRule rule = ScaleRule::kAlways;
  // The outputs that sums will be added to: tokens with s not 0 are multiplied by 2^s. Null: has
  // been done.
  float* residual = nullptr;   // (tokens, residual_rows)
  uint32_t residual_rows = 0;  // 0: sums will not be added to anything
  uint16_t* h = nullptr;       // (tokens, cols), aligned to 16
  float* scales = nullptr;     // (tokens) 2^-s
};

constexpr uint32_t kDequantGemmInputsMax = 32768;

cudaError_t dequant_gemm_input(const DequantGemmInputArgs& args, const Launch& launch);

struct DequantGemmFinishArgs {
  uint32_t tokens = 0;
  uint32_t rows = 0;
  float* y = nullptr;  // (tokens, stride)
  uint64_t stride = 0;
  const float* scales = nullptr;  // (tokens); null: 1
  const float* bias = nullptr;    // (rows); may be null
};

// y[c][r] = scales[c] * y[c][r] + bias[r]. Without a bias tokens of scale 1 are not touched.
cudaError_t dequant_gemm_finish(const DequantGemmFinishArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
