// The linear layers of a step: y[t] = W · h[t] + bias for tokens t, where h[t] = x[t] or
// rms_norm(x[t]) * norm, then an epilogue.
//
//   tokens    kernel           weights copied by  activations        MMA
//   1         fused_layers     one warp per CTA   2 int8 terms       mma.sync int8; several layers
//   1 … 8     linear_vector    each warp its own  2 int8 terms, f16  mma.sync int8
//   9 … 64    linear_batch     each warp its own  f16                wgmma f16
//   more      packed_gemm      each warp its own  f16                wgmma f16
//   9 …       packed_gemm_mma  each warp its own  f16                mma.sync f16, without WGMMA
//
// Weights are packed tiles (kernels/shared/packed_tile.h), read once per launch or, with more than
// 8 tokens, once per tile of tokens. Bytes moved: the matrices, x from L2, and the outputs.
// Activations are f16, or 16-bit values as two int8 terms, scaled by the largest of 32 values (of
// 256 in linear_vector with 3 or more tokens). Sums are f32 in a fixed order, without atomics.
//
// A Tile (tile.cuh) describes a weight format: how a lane converts its bytes to operand A. Operand
// fragments of a warp, lane = 4g + t:
//
//        inputs 0 … 31 of a group           tokens (int8: two terms each)
//        t=0   t=1   t=2   t=3              column g
//   g    a0 a2 a0 a2 a0 a2 a0 a2          +---------+
//   …                                     | b0: t's first 4 inputs of the column
//   g+8  a1 a3 a1 a3 a1 a3 a1 a3          | b1: t's last 4
//        (4 codes per register)           +---------+
//   sums: rows g and g + 8, columns 2t and 2t + 1
//
// The Ownership of a tile defines which of the 32 inputs lane t holds. The order of inputs does not
// matter to an MMA as long as A and B agree, so B follows the order in which A is stored.
//
// A warp of linear_vector, its ring of S stages, and the previous kernel of the stream:
//
//   previous       ───────────────┐ ends
//   bulk copies    K-tile 0 ──┐   │ 1 ──┐ 2 ──┐ … S - 1 ──┐  S ──┐   refilled as they are read
//   warp           barriers   wait│ x to shared memory │ K-tile 0 │ 1 │ 2 │ … │ sums to the CTA
//                                 └ dependent_wait()
//
// Because no kernel writes weights, their first copies start before the previous kernel has ended.
#pragma once

#include <cstdint>

#include "kernels/shared/matrix.h"

namespace wcuda::kernels {

enum class Epilogue : uint32_t {
  kStore,          // out = y
  kAdd,            // out += y
  kSiluTimes,      // out = silu(y) * out
  kGeluTanhTimes,  // out = gelu_tanh(y) * out
  kSiluGate,       // out = silu(y of matrix 0) * (y of matrix 1)
  kGeluTanhGate,   // out = gelu_tanh(y of matrix 0) * (y of matrix 1)
};

constexpr bool is_gate(Epilogue epilogue) { return epilogue >= Epilogue::kSiluGate; }

// Returns the epilogue for the gate matrix alone, if the result of the up matrix is already in the
// output.
constexpr Epilogue times_of(Epilogue gate) {
  return gate == Epilogue::kSiluGate ? Epilogue::kSiluTimes : Epilogue::kGeluTanhTimes;
}

constexpr uint32_t kLinearMatricesMax = 3;

struct LinearArgs {
  uint32_t tokens = 0;
  const float* x = nullptr;          // (…, cols); token t reads row t, or row x_rows[t]
  const uint32_t* x_rows = nullptr;  // (tokens), device memory; may be null
  const float* norm = nullptr;       // (cols) gain of an RMS norm over x; null: none
  float epsilon = 0.0f;
  // All matrices have the same cols. Gate epilogues take gate and up, which have the same rows.
  uint32_t matrix_count = 0;
  Matrix matrices[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax] = {};  // (rows) of each; may be null
  // (tokens, rows) of each; gate epilogues use the first.
  float* outputs[kLinearMatricesMax] = {};
  Epilogue epilogue = Epilogue::kStore;
};

// Returns the total number of rows of all matrices.
inline uint32_t row_count(const LinearArgs& args) {
  uint32_t rows = 0;
  for (uint32_t m = 0; m < args.matrix_count; ++m) rows += args.matrices[m].rows;
  return rows;
}

}  // namespace wcuda::kernels
