// Drawing the next token from logits: parameters, and the host's version of it.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace wcuda::ops {

// Values of wcuda_row_result.status.
enum class RowStatus : int32_t { kOk = 0, kHeld = 1, kEmptyMask = 2, kNotFinite = 3, kSkipped = 4 };

// wcuda_sampling, checked, defaults resolved, in the same words. Arrays may be null.
struct Sampling {
  float temperature = 0.0f;  // 0: greedy
  uint32_t top_k = 0;        // 0: off, as all below
  float top_p = 0.0f;
  float min_p = 0.0f;
  float typical_p = 0.0f;
  float repetition_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  uint32_t penalty_last_n = 0;
  uint32_t penalty_from = 0;
  uint64_t seed = 0;
  uint32_t top_logprobs = 0;
  uint32_t bias_count = 0;
  const int32_t* bias_tokens = nullptr;  // (bias_count)
  const float* bias_values = nullptr;    // (bias_count)
  const uint32_t* mask = nullptr;        // (ceil(vocabulary / 32)) bit set: allowed
};

struct SampleResult {
  RowStatus status = RowStatus::kOk;
  int32_t token = -1;
  float logprob = 0.0f;
  uint32_t top_count = 0;
};

// Draws the token for `position` (the position it will have). `history` holds the tokens of positions
// 0 … position - 1. `logits` (vocabulary) are not changed; `work` is scratch of
// sample_work_bytes(vocabulary). top_tokens, top_logprobs: (sampling.top_logprobs).
uint64_t sample_work_bytes(uint32_t vocabulary);
SampleResult sample(const float* logits, uint32_t vocabulary, const Sampling& sampling,
                    const int32_t* history, uint32_t position, void* work, int32_t* top_tokens,
                    float* top_logprobs);

// Uniform in [0, 1), 24 bits, a function of (seed, position) alone: Philox4x32-10.
float uniform_draw(uint64_t seed, uint32_t position);

// Refuses values outside the ranges worker_cuda.h states, naming the field and the value.
Status check_sampling(const Sampling& sampling, uint32_t vocabulary, uint32_t max_top_logprobs);

}  // namespace wcuda::ops
