// Drawing the next token from logits: parameters, rules, and the host's version.
//
// Rules, in this order; kernels/shared/sampling_math.h has the arithmetic, which every backend
// shares, so that equal logits give equal tokens everywhere.
//   1. A logit that is NaN or +infinity, of any token: kNotFinite.
//   2. Bias is added; a token whose mask bit is 0 gets -infinity.
//   3. Penalties, on the tokens at positions max(penalty_from, position - penalty_last_n) …
//   position - 1,
//      once for each distinct one, in f32:  l = l > 0 ? l / repetition : l * repetition;
//      l = (l - count * frequency) - presence.
//      A result of NaN or +infinity: kNotFinite. All -infinity: kEmptyMask.
//   4. Log probabilities: log softmax of what 3 left, temperature not applied. Alternatives are the
//      top_logprobs largest among the tokens above -infinity, equal ones by ascending id.
//   5. Temperature 0: the largest logit, the lowest id of equal ones. Otherwise
//      y = (max - l) / temperature >= 0 and probabilities p = exp(-y) / sum in multiples of 2^-38
//      of the largest; a token less likely than half of that is out.
//   6. Each filter that is on keeps the first tokens of a ranking, equal ones by ascending id, and
//      leaves the rest's probabilities in proportion:
//        top-k    by y: k tokens.
//        typical  by |y - mean of y| (which is |-log p - entropy|): to a sum of at least typical_p.
//        top-p    by y: to a sum of at least top_p.
//        min-p    every token with exp(-y) >= min_p * the largest exp(-y) left.
//   7. Draw: the first token, by ascending id, where the sum of probabilities passes u * total;
//      u = random_bits(seed, position) / 2^64.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::ops {

// Values of wcuda_row_result.status; 1 is not used.
enum class RowStatus : int32_t { kOk = 0, kEmptyMask = 2, kNotFinite = 3, kSkipped = 4 };

constexpr uint32_t kMaxPenaltyLastN = 4096;
constexpr uint32_t kDefaultPenaltyLastN = 64;  // when a penalty is on and penalty_last_n is 0

// wcuda_sampling, checked: what kernels take, and the arrays, which may be null. sample() reads the
// parameters alone, not where a step keeps a row.
struct Sampling : kernels::SampleRow {
  Sampling() : kernels::SampleRow{} {}
  const int32_t* bias_tokens = nullptr;  // (bias_count) distinct
  const float* bias_values = nullptr;    // (bias_count)
  const uint32_t* mask = nullptr;        // (ceil(vocabulary / 32)) bit set: allowed
};

struct SampleResult {
  RowStatus status = RowStatus::kOk;
  int32_t token = -1;
  float logprob = 0.0f;
  uint32_t top_count = 0;
};

// Draws the token for `position` (the position it will have). `history` holds the tokens of
// positions 0 … position - 1; it is read only where penalties look. `logits` (vocabulary) are not
// changed; `work` is scratch of sample_work_bytes(vocabulary), aligned to 8. top_tokens,
// top_logprobs: (sampling.top_logprobs), of which the result's top_count are written.
uint64_t sample_work_bytes(uint32_t vocabulary);
SampleResult sample(const float* logits, uint32_t vocabulary, const Sampling& sampling,
                    const int32_t* history, uint32_t position, void* work, int32_t* top_tokens,
                    float* top_logprobs);

// Refuses values outside the ranges worker_cuda.h states, naming the field and the value.
Status check_sampling(const Sampling& sampling, uint32_t vocabulary, uint32_t max_top_logprobs);

}  // namespace wcuda::ops
