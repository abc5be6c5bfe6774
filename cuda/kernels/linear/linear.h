// The linear layers of a step: y[c] = W · h[c] + bias for the tokens c, h[c] = x[c] or
// rms_norm(x[c]) * norm, then an epilogue.
//
//   tokens    kernel           weights read by    activations        products
//   1         fused_layers     one warp a CTA     2 int8 terms       mma.sync int8   layers in one
//   1 … 8     linear_vector    each warp its own  2 int8 terms, f16  mma.sync int8   kernel
//   9 … 128   linear_batch     each warp its own  f16                wgmma f16
//   more      dequantize and a GEMM (gemm.h or cuBLASLt), input and output by dequant_gemm_io
//
// Weights are packed tiles (kernels/shared/packed_tile.h) and are read once a launch: bytes moved
// are those of the matrices, x from L2, the outputs. Activations enter the products as two int8
// terms a value (16 bits of the largest of 32, from 3 tokens on in linear_vector of 256) or as f16;
// sums are f32 in a fixed order, without atomics.
//
// A tile format is what tile.cuh calls a Tile: how a lane turns its bytes into operand A. Operand
// fragments of a warp, lane = 4g + t:
//
//        inputs 0 … 31 of a group           tokens (int8: two terms a token)
//        t=0   t=1   t=2   t=3              column g
//   g    a0 a2 a0 a2 a0 a2 a0 a2          +---------+
//   …                                     | b0: t's first 4 inputs of the column
//   g+8  a1 a3 a1 a3 a1 a3 a1 a3          | b1: t's last 4
//        (4 codes a register)             +---------+
//   sums: rows g and g + 8, columns 2t and 2t + 1
//
// Which of the 32 inputs "t's" are is the tile's Ownership: products do not mind the order of
// inputs as long as A and B agree, so B is laid out as A lies in memory.
//
// A warp of linear_vector, its ring of S stages, and the kernel ahead in the stream:
//
//   kernel ahead   ───────────────┐ ends
//   bulk copies    K-tile 0 ──┐   │ 1 ──┐ 2 ──┐ … S - 1 ──┐  S ──┐   refilled as they are read
//   warp           barriers   wait│ x to shared memory │ K-tile 0 │ 1 │ 2 │ … │ sums to the CTA
//                                 └ dependent_wait()
//
// The first copies are in flight before the kernel ahead has ended: weights depend on nothing.
#pragma once

#include <cstdint>

#include "kernels/shared/matrix.h"

namespace wcuda::kernels {

enum class Epilogue : uint32_t {
  kStore,         // out = y
  kAdd,           // out += y
  kSiluGate,      // out = silu(y of matrix 0) * (y of matrix 1)
  kGeluTanhGate,  // out = gelu_tanh(y of matrix 0) * (y of matrix 1)
};

constexpr uint32_t kLinearMatricesMax = 3;

struct LinearArgs {
  uint32_t tokens = 0;
  const float* x = nullptr;          // (…, cols); token c reads row c, or row x_rows[c]
  const uint32_t* x_rows = nullptr;  // (tokens), device memory; may be null
  const float* norm = nullptr;       // (cols) gain of an RMS norm over x; null: none
  float epsilon = 0.0f;
  // All with the same cols. Gate epilogues: gate and up, of the same rows.
  uint32_t matrix_count = 0;
  Matrix matrices[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax] = {};  // (rows) of each; may be null
  // (tokens, rows) of each; gate epilogues use the first.
  float* outputs[kLinearMatricesMax] = {};
  Epilogue epilogue = Epilogue::kStore;
};

}  // namespace wcuda::kernels
