// sample: the tokens that may be drawn, and the keys and measures by which filters rank them.
#pragma once

#include "kernels/sampling/sample_row.cuh"

namespace wcuda::kernels {
namespace {

__device__ inline bool has_filter(const SampleRow& row) {
  return row.top_k != 0 || row.min_p != 0.0f || (row.top_p != 0.0f && row.top_p < 1.0f) ||
         (row.typical_p != 0.0f && row.typical_p < 1.0f);
}

constexpr uint32_t kNotRanked = UINT32_MAX;

// A cut in a ranking. It keeps keys below `key`, and keys equal to `key` with ids up to `id`.
struct Cutoff {
  uint32_t key = UINT32_MAX;
  uint32_t id = UINT32_MAX;
  __device__ bool keeps(uint32_t other_key, uint32_t other_id) const {
    return other_key < key || (other_key == key && other_id <= id);
  }
};

// Tokens that may still be drawn.
struct Candidates {
  float max;
  float temperature;
  Cutoff by_y;
  Cutoff by_typical;
  float mean = -1.0f;    // of y, for typical; negative: not set
  float floor = 0.0f;    // of min-p
  float inverse = 0.0f;  // 1 / temperature where quotient() may use it

  __device__ Candidates(float max_logit, float t) : max(max_logit), temperature(t) {
    // Within these bounds no operation of quotient() overflows or underflows, because a distance is
    // 0 or at least 2^-54.
    const bool is_safe = t > 0x1p-20f && t < 0x1p20f && fabsf(max) > 0x1p-30f &&
                         (__float_as_uint(t) & 0x7fffffu) != 0x7fffffu;
    if (is_safe) inverse = __frcp_rn(t);
  }

  // Returns distance / temperature, correctly rounded: an estimate is corrected twice by its exact
  // remainder (Markstein, Computation of elementary functions on the IBM RISC System/6000, 1990,
  // which excludes divisors whose mantissa is all ones). Beyond 64, where weights are 0, it is 64.
  __device__ __forceinline__ float quotient(float distance) const {
    const float limited = fminf(distance, 64.0f * temperature);
    const float estimate = __fmul_rn(limited, inverse);
    const float closer = __fmaf_rn(__fmaf_rn(-temperature, estimate, limited), inverse, estimate);
    return __fmaf_rn(__fmaf_rn(-temperature, closer, limited), inverse, closer);
  }
  __device__ __forceinline__ float y(float logit) const {
    const float distance = math::sub(max, logit);
    return fabsf(inverse != 0.0f ? quotient(distance) : math::div(distance, temperature));
  }
  __device__ __forceinline__ uint32_t typical_key(float y_value) const {
    return __float_as_uint(fabsf(math::sub(y_value, mean)));
  }
  // Returns math::has_weight(exp_negative(y)); ln 2^39 = 27.03.
  __device__ __forceinline__ static bool has_weight(float y_value) {
    if (y_value < 27.0f) return true;
    if (!(y_value < 27.1f)) return false;
    return math::has_weight(math::exp_negative(y_value));
  }
  // Applies all filters but min-p, which comes last.
  __device__ __forceinline__ bool holds(uint32_t id, float y_value) const {
    if (!has_weight(y_value) || !by_y.keeps(__float_as_uint(y_value), id)) return false;
    return mean < 0.0f || by_typical.keeps(typical_key(y_value), id);
  }
};

// The sums over all weights of a row that its result needs. If the row's temperature is 1, `plain`
// is both.
struct NeededSums {
  bool plain = false;     // at temperature 1, for the log probability
  bool tempered = false;  // at the row's temperature
  NeededSums() = default;
  // With top-k, a list of candidates alone decides what is drawn.
  __device__ NeededSums(const SampleRow& row, bool has_list) {
    const bool is_drawn = row.temperature != 0.0f && !(has_list && row.top_k != 0);
    tempered = is_drawn && row.temperature != 1.0f;
    plain = row.omits_logprob == 0 || (is_drawn && !tempered);
  }
  __device__ bool any() const { return plain || tempered; }
};

// Returns exp_negative(max - logit). One instruction computes a 64th of the distance and limits it
// to 1: beyond 64, as beyond 40, weights are 0.
struct PlainWeight {
  float scaled_max;
  __device__ explicit PlainWeight(float max) : scaled_max(math::mul(max, 0x1p-6f)) {}
  __device__ __forceinline__ float operator()(float logit) const {
    return math::exp_bounded<64>(__saturatef(__fmaf_rn(logit, -0x1p-6f, scaled_max)));
  }
};

// Adds weights of logits to the sums that are needed. for_each(unroll, visit) calls visit(logit)
// for each logit, and is called once if any sum is needed.
template <uint32_t kCount>
struct Unroll {
  static constexpr uint32_t value = kCount;
};
template <class Sum, class ForEach>
__device__ __forceinline__ void add_weights(const Candidates& candidates, NeededSums needed,
                                            Sum* sum, Sum* tempered_sum, ForEach for_each) {
  const PlainWeight plain_weight(candidates.max);
  const auto add = [&](float logit) { sum->add(plain_weight(logit)); };
  const auto add_tempered = [&](float logit) {
    const float y = candidates.quotient(math::sub(candidates.max, logit));
    tempered_sum->add(math::exp_bounded<1>(fabsf(y)));
  };
  if (!needed.tempered) {
    if (needed.plain) for_each(Unroll<2>{}, add);
  } else if (candidates.inverse == 0.0f) {
    for_each(Unroll<1>{}, [&](float logit) {
      if (needed.plain) add(logit);
      tempered_sum->add(math::exp_negative(candidates.y(logit)));
    });
  } else if (needed.plain) {
    for_each(Unroll<1>{}, [&](float logit) {
      add(logit);
      add_tempered(logit);
    });
  } else {
    for_each(Unroll<1>{}, add_tempered);
  }
}

struct RankByCount {  // top-k
  Candidates candidates;
  __device__ __forceinline__ uint32_t key(uint32_t id, float logit) const {
    const float y = candidates.y(logit);
    return candidates.holds(id, y) ? __float_as_uint(y) : kNotRanked;
  }
  __device__ uint64_t measure(float) const { return 1; }
  __device__ uint64_t tie(uint32_t) const { return 1; }
};

struct RankByWeight {  // top-p
  Candidates candidates;
  __device__ __forceinline__ uint32_t key(uint32_t id, float logit) const {
    const float y = candidates.y(logit);
    return candidates.holds(id, y) ? __float_as_uint(y) : kNotRanked;
  }
  __device__ __forceinline__ uint64_t measure(float logit) const {
    return weight(math::exp_negative(candidates.y(logit)));
  }
  __device__ uint64_t tie(uint32_t key) const {
    return weight(math::exp_negative(__uint_as_float(key)));
  }
};

struct RankByTypical {
  Candidates candidates;  // with the mean, before this filter cuts
  __device__ __forceinline__ uint32_t key(uint32_t id, float logit) const {
    const float y = candidates.y(logit);
    return candidates.holds(id, y) ? candidates.typical_key(y) : kNotRanked;
  }
  __device__ __forceinline__ uint64_t measure(float logit) const {
    return weight(math::exp_negative(candidates.y(logit)));
  }
  __device__ uint64_t tie(uint32_t) const { return 0; }
};

struct RankByLogprob {
  float max;
  double log_sum;
  __device__ __forceinline__ uint32_t key(uint32_t, float logit) const {
    if (!(logit > -__builtin_inff())) return kNotRanked;
    return __float_as_uint(fabsf(math::log_probability(logit, max, log_sum)));
  }
  __device__ uint64_t measure(float) const { return 1; }
  __device__ uint64_t tie(uint32_t) const { return 1; }
};

}  // namespace
}  // namespace wcuda::kernels
