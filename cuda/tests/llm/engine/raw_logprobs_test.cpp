// Log probabilities of raw logits, through the C interface, against float64; and steps without any.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::StepResult;

const std::vector<int32_t> kRawPrompt = {1, 5, 9, 2, 7, 5, 5};
constexpr uint32_t kSampled = WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST;
constexpr uint32_t kRawTop = 5;

// The log softmax in double precision.
std::vector<double> log_softmax(const float* logits, uint32_t vocabulary) {
  const double max = *std::max_element(logits, logits + vocabulary);
  double sum = 0.0;
  for (uint32_t i = 0; i < vocabulary; ++i) sum += std::exp(logits[i] - max);
  std::vector<double> result(vocabulary);
  for (uint32_t i = 0; i < vocabulary; ++i) result[i] = logits[i] - max - std::log(sum);
  return result;
}

class RawLogprobs : public testing::EngineFixture {
 protected:
  void SetUp() override {
    EngineFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (uint32_t token = 0; token < vocabulary_; ++token)
      if (token % 3 == 0) mask_[token / 32] |= 1u << token % 32;
  }
  // Bias, mask and penalties in all combinations, greedy or not; `flags` as in wcuda_sampling.
  wcuda_sampling sampling(uint32_t which, uint64_t flags) const {
    wcuda_sampling s = WCUDA_SAMPLING_INIT;
    s.flags = flags;
    s.top_logprobs = kRawTop;
    s.seed = which;
    if ((which & 1) != 0) {
      s.bias_count = bias_tokens_.size();
      s.bias_tokens = bias_tokens_.data();
      s.bias_values = bias_values_.data();
    }
    if ((which & 2) != 0) {
      s.mask = mask_;
      s.mask_words = (vocabulary_ + 31) / 32;
    }
    if ((which & 4) != 0) {
      s.repetition_penalty = 1.7f;
      s.frequency_penalty = 0.3f;
    }
    if ((which & 8) != 0) {
      s.temperature = 1.3f;
      s.top_k = 9;
    }
    return s;
  }
  static constexpr uint32_t kCombinations = 16;

  // Checks a token and its alternatives against vector `logits_row` of the step's logits.
  void expect_raw(const StepResult& step, int32_t token, float logprob, uint64_t top_offset,
                  uint64_t logits_row, const std::string& what) const {
    const std::vector<double> expected =
        log_softmax(&step.logits[logits_row * vocabulary_], vocabulary_);
    EXPECT_NEAR(logprob, expected.at(static_cast<size_t>(token)), 1e-5) << what;
    std::vector<size_t> order(vocabulary_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return expected[a] > expected[b]; });
    for (uint32_t i = 0; i < kRawTop; ++i) {
      EXPECT_EQ(step.top_tokens[top_offset + i], static_cast<int32_t>(order[i]))
          << what << ", " << i;
      EXPECT_NEAR(step.top_logprobs[top_offset + i], expected[order[i]], 1e-5) << what << ", " << i;
    }
  }
  void expect_raw(const StepResult& step, size_t row, const std::string& what) const {
    const wcuda_row_result& result = step.rows.at(row);
    ASSERT_EQ(result.status, WCUDA_ROW_OK) << what;
    ASSERT_EQ(result.top_count, kRawTop) << what;
    expect_raw(step, result.token, result.logprob, result.top_offset, result.logits_offset, what);
  }

  // Tokens that the tiny model would not choose.
  std::vector<int32_t> bias_tokens_ = {3, 6, 4};
  std::vector<float> bias_values_ = {9.5f, 8.0f, 7.0f};
  uint32_t mask_[64] = {};
};
INSTANTIATE_TEST_SUITE_P(Host, RawLogprobs, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, RawLogprobs, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(RawLogprobs, are_the_log_softmax_before_bias_mask_and_penalties_and_change_no_token) {
  create_engine(small_options());
  uint32_t different = 0;
  for (uint32_t which = 0; which < kCombinations; ++which) {
    const wcuda_sampling raw = sampling(which, WCUDA_SAMPLING_RAW_LOGPROBS),
                         changed = sampling(which, 0);
    wcuda_row rows[] = {token_row(create_sequence(), kRawPrompt, kSampled),
                        token_row(create_sequence(), kRawPrompt, kSampled)};
    rows[0].sampling = &raw;
    rows[1].sampling = &changed;
    const StepResult step = wait(submit({rows[0], rows[1]}));

    expect_raw(step, 0, "combination " + std::to_string(which));
    EXPECT_EQ(step.rows[0].token, step.rows[1].token) << which;
    const bool is_same = step.rows[0].logprob == step.rows[1].logprob;
    EXPECT_TRUE(is_same || which % 8 != 0) << which;  // of 0 and 8 nothing changes the logits
    different += !is_same;
    for (const wcuda_sequence sequence : sequences_) wcuda_sequence_destroy(sequence);
    sequences_.clear();
  }
  EXPECT_GE(different, 12u);
}

// On a device steps of single tokens are graphs. A row without the flag has the same bits next to
// rows with it, and its class keeps its graph.
TEST_P(RawLogprobs, come_from_steps_of_single_tokens_in_flight_and_leave_other_rows_alone) {
  wcuda_engine_options options = small_options();
  options.flags = WCUDA_ENGINE_BATCH_INVARIANT;
  create_engine(options);
  const wcuda_sampling raw = sampling(5, WCUDA_SAMPLING_RAW_LOGPROBS), plain = sampling(12, 0);
  const auto start = [&](wcuda_sequence sequence, const wcuda_sampling& s) {
    wcuda_row row = token_row(sequence, kRawPrompt, kSampled);
    row.sampling = &s;
    wait(submit({row}));
  };
  const auto fed = [&](wcuda_sequence sequence, const wcuda_sampling& s) {
    wcuda_row row = feed_row(sequence, kSampled);
    row.sampling = &s;
    return row;
  };
  const wcuda_sequence alone[] = {create_sequence(), create_sequence()};
  for (const wcuda_sequence sequence : alone) start(sequence, plain);
  std::vector<StepResult> expected;
  for (int i = 0; i < 6; ++i)
    expected.push_back(wait(submit({fed(alone[0], plain), fed(alone[1], plain)})));

  const wcuda_sequence with = create_sequence(), without = create_sequence();
  start(with, raw);
  start(without, plain);
  std::vector<uint64_t> tickets;
  for (size_t i = 0; i < 6; ++i) {
    tickets.push_back(submit({fed(with, raw), fed(without, plain)}));
    if (i == 0) continue;
    const StepResult step = wait(tickets[i - 1]);
    expect_raw(step, 0, "step " + std::to_string(i - 1));
    EXPECT_EQ(step.rows[1].token, expected[i - 1].rows[0].token);
    EXPECT_EQ(step.rows[1].logprob, expected[i - 1].rows[0].logprob);
    for (uint32_t top = 0; top < kRawTop; ++top)
      EXPECT_EQ(step.top_logprobs[step.rows[1].top_offset + top],
                expected[i - 1].top_logprobs[expected[i - 1].rows[0].top_offset + top]);
  }
  wait(tickets.back());
  if (GetParam() == WCUDA_BACKEND_CUDA) {
    EXPECT_TRUE(expected[0].captured);
    for (int i = 0; i < 2; ++i)
      EXPECT_FALSE(wait(submit({fed(alone[0], plain), fed(alone[1], plain)})).captured);
  }
}

TEST_P(RawLogprobs, of_late_rows_do_not_depend_on_their_masks) {
  create_engine(small_options());
  wcuda_sampling raw = sampling(0, WCUDA_SAMPLING_RAW_LOGPROBS), penalized = raw;
  penalized.presence_penalty = 3.0f;
  constexpr uint32_t kLateFlags = kSampled | WCUDA_ROW_SAMPLE_LATE;
  wcuda_row rows[] = {token_row(create_sequence(), kRawPrompt, kLateFlags),
                      token_row(create_sequence(), kRawPrompt, kLateFlags),
                      token_row(create_sequence(), kRawPrompt, kLateFlags)};
  rows[0].sampling = rows[1].sampling = &raw;
  rows[2].sampling = &penalized;
  wcuda_late_row masked = WCUDA_LATE_ROW_INIT, unmasked = WCUDA_LATE_ROW_INIT;
  masked.mask = mask_;
  masked.mask_words = (vocabulary_ + 31) / 32;
  const uint64_t ticket = submit({rows[0], rows[1], rows[2]});
  const wcuda_late_row late[] = {masked, unmasked, masked};
  ASSERT_OK(wcuda_step_sample(engine_, ticket, late, 3, &error_));
  const StepResult step = wait(ticket);

  for (size_t row = 0; row < 3; ++row) expect_raw(step, row, "late row " + std::to_string(row));
  EXPECT_EQ(step.rows[0].token % 3, 0);
}

class RawDraftLogprobs : public RawLogprobs {
 protected:
  void add_outputs(wcuda_step_output* output) override {
    output->sampled_capacity = 16;
    output->sampled_tokens = tokens_;
    output->sampled_logprobs = logprobs_;
    output->sampled_top_counts = counts_;
  }
  int32_t tokens_[16];
  float logprobs_[16];
  uint32_t counts_[16];
};
INSTANTIATE_TEST_SUITE_P(Host, RawDraftLogprobs, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, RawDraftLogprobs, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(RawDraftLogprobs, are_those_of_each_draft) {
  wcuda_engine_options options = small_options();
  options.max_draft_tokens = 3;
  create_engine(options);
  const wcuda_sampling raw = sampling(5, WCUDA_SAMPLING_RAW_LOGPROBS);
  std::vector<int32_t> drafts;
  wcuda_row first = token_row(create_sequence(), kRawPrompt, kSampled);
  first.sampling = &raw;
  for (int i = 0; i < 3; ++i) {
    drafts.push_back(wait(submit({first})).rows[0].token);
    first.tokens = nullptr;
    first.token_count = 1;
    first.flags = kSampled | WCUDA_ROW_FEED_SAMPLED;
  }
  wcuda_row row = token_row(create_sequence(), kRawPrompt, kSampled);
  row.sampling = &raw;
  row.draft_tokens = drafts.data();
  row.draft_count = 3;
  const StepResult step = wait(submit({row}));

  ASSERT_EQ(step.rows[0].sampled_count, 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_EQ(counts_[i], kRawTop);
    expect_raw(step, tokens_[i], logprobs_[i], i * kRawTop, i, "draft " + std::to_string(i));
  }
}

// Next to a row that has one.
TEST_P(RawLogprobs, can_be_left_out_without_another_token) {
  create_engine(small_options());
  for (uint32_t which = 0; which < 2 * kCombinations; ++which) {
    wcuda_sampling with = sampling(which % kCombinations, 0);
    with.top_logprobs = 0;
    if (with.temperature != 0.0f) with.temperature = which % 3 == 0 ? 1.0f : 0.7f;
    if (which % 4 == 0) with.top_p = 0.8f;
    wcuda_sampling without = with;
    without.flags = WCUDA_SAMPLING_NO_LOGPROB;
    wcuda_row rows[] = {token_row(create_sequence(), kRawPrompt, kSampled),
                        token_row(create_sequence(), kRawPrompt, kSampled)};
    rows[0].sampling = &with;
    rows[1].sampling = &without;
    const StepResult step = wait(submit({rows[0], rows[1]}));

    ASSERT_EQ(step.rows[0].status, WCUDA_ROW_OK);
    ASSERT_EQ(step.rows[1].status, WCUDA_ROW_OK);
    EXPECT_EQ(step.rows[1].token, step.rows[0].token) << which;
    EXPECT_LT(step.rows[0].logprob, 0.0f) << which;
    EXPECT_EQ(step.rows[1].logprob, 0.0f) << which;
    for (const wcuda_sequence sequence : sequences_) wcuda_sequence_destroy(sequence);
    sequences_.clear();
  }
}

TEST_P(RawLogprobs, that_contradict_each_other_or_are_unknown_are_refused) {
  create_engine(small_options());
  const auto refused = [&](uint64_t flags, uint32_t top_logprobs) {
    wcuda_sampling s = sampling(0, flags);
    s.top_logprobs = top_logprobs;
    wcuda_row row = token_row(create_sequence(), kRawPrompt, kSampled);
    row.sampling = &s;
    uint64_t ticket = 0;
    EXPECT_EQ(try_submit({row}, &ticket), WCUDA_INVALID_ARGUMENT) << error_.message;
    return std::string(error_.message);
  };
  EXPECT_NE(refused(4, 0).find("sampling flags"), std::string::npos);
  EXPECT_NE(refused(WCUDA_SAMPLING_NO_LOGPROB, 2).find("top_logprobs 2"), std::string::npos);
  EXPECT_NE(refused(WCUDA_SAMPLING_NO_LOGPROB | WCUDA_SAMPLING_RAW_LOGPROBS, 0).find("LOGPROBS 1"),
            std::string::npos);
}

}  // namespace
}  // namespace wcuda
