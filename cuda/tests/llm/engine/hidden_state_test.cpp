// Hidden states as outputs of rows, through the C interface. Their values are compared with those
// of another program in golden_test.cpp.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::StepResult;
using State = std::vector<float>;

class HiddenState : public testing::EngineFixture {
 protected:
  void create(uint64_t flags = 0) {
    wcuda_engine_options options = small_options();
    options.flags = flags | WCUDA_ENGINE_HIDDEN_STATES;
    create_engine(options);
    wcuda_model_info info = WCUDA_MODEL_INFO_INIT;
    ASSERT_OK(wcuda_model_info_get(model_, &info, &error_));
    width_ = info.embedding_length;
    states_.assign(size_t{kMaxRows} * width_, NAN);
  }
  void add_outputs(wcuda_step_output* output) override {
    output->hidden_states_capacity = states_.size();
    output->hidden_states = states_.data();
  }
  State state(const StepResult& step, size_t row) const {
    EXPECT_EQ(step.rows.at(row).hidden_states_count, 1u);
    const auto begin =
        states_.begin() + static_cast<std::ptrdiff_t>(step.rows[row].hidden_states_offset * width_);
    return State(begin, begin + width_);
  }
  // The hidden state of a step with this row alone.
  State run(wcuda_sequence sequence, const std::vector<int32_t>& tokens, uint32_t flag) {
    return state(wait(submit({token_row(sequence, tokens, flag)})), 0);
  }

  uint32_t width_ = 0;
  State states_;
};
INSTANTIATE_TEST_SUITE_P(Host, HiddenState, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, HiddenState, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

const std::vector<int32_t> kHiddenPrompt = {1, 5, 9, 2, 7, 33, 8};

State sum_of(const State& a, const State& b) {
  State sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

void expect_near(const State& a, const State& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "value " << i;
}

TEST_P(HiddenState, sums_of_chunks_add_up_and_first_and_last_are_parts_of_them) {
  create(WCUDA_ENGINE_BATCH_INVARIANT);
  const State whole = run(create_sequence(), kHiddenPrompt, WCUDA_ROW_HIDDEN_SUM);
  const State last = run(create_sequence(), kHiddenPrompt, WCUDA_ROW_HIDDEN_LAST);
  const State first = run(create_sequence(), kHiddenPrompt, WCUDA_ROW_HIDDEN_FIRST);
  const std::vector<int32_t> head = {kHiddenPrompt.begin(), kHiddenPrompt.begin() + 1},
                             tail = {kHiddenPrompt.end() - 1, kHiddenPrompt.end()},
                             middle = {kHiddenPrompt.begin() + 1, kHiddenPrompt.end() - 1};

  const wcuda_sequence split = create_sequence();
  const State head_sum = run(split, head, WCUDA_ROW_HIDDEN_SUM);
  const State middle_sum = run(split, middle, WCUDA_ROW_HIDDEN_SUM);
  const State tail_sum = run(split, tail, WCUDA_ROW_HIDDEN_SUM);

  EXPECT_NE(first, last);
  expect_near(head_sum, first, 1e-2f);
  expect_near(tail_sum, last, 1e-2f);
  expect_near(sum_of(sum_of(head_sum, middle_sum), tail_sum), whole, 5e-2f);
}

TEST_P(HiddenState, stand_in_the_order_of_the_rows_that_ask_and_change_no_other_row) {
  create(WCUDA_ENGINE_BATCH_INVARIANT);
  const std::vector<int32_t> other = {4, 3, 2};
  const State expected_sum = run(create_sequence(), kHiddenPrompt, WCUDA_ROW_HIDDEN_SUM);
  const State expected_last = run(create_sequence(), other, WCUDA_ROW_HIDDEN_LAST);
  const int32_t expected_token =
      wait(submit({token_row(create_sequence(), kHiddenPrompt, WCUDA_ROW_SAMPLE)})).rows[0].token;

  const StepResult step =
      wait(submit({token_row(create_sequence(), kHiddenPrompt, WCUDA_ROW_SAMPLE),
                   token_row(create_sequence(), kHiddenPrompt, WCUDA_ROW_HIDDEN_SUM),
                   token_row(create_sequence(), other, 0),
                   token_row(create_sequence(), other, WCUDA_ROW_HIDDEN_LAST | WCUDA_ROW_SAMPLE)}));

  ASSERT_EQ(step.rows.size(), 4u);
  EXPECT_EQ(step.rows[0].token, expected_token);
  EXPECT_EQ(step.rows[0].hidden_states_count, 0u);
  EXPECT_EQ(step.rows[1].token, -1);
  EXPECT_EQ(step.rows[2].hidden_states_count, 0u);
  EXPECT_GE(step.rows[3].token, 0);
  EXPECT_EQ(step.rows[1].hidden_states_offset, 0u);
  EXPECT_EQ(step.rows[3].hidden_states_offset, 1u);
  EXPECT_EQ(state(step, 1), expected_sum);
  EXPECT_EQ(state(step, 3), expected_last);
}

// On a device such steps are graphs; each of two steps in flight has its own results.
TEST_P(HiddenState, of_single_tokens_come_from_steps_in_flight_between_steps_without) {
  create(WCUDA_ENGINE_BATCH_INVARIANT);
  const std::vector<int32_t> tokens = generate(kHiddenPrompt, 6);
  std::vector<State> expected;
  for (size_t i = 0; i < 5; ++i) {
    std::vector<int32_t> text = kHiddenPrompt;
    text.insert(text.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    expected.push_back(run(create_sequence(), text, WCUDA_ROW_HIDDEN_LAST));
  }

  const wcuda_sequence sequence = create_sequence();
  std::vector<uint64_t> tickets = {submit({token_row(sequence, kHiddenPrompt, WCUDA_ROW_SAMPLE)})};
  for (size_t i = 0; i < 5; ++i) {
    const uint32_t hidden = i == 2 ? 0 : WCUDA_ROW_HIDDEN_LAST;
    tickets.push_back(submit({feed_row(sequence, WCUDA_ROW_SAMPLE | hidden)}));
    const StepResult step = wait(tickets[i]);

    EXPECT_EQ(step.rows[0].token, tokens[i]) << i;
    if (step.rows[0].hidden_states_count == 1) expect_near(state(step, 0), expected[i - 1], 1e-2f);
    EXPECT_EQ(step.rows[0].hidden_states_count, i == 0 || i == 3 ? 0u : 1u) << i;
  }
  expect_near(state(wait(tickets[5]), 0), expected[4], 1e-2f);
}

TEST_P(HiddenState, alone_needs_no_logits) {
  create();
  ASSERT_OK(wcuda_engine_profile_set(engine_, 1, &error_));
  run(create_sequence(), kHiddenPrompt, WCUDA_ROW_HIDDEN_SUM);

  wcuda_step_rates rates = WCUDA_STEP_RATES_INIT;
  std::vector<wcuda_step_node> nodes(64, WCUDA_STEP_NODE_INIT);
  uint64_t count = 0;
  ASSERT_OK(
      wcuda_engine_profile_list(engine_, &rates, 0, nodes.data(), nodes.size(), &count, &error_));

  ASSERT_LE(count, nodes.size());
  EXPECT_STREQ(nodes[count - 1].operation, "hidden_state");
  EXPECT_GT(nodes[count - 1].bytes, 0u);
  for (uint64_t i = 0; i < count; ++i) EXPECT_STRNE(nodes[i].operation, "logits");
}

TEST_P(HiddenState, takes_the_scratch_memory_of_the_plan_and_none_without_the_flag) {
  wcuda_engine_options options = small_options();
  wcuda_plan without = WCUDA_PLAN_INIT, with = WCUDA_PLAN_INIT;
  ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &without, &error_));
  options.flags = WCUDA_ENGINE_HIDDEN_STATES;
  ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &with, &error_));

  create();
  wcuda_engine_info info = WCUDA_ENGINE_INFO_INIT;
  ASSERT_OK(wcuda_engine_info_get(engine_, &info, &error_));

  EXPECT_EQ(with.scratch_bytes - without.scratch_bytes,
            uint64_t{2} * kMaxRows * width_ * sizeof(float));
  EXPECT_EQ(info.scratch_bytes, with.scratch_bytes);
  EXPECT_NE(info.flags & WCUDA_ENGINE_HIDDEN_STATES, 0u);
}

TEST_P(HiddenState, are_refused_where_they_are_not_possible) {
  uint64_t ticket = 0;
  create_engine(small_options());
  EXPECT_EQ(
      try_submit({token_row(create_sequence(), kHiddenPrompt, WCUDA_ROW_HIDDEN_SUM)}, &ticket),
      WCUDA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("WCUDA_ENGINE_HIDDEN_STATES"), std::string::npos);
  for (const wcuda_sequence sequence : std::exchange(sequences_, {}))
    wcuda_sequence_destroy(sequence);
  wcuda_engine_destroy(std::exchange(engine_, {0}));

  create();
  for (const uint32_t flags : {WCUDA_ROW_HIDDEN_LAST | WCUDA_ROW_HIDDEN_FIRST,
                               WCUDA_ROW_HIDDEN_SUM | WCUDA_ROW_HIDDEN_LAST})
    EXPECT_EQ(try_submit({token_row(create_sequence(), kHiddenPrompt, flags)}, &ticket),
              WCUDA_INVALID_ARGUMENT);
  ticket = submit({token_row(create_sequence(), kHiddenPrompt, WCUDA_ROW_HIDDEN_SUM)});
  states_.resize(width_ - 1);
  StepResult step;
  EXPECT_EQ(try_wait(ticket, &step), WCUDA_BUFFER_TOO_SMALL);
  EXPECT_NE(std::string(error_.message).find("hidden_states_capacity"), std::string::npos);
  states_.resize(width_);
  EXPECT_EQ(try_wait(ticket, &step), WCUDA_OK) << error_.message;
}

}  // namespace
}  // namespace wcuda
