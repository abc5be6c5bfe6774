// Draws the next token from logits: parameters, rules, and the host version.
//
// The rules apply in this order. All backends share the arithmetic
// (kernels/shared/sampling_math.h), so equal logits give equal tokens everywhere.
//   1. If the logit of any token is NaN or +infinity, the status is kNotFinite.
//   2. Bias is added to the logits; a token whose mask bit is 0 gets -infinity.
//   3. Penalties apply once to each distinct token at positions
//      max(penalty_from, position - penalty_last_n) … position - 1, in f32:
//        l = l > 0 ? l / repetition : l * repetition;  l = (l - count * frequency) - presence
//      If a result is NaN or +infinity, the status is kNotFinite; if all are -infinity, kEmptyMask.
//   4. Log probabilities are the log softmax of the logits after rule 3, without temperature; with
//      has_raw_logprobs, of those before rule 2. With omits_logprob the log probability is 0
//      instead, and no token changes. The alternatives are the top_logprobs largest
//      above -infinity, equal ones by ascending id.
//   5. With temperature 0, the result is the largest logit; of equal ones, the lowest id. Otherwise
//      y = (max - l) / temperature >= 0, and probabilities p = exp(-y) / sum are multiples of 2^-38
//      of the largest. A token with less than half of that is excluded.
//   6. Each enabled filter keeps the first tokens of a ranking, equal ones by ascending id. The
//      probabilities of the kept tokens stay in proportion.
//        top-k    ranks by y and keeps k tokens.
//        typical  ranks by |y - mean of y| (= |-log p - entropy|) to a sum of at least typical_p.
//        top-p    ranks by y, and keeps tokens to a sum of at least top_p.
//        min-p    keeps every token with exp(-y) >= min_p * the largest remaining exp(-y).
//   7. The result is the first token, by ascending id, at which the sum of probabilities exceeds
//      u * total, with u = random_bits(seed, position) / 2^64.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::ops {

// Values of wcuda_row_result.status.
enum class RowStatus : int32_t { kOk = 0, kHeld = 1, kEmptyMask = 2, kNotFinite = 3, kSkipped = 4 };

constexpr uint32_t kMaxPenaltyLastN = 4096;
constexpr uint32_t kDefaultPenaltyLastN = 64;  // when a penalty is on and penalty_last_n is 0

// A checked wcuda_sampling: the parameters for kernels, and the arrays, which may be null. sample()
// reads only the parameters, not the members that say where a step keeps a row.
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

// Returns whether bias, mask or penalties may change logits.
bool changes_logits(const Sampling& sampling);

// Draws the token for position `position`. `history` has the tokens of positions 0 … position - 1;
// the function reads only those that penalties concern. `logits` (vocabulary) are not changed.
// `work` is scratch of sample_work_bytes(vocabulary), aligned to 8. top_tokens and top_logprobs
// have the shape (sampling.top_logprobs), of which the result's top_count are written.
uint64_t sample_work_bytes(uint32_t vocabulary);
SampleResult sample(const float* logits, uint32_t vocabulary, const Sampling& sampling,
                    const int32_t* history, uint32_t position, void* work, int32_t* top_tokens,
                    float* top_logprobs);

// Computes the log probability of a token from `logits` (vocabulary), and the `top` most likely
// tokens. If a logit is NaN or +infinity, or all are -infinity, the status is kNotFinite.
SampleResult token_logprob(const float* logits, uint32_t vocabulary, uint32_t token, uint32_t top,
                           int32_t* top_tokens, float* top_logprobs);

// Rejects values outside the ranges that worker_cuda.h states. The message names field and value.
Status check_sampling(const Sampling& sampling, uint32_t vocabulary, uint32_t max_top_logprobs);

}  // namespace wcuda::ops
