// The ranges of sampling parameters.
#include <cmath>
#include <limits>
#include <vector>

#include "llm/ops/sampling.h"

namespace wcuda::ops {
namespace {

Status check_range(const char* field, float value, float low, float high, const char* range) {
  if (value >= low && value <= high) return {};  // false for NaN
  return invalid_argument("sampling: %s is %g, not in %s", field, static_cast<double>(value),
                          range);
}

Status check_bias(const Sampling& s, uint32_t vocabulary) {
  if (s.bias_count == 0) return {};
  if (s.bias_tokens == nullptr || s.bias_values == nullptr)
    return invalid_argument("sampling: bias_count is %u but %s is NULL", s.bias_count,
                            s.bias_tokens == nullptr ? "bias_tokens" : "bias_values");
  if (s.bias_count > vocabulary)
    return invalid_argument("sampling: bias_count is %u, the vocabulary has %u tokens",
                            s.bias_count, vocabulary);
  std::vector<bool> seen(vocabulary);
  for (uint32_t i = 0; i < s.bias_count; ++i) {
    const int32_t token = s.bias_tokens[i];
    if (token < 0 || static_cast<uint32_t>(token) >= vocabulary)
      return Status::error(WCUDA_OUT_OF_RANGE,
                           "sampling: bias_tokens[%u] is %d, the vocabulary has %u tokens", i,
                           token, vocabulary);
    if (seen[static_cast<uint32_t>(token)])
      return invalid_argument("sampling: bias_tokens[%u] repeats token %d", i, token);
    seen[static_cast<uint32_t>(token)] = true;
    const float value = s.bias_values[i];
    if (std::isnan(value) || value == std::numeric_limits<float>::infinity())
      return invalid_argument("sampling: bias_values[%u] is %g, neither finite nor -infinity", i,
                              static_cast<double>(value));
  }
  return {};
}

}  // namespace

Status check_sampling(const Sampling& s, uint32_t vocabulary, uint32_t max_top_logprobs) {
  constexpr float kMax = std::numeric_limits<float>::max();
  WCUDA_TRY(check_range("temperature", s.temperature, 0.0f, kMax, "[0, infinity)"));
  WCUDA_TRY(check_range("top_p", s.top_p, 0.0f, 1.0f, "[0, 1]"));
  WCUDA_TRY(check_range("min_p", s.min_p, 0.0f, 1.0f, "[0, 1]"));
  WCUDA_TRY(check_range("typical_p", s.typical_p, 0.0f, 1.0f, "[0, 1]"));
  WCUDA_TRY(check_range("repetition_penalty", s.repetition_penalty, 0.0f, kMax, "[0, infinity)"));
  WCUDA_TRY(check_range("frequency_penalty", s.frequency_penalty, -kMax, kMax, "finite numbers"));
  WCUDA_TRY(check_range("presence_penalty", s.presence_penalty, -kMax, kMax, "finite numbers"));
  if (s.penalty_last_n > kMaxPenaltyLastN)
    return invalid_argument("sampling: penalty_last_n is %u, at most %u", s.penalty_last_n,
                            kMaxPenaltyLastN);
  if (s.top_logprobs > max_top_logprobs)
    return Status::error(WCUDA_LIMIT_EXCEEDED,
                         "sampling: top_logprobs is %u, the engine's max_top_logprobs %u",
                         s.top_logprobs, max_top_logprobs);
  if (s.omits_logprob && (s.has_raw_logprobs || s.top_logprobs > 0))
    return invalid_argument(
        "sampling: WCUDA_SAMPLING_NO_LOGPROB with top_logprobs %u and RAW_LOGPROBS %u, both must "
        "be 0",
        s.top_logprobs, static_cast<uint32_t>(s.has_raw_logprobs));
  return check_bias(s, vocabulary);
}

}  // namespace wcuda::ops
