// The semantics of steps, sequences and forks, through the C interface.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

class Step : public testing::EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Host, Step, ::testing::Values(WCUDA_BACKEND_HOST), testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, Step, ::testing::Values(WCUDA_BACKEND_CUDA), testing::backend_name);

// Heads that every KV type can hold.
class StepOfKvType : public Step {
 protected:
  testing::TinyModel tiny_model() const override {
    testing::TinyModel tiny = Step::tiny_model();
    tiny.head_length = 64;
    return tiny;
  }
};
INSTANTIATE_TEST_SUITE_P(Host, StepOfKvType, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, StepOfKvType, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);
using testing::StepResult;

const std::vector<int32_t> kPrompt = {1, 5, 9, 2, 7};

// Sampling whose mask allows nothing: the row ends as WCUDA_ROW_EMPTY_MASK.
struct EmptyMask {
  explicit EmptyMask(uint32_t vocabulary) : words((vocabulary + 31) / 32, 0) {
    sampling.mask = words.data();
    sampling.mask_words = words.size();
  }
  std::vector<uint32_t> words;
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
};

TEST_P(Step, chunks_and_single_tokens_give_the_same_logits) {
  create_engine(small_options());
  const wcuda_sequence whole = create_sequence(), split = create_sequence();

  const StepResult once = wait(submit({token_row(whole, kPrompt, WCUDA_ROW_LOGITS_ALL)}));
  std::vector<float> pieces;
  for (const int32_t token : kPrompt) {
    const std::vector<int32_t> one = {token};
    const StepResult step = wait(submit({token_row(split, one, WCUDA_ROW_LOGITS_LAST)}));
    pieces.insert(pieces.end(), step.logits.begin(), step.logits.begin() + vocabulary_);
  }

  ASSERT_EQ(once.rows[0].logits_count, kPrompt.size());
  for (size_t i = 0; i < pieces.size(); ++i)
    ASSERT_NEAR(once.logits[i], pieces[i], 2e-2) << "logit " << i;
}

// From 512 tokens a row on, a step with short heads converts pages that are not f16 before
// attention. Up to 512 tokens it is a graph.
TEST_P(StepOfKvType, long_prompts_in_quantized_pages_have_the_logits_of_short_chunks) {
  wcuda_engine_options options = small_options();
  options.max_batch_tokens = options.max_sequence_tokens = 640;
  options.kv_tokens = 64 * 40;
  for (const int32_t kv_type : {WCUDA_KV_Q8_0, WCUDA_KV_FP8_E4M3, WCUDA_KV_INT10}) {
    options.kv_type = kv_type;
    create_engine(options);
    for (const uint32_t count : {300u, 512u, 600u}) {
      std::vector<int32_t> prompt(count);
      for (uint32_t i = 0; i < count; ++i)
        prompt[i] = static_cast<int32_t>((i * 7 + count + i * i / 5) % vocabulary_);
      const wcuda_sequence split = create_sequence(), whole = create_sequence(),
                           again = create_sequence();
      StepResult expected;
      for (uint32_t first = 0; first < count; first += count / 4) {
        const std::vector<int32_t> part(&prompt[first], &prompt[first] + count / 4);
        expected = wait(submit({token_row(split, part, WCUDA_ROW_LOGITS_LAST)}));
      }
      const std::vector<int32_t> one = {4};

      const StepResult got = wait(submit({token_row(whole, prompt, WCUDA_ROW_LOGITS_LAST)}));
      const StepResult mixed = wait(submit({token_row(split, one, WCUDA_ROW_LOGITS_LAST),
                                            token_row(again, prompt, WCUDA_ROW_LOGITS_LAST)}));

      for (uint32_t i = 0; i < vocabulary_; ++i) {
        ASSERT_NEAR(got.logits[i], expected.logits[i], 2e-2) << kv_type << ", logit " << i;
        ASSERT_NEAR(mixed.logits[vocabulary_ + i], expected.logits[i], 2e-2) << kv_type;
      }
      for (const wcuda_sequence sequence : {split, whole, again}) wcuda_sequence_destroy(sequence);
    }
    wcuda_engine_destroy(engine_);
    engine_ = {0};
  }
}

TEST_P(Step, profiled_steps_give_the_same_bits_and_the_time_of_each_node) {
  create_engine(small_options());
  const wcuda_sequence plain = create_sequence(), profiled = create_sequence();
  const std::vector<int32_t> next = {4};
  wcuda_step_rates rates = WCUDA_STEP_RATES_INIT;
  uint64_t count = 0;
  EXPECT_EQ(wcuda_engine_profile_list(engine_, &rates, 0, nullptr, 0, &count, &error_),
            WCUDA_INVALID_STATE);

  for (const std::vector<int32_t>& tokens : {kPrompt, next}) {
    const StepResult expected = wait(submit({token_row(plain, tokens, WCUDA_ROW_LOGITS_LAST)}));
    ASSERT_OK(wcuda_engine_profile_set(engine_, 1, &error_));
    const uint64_t ticket = submit({token_row(profiled, tokens, WCUDA_ROW_LOGITS_LAST)});
    EXPECT_EQ(wcuda_engine_profile_set(engine_, 0, &error_), WCUDA_INVALID_STATE);
    const StepResult step = wait(ticket);
    std::vector<wcuda_step_node> nodes(64, WCUDA_STEP_NODE_INIT);
    ASSERT_OK(
        wcuda_engine_profile_list(engine_, &rates, 0, nodes.data(), nodes.size(), &count, &error_));
    ASSERT_OK(wcuda_engine_profile_set(engine_, 0, &error_));

    EXPECT_EQ(step.logits, expected.logits);
    ASSERT_LE(count, nodes.size());
    EXPECT_STREQ(nodes[count - 1].operation, "logits");
    for (uint64_t i = 0; i < count; ++i)
      EXPECT_GT(nodes[i].measured_ns, 0.0) << nodes[i].operation << " of layer " << nodes[i].layer;
  }
}

TEST_P(Step, feeding_on_the_device_equals_feeding_by_hand) {
  create_engine(small_options());
  const std::vector<int32_t> fed = generate(kPrompt, 12);

  const wcuda_sequence sequence = create_sequence();
  std::vector<int32_t> next = kPrompt, tokens;
  while (tokens.size() < 12) {
    const StepResult step = wait(submit({token_row(sequence, next, WCUDA_ROW_SAMPLE)}));
    next = {step.rows[0].token};
    tokens.push_back(next[0]);
  }

  EXPECT_EQ(fed, tokens);
}

TEST_P(Step, two_steps_in_flight_equal_one_at_a_time_and_a_third_is_refused) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kPrompt, 6);
  const wcuda_sequence sequence = create_sequence();

  const uint64_t first = submit({token_row(sequence, kPrompt, WCUDA_ROW_SAMPLE)});
  const uint64_t second = submit({feed_row(sequence)});
  uint64_t third = 77;
  EXPECT_EQ(try_submit({feed_row(sequence)}, &third), WCUDA_QUEUE_FULL);
  EXPECT_EQ(third, 77u);
  EXPECT_EQ(length(sequence), kPrompt.size() + 1);
  StepResult ignored;
  EXPECT_EQ(try_wait(second, &ignored), WCUDA_INVALID_STATE);

  std::vector<int32_t> tokens = {wait(first).rows[0].token};
  uint64_t waiting = second;
  while (tokens.size() < 5) {
    const uint64_t next = submit({feed_row(sequence)});
    tokens.push_back(wait(waiting).rows[0].token);
    waiting = next;
  }
  tokens.push_back(wait(waiting).rows[0].token);
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(try_wait(waiting, &ignored), WCUDA_INVALID_ARGUMENT);
}

TEST_P(Step, rows_of_many_sequences_do_not_disturb_each_other) {
  create_engine(small_options());
  const std::vector<int32_t> other = {3, 3, 8, 1, 4, 1, 5, 9, 2, 6};
  const std::vector<int32_t> expected_a = generate(kPrompt, 4), expected_b = generate(other, 4);
  const wcuda_sequence a = create_sequence(), b = create_sequence();

  StepResult step = wait(submit({token_row(a, kPrompt, WCUDA_ROW_SAMPLE)}));
  std::vector<int32_t> tokens_a = {step.rows[0].token}, tokens_b;
  step = wait(submit({feed_row(a), token_row(b, other, WCUDA_ROW_SAMPLE)}));
  for (;;) {
    tokens_a.push_back(step.rows[0].token);
    tokens_b.push_back(step.rows[1].token);
    if (tokens_b.size() == 4) break;
    step = wait(submit({feed_row(a), feed_row(b)}));
  }

  tokens_a.resize(4);
  EXPECT_EQ(tokens_a, expected_a);
  EXPECT_EQ(tokens_b, expected_b);
}

TEST_P(Step, a_fork_continues_like_its_source_and_copies_the_page_it_writes) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kPrompt, 5);
  const wcuda_sequence source = create_sequence();
  const uint64_t free_before = free_pages();
  wait(submit({token_row(source, kPrompt, WCUDA_ROW_SAMPLE)}));

  const wcuda_sequence forked = fork(source);
  EXPECT_EQ(free_pages(), free_before - 1) << "a fork shares its pages";
  const std::vector<int32_t> detour = {11, 12, 13};
  wait(submit({token_row(source, detour, 0)}));
  EXPECT_EQ(free_pages(), free_before - 2);
  std::vector<int32_t> tokens;
  for (int i = 1; i < 5; ++i) tokens.push_back(wait(submit({feed_row(forked)})).rows[0].token);

  EXPECT_EQ(tokens, std::vector<int32_t>(expected.begin() + 1, expected.end()));
  EXPECT_EQ(free_pages(), free_before - 2) << "the last holder of a page writes in place";
}

TEST_P(Step, a_fork_made_while_its_source_is_in_flight_is_fed_what_that_samples) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kPrompt, 2);
  const wcuda_sequence source = create_sequence();

  const uint64_t first = submit({token_row(source, kPrompt, WCUDA_ROW_SAMPLE)});
  const wcuda_sequence forked = fork(source);
  const uint64_t second = submit({feed_row(source), feed_row(forked)});
  wait(first);
  const StepResult step = wait(second);

  EXPECT_EQ(step.rows[0].token, expected[1]);
  EXPECT_EQ(step.rows[1].token, expected[1]);
  int32_t token = -1;
  ASSERT_OK(wcuda_sequence_tokens_get(forked, kPrompt.size(), 1, &token, &error_));
  EXPECT_EQ(token, expected[0]);
}

TEST_P(Step, a_fork_of_a_fork_that_was_made_in_flight_is_fed_the_same_token) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kPrompt, 2);
  const wcuda_sequence source = create_sequence();

  const uint64_t ticket = submit({token_row(source, kPrompt, WCUDA_ROW_SAMPLE)});
  const wcuda_sequence child = fork(source);
  wait(ticket);
  const wcuda_sequence grandchild = fork(child);

  EXPECT_EQ(wait(submit({feed_row(grandchild)})).rows[0].token, expected[1]);
  int32_t token = -1;
  ASSERT_OK(wcuda_sequence_tokens_get(grandchild, kPrompt.size(), 1, &token, &error_));
  EXPECT_EQ(token, expected[0]);
}

TEST_P(Step, a_truncated_fork_made_in_flight_is_fed_what_it_samples_itself) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kPrompt, 2);
  const wcuda_sequence source = create_sequence();
  const uint64_t first = submit({token_row(source, kPrompt, WCUDA_ROW_SAMPLE)});
  const wcuda_sequence forked = fork(source);
  ASSERT_OK(wcuda_sequence_truncate(forked, kPrompt.size() - 1, &error_));
  const std::vector<int32_t> last = {kPrompt.back()};
  const float bias = -INFINITY;
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.bias_count = 1;
  sampling.bias_tokens = &expected[0];
  sampling.bias_values = &bias;
  wcuda_row other = token_row(forked, last, WCUDA_ROW_SAMPLE);
  other.sampling = &sampling;

  const uint64_t second = submit({feed_row(source), other});
  EXPECT_EQ(wait(first).rows[0].token, expected[0]);
  const uint64_t third = submit({feed_row(forked)});
  int32_t token = -1;
  EXPECT_EQ(wcuda_sequence_tokens_get(forked, kPrompt.size(), 1, &token, &error_),
            WCUDA_INVALID_STATE)
      << "the token of the fork is not known before its own step";
  const StepResult step = wait(second);
  wait(third);

  EXPECT_EQ(step.rows[0].token, expected[1]);
  EXPECT_NE(step.rows[1].token, expected[0]);
  ASSERT_OK(wcuda_sequence_tokens_get(forked, kPrompt.size(), 1, &token, &error_));
  EXPECT_EQ(token, step.rows[1].token);
}

TEST_P(Step, truncate_goes_back_in_time) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kPrompt, 3);
  const wcuda_sequence sequence = create_sequence();
  wait(submit({token_row(sequence, kPrompt, 0)}));
  const std::vector<int32_t> detour(80, 4);
  wait(submit({token_row(sequence, detour, 0)}));

  ASSERT_OK(wcuda_sequence_truncate(sequence, kPrompt.size() - 1, &error_));
  uint64_t ticket = 0;
  EXPECT_EQ(try_submit({feed_row(sequence)}, &ticket), WCUDA_INVALID_STATE);
  const std::vector<int32_t> last = {kPrompt.back()};
  std::vector<int32_t> tokens = {
      wait(submit({token_row(sequence, last, WCUDA_ROW_SAMPLE)})).rows[0].token};
  while (tokens.size() < 3) tokens.push_back(wait(submit({feed_row(sequence)})).rows[0].token);

  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(wcuda_sequence_truncate(sequence, 1000, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_STREQ(error_.message, "cannot truncate a sequence of 7 tokens to 1000");
}

TEST_P(Step, a_row_that_ends_badly_takes_its_sequence_and_forks_back) {
  create_engine(small_options());
  EmptyMask empty(vocabulary_);
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  wait(submit({token_row(sequence, kPrompt, 0)}));
  const std::vector<int32_t> more = {3, 4};

  wcuda_row bad = token_row(sequence, more, WCUDA_ROW_SAMPLE);
  bad.sampling = &empty.sampling;
  const uint64_t first = submit({bad, token_row(other, kPrompt, WCUDA_ROW_SAMPLE)});
  const wcuda_sequence forked = fork(sequence);
  const uint64_t second = submit({feed_row(sequence), feed_row(other), feed_row(forked)});
  const StepResult one = wait(first);
  EXPECT_EQ(one.rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(one.rows[0].token, -1);
  EXPECT_EQ(one.rows[1].status, WCUDA_ROW_OK);
  EXPECT_EQ(length(sequence), kPrompt.size());
  EXPECT_EQ(length(forked), kPrompt.size());
  const StepResult two = wait(second);

  EXPECT_EQ(two.rows[0].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(two.rows[1].status, WCUDA_ROW_OK);
  EXPECT_EQ(two.rows[2].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(length(sequence), kPrompt.size());
  EXPECT_EQ(length(other), kPrompt.size() + 1);
  EXPECT_EQ(length(forked), kPrompt.size());
  uint64_t ticket = 0;
  EXPECT_EQ(try_submit({feed_row(sequence)}, &ticket), WCUDA_INVALID_STATE);
}

// The shortest row there is, in the form each decode step has: its one position is given back.
TEST_P(Step, a_failed_row_of_one_token_takes_its_sequence_and_forks_back) {
  create_engine(small_options());
  EmptyMask empty(vocabulary_);
  const wcuda_sequence fresh = create_sequence(), fed = create_sequence();
  wait(submit({token_row(fed, kPrompt, WCUDA_ROW_SAMPLE)}));
  const std::vector<int32_t> one = {3};

  wcuda_row bad_fresh = token_row(fresh, one, WCUDA_ROW_SAMPLE), bad_fed = feed_row(fed);
  bad_fresh.sampling = bad_fed.sampling = &empty.sampling;
  const uint64_t ticket = submit({bad_fresh, bad_fed});
  const wcuda_sequence forked = fork(fed);
  EXPECT_EQ(length(fresh), 1u);
  EXPECT_EQ(length(fed), kPrompt.size() + 1);
  const StepResult step = wait(ticket);

  EXPECT_EQ(step.rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(step.rows[1].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(length(fresh), 0u);
  EXPECT_EQ(length(fed), kPrompt.size());
  EXPECT_EQ(length(forked), kPrompt.size());
}

TEST_P(Step, a_sequence_cut_below_a_bad_row_in_flight_is_not_taken_further_back) {
  create_engine(small_options());
  EmptyMask empty(vocabulary_);
  const wcuda_sequence sequence = create_sequence();
  wait(submit({token_row(sequence, kPrompt, 0)}));
  const std::vector<int32_t> more = {3, 4};

  wcuda_row bad = token_row(sequence, more, WCUDA_ROW_SAMPLE);
  bad.sampling = &empty.sampling;
  const uint64_t first = submit({bad});
  ASSERT_OK(wcuda_sequence_truncate(sequence, 2, &error_));
  const uint64_t second = submit({token_row(sequence, more, WCUDA_ROW_SAMPLE)});

  EXPECT_EQ(wait(first).rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(length(sequence), 4u);
  EXPECT_EQ(wait(second).rows[0].status, WCUDA_ROW_OK);
  EXPECT_EQ(length(sequence), 4u);
}

TEST_P(Step, too_few_pages_is_a_status_with_both_numbers_and_changes_nothing) {
  wcuda_engine_options options = small_options();
  options.kv_tokens = 64 * 2;
  create_engine(options);
  const wcuda_sequence a = create_sequence(), b = create_sequence();
  wait(submit({token_row(a, kPrompt, 0)}));
  const std::vector<int32_t> long_row(90, 3);

  uint64_t ticket = 5;
  EXPECT_EQ(try_submit({token_row(b, long_row, 0)}, &ticket), WCUDA_OUT_OF_PAGES);
  EXPECT_STREQ(error_.message, "the step needs 2 KV pages, 1 of 2 are free");
  EXPECT_EQ(ticket, 5u);
  EXPECT_EQ(length(b), 0u);
  wcuda_sequence_destroy(a);

  EXPECT_EQ(free_pages(), 2u) << "pages of a destroyed sequence serve the next submit";
  wait(submit({token_row(b, long_row, 0)}));
}

TEST_P(Step, a_shared_page_counts_as_needed_when_it_must_be_copied) {
  wcuda_engine_options options = small_options();
  options.kv_tokens = 64 * 2;
  create_engine(options);
  const wcuda_sequence a = create_sequence();
  wait(submit({token_row(a, kPrompt, WCUDA_ROW_SAMPLE)}));
  const wcuda_sequence b = fork(a), c = fork(a);

  uint64_t ticket = 0;
  EXPECT_EQ(try_submit({feed_row(a), feed_row(b), feed_row(c)}, &ticket), WCUDA_OUT_OF_PAGES);
  EXPECT_STREQ(error_.message, "the step needs 2 KV pages, 1 of 2 are free");
  wcuda_sequence_destroy(c);
  const StepResult step = wait(submit({feed_row(a), feed_row(b)}));

  EXPECT_EQ(step.rows[0].token, step.rows[1].token);
}

TEST_P(Step, refuses_what_is_wrong_and_says_where) {
  create_engine(small_options());
  const wcuda_sequence sequence = create_sequence();
  const std::vector<int32_t> outside = {1, static_cast<int32_t>(vocabulary_)};
  const std::vector<int32_t> negative = {-1};
  const std::vector<int32_t> too_long(97, 1);
  uint64_t ticket = 0;

  EXPECT_EQ(try_submit({token_row(sequence, outside, 0)}, &ticket), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(try_submit({token_row(sequence, negative, 0)}, &ticket), WCUDA_OUT_OF_RANGE);
  EXPECT_STREQ(error_.message,
               ("row 0: token 0 is -1, the vocabulary has " + std::to_string(vocabulary_)).c_str());
  EXPECT_EQ(try_submit({token_row(sequence, too_long, 0)}, &ticket), WCUDA_LIMIT_EXCEEDED);
  EXPECT_STREQ(error_.message, "a step of 97 tokens, max_batch_tokens is 96");
  EXPECT_EQ(try_submit({token_row(sequence, {}, 0)}, &ticket), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(try_submit({token_row(sequence, kPrompt, 1u << 30)}, &ticket), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(try_submit({token_row(sequence, kPrompt, 0), token_row(sequence, kPrompt, 0)}, &ticket),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(try_submit({feed_row(sequence)}, &ticket), WCUDA_INVALID_STATE);
  EXPECT_EQ(try_submit({}, &ticket), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(try_submit({token_row({12345}, kPrompt, 0)}, &ticket), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(length(sequence), 0u);
  EXPECT_EQ(ticket, 0u);
}

// 70 is no multiple of a page: the limit itself must stop the sequence, not the pages it has.
TEST_P(Step, a_sequence_holds_exactly_max_sequence_tokens) {
  wcuda_engine_options options = small_options();
  options.max_sequence_tokens = 70;
  create_engine(options);
  const wcuda_sequence whole = create_sequence(), split = create_sequence();
  const std::vector<int32_t> full(70, 3), over(71, 3), most(69, 3), one = {3}, two = {3, 4};
  uint64_t ticket = 0;

  EXPECT_EQ(try_submit({token_row(whole, over, 0)}, &ticket), WCUDA_LIMIT_EXCEEDED);
  EXPECT_STREQ(error_.message, "row 0: 71 tokens after 0 would pass max_sequence_tokens 70");
  wait(submit({token_row(whole, full, WCUDA_ROW_SAMPLE)}));
  EXPECT_EQ(try_submit({token_row(whole, one, 0)}, &ticket), WCUDA_LIMIT_EXCEEDED);
  EXPECT_EQ(try_submit({feed_row(whole)}, &ticket), WCUDA_LIMIT_EXCEEDED);
  wait(submit({token_row(split, most, 0)}));
  EXPECT_EQ(try_submit({token_row(split, two, 0)}, &ticket), WCUDA_LIMIT_EXCEEDED);
  wait(submit({token_row(split, one, 0)}));

  EXPECT_EQ(length(whole), 70u);
  EXPECT_EQ(length(split), 70u);
}

TEST_P(Step, max_logits_rows_limits_the_logits_of_all_rows_together) {
  wcuda_engine_options options = small_options();
  options.max_logits_rows = 8;
  create_engine(options);
  const wcuda_row row = token_row(create_sequence(), kPrompt, WCUDA_ROW_LOGITS_ALL);
  wcuda_row other = token_row(create_sequence(), kPrompt, WCUDA_ROW_LOGITS_ALL);
  uint64_t ticket = 0;

  EXPECT_EQ(try_submit({row, other}, &ticket), WCUDA_LIMIT_EXCEEDED);
  EXPECT_STREQ(error_.message, "a step of 10 rows of logits, max_logits_rows is 8");
  other.token_count = 3;
  const StepResult result = wait(submit({row, other}));
  EXPECT_EQ(result.rows[0].logits_count, 5u);
  EXPECT_EQ(result.rows[1].logits_count, 3u);
}

TEST_P(Step, small_output_buffers_leave_the_ticket_in_flight) {
  create_engine(small_options());
  const wcuda_sequence sequence = create_sequence();
  const uint64_t ticket = submit({token_row(sequence, kPrompt, WCUDA_ROW_LOGITS_ALL)});

  wcuda_row_result row = WCUDA_ROW_RESULT_INIT;
  wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
  output.row_capacity = 1;
  output.rows = &row;
  EXPECT_EQ(wcuda_step_wait(engine_, ticket, -1, &output, &error_), WCUDA_BUFFER_TOO_SMALL);
  EXPECT_EQ(row.token_count, 0u);

  EXPECT_EQ(wait(ticket).rows[0].logits_count, kPrompt.size());

  const uint64_t two_rows = submit({token_row(sequence, kPrompt, WCUDA_ROW_SAMPLE),
                                    token_row(create_sequence(), kPrompt, WCUDA_ROW_SAMPLE)});
  EXPECT_EQ(wcuda_step_wait(engine_, two_rows, -1, &output, &error_), WCUDA_BUFFER_TOO_SMALL);
  EXPECT_STREQ(error_.message, "row_capacity is 1, the step needs 2");
  wait(two_rows);
}

TEST_P(Step, drain_completes_steps_and_ends_their_tickets) {
  create_engine(small_options());
  EmptyMask empty(vocabulary_);
  const wcuda_sequence good = create_sequence(), bad = create_sequence();
  wcuda_row bad_row = token_row(bad, kPrompt, WCUDA_ROW_SAMPLE);
  bad_row.sampling = &empty.sampling;
  const uint64_t ticket = submit({token_row(good, kPrompt, WCUDA_ROW_SAMPLE), bad_row});
  submit({feed_row(good)});

  ASSERT_OK(wcuda_engine_drain(engine_, &error_));

  EXPECT_EQ(length(good), kPrompt.size() + 1);
  EXPECT_EQ(length(bad), 0u);
  StepResult ignored;
  EXPECT_EQ(try_wait(ticket, &ignored), WCUDA_INVALID_ARGUMENT);
  wait(submit({feed_row(good)}));
}

TEST_P(Step, warm_up_changes_no_result_and_loses_no_ticket) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kPrompt, 3);
  const wcuda_sequence sequence = create_sequence();
  const uint64_t ticket = submit({token_row(sequence, kPrompt, WCUDA_ROW_SAMPLE)});

  ASSERT_OK(wcuda_engine_warm_up(engine_, &error_));

  EXPECT_EQ(wait(ticket).rows[0].token, expected[0]);
  EXPECT_EQ(wait(submit({feed_row(sequence)})).rows[0].token, expected[1]);
  EXPECT_EQ(generate(kPrompt, 3), expected);
}

// Prompts in chunks, then single tokens: errors against f16, which has 11 bits.
TEST_P(StepOfKvType, logits_are_as_near_to_those_of_f16_as_the_type_allows) {
  struct {
    int32_t type;
    float largest;  // error of a logit
  } const kinds[] = {{WCUDA_KV_F16, 0.0f},
                     {WCUDA_KV_Q8_0, 0.06f},
                     {WCUDA_KV_FP8_E4M3, 0.3f},
                     {WCUDA_KV_INT10, 0.02f}};
  std::vector<float> expected;
  for (const auto& kind : kinds) {
    wcuda_engine_options options = small_options();
    options.kv_type = kind.type;
    create_engine(options);
    const wcuda_sequence sequence = create_sequence();
    std::vector<float> logits;
    for (const uint32_t count : {80u, 33u, 1u, 1u, 20u, 1u, 1u, 1u}) {
      std::vector<int32_t> part(count);
      for (uint32_t i = 0; i < count; ++i)
        part[i] = static_cast<int32_t>((i * 11 + count + i * i / 3) % vocabulary_);
      const StepResult step = wait(submit({token_row(sequence, part, WCUDA_ROW_LOGITS_LAST)}));
      logits.insert(logits.end(), step.logits.begin(), step.logits.begin() + vocabulary_);
    }
    if (expected.empty()) expected = logits;
    float largest = 0.0f;
    for (size_t i = 0; i < logits.size(); ++i)
      largest = std::max(largest, std::fabs(logits[i] - expected[i]));
    EXPECT_LE(largest, kind.largest) << "KV type " << kind.type;
    std::printf("KV type %d: a logit is off by at most %.1e\n", kind.type, largest);
    wcuda_sequence_destroy(sequence);
    wcuda_engine_destroy(std::exchange(engine_, {0}));
  }
}

TEST_P(StepOfKvType, poisoned_free_pages_never_reach_a_result) {
  wcuda_engine_options options = small_options();
  for (const int32_t kv_type : {WCUDA_KV_F16, WCUDA_KV_Q8_0, WCUDA_KV_FP8_E4M3, WCUDA_KV_INT10}) {
    options.kv_type = kv_type;
    options.flags = 0;
    create_engine(options);
    const std::vector<int32_t> expected = generate(kPrompt, 70);
    wcuda_engine_destroy(engine_);
    options.flags = WCUDA_ENGINE_POISON_FREE_PAGES;
    create_engine(options);

    EXPECT_EQ(generate(kPrompt, 70), expected) << "KV type " << kv_type;
    EXPECT_EQ(generate(kPrompt, 70), expected) << "in used pages, KV type " << kv_type;
    wcuda_engine_destroy(engine_);
    engine_ = {0};
  }
}

TEST_P(Step, a_seed_draws_the_same_tokens_again_and_another_seed_does_not) {
  create_engine(small_options());
  const auto draw = [&](uint64_t seed) {
    wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
    sampling.temperature = 1.5f;
    sampling.seed = seed;
    const wcuda_sequence sequence = create_sequence();
    std::vector<int32_t> tokens;
    wcuda_row row = token_row(sequence, kPrompt, WCUDA_ROW_SAMPLE);
    while (tokens.size() < 24) {
      row.sampling = &sampling;
      tokens.push_back(wait(submit({row})).rows[0].token);
      row = feed_row(sequence);
    }
    return tokens;
  };

  const std::vector<int32_t> tokens = draw(7);
  EXPECT_EQ(draw(7), tokens);
  EXPECT_NE(draw(8), tokens);
}

TEST_P(Step, top_logprobs_descend_and_contain_the_greedy_token) {
  create_engine(small_options());
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.top_logprobs = 5;
  const wcuda_sequence sequence = create_sequence();
  wcuda_row row = token_row(sequence, kPrompt, WCUDA_ROW_SAMPLE);
  row.sampling = &sampling;

  const StepResult step = wait(submit({row}));

  ASSERT_EQ(step.rows[0].top_count, 5u);
  EXPECT_EQ(step.top_tokens[0], step.rows[0].token);
  EXPECT_EQ(step.top_logprobs[0], step.rows[0].logprob);
  EXPECT_TRUE(std::is_sorted(step.top_logprobs.begin(), step.top_logprobs.begin() + 5,
                             std::greater<float>()));
}

TEST_P(Step, a_second_thread_gets_busy_and_may_destroy_a_sequence) {
  create_engine(small_options());
  const wcuda_sequence sequence = create_sequence(), doomed = create_sequence();
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> busy{0}, wrong{0};
  std::thread other([&] {
    while (!stop) {
      wcuda_error error{};
      const wcuda_status status = wcuda_engine_drain(engine_, &error);
      if (status == WCUDA_BUSY) ++busy;
      if (status != WCUDA_BUSY && status != WCUDA_OK) ++wrong;
      if (busy > 0) wcuda_sequence_destroy(doomed);
    }
  });
  const std::vector<int32_t> one = {1};
  for (int i = 0; i < 200; ++i) {
    uint64_t ticket = 0;
    StepResult result;
    wcuda_status status = try_submit({token_row(sequence, one, WCUDA_ROW_SAMPLE)}, &ticket);
    if (status == WCUDA_OK) status = try_wait(ticket, &result);
    if (status != WCUDA_OK && status != WCUDA_BUSY && status != WCUDA_INVALID_ARGUMENT) ++wrong;
    if (length(sequence) > 200) break;
  }
  stop = true;
  other.join();
  ASSERT_OK(wcuda_engine_drain(engine_, &error_));

  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace wcuda
