// The loops that are the same in every instruction set, written with Vec. Each kernels_….cpp
// includes this header once and compiles it with its own flags.
#pragma once

#include "llm/ops/host/attention_body.h"
#include "llm/ops/host/kernels.h"
#include "llm/ops/host/vector.h"

namespace {

template <uint32_t kTokens>
WCUDA_INLINE void dot_tile(const float* w, uint32_t n, const float* x, uint64_t x_stride,
                           float* out, uint64_t out_stride) {
  Vec even[kTokens] = {};
  Vec odd[kTokens] = {};
  uint32_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec w0 = load(w + i);
    const Vec w1 = load(w + i + kLanes);
    for (uint32_t t = 0; t < kTokens; ++t) {
      even[t] = multiply_add(w0, load(x + t * x_stride + i), even[t]);
      odd[t] = multiply_add(w1, load(x + t * x_stride + i + kLanes), odd[t]);
    }
  }
  for (uint32_t t = 0; t < kTokens; ++t) {
    float total = sum(even[t] + odd[t]);
    for (uint32_t j = i; j < n; ++j) total += w[j] * x[t * x_stride + j];
    out[t * out_stride] = total;
  }
}

void dot(const float* w, uint32_t n, const float* x, uint64_t x_stride, uint32_t token_count,
         float* out, uint64_t out_stride) {
  uint32_t t = 0;
  for (; t + 4 <= token_count; t += 4)
    dot_tile<4>(w, n, x + t * x_stride, x_stride, out + t * out_stride, out_stride);
  for (; t < token_count; ++t)
    dot_tile<1>(w, n, x + t * x_stride, x_stride, out + t * out_stride, out_stride);
}

void rms_norm(const float* x, const float* gain, uint32_t n, float epsilon, float* out) {
  float square_sum;
  dot_tile<1>(x, n, x, 0, &square_sum, 0);
  const float factor = 1.0f / __builtin_sqrtf(square_sum / static_cast<float>(n) + epsilon);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec scaled = load(x + i) * factor;
    store(out + i, gain ? scaled * load(gain + i) : scaled);
  }
  for (; i < n; ++i) out[i] = gain ? x[i] * factor * gain[i] : x[i] * factor;
}

// Applies `function` to vectors of gate and up, and to a padded copy of the rest.
template <class Function>
WCUDA_INLINE void map_pairs(const float* gate, const float* up, uint32_t n, float* out,
                            const Function& function) {
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, function(load(gate + i), load(up + i)));
  if (i == n) return;
  float rest[2][kLanes] = {};
  for (uint32_t j = i; j < n; ++j) {
    rest[0][j - i] = gate[j];
    rest[1][j - i] = up[j];
  }
  store(rest[0], function(load(rest[0]), load(rest[1])));
  for (uint32_t j = i; j < n; ++j) out[j] = rest[0][j - i];
}

#if defined(__F16C__)
void to_halves(const float* x, uint32_t n, uint8_t* out) {
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_halves(out + 2 * i, load(x + i));
  if (i == n) return;
  float rest[kLanes] = {};
  uint8_t halves[2 * kLanes];
  __builtin_memcpy(rest, x + i, (n - i) * sizeof(float));
  store_halves(halves, load(rest));
  __builtin_memcpy(out + 2 * i, halves, (n - i) * 2);
}
#endif

// x / (1 + e^-x)
void silu_multiply(const float* gate, const float* up, uint32_t n, float* out) {
  map_pairs(gate, up, n, out, [](Vec g, Vec u) { return g / (exp_vec(-g) + 1.0f) * u; });
}

// x / 2 * (1 + tanh(y)) = x / (1 + e^-2y), y = sqrt(2 / pi) * (x + 0.044715 x^3)
void gelu_multiply(const float* gate, const float* up, uint32_t n, float* out) {
  map_pairs(gate, up, n, out, [](Vec g, Vec u) {
    const Vec y = g * (g * g * 0.044715f + 1.0f) * 0.7978845608f;
    return g / (exp_vec(y * -2.0f) + 1.0f) * u;
  });
}

}  // namespace
