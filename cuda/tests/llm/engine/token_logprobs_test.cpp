// Log probabilities of a row's own tokens, through the C interface, against float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::StepResult;
using Tokens = std::vector<int32_t>;

constexpr uint32_t kScored = WCUDA_ROW_TOKEN_LOGPROBS;
constexpr uint32_t kScoredTop = 5;

// What a row returns of one token: its log probability, then the alternatives.
struct Score {
  float logprob;
  Tokens top_tokens;
  std::vector<float> top_logprobs;
  bool operator==(const Score& other) const {
    return logprob == other.logprob && top_tokens == other.top_tokens &&
           top_logprobs == other.top_logprobs;
  }
};
using Scores = std::vector<Score>;

class TokenLogprobs : public testing::EngineFixture {
 protected:
  void SetUp() override {
    EngineFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (int32_t i = 0; i < 40; ++i)
      prompt_.push_back((i * 37 + 5) % static_cast<int32_t>(vocabulary_));
    logprobs_.resize(96);
    top_tokens_.resize(size_t{96} * 8);
    top_logprobs_.resize(size_t{96} * 8);
  }
  void create(uint32_t max_logits_rows = 96, uint64_t flags = WCUDA_ENGINE_BATCH_INVARIANT) {
    wcuda_engine_options options = small_options();
    options.flags = flags | WCUDA_ENGINE_TOKEN_LOGPROBS;
    options.max_logits_rows = max_logits_rows;
    create_engine(options);
  }
  void close() {
    for (const wcuda_sequence sequence : std::exchange(sequences_, {}))
      wcuda_sequence_destroy(sequence);
    wcuda_engine_destroy(std::exchange(engine_, {0}));
  }
  void add_outputs(wcuda_step_output* output) override {
    output->token_logprobs_capacity = logprobs_.size();
    output->token_logprobs = logprobs_.data();
    output->token_top_capacity = top_tokens_.size();
    output->token_top_tokens = top_tokens_.data();
    output->token_top_logprobs = top_logprobs_.data();
  }
  wcuda_row scored_row(wcuda_sequence sequence, const Tokens& tokens, int32_t next_token = -1,
                       uint32_t flags = 0) const {
    wcuda_row row = token_row(sequence, tokens, flags | kScored);
    row.next_token = next_token;
    row.token_top_logprobs = kScoredTop;
    return row;
  }
  Scores scores(const StepResult& step, size_t index) const {
    const wcuda_row_result& row = step.rows.at(index);
    Scores all;
    for (uint32_t i = 0; i < row.token_logprobs_count; ++i) {
      const auto top =
          static_cast<std::ptrdiff_t>(row.token_top_offset + uint64_t{i} * row.token_top_count);
      const std::ptrdiff_t end = top + row.token_top_count;
      all.push_back({logprobs_[row.token_logprobs_offset + i],
                     {top_tokens_.begin() + top, top_tokens_.begin() + end},
                     {top_logprobs_.begin() + top, top_logprobs_.begin() + end}});
    }
    return all;
  }
  Scores whole_prompt() {
    return scores(wait(submit({scored_row(create_sequence(), prompt_)})), 0);
  }
  // Checks scores of tokens[1 …] against the logits of a row of these tokens.
  void expect_log_softmax(const Scores& found, const Tokens& tokens, const float* logits) const {
    ASSERT_EQ(found.size(), tokens.size() - 1);
    for (size_t t = 0; t < found.size(); ++t, logits += vocabulary_) {
      double sum = 0.0;
      const double max = *std::max_element(logits, logits + vocabulary_);
      for (uint32_t i = 0; i < vocabulary_; ++i) sum += std::exp(logits[i] - max);
      const auto expected = [&](size_t token) { return logits[token] - max - std::log(sum); };
      EXPECT_NEAR(found[t].logprob, expected(static_cast<size_t>(tokens[t + 1])), 1e-5) << t;
      std::vector<size_t> order(vocabulary_);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return expected(a) > expected(b); });
      ASSERT_EQ(found[t].top_tokens.size(), kScoredTop);
      for (size_t i = 0; i < kScoredTop; ++i) {
        EXPECT_EQ(found[t].top_tokens[i], static_cast<int32_t>(order[i])) << t << ", " << i;
        EXPECT_NEAR(found[t].top_logprobs[i], expected(order[i]), 1e-5) << t << ", " << i;
      }
    }
  }

  // On a device, attention of one token adds in another order than that of a prompt.
  void expect_same(const Scores& found, const Scores& expected) const {
    if (GetParam() == WCUDA_BACKEND_HOST) {
      EXPECT_EQ(found, expected);
      return;
    }
    ASSERT_EQ(found.size(), expected.size());
    for (size_t t = 0; t < found.size(); ++t) {
      EXPECT_NEAR(found[t].logprob, expected[t].logprob, 5e-3) << t;
      ASSERT_EQ(found[t].top_logprobs.size(), kScoredTop);
      for (size_t i = 0; i < kScoredTop; ++i)
        EXPECT_NEAR(found[t].top_logprobs[i], expected[t].top_logprobs[i], 5e-3) << t << ", " << i;
    }
  }

  Tokens prompt_;
  std::vector<float> logprobs_;
  Tokens top_tokens_;
  std::vector<float> top_logprobs_;
};
INSTANTIATE_TEST_SUITE_P(Host, TokenLogprobs, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, TokenLogprobs, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(TokenLogprobs, are_the_log_softmax_of_the_logits_before_each_token) {
  create();
  const int32_t next = 3;
  const StepResult step = wait(submit(
      {scored_row(create_sequence(), prompt_, next, WCUDA_ROW_LOGITS_ALL | WCUDA_ROW_SAMPLE)}));
  Tokens tokens = prompt_;
  tokens.push_back(next);

  EXPECT_EQ(step.rows[0].token_top_count, kScoredTop);
  expect_log_softmax(scores(step, 0), tokens, step.logits.data());
}

TEST_P(TokenLogprobs, without_batch_invariance_are_those_too) {
  create(96, 0);
  for (const uint32_t count : {1u, 2u, 7u, 40u}) {
    const Tokens tokens(prompt_.begin(), prompt_.begin() + count);
    const StepResult step =
        wait(submit({scored_row(create_sequence(), tokens, -1, WCUDA_ROW_LOGITS_ALL)}));
    expect_log_softmax(scores(step, 0), tokens, step.logits.data());
  }
}

TEST_P(TokenLogprobs, need_no_more_logits_at_once_than_the_engine_has) {
  create();
  const Scores expected = whole_prompt();
  const int32_t token =
      wait(submit({token_row(create_sequence(), prompt_, WCUDA_ROW_SAMPLE)})).rows[0].token;
  ASSERT_EQ(expected.size(), prompt_.size() - 1);
  for (const uint32_t rows : {1u, 3u, 39u, 40u}) {
    close();
    create(rows);
    EXPECT_EQ(whole_prompt(), expected) << rows;
    // The logits that are sampled from are computed after those of all parts.
    const StepResult step =
        wait(submit({scored_row(create_sequence(), prompt_, -1, WCUDA_ROW_SAMPLE)}));
    EXPECT_EQ(step.rows[0].token, token);
    EXPECT_EQ(scores(step, 0), expected) << rows;
  }
}

TEST_P(TokenLogprobs, of_chunks_in_flight_are_those_of_the_prompt) {
  create(8);
  const Scores expected = whole_prompt();
  for (const std::vector<std::ptrdiff_t>& ends :
       {std::vector<std::ptrdiff_t>{1, 2, 40}, {16, 39, 40}, {5, 10, 40}}) {
    const wcuda_sequence sequence = create_sequence();
    std::vector<uint64_t> tickets;
    Scores found;
    const auto take = [&](size_t ticket) {
      const Scores part = scores(wait(tickets[ticket]), 0);
      found.insert(found.end(), part.begin(), part.end());
    };
    std::ptrdiff_t begin = 0;
    for (const std::ptrdiff_t end : ends) {
      if (tickets.size() >= 2) take(tickets.size() - 2);
      const bool is_last = end == 40;
      tickets.push_back(submit({scored_row(
          sequence, {prompt_.begin() + begin, prompt_.begin() + end},
          is_last ? -1 : prompt_[static_cast<size_t>(end)], is_last ? WCUDA_ROW_SAMPLE : 0u)}));
      begin = end;
    }
    take(tickets.size() - 2);
    take(tickets.size() - 1);
    expect_same(found, expected);
  }
}

// Rows that decode, a late row and a row without log probabilities are in the same step; graphs of
// steps of single tokens stay what they were.
TEST_P(TokenLogprobs, change_no_other_row_of_the_step) {
  create(16);
  const Scores expected = whole_prompt();
  const Tokens other = {4, 3, 2, 9};
  const Tokens text = generate(other, 6);
  const Scores expected_other = scores(wait(submit({scored_row(create_sequence(), other)})), 0);

  const wcuda_sequence decoding = create_sequence(), late = create_sequence();
  wait(submit({token_row(decoding, other, WCUDA_ROW_SAMPLE)}));
  EXPECT_EQ(wait(submit({feed_row(decoding)})).rows[0].token, text[1]);
  const uint64_t ticket =
      submit({scored_row(create_sequence(), other), feed_row(decoding),
              scored_row(create_sequence(), prompt_),
              scored_row(late, other, -1, WCUDA_ROW_SAMPLE | WCUDA_ROW_SAMPLE_LATE),
              token_row(create_sequence(), other, WCUDA_ROW_SAMPLE)});
  const wcuda_late_row unmasked = WCUDA_LATE_ROW_INIT;
  ASSERT_OK(wcuda_step_sample(engine_, ticket, &unmasked, 1, &error_));
  const uint64_t next = submit({feed_row(decoding), feed_row(late)});
  const StepResult step = wait(ticket);

  EXPECT_EQ(scores(step, 0), expected_other);
  EXPECT_EQ(scores(step, 2), expected);
  EXPECT_EQ(scores(step, 3), expected_other);
  EXPECT_TRUE(scores(step, 1).empty() && scores(step, 4).empty());
  EXPECT_EQ(step.rows[1].token, text[2]);
  EXPECT_EQ(step.rows[3].token, text[0]);
  EXPECT_EQ(step.rows[4].token, text[0]);
  EXPECT_FALSE(step.captured);
  const StepResult after = wait(next);
  EXPECT_EQ(after.rows[0].token, text[3]);
  EXPECT_EQ(after.rows[1].token, text[1]);
  EXPECT_FALSE(wait(submit({feed_row(decoding)})).captured);
}

TEST_P(TokenLogprobs, of_single_tokens_are_those_of_the_prompt) {
  create();
  const Scores expected = whole_prompt();
  const wcuda_sequence sequence = create_sequence();
  Scores found;
  for (size_t i = 0; i + 1 < prompt_.size(); ++i) {
    const Tokens token = {prompt_[i]};
    const Scores one = scores(wait(submit({scored_row(sequence, token, prompt_[i + 1])})), 0);
    found.insert(found.end(), one.begin(), one.end());
  }
  expect_same(found, expected);
  const Tokens last = {prompt_.back()};
  EXPECT_TRUE(scores(wait(submit({scored_row(sequence, last)})), 0).empty());
}

TEST_P(TokenLogprobs, take_the_scratch_memory_of_the_plan_and_none_without_the_flag) {
  wcuda_engine_options options = small_options();
  wcuda_plan without = WCUDA_PLAN_INIT, with = WCUDA_PLAN_INIT;
  ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &without, &error_));
  options.flags = WCUDA_ENGINE_TOKEN_LOGPROBS;
  ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &with, &error_));

  create(96, 0);
  wcuda_engine_info info = WCUDA_ENGINE_INFO_INIT;
  ASSERT_OK(wcuda_engine_info_get(engine_, &info, &error_));

  EXPECT_GE(with.scratch_bytes - without.scratch_bytes, uint64_t{2} * 96 * (20 + 8 * 8));
  EXPECT_EQ(info.scratch_bytes, with.scratch_bytes);
  EXPECT_NE(info.flags & WCUDA_ENGINE_TOKEN_LOGPROBS, 0u);
}

TEST_P(TokenLogprobs, are_refused_where_they_are_not_possible) {
  uint64_t ticket = 0;
  const auto expect_refused = [&](const wcuda_row& row, wcuda_status status, const char* part) {
    EXPECT_EQ(try_submit({row}, &ticket), status) << part;
    EXPECT_NE(std::string(error_.message).find(part), std::string::npos) << error_.message;
  };
  create_engine(small_options());
  expect_refused(scored_row(create_sequence(), prompt_), WCUDA_INVALID_ARGUMENT,
                 "WCUDA_ENGINE_TOKEN_LOGPROBS");
  close();

  create();
  const wcuda_sequence sequence = create_sequence();
  expect_refused(scored_row(sequence, prompt_, static_cast<int32_t>(vocabulary_)),
                 WCUDA_OUT_OF_RANGE, "next token");
  expect_refused(scored_row(sequence, prompt_, -2), WCUDA_OUT_OF_RANGE, "next token");
  wcuda_row row = scored_row(sequence, prompt_);
  row.token_top_logprobs = 9;
  expect_refused(row, WCUDA_LIMIT_EXCEEDED, "token_top_logprobs is 9");
  row = feed_row(sequence);
  row.flags |= kScored;
  expect_refused(row, WCUDA_INVALID_ARGUMENT, "WCUDA_ROW_FEED_SAMPLED");
  row = scored_row(sequence, prompt_, -1, WCUDA_ROW_SAMPLE);
  row.draft_tokens = prompt_.data();
  row.draft_count = 1;
  expect_refused(row, WCUDA_INVALID_ARGUMENT, "WCUDA_ROW_TOKEN_LOGPROBS");

  ticket = submit({scored_row(sequence, prompt_)});
  StepResult step;
  logprobs_.resize(38);
  EXPECT_EQ(try_wait(ticket, &step), WCUDA_BUFFER_TOO_SMALL);
  EXPECT_NE(std::string(error_.message).find("token_logprobs_capacity"), std::string::npos);
  logprobs_.resize(39);
  top_tokens_.resize(39 * kScoredTop - 1);
  EXPECT_EQ(try_wait(ticket, &step), WCUDA_BUFFER_TOO_SMALL);
  EXPECT_NE(std::string(error_.message).find("token_top_capacity"), std::string::npos);
  top_tokens_.resize(39 * kScoredTop);
  EXPECT_EQ(try_wait(ticket, &step), WCUDA_OK) << error_.message;
  EXPECT_EQ(scores(step, 0).size(), 39u);
}

// Of some tokens all logits are NaN.
class TokenLogprobsOfNan : public TokenLogprobs {
 protected:
  testing::TinyModel tiny_model() const override {
    testing::TinyModel tiny = EngineFixture::tiny_model();
    tiny.nan_token = 7;
    tiny.has_output = true;
    return tiny;
  }
};
INSTANTIATE_TEST_SUITE_P(Host, TokenLogprobsOfNan, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, TokenLogprobsOfNan, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(TokenLogprobsOfNan, end_their_row_alone) {
  create(2);
  const Tokens good = {1, 2, 3, 4}, bad = {1, 7, 3, 4};
  const Scores expected = scores(wait(submit({scored_row(create_sequence(), good)})), 0);
  const wcuda_sequence failing = create_sequence();
  const uint64_t ticket =
      submit({scored_row(failing, bad, 5), scored_row(create_sequence(), good)});
  const uint64_t next = submit({scored_row(failing, good)});
  const StepResult step = wait(ticket);

  EXPECT_EQ(step.rows[0].status, WCUDA_ROW_NOT_FINITE);
  EXPECT_EQ(step.rows[0].token_logprobs_count, 0u);
  EXPECT_EQ(scores(step, 1), expected);
  EXPECT_EQ(wait(next).rows[0].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(length(failing), 0u);
  EXPECT_EQ(scores(wait(submit({scored_row(failing, good)})), 0), expected);
}

}  // namespace
}  // namespace wcuda
