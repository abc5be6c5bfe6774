// The activations of gate epilogues, shared by all linear kernels.
#pragma once

#include "kernels/linear/linear.h"

namespace wcuda::kernels {

// activation_fast returns x / (1 + exp(-z)): silu(x) if z is x, and gelu_tanh(x) if z is
// gelu_exponent(x). The error is 2^-18, which suffices for results that are rounded to f16.
__device__ inline float gelu_exponent(float x) {
  constexpr float kTwoRootsTwoOverPi = 1.59576912160573071f;
  return kTwoRootsTwoOverPi * x * (1.0f + 0.044715f * x * x);
}
__device__ inline float activation_fast(bool is_silu, float x) {
  const float z = is_silu ? x : gelu_exponent(x);
  return __fdividef(x, 1.0f + __expf(-z));
}

}  // namespace wcuda::kernels
