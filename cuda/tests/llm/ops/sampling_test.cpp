#include "llm/ops/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/shared/sampling_math.h"

namespace wcuda::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kUntouched = -77;

struct Drawn {
  SampleResult result;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
};

Drawn draw(const std::vector<float>& logits, const Sampling& sampling, uint32_t position = 0,
           const std::vector<int32_t>& history = {}) {
  const uint32_t vocabulary = static_cast<uint32_t>(logits.size());
  // Scratch has no defined contents: nothing may depend on zeros there.
  std::vector<uint64_t> work(sample_work_bytes(vocabulary) / sizeof(uint64_t), 0x3f8000013f800001u);
  Drawn drawn;
  drawn.top_tokens.resize(sampling.top_logprobs + 1, kUntouched);  // one more, which stays as it is
  drawn.top_logprobs.resize(sampling.top_logprobs + 1, kUntouched);
  drawn.result = sample(logits.data(), vocabulary, sampling, history.data(), position, work.data(),
                        drawn.top_tokens.data(), drawn.top_logprobs.data());
  EXPECT_EQ(drawn.top_tokens.back(), kUntouched) << "written past top_logprobs";
  EXPECT_EQ(drawn.top_logprobs.back(), kUntouched) << "written past top_logprobs";
  drawn.top_tokens.pop_back();
  drawn.top_logprobs.pop_back();
  return drawn;
}

int32_t drawn_token(const std::vector<float>& logits, const Sampling& sampling,
                    uint32_t position = 0, const std::vector<int32_t>& history = {}) {
  return draw(logits, sampling, position, history).result.token;
}

Sampling tempered(float temperature, uint64_t seed = 1) {
  Sampling sampling;
  sampling.temperature = temperature;
  sampling.seed = seed;
  return sampling;
}

std::vector<float> random_logits(uint32_t vocabulary, uint32_t seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

// Tokens that come up in `draws` draws at successive positions.
std::vector<uint32_t> count_draws(const std::vector<float>& logits, const Sampling& sampling,
                                  uint32_t draws) {
  std::vector<uint32_t> counts(logits.size());
  std::vector<int32_t> history(draws);
  for (uint32_t position = 0; position < draws; ++position)
    ++counts[static_cast<size_t>(drawn_token(logits, sampling, position, history))];
  return counts;
}

std::vector<int32_t> reachable(const std::vector<float>& logits, const Sampling& sampling) {
  const std::vector<uint32_t> counts = count_draws(logits, sampling, 4000);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) tokens.push_back(static_cast<int32_t>(i));
  return tokens;
}

using Tokens = std::vector<int32_t>;

TEST(SampleGreedy, takes_the_lowest_id_of_equal_maxima) {
  EXPECT_EQ(drawn_token({1, 3, 2, 3, 3}, {}), 1);
  EXPECT_EQ(drawn_token({-1, -0.0f, 0.0f}, {}), 1);
  EXPECT_EQ(drawn_token({-1, 0.0f, -0.0f}, {}), 1);
  for (const uint32_t vocabulary : {1u, 31u, 32u, 33u, 49152u}) {
    std::vector<float> logits(vocabulary, -2.0f);
    EXPECT_EQ(drawn_token(logits, {}), 0) << vocabulary;
    logits.back() = 5.0f;
    EXPECT_EQ(drawn_token(logits, {}), static_cast<int32_t>(vocabulary - 1));
  }
}

TEST(SampleGreedy, ignores_seed_and_filters) {
  Sampling sampling;
  sampling.seed = 99;
  sampling.top_k = 3;
  sampling.min_p = 0.5f;

  EXPECT_EQ(drawn_token({0, 1, 2, 9}, sampling), 3);
}

TEST(Sample, refuses_nan_and_infinity_anywhere) {
  for (const float bad : {kNan, -kNan, kInf})
    for (const size_t at : {size_t{0}, size_t{17}, size_t{32}}) {
      std::vector<float> logits(33, 0.5f);
      logits[at] = bad;
      Sampling masked;
      const uint32_t mask[2] = {1u << 3, 0};
      masked.mask = mask;

      EXPECT_EQ(draw(logits, {}).result.status, RowStatus::kNotFinite);
      EXPECT_EQ(draw(logits, tempered(1)).result.status, RowStatus::kNotFinite);
      EXPECT_EQ(draw(logits, masked).result.status, RowStatus::kNotFinite);
      EXPECT_EQ(draw(logits, masked).result.token, -1);
    }
}

TEST(Sample, refuses_a_sum_that_overflows_to_infinity) {
  const int32_t token = 1;
  const float value = 3e38f;
  Sampling sampling;
  sampling.bias_count = 1;
  sampling.bias_tokens = &token;
  sampling.bias_values = &value;

  EXPECT_EQ(draw({0, 3e38f}, sampling).result.status, RowStatus::kNotFinite);
  EXPECT_EQ(draw({3e38f, 0}, sampling).result.status, RowStatus::kOk);
}

TEST(Sample, accepts_minus_infinity_as_forbidden) {
  const Drawn drawn = draw({-kInf, 1, -kInf}, tempered(1));

  EXPECT_EQ(drawn.result.token, 1);
  EXPECT_EQ(drawn.result.logprob, 0.0f);
}

TEST(Sample, survives_the_largest_finite_logits) {
  const std::vector<float> logits = {-3.4e38f, 3.4e38f, 3.3e38f};
  EXPECT_EQ(drawn_token(logits, {}), 1);
  EXPECT_EQ(drawn_token(logits, tempered(1e-30f)), 1);
  EXPECT_EQ(reachable(logits, tempered(3e38f)), Tokens({1, 2}));  // the first is infinitely far
}

TEST(SampleMask, says_so_when_nothing_is_allowed) {
  for (const uint32_t vocabulary : {1u, 31u, 32u, 33u}) {
    std::vector<uint32_t> mask((vocabulary + 31) / 32);
    if (vocabulary % 32) mask.back() = ~0u << (vocabulary % 32);  // bits past the end mean nothing
    Sampling sampling;
    sampling.mask = mask.data();
    const std::vector<float> logits(vocabulary, 1.0f);

    EXPECT_EQ(draw(logits, sampling).result.status, RowStatus::kEmptyMask);
    mask[(vocabulary - 1) / 32] |= 1u << ((vocabulary - 1) % 32);
    EXPECT_EQ(draw(logits, sampling).result.token, static_cast<int32_t>(vocabulary - 1));
  }
}

TEST(SampleMask, never_lets_a_forbidden_token_through) {
  const std::vector<float> logits = random_logits(1000, 5, 3);
  std::vector<uint32_t> mask(32);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = 0x80000001u << (i % 3);
  Sampling sampling = tempered(2);
  sampling.mask = mask.data();
  sampling.top_logprobs = 20;

  const std::vector<uint32_t> counts = count_draws(logits, sampling, 2000);
  const Drawn drawn = draw(logits, sampling, 0, {});

  for (size_t i = 0; i < counts.size(); ++i)
    EXPECT_TRUE(counts[i] == 0 || (mask[i / 32] >> (i % 32) & 1)) << i;
  for (const int32_t token : drawn.top_tokens)
    EXPECT_TRUE(mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1);
}

TEST(SampleBias, is_added_before_all_else) {
  const int32_t tokens[] = {0, 2};
  const float values[] = {-kInf, 3.0f};
  Sampling sampling;
  sampling.bias_count = 2;
  sampling.bias_tokens = tokens;
  sampling.bias_values = values;
  sampling.top_logprobs = 3;

  const Drawn drawn = draw({5, 1, 0}, sampling);

  EXPECT_EQ(drawn.result.token, 2);
  EXPECT_EQ(drawn.result.top_count, 2u);  // token 0 is forbidden
  EXPECT_EQ(drawn.top_tokens[0], 2);
  EXPECT_EQ(drawn.top_tokens[1], 1);
  EXPECT_FLOAT_EQ(drawn.result.logprob, -std::log1p(std::exp(-2.0f)));
}

TEST(SamplePenalties, divide_positive_and_multiply_negative_logits_once) {
  Sampling sampling;
  sampling.repetition_penalty = 2.0f;
  sampling.top_logprobs = 3;

  const Drawn drawn = draw({4, -1, 2.5f}, sampling, 3, {0, 0, 1});

  EXPECT_EQ(drawn.result.token, 2);  // 2, -2, 2.5
  EXPECT_FLOAT_EQ(drawn.top_logprobs[1] - drawn.top_logprobs[0], -0.5f);
  EXPECT_FLOAT_EQ(drawn.top_logprobs[2] - drawn.top_logprobs[0], -4.5f);
}

TEST(SamplePenalties, count_occurrences_and_presence) {
  Sampling sampling;
  sampling.frequency_penalty = 0.5f;
  sampling.presence_penalty = 0.25f;
  sampling.top_logprobs = 3;

  const Drawn drawn = draw({4, 4, 4}, sampling, 4, {0, 0, 0, 1});

  EXPECT_EQ(drawn.top_tokens, Tokens({2, 1, 0}));
  EXPECT_FLOAT_EQ(drawn.top_logprobs[1] - drawn.top_logprobs[0], -0.75f);
  EXPECT_FLOAT_EQ(drawn.top_logprobs[2] - drawn.top_logprobs[0], -1.75f);
}

TEST(SamplePenalties, look_only_at_their_window) {
  Sampling sampling;
  sampling.presence_penalty = 1.0f;
  sampling.penalty_last_n = 2;
  const Tokens history = {0, 1, 2, 3};

  EXPECT_EQ(drawn_token({3, 3, 3, 3, 0}, sampling, 4, history), 0);
  EXPECT_EQ(drawn_token({3, 3, 3, 3, 0}, sampling, 3, history), 0);
  EXPECT_EQ(drawn_token({3, 3, 3, 3, 0}, sampling, 2, history), 2);
  sampling.penalty_from = 2;
  EXPECT_EQ(drawn_token({3, 3, 3, 3, 0}, sampling, 2, history), 0);
  EXPECT_EQ(drawn_token({0, 0, 3, 2.5f}, sampling, 3, history), 3);
  sampling.penalty_from = 1000;  // beyond the position: nothing
  EXPECT_EQ(drawn_token({3, 3, 3, 3, 0}, sampling, 4, history), 0);
}

TEST(SamplePenalties, default_window_is_64_positions) {
  Sampling sampling;
  sampling.presence_penalty = 1.0f;
  Tokens history(65, 1);
  history[0] = 0;

  EXPECT_EQ(drawn_token({3, 3}, sampling, 65, history), 0);
  EXPECT_EQ(drawn_token({3, 3}, sampling, 1, history), 1);
}

TEST(SampleLogprobs, are_a_log_softmax_before_temperature) {
  for (const uint32_t vocabulary : {1u, 31u, 32u, 33u, 49152u}) {
    const std::vector<float> logits = random_logits(vocabulary, vocabulary, 4);
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - max);
    Sampling sampling = tempered(0.3f, vocabulary);
    sampling.top_logprobs = 128;

    const Drawn drawn = draw(logits, sampling);

    ASSERT_EQ(drawn.result.top_count, std::min(vocabulary, 128u));
    const auto expected = [&](int32_t id) {
      return logits[static_cast<size_t>(id)] - max - std::log(sum);
    };
    EXPECT_NEAR(drawn.result.logprob, expected(drawn.result.token), 2e-6);
    for (uint32_t i = 0; i < drawn.result.top_count; ++i) {
      EXPECT_NEAR(drawn.top_logprobs[i], expected(drawn.top_tokens[i]), 2e-6);
      if (i == 0) continue;
      const bool ordered = drawn.top_logprobs[i] < drawn.top_logprobs[i - 1] ||
                           (drawn.top_logprobs[i] == drawn.top_logprobs[i - 1] &&
                            drawn.top_tokens[i] > drawn.top_tokens[i - 1]);
      EXPECT_TRUE(ordered) << i;
    }
  }
}

TEST(SampleLogprobs, order_equal_ones_by_id) {
  std::vector<float> logits(100, 10.0f);
  logits[9] = 11.0f;
  Sampling sampling;
  for (const uint32_t wanted : {2u, 50u, 100u}) {
    sampling.top_logprobs = wanted;

    const Drawn drawn = draw(logits, sampling);

    ASSERT_EQ(drawn.result.top_count, wanted);
    EXPECT_EQ(drawn.top_tokens[0], 9);
    for (uint32_t i = 1; i < wanted; ++i)
      EXPECT_EQ(drawn.top_tokens[i], static_cast<int32_t>(i <= 9 ? i - 1 : i)) << wanted;
  }
}

// 10 and its successor are 9.5e-7 apart; floats near -90, their distance to the maximum, 7.6e-6.
TEST(SampleLogprobs, order_by_id_where_rounding_makes_different_logits_equal) {
  const float low = 10.0f, high = std::nextafter(10.0f, 11.0f);
  Sampling sampling;
  for (const std::vector<float>& logits :
       {std::vector<float>{low, high, 100.0f}, std::vector<float>{high, low, 100.0f}})
    for (const uint32_t wanted : {1u, 2u, 3u}) {
      sampling.top_logprobs = wanted;
      const Drawn drawn = draw(logits, sampling);

      const Tokens expected = {2, 0, 1};
      EXPECT_EQ(drawn.top_tokens, Tokens(expected.begin(), expected.begin() + wanted));
      if (wanted == 3) {
        EXPECT_EQ(drawn.top_logprobs[1], drawn.top_logprobs[2]);
      }
    }
}

TEST(SampleFilters, top_k_keeps_the_largest_and_lower_ids_of_equal_ones) {
  Sampling sampling = tempered(1);
  sampling.top_k = 3;
  EXPECT_EQ(reachable({1, 2, 1, 1, 2, 0}, sampling), Tokens({0, 1, 4}));
  sampling.top_k = 1;
  EXPECT_EQ(reachable({1, 2, 1, 1, 2, 0}, sampling), Tokens({1}));
  sampling.top_k = 100;
  EXPECT_EQ(reachable({1, 2, 1, 1, 2, 0}, sampling), Tokens({0, 1, 2, 3, 4, 5}));
}

TEST(SampleFilters, top_p_keeps_the_shortest_sum_that_reaches_it) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f),
                                     std::log(0.3f)};
  Sampling sampling = tempered(1);
  for (const auto& [share, kept] : std::vector<std::pair<float, Tokens>>{{0.01f, {1}},
                                                                         {0.39f, {1}},
                                                                         {0.41f, {1, 3}},
                                                                         {0.69f, {1, 3}},
                                                                         {0.71f, {1, 2, 3}},
                                                                         {0.91f, {0, 1, 2, 3}},
                                                                         {1.0f, {0, 1, 2, 3}}}) {
    sampling.top_p = share;
    EXPECT_EQ(reachable(logits, sampling), kept) << share;
  }
}

TEST(SampleFilters, shares_close_to_one_still_drop_the_tail) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.4f), std::log(0.095f),
                                     std::log(0.005f)};
  Sampling top_p = tempered(1), typical = tempered(1);
  top_p.top_p = typical.typical_p = 0.99f;
  EXPECT_EQ(reachable(logits, top_p), Tokens({0, 1, 2}));
  EXPECT_EQ(reachable(logits, typical), Tokens({0, 1, 2}));
  top_p.top_p = typical.typical_p = 1.0f;
  EXPECT_EQ(reachable(logits, top_p), Tokens({0, 1, 2, 3}));
  EXPECT_EQ(reachable(logits, typical), Tokens({0, 1, 2, 3}));
}

TEST(SampleFilters, top_p_counts_equal_tokens_by_id) {
  Sampling sampling = tempered(1);
  sampling.top_p = 0.5f;
  EXPECT_EQ(reachable(std::vector<float>(8, 1.0f), sampling), Tokens({0, 1, 2, 3}));
}

// Weights 2^38, 2^38 and 1: half of them is the first one to the unit.
TEST(SampleFilters, top_p_counts_to_the_last_unit) {
  Sampling sampling = tempered(1);
  sampling.top_p = 0.5f;
  EXPECT_EQ(reachable({0.0f, 0.0f, -26.3f}, sampling), Tokens({0}));
}

TEST(SampleFilters, min_p_is_relative_to_the_best) {
  const std::vector<float> logits = {std::log(0.8f), std::log(0.1f), std::log(0.5f)};
  Sampling sampling = tempered(1);
  sampling.min_p = 0.5f;
  EXPECT_EQ(reachable(logits, sampling), Tokens({0, 2}));
  sampling.min_p = 1.0f;
  EXPECT_EQ(reachable(logits, sampling), Tokens({0}));
}

TEST(SampleFilters, typical_drops_what_says_too_much_or_too_little) {
  // Entropy 1.19 nats; surprises 0.69 1.61 1.61 2.30: the middle two are nearest to it.
  const std::vector<float> logits = {std::log(0.5f), std::log(0.2f), std::log(0.2f),
                                     std::log(0.1f)};
  Sampling sampling = tempered(1);
  sampling.typical_p = 0.3f;
  EXPECT_EQ(reachable(logits, sampling), Tokens({1, 2}));
  sampling.typical_p = 0.15f;
  EXPECT_EQ(reachable(logits, sampling), Tokens({1}));
  sampling.typical_p = 0.5f;
  EXPECT_EQ(reachable(logits, sampling), Tokens({0, 1, 2}));
}

TEST(SampleFilters, work_on_what_the_ones_before_left) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  Sampling sampling = tempered(1);
  sampling.top_k = 2;
  sampling.top_p = 0.6f;  // 0.5 / 0.8 suffices after top-k, not before
  EXPECT_EQ(reachable(logits, sampling), Tokens({0}));
}

// Of the three tokens that top-k leaves, the first is nearest to their mean surprise and suffices;
// with the fourth counted too, the other two would be nearer.
TEST(SampleFilters, typical_measures_only_what_top_k_left) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.2f), std::log(0.2f),
                                     std::log(0.1f)};
  Sampling sampling = tempered(1);
  sampling.top_k = 3;
  sampling.typical_p = 0.5f;
  EXPECT_EQ(reachable(logits, sampling), Tokens({0}));
}

TEST(SampleFilters, min_p_brings_back_nothing_that_top_k_dropped) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  Sampling sampling = tempered(1);
  sampling.top_k = 2;
  sampling.min_p = 0.1f;
  EXPECT_EQ(reachable(logits, sampling), Tokens({0, 1}));
}

TEST(SampleDraw, follows_the_probabilities) {
  const std::vector<float> probabilities = {0.05f, 0.3f, 0.02f, 0.13f, 0.4f, 0.1f};
  std::vector<float> logits;
  for (const float p : probabilities) logits.push_back(2.0f * std::log(p));
  constexpr uint32_t kDraws = 200000;

  const std::vector<uint32_t> counts = count_draws(logits, tempered(2.0f, 42), kDraws);

  double chi_square = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * kDraws;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 20.5);  // 5 degrees of freedom, p = 0.001; the seed is fixed
}

TEST(SampleDraw, is_uniform_over_a_large_flat_vocabulary) {
  constexpr uint32_t kBins = 64, kDraws = 16000;
  const std::vector<float> logits(4096, 3.0f);
  std::vector<uint32_t> bins(kBins);

  for (uint32_t seed = 0; seed < kDraws; ++seed)
    ++bins[static_cast<size_t>(drawn_token(logits, tempered(1, seed), 7)) / (4096 / kBins)];

  double chi_square = 0;
  for (const uint32_t count : bins) chi_square += (count - 250.0) * (count - 250.0) / 250.0;
  EXPECT_LT(chi_square, 103.4);  // 63 degrees of freedom, p = 0.001
}

TEST(SampleDraw, depends_on_seed_and_position_only) {
  const std::vector<float> logits = random_logits(1000, 3, 1);
  std::vector<int32_t> by_position, by_seed, again;
  for (uint32_t i = 0; i < 50; ++i) {
    by_position.push_back(drawn_token(logits, tempered(1, 5), i));
    again.push_back(drawn_token(logits, tempered(1, 5), i, std::vector<int32_t>(i, 3)));
    by_seed.push_back(drawn_token(logits, tempered(1, i), 5));
  }

  EXPECT_EQ(by_position, again);
  EXPECT_NE(by_position, by_seed);
}

TEST(SampleDraw, leaves_the_logits_alone) {
  const std::vector<float> logits = random_logits(33, 3, 1);
  std::vector<float> copy = logits;
  Sampling sampling = tempered(1);
  sampling.presence_penalty = 1;
  sampling.typical_p = 0.5f;

  draw(copy, sampling, 1, {4});

  EXPECT_EQ(copy, logits);
}

TEST(SamplingMath, philox_gives_the_published_vectors) {
  using sampling::Philox;
  const auto words = [](Philox p) { return std::vector<uint32_t>(p.word, p.word + 4); };
  // Random123, kat_vectors, philox4x32 10.
  EXPECT_EQ(words(sampling::philox({{0, 0, 0, 0}}, 0, 0)),
            (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t k = 0xffffffff;
  EXPECT_EQ(words(sampling::philox({{k, k, k, k}}, k, k)),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(sampling::philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822,
                                   0x299f31d0)),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(sampling::random_bits(0, 0), 0x6627e8d5e169c58du);
}

TEST(SamplingMath, exponential_and_logarithm_are_accurate) {
  double worst = 0;
  for (double y = 0; y < 30; y += 0.00037) {
    const float rounded = static_cast<float>(y);
    const double exact = std::exp(-static_cast<double>(rounded));
    worst = std::max(worst, std::fabs(sampling::exp_negative(rounded) / exact - 1));
  }
  EXPECT_LT(worst, 2.4e-7);
  EXPECT_EQ(sampling::exp_negative(0), 1.0f);
  for (float y = 0x1p-140f; y < 40; y *= 1.003f)
    ASSERT_EQ(sampling::exp_bounded<64>(y / 64), sampling::exp_negative(y)) << y;
  EXPECT_EQ(sampling::weight(sampling::exp_bounded<64>(1.0f)), 0u);
  EXPECT_EQ(sampling::weight(sampling::exp_negative(kInf)), 0u);
  EXPECT_EQ(sampling::weight(1.0f), uint64_t{1} << 38);
  EXPECT_EQ(sampling::weight(0.0f), 0u);
  for (double v = 1; v < 2e7; v = v * 1.0001 + 1e-9)
    ASSERT_NEAR(sampling::log_above_one(v), std::log(v), 1e-15 * (1 + std::log(v)) * 3) << v;
}

TEST(SamplingMath, weight_agrees_with_has_weight_at_the_border) {
  const float border = 0x1p-39f;
  for (const float p : {std::nextafter(border, 0.0f), border, std::nextafter(border, 1.0f)})
    EXPECT_EQ(sampling::has_weight(p), sampling::weight(p) > 0) << p;
}

TEST(CheckSampling, names_the_field_and_the_value) {
  const auto code_of = [](auto change) {
    Sampling sampling;
    change(sampling);
    return check_sampling(sampling, 100, 5).code();
  };
  using S = Sampling;
  EXPECT_EQ(code_of([](S&) {}), WCUDA_OK);
  for (const float bad : {-1.0f, kNan, kInf, -kInf}) {
    EXPECT_EQ(code_of([&](S& s) { s.temperature = bad; }), WCUDA_INVALID_ARGUMENT);
    EXPECT_EQ(code_of([&](S& s) { s.top_p = bad; }), WCUDA_INVALID_ARGUMENT);
    EXPECT_EQ(code_of([&](S& s) { s.min_p = bad; }), WCUDA_INVALID_ARGUMENT);
    EXPECT_EQ(code_of([&](S& s) { s.typical_p = bad; }), WCUDA_INVALID_ARGUMENT);
    EXPECT_EQ(code_of([&](S& s) { s.repetition_penalty = bad; }), WCUDA_INVALID_ARGUMENT);
  }
  EXPECT_EQ(code_of([](S& s) { s.top_p = 1.5f; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([](S& s) { s.frequency_penalty = kNan; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([](S& s) { s.frequency_penalty = -2; }), WCUDA_OK);
  EXPECT_EQ(code_of([](S& s) { s.presence_penalty = kInf; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([](S& s) { s.penalty_last_n = 4096; }), WCUDA_OK);
  EXPECT_EQ(code_of([](S& s) { s.penalty_last_n = 4097; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([](S& s) { s.top_logprobs = 5; }), WCUDA_OK);
  EXPECT_EQ(code_of([](S& s) { s.top_logprobs = 6; }), WCUDA_LIMIT_EXCEEDED);
  EXPECT_EQ(code_of([](S& s) { s.bias_count = 1; }), WCUDA_INVALID_ARGUMENT);

  // Ranges include their ends.
  EXPECT_EQ(code_of([](S& s) { s.top_p = s.min_p = s.typical_p = 1.0f; }), WCUDA_OK);
  EXPECT_EQ(code_of([](S& s) { s.temperature = std::numeric_limits<float>::max(); }), WCUDA_OK);

  const auto message_of = [](auto change) {
    Sampling sampling;
    change(sampling);
    return std::string(check_sampling(sampling, 100, 5).message());
  };
  EXPECT_EQ(message_of([](S& s) { s.top_p = 1.5f; }), "sampling: top_p is 1.5, not in [0, 1]");
  EXPECT_EQ(message_of([](S& s) { s.repetition_penalty = -2.0f; }),
            "sampling: repetition_penalty is -2, not in [0, infinity)");
  EXPECT_EQ(message_of([](S& s) { s.penalty_last_n = 4097; }),
            "sampling: penalty_last_n is 4097, at most 4096");
}

TEST(CheckSampling, refuses_to_report_log_probabilities_that_are_left_out) {
  const auto check = [](bool has_raw_logprobs, uint32_t top_logprobs) {
    Sampling sampling;
    sampling.omits_logprob = 1;
    sampling.has_raw_logprobs = has_raw_logprobs;
    sampling.top_logprobs = top_logprobs;
    return check_sampling(sampling, 100, 5);
  };
  EXPECT_TRUE(check(false, 0).ok());
  EXPECT_EQ(check(true, 0).code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(check(false, 1).code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(check(true, 1).message(),
               "sampling: WCUDA_SAMPLING_NO_LOGPROB with top_logprobs 1 and RAW_LOGPROBS 1, both "
               "must be 0");
}

TEST(CheckSampling, refuses_bad_bias_entries) {
  const auto check = [](Tokens tokens, std::vector<float> values) {
    Sampling sampling;
    sampling.bias_count = static_cast<uint32_t>(tokens.size());
    sampling.bias_tokens = tokens.data();
    sampling.bias_values = values.data();
    return check_sampling(sampling, 4, 0);
  };
  const auto code_of = [&](Tokens tokens, std::vector<float> values) {
    return check(std::move(tokens), std::move(values)).code();
  };
  EXPECT_EQ(code_of({0, 3}, {1, -kInf}), WCUDA_OK);
  EXPECT_EQ(code_of({0, 4}, {1, 1}), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(code_of({-1}, {1}), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(code_of({2, 2}, {1, 1}), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(code_of({2}, {kNan}), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(code_of({2}, {kInf}), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(code_of({0, 1, 2, 3, 0}, {1, 1, 1, 1, 1}), WCUDA_INVALID_ARGUMENT);
  Sampling half;
  half.bias_count = 1;
  const float value = 1.0f;
  half.bias_values = &value;
  EXPECT_STREQ(check_sampling(half, 4, 0).message(),
               "sampling: bias_count is 1 but bias_tokens is NULL");
  const int32_t token = 1;
  half.bias_tokens = &token;
  half.bias_values = nullptr;
  EXPECT_STREQ(check_sampling(half, 4, 0).message(),
               "sampling: bias_count is 1 but bias_values is NULL");
  EXPECT_STREQ(check({0, 4}, {1, 1}).message(),
               "sampling: bias_tokens[1] is 4, the vocabulary has 4 tokens");
  EXPECT_STREQ(check({2, 2}, {1, 1}).message(), "sampling: bias_tokens[1] repeats token 2");
  EXPECT_STREQ(check({2}, {kInf}).message(),
               "sampling: bias_values[0] is inf, neither finite nor -infinity");
  EXPECT_STREQ(check({0, 1, 2, 3, 0}, {1, 1, 1, 1, 1}).message(),
               "sampling: bias_count is 5, the vocabulary has 4 tokens");
}

}  // namespace
}  // namespace wcuda::ops
