// Sampling on the host: the rules of ops/sampling.h, one function per rule.
#include "llm/ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/base/checked.h"
#include "kernels/shared/sampling_math.h"
#include "llm/ops/sampling_scan.h"

namespace wcuda::ops {
namespace {

namespace math = wcuda::sampling;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Radix of the selections below: 31 bits of a non-negative float in digits of 11, 10 and 10 bits.
constexpr uint32_t kDigitBits[] = {11, 10, 10};
constexpr uint32_t kHistogramCount = 1u << 11;

// Views into the caller's scratch.
struct Work {
  uint64_t* histogram;  // (kHistogramCount)
  float* logits;        // (vocabulary) with bias, mask and penalties
  float* y;             // (vocabulary) rule 5, then of the candidates
  float* p;             // (vocabulary) exp(-y)
  float* keys;          // (vocabulary) of the typical filter
  uint32_t* ids;        // (vocabulary) of the candidates; before that, counts of the penalties
};

Work split(void* work, uint32_t vocabulary) {
  Work w;
  w.histogram = static_cast<uint64_t*>(work);
  w.logits = reinterpret_cast<float*>(w.histogram + kHistogramCount);
  w.y = w.logits + vocabulary;
  w.p = w.y + vocabulary;
  w.keys = w.p + vocabulary;
  w.ids = reinterpret_cast<uint32_t*>(w.keys + vocabulary);
  return w;
}

// Tokens that may still be drawn, by ascending id.
struct Candidates {
  uint32_t count;
  uint32_t* ids;
  float* y;
  float* p;
};

bool has_penalty(const Sampling& s) {
  return (s.repetition_penalty != 0.0f && s.repetition_penalty != 1.0f) ||
         s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f;
}

void apply_bias_and_mask(const Sampling& s, uint32_t vocabulary, float* logits) {
  for (uint32_t i = 0; i < s.bias_count; ++i)
    logits[s.bias_tokens[i]] = math::add(logits[s.bias_tokens[i]], s.bias_values[i]);
  if (s.mask == nullptr) return;
  for (uint32_t first = 0; first < vocabulary; first += 32) {
    const uint32_t word = s.mask[first / 32];
    if (word == 0xffffffffu) continue;
    const uint32_t end = std::min(vocabulary - first, 32u);
    for (uint32_t bit = 0; bit < end; ++bit)
      if (!(word >> bit & 1)) logits[first + bit] = -kInfinity;
  }
}

// `counts` is scratch with one entry per token.
void apply_penalties(const Sampling& s, uint32_t vocabulary, const int32_t* history,
                     uint32_t position, uint32_t* counts, float* logits) {
  const uint32_t last_n = s.penalty_last_n ? s.penalty_last_n : kDefaultPenaltyLastN;
  const uint32_t first = std::max(s.penalty_from, position - std::min(position, last_n));
  const float repetition = s.repetition_penalty != 0.0f ? s.repetition_penalty : 1.0f;
  for (uint32_t i = first; i < position; ++i)
    if (static_cast<uint32_t>(history[i]) < vocabulary) counts[history[i]] = 0;
  for (uint32_t i = first; i < position; ++i)
    if (static_cast<uint32_t>(history[i]) < vocabulary) ++counts[history[i]];
  for (uint32_t i = first; i < position; ++i) {
    if (static_cast<uint32_t>(history[i]) >= vocabulary) continue;
    const uint32_t count = counts[history[i]];
    if (count == 0) continue;  // done already
    counts[history[i]] = 0;
    float& logit = logits[history[i]];
    logit = logit > 0.0f ? math::div(logit, repetition) : math::mul(logit, repetition);
    const float frequency = math::mul(static_cast<float>(count), s.frequency_penalty);
    logit = math::sub(math::sub(logit, frequency), s.presence_penalty);
  }
}

// Finds the `wanted` most likely tokens, descending, equal ones by ascending id; returns how many.
uint32_t top_log_probabilities(const float* logits, uint32_t vocabulary, float max, double log_sum,
                               uint32_t wanted, int32_t* tokens, float* logprobs) {
  uint32_t count = 0;
  float floor = -kInfinity;  // a logit not above it cannot enter
  for (uint32_t id = 0; id < vocabulary; ++id) {
    if (!(logits[id] > floor)) continue;
    const float logprob = math::log_probability(logits[id], max, log_sum);
    if (count == wanted && logprob <= logprobs[count - 1]) continue;
    const float* end = logprobs + count;
    const uint32_t at = static_cast<uint32_t>(
        std::upper_bound(static_cast<const float*>(logprobs), end, logprob, std::greater<>()) -
        logprobs);
    if (count < wanted) ++count;
    for (uint32_t i = count - 1; i > at; --i) {
      logprobs[i] = logprobs[i - 1];
      tokens[i] = tokens[i - 1];
    }
    logprobs[at] = logprob;
    tokens[at] = static_cast<int32_t>(id);
    if (count == wanted) floor = logits[tokens[count - 1]];
  }
  return count;
}

// A cut in a ranking. It keeps every key below `key`, and the first `ties` keys that equal it.
struct Cutoff {
  uint32_t key;
  uint32_t ties;
};

// Returns the shortest beginning of the ranking by ascending (key, id) whose measure is at least
// `needed`, which is between 1 and the measure of all. Keys are non-negative floats.
template <class Measure>
Cutoff select(const Candidates& c, const float* keys, uint64_t needed, Measure measure,
              uint64_t* histogram) {
  uint32_t prefix = 0, shift = 31;
  uint64_t before = 0;
  for (const uint32_t bits : kDigitBits) {
    shift -= bits;
    const uint32_t count = 1u << bits;
    std::fill(histogram, histogram + count, 0);
    for (uint32_t i = 0; i < c.count; ++i) {
      const uint32_t key = math::bit_cast<uint32_t>(keys[i]) >> shift;
      if (key >> bits == prefix) histogram[key & (count - 1)] += measure(i);
    }
    uint32_t bucket = 0;
    while (bucket + 1 < count && before + histogram[bucket] < needed) before += histogram[bucket++];
    prefix = prefix << bits | bucket;
  }
  uint32_t ties = 0;
  for (uint32_t i = 0; i < c.count && before < needed; ++i) {
    if (math::bit_cast<uint32_t>(keys[i]) != prefix) continue;
    before += measure(i);
    ++ties;
  }
  return {prefix, ties};
}

// `keys` may be one of the arrays of the candidates.
void keep(Candidates* c, const float* keys, Cutoff cutoff) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < c->count; ++i) {
    const uint32_t key = math::bit_cast<uint32_t>(keys[i]);
    if (key > cutoff.key || (key == cutoff.key && cutoff.ties == 0)) continue;
    cutoff.ties -= key == cutoff.key;
    c->ids[kept] = c->ids[i];
    c->y[kept] = c->y[i];
    c->p[kept] = c->p[i];
    ++kept;
  }
  c->count = kept;
}

uint64_t total_weight(const Candidates& c) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < c.count; ++i) total += math::weight(c.p[i]);
  return total;
}

void filter_top_k(Candidates* c, uint32_t k, uint64_t* histogram) {
  if (k == 0 || k >= c->count) return;
  keep(c, c->y,
       select(
           *c, c->y, k, [](uint32_t) { return uint64_t{1}; }, histogram));
}

void filter_typical(Candidates* c, float share, float* keys, uint64_t* histogram) {
  if (share == 0.0f || share >= 1.0f) return;
  uint64_t total = 0, sum = 0;  // of p and of y * p, which is below 0.4
  for (uint32_t i = 0; i < c->count; ++i) {
    total += math::weight(c->p[i]);
    sum += math::weight(math::mul(c->y[i], c->p[i]));
  }
  const float mean =
      static_cast<float>(math::div(static_cast<double>(sum), static_cast<double>(total)));
  for (uint32_t i = 0; i < c->count; ++i) keys[i] = std::fabs(math::sub(c->y[i], mean));
  const auto measure = [c](uint32_t i) { return math::weight(c->p[i]); };
  keep(c, keys, select(*c, keys, math::share_of(share, total), measure, histogram));
}

void filter_top_p(Candidates* c, float share, uint64_t* histogram) {
  if (share == 0.0f || share >= 1.0f) return;
  const auto measure = [c](uint32_t i) { return math::weight(c->p[i]); };
  const uint64_t needed = math::share_of(share, total_weight(*c));
  keep(c, c->y, select(*c, c->y, needed, measure, histogram));
}

void filter_min_p(Candidates* c, float share) {
  if (share == 0.0f) return;
  float largest = 0.0f;
  for (uint32_t i = 0; i < c->count; ++i) largest = std::max(largest, c->p[i]);
  const float floor = math::mul(share, largest);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < c->count; ++i) {
    if (!(c->p[i] >= floor)) continue;
    c->ids[kept] = c->ids[i];
    c->y[kept] = c->y[i];
    c->p[kept] = c->p[i];
    ++kept;
  }
  c->count = kept;
}

uint32_t draw(const Candidates& c, uint64_t seed, uint32_t position) {
  const uint64_t target = math::mul_high(math::random_bits(seed, position), total_weight(c));
  uint64_t sum = 0;
  uint32_t i = 0;
  while (i + 1 < c.count && (sum += math::weight(c.p[i])) <= target) ++i;
  return c.ids[i];
}

// Rules 5 to 7 for a temperature above 0.
uint32_t sample_tempered(const Sampling& s, const float* logits, uint32_t vocabulary, float max,
                         uint32_t position, const Work& work) {
  scan_probabilities(logits, vocabulary, max, s.temperature, work.y, work.p);
  Candidates c{0, work.ids, work.y, work.p};
  for (uint32_t id = 0; id < vocabulary; ++id) {
    c.ids[c.count] = id;
    c.y[c.count] = work.y[id];
    c.p[c.count] = work.p[id];
    c.count += math::has_weight(work.p[id]);
  }
  filter_top_k(&c, s.top_k, work.histogram);
  filter_typical(&c, s.typical_p, work.keys, work.histogram);
  filter_top_p(&c, s.top_p, work.histogram);
  filter_min_p(&c, s.min_p);
  return draw(c, s.seed, position);
}

// `max`: the largest logit, which is finite.
SampleResult of_token(const float* logits, uint32_t vocabulary, float max, uint32_t token,
                      uint32_t top, int32_t* top_tokens, float* top_logprobs) {
  const double log_sum = math::log_of_weights(scan_weight_sum(logits, vocabulary, max));
  SampleResult result;
  result.token = static_cast<int32_t>(token);
  result.logprob = math::log_probability(logits[token], max, log_sum);
  if (top > 0)
    result.top_count =
        top_log_probabilities(logits, vocabulary, max, log_sum, top, top_tokens, top_logprobs);
  return result;
}

}  // namespace

bool changes_logits(const Sampling& sampling) {
  return sampling.bias_count > 0 || sampling.mask != nullptr || has_penalty(sampling);
}

SampleResult token_logprob(const float* logits, uint32_t vocabulary, uint32_t token, uint32_t top,
                           int32_t* top_tokens, float* top_logprobs) {
  float max;
  if (scan_max(logits, vocabulary, &max) && max != -kInfinity)
    return of_token(logits, vocabulary, max, token, top, top_tokens, top_logprobs);
  SampleResult result;
  result.status = RowStatus::kNotFinite;
  return result;
}

uint64_t sample_work_bytes(uint32_t vocabulary) {
  return kHistogramCount * sizeof(uint64_t) +
         align_up(uint64_t{vocabulary} * 5 * sizeof(float), sizeof(uint64_t));
}

SampleResult sample(const float* logits, uint32_t vocabulary, const Sampling& sampling,
                    const int32_t* history, uint32_t position, void* work_bytes,
                    int32_t* top_tokens, float* top_logprobs) {
  SampleResult result;
  result.status = RowStatus::kNotFinite;
  const Work work = split(work_bytes, vocabulary);
  float max;
  if (!scan_max(logits, vocabulary, &max)) return result;

  const float* const raw = logits;
  const bool is_changed = changes_logits(sampling);
  if (is_changed) {
    std::copy(logits, logits + vocabulary, work.logits);
    apply_bias_and_mask(sampling, vocabulary, work.logits);
    if (has_penalty(sampling))
      apply_penalties(sampling, vocabulary, history, position, work.ids, work.logits);
    logits = work.logits;
    if (!scan_max(logits, vocabulary, &max)) return result;
  }
  if (max == -kInfinity) {
    result.status = RowStatus::kEmptyMask;
    return result;
  }

  uint32_t token;
  if (sampling.temperature == 0.0f)
    token = scan_find(logits, vocabulary, max);
  else
    token = sample_tempered(sampling, logits, vocabulary, max, position, work);
  if (sampling.omits_logprob) {
    result.status = RowStatus::kOk;
    result.token = static_cast<int32_t>(token);
    return result;
  }
  if (sampling.has_raw_logprobs && is_changed)
    return token_logprob(raw, vocabulary, token, sampling.top_logprobs, top_tokens, top_logprobs);
  return of_token(logits, vocabulary, max, token, sampling.top_logprobs, top_tokens, top_logprobs);
}

}  // namespace wcuda::ops
