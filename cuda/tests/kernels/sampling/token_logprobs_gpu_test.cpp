// Log probabilities of tokens on the device against the host's, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/sampling/token_logprobs.h"
#include "llm/ops/sampling.h"
#include "support/device_array.h"
#include "support/device_launch.h"

namespace wcuda::ops {
namespace {

using testing::DeviceArray;

constexpr uint32_t kScoredTop = 128;

uint32_t bits_of(float value) {
  uint32_t result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

// Logits of every kind, also those whose most likely tokens a threshold does not separate.
std::vector<float> scored_logits(std::mt19937& generator, uint32_t vocabulary, uint32_t kind) {
  std::normal_distribution<float> normal(0.0f, kind % 2 == 0 ? 3.0f : 0.1f);
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) logit = normal(generator);
  switch (kind) {
    case 2:  // many ties
      for (float& logit : logits) logit = std::round(logit);
      break;
    case 3:  // all equal: the list is too long
      std::fill(logits.begin(), logits.end(), -1.25f);
      break;
    case 4:
      for (float& logit : logits)
        if (generator() % 2 != 0) logit = -std::numeric_limits<float>::infinity();
      logits.back() = 0.5f;
      break;
    case 5:  // the best tokens are of one thread
      for (uint32_t id = 7; id < vocabulary; id += 1024) logits[id] += 50.0f;
      break;
    case 6:  // logits differ, but log probabilities are equal
      for (float& logit : logits) logit *= 1e-12f;
      break;
    case 7:
      for (float& logit : logits) logit = std::max(-3e38f, std::min(3e38f, logit * 1e38f));
      break;
    default:
      break;
  }
  return logits;
}

TEST(GpuTokenLogprobs, of_raw_logits_have_the_bits_of_the_host) {
  for (const uint32_t vocabulary : {1u, 31u, 33u, 1000u, 1024u, 1025u, 49152u, 128256u, 151937u}) {
    std::mt19937 generator(vocabulary);
    constexpr uint32_t kRows = 48, kStride = 4;
    std::vector<float> logits;
    std::vector<kernels::SampleRow> rows(kRows);
    std::vector<int32_t> history(kRows * kStride), statuses(kRows, kernels::kRowOk);
    for (uint32_t i = 0; i < kRows; ++i) {
      const std::vector<float> own = scored_logits(generator, vocabulary, i % 8);
      logits.insert(logits.end(), own.begin(), own.end());
      kernels::SampleRow& row = rows[i];
      row = {};
      row.is_sampled = i % 11 != 5;
      row.has_raw_logprobs = i % 7 != 6;
      row.raw_top_logprobs = std::min(std::vector<uint32_t>{0, 1, 5, 20, 128}[i % 5], vocabulary);
      row.logits_row = kRows - 1 - i;
      row.sequence_slot = (i + 3) % kRows;
      row.position = i % kStride;
      history[row.sequence_slot * kStride + row.position] =
          static_cast<int32_t>(generator() % vocabulary);
      if (i % 13 == 12) statuses[i] = kernels::kRowEmptyMask;
    }
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<kernels::SampleRow> device_rows(rows);
    const DeviceArray<int32_t> device_history(history), device_statuses(statuses);
    const kernels::SampleOutput before{kernels::kRowOk, 3, 77.0f, 99};
    DeviceArray<kernels::SampleOutput> outputs(std::vector<kernels::SampleOutput>(kRows, before));
    DeviceArray<int32_t> top_tokens(std::vector<int32_t>(kRows * kScoredTop, -9));
    DeviceArray<float> top_logprobs(std::vector<float>(kRows * kScoredTop, 9.0f));
    kernels::RawLogprobsArgs args;
    args.row_count = kRows;
    args.vocabulary = vocabulary;
    args.rows = device_rows.data();
    args.logits = device_logits.data();
    args.history = device_history.data();
    args.history_stride = kStride;
    args.statuses = device_statuses.data();
    args.outputs = outputs.data();
    args.top_stride = kScoredTop;
    args.top_tokens = top_tokens.data();
    args.top_logprobs = top_logprobs.data();
    ASSERT_EQ(kernels::raw_logprobs(args, testing::device_launch()), cudaSuccess);

    const auto written = outputs.read();
    const auto tokens = top_tokens.read();
    const auto logprobs = top_logprobs.read();
    ASSERT_FALSE(written.empty() || tokens.empty() || logprobs.empty());
    for (uint32_t i = 0; i < kRows; ++i) {
      const kernels::SampleRow& row = rows[i];
      std::vector<int32_t> expected_tokens(kScoredTop, -9);
      std::vector<float> expected_logprobs(kScoredTop, 9.0f);
      SampleResult expected{RowStatus::kOk, before.token, before.logprob, before.top_count};
      const bool is_scored =
          row.is_sampled != 0 && row.has_raw_logprobs != 0 && statuses[i] == kernels::kRowOk;
      if (is_scored)
        expected = token_logprob(
            logits.data() + size_t{row.logits_row} * vocabulary, vocabulary,
            static_cast<uint32_t>(history[row.sequence_slot * kStride + row.position]),
            row.raw_top_logprobs, expected_tokens.data(), expected_logprobs.data());
      ASSERT_EQ(expected.status, RowStatus::kOk);
      EXPECT_EQ(bits_of(written[i].logprob), bits_of(expected.logprob))
          << "row " << i << " of vocabulary " << vocabulary;
      ASSERT_EQ(written[i].top_count, expected.top_count)
          << "row " << i << " of vocabulary " << vocabulary;
      EXPECT_EQ(written[i].token, before.token);
      for (uint32_t top = 0; top < kScoredTop; ++top) {
        ASSERT_EQ(tokens[i * kScoredTop + top], expected_tokens[top])
            << "row " << i << ", " << top << " of vocabulary " << vocabulary;
        ASSERT_EQ(bits_of(logprobs[i * kScoredTop + top]), bits_of(expected_logprobs[top]))
            << "row " << i << ", " << top << " of vocabulary " << vocabulary;
      }
    }
  }
}

TEST(GpuTokenLogprobs, of_given_tokens_have_the_bits_of_the_host) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const uint32_t vocabulary : {1u, 33u, 1025u, 49152u, 151937u}) {
    std::mt19937 generator(vocabulary + 1);
    constexpr uint32_t kTokens = 40, kRows = 5;
    std::vector<float> logits;
    std::vector<kernels::ScoredToken> tokens(kTokens);
    std::vector<int32_t> expected_statuses(kRows, kernels::kRowOk);
    expected_statuses[4] = kernels::kRowSkipped;
    const std::vector<int32_t> statuses = expected_statuses;
    for (uint32_t i = 0; i < kTokens; ++i) {
      std::vector<float> own = scored_logits(generator, vocabulary, i % 8);
      // Row 3 has logits that are not finite; so has row 4, which has failed before.
      const uint32_t bad = i % 16;
      if (bad == 3) own[generator() % vocabulary] = infinity;
      if (bad == 8) own[generator() % vocabulary] = -std::numeric_limits<float>::quiet_NaN();
      if (bad == 13) std::fill(own.begin(), own.end(), -infinity);
      tokens[i] = {static_cast<int32_t>(generator() % vocabulary), i % 3,
                   std::vector<uint32_t>{0, 1, 5, 20, 128}[i % 5]};
      if (bad == 3 || bad == 8) tokens[i].row = 3;
      if (bad == 13) tokens[i].row = 4;
      logits.insert(logits.end(), own.begin(), own.end());
    }
    expected_statuses[3] = kernels::kRowNotFinite;
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<kernels::ScoredToken> device_tokens(tokens);
    DeviceArray<int32_t> row_statuses(statuses);
    DeviceArray<float> logprobs(std::vector<float>(kTokens, 77.0f));
    DeviceArray<int32_t> top_tokens(std::vector<int32_t>(kTokens * kScoredTop, -9));
    DeviceArray<float> top_logprobs(std::vector<float>(kTokens * kScoredTop, 9.0f));
    kernels::TokenLogprobsArgs args;
    args.token_count = kTokens;
    args.vocabulary = vocabulary;
    args.tokens = device_tokens.data();
    args.logits = device_logits.data();
    args.top_stride = kScoredTop;
    args.logprobs = logprobs.data();
    args.top_tokens = top_tokens.data();
    args.top_logprobs = top_logprobs.data();
    args.row_statuses = row_statuses.data();
    ASSERT_EQ(kernels::token_logprobs(args, testing::device_launch()), cudaSuccess);

    EXPECT_EQ(row_statuses.read(), expected_statuses);
    const auto found = logprobs.read();
    const auto found_tokens = top_tokens.read();
    const auto found_logprobs = top_logprobs.read();
    ASSERT_FALSE(found.empty() || found_tokens.empty() || found_logprobs.empty());
    for (uint32_t i = 0; i < kTokens; ++i) {
      std::vector<int32_t> expected_tokens(kScoredTop, -9);
      std::vector<float> expected_logprobs(kScoredTop, 9.0f);
      const SampleResult expected =
          token_logprob(logits.data() + size_t{i} * vocabulary, vocabulary,
                        static_cast<uint32_t>(tokens[i].token), tokens[i].top,
                        expected_tokens.data(), expected_logprobs.data());
      const bool is_ok = expected.status == RowStatus::kOk;
      ASSERT_EQ(is_ok, tokens[i].row < 3) << i;
      for (uint32_t top = expected.top_count; is_ok && top < tokens[i].top; ++top) {
        expected_tokens[top] = -1;
        expected_logprobs[top] = -infinity;
      }
      EXPECT_EQ(bits_of(found[i]), bits_of(is_ok ? expected.logprob : 77.0f))
          << "token " << i << " of vocabulary " << vocabulary;
      for (uint32_t top = 0; top < kScoredTop; ++top) {
        ASSERT_EQ(found_tokens[i * kScoredTop + top], expected_tokens[top])
            << "token " << i << ", " << top << " of vocabulary " << vocabulary;
        ASSERT_EQ(bits_of(found_logprobs[i * kScoredTop + top]), bits_of(expected_logprobs[top]))
            << "token " << i << ", " << top << " of vocabulary " << vocabulary;
      }
    }
  }
}

}  // namespace
}  // namespace wcuda::ops
