// linear: y[c] = W · h[c] + bias for the tokens c of a step, h[c] = x[c] or rms_norm(x[c]) * norm.
//
// Weights are records (kernels/shared/packed_tile.h), read once. Activations enter the products as
// two int8 terms a value (16 bits of the largest of 32, from 3 tokens on in linear_vector of 256)
// or as f16; sums are f32 in a fixed order, without atomics.
#pragma once

#include <cstdint>

#include "kernels/ptx/launch.h"
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
  uint32_t columns = 0;              // tokens
  const float* x = nullptr;          // (…, cols); token c reads row c, or row x_rows[c]
  const uint32_t* x_rows = nullptr;  // (columns), device memory; may be null
  const float* norm = nullptr;       // (cols) gain of an RMS norm over x; null: none
  float epsilon = 0.0f;
  // All with the same cols. Gate epilogues: gate and up, of the same rows.
  uint32_t matrix_count = 0;
  Matrix matrices[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax] = {};  // (rows) of each; may be null
  // (columns, rows) of each; gate epilogues use the first.
  float* outputs[kLinearMatricesMax] = {};
  Epilogue epilogue = Epilogue::kStore;
};

}  // namespace wcuda::kernels
