// Draft tokens of rows, through the C interface: whatever the drafts are, a sequence gets the
// tokens, log probabilities and alternatives that it gets without them.
#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>

#include "llm/engine/draft_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::all_samplings;
using testing::Drawn;
using testing::kDraftPrompt;
using testing::kStreamTokens;
using testing::StepResult;
using testing::Tokens;

class Drafts : public testing::DraftFixture {};
INSTANTIATE_TEST_SUITE_P(Host, Drafts, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, Drafts, ::testing::Values(WCUDA_BACKEND_CUDA), testing::backend_name);

// The first page ends within the stream, so drafts also lie on both sides of a page border.
TEST_P(Drafts, of_every_length_and_quality_give_the_stream_of_the_run_without) {
  create_engine(draft_options());
  const Tokens bias_tokens = {3, 6, 4};
  const std::vector<float> bias_values = {1.5f, -2.0f, 3.0f};
  Tokens prompt(50);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7 % vocabulary_);
  const uint64_t all_pages = free_pages();
  std::mt19937 generator(3);
  uint32_t accepted = 0, rejected = 0;
  for (const wcuda_sampling& sampling : all_samplings(bias_tokens, bias_values)) {
    const std::vector<Drawn> expected = plain_run(prompt, sampling);
    const Tokens stream = tokens_of(expected);
    for (uint32_t count = 1; count <= WCUDA_ROW_DRAFT_TOKENS_MAX; ++count) {
      const wcuda_sequence sequence = create_sequence();
      std::vector<Drawn> found;
      wcuda_row row = token_row(sequence, prompt, WCUDA_ROW_SAMPLE);
      Tokens last;
      while (found.size() + 16 <= kStreamTokens) {
        const uint32_t good = found.empty() ? count : generator() % (count + 1);
        const Tokens drafts = drafts_for(stream, found.size(), count, good);
        row.sampling = &sampling;
        const StepResult step = wait(submit({drafted(row, drafts)}));

        ASSERT_EQ(step.rows[0].status, WCUDA_ROW_OK);
        const std::vector<Drawn> now = drawn(step, 0);
        ASSERT_EQ(now.size(), good + 1);
        found.insert(found.end(), now.begin(), now.end());
        ASSERT_EQ(length(sequence), prompt.size() + found.size() - 1);
        EXPECT_EQ(step.rows[0].first_position + step.rows[0].token_count, length(sequence));
        EXPECT_EQ(free_pages(), all_pages - (length(sequence) + 63) / 64);
        accepted += good;
        rejected += count - good;
        // Fed back by the device, or given.
        last = {found.back().token};
        row = found.size() % 2 == 0 ? feed_row(sequence)
                                    : token_row(sequence, last, WCUDA_ROW_SAMPLE);
      }
      // And a row without drafts.
      row = feed_row(sequence);
      row.sampling = &sampling;
      found.push_back(drawn(wait(submit({row})), 0).at(0));
      for (size_t i = 0; i < found.size(); ++i)
        ASSERT_EQ(found[i], expected[i]) << "token " << i << " with " << count << " drafts";
      Tokens known(found.size() - 1);
      ASSERT_OK(wcuda_sequence_tokens_get(sequence, 50, static_cast<uint32_t>(known.size()),
                                          known.data(), &error_));
      EXPECT_TRUE(std::equal(known.begin(), known.end(), stream.begin()));
      wcuda_sequence_destroy(sequence);
    }
  }
  EXPECT_EQ(free_pages(), all_pages);
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(rejected, 1000u);
}

// Kernels for few and for many rows add up in different ways, but close to each other.
TEST_P(Drafts, without_batch_invariance_verify_what_the_logits_say) {
  create_engine(draft_options(0));
  const Tokens stream = generate(kDraftPrompt, 17);
  std::vector<std::vector<float>> expected;
  for (uint32_t count : {0u, 15u}) {
    const wcuda_sequence sequence = create_sequence();
    const Tokens first = {stream[0]};
    wait(submit({token_row(sequence, kDraftPrompt, 0)}));
    if (count == 0) {
      for (size_t i = 0; i < 16; ++i) {
        const Tokens token = {stream[i]};
        const StepResult step = wait(submit({token_row(sequence, token, WCUDA_ROW_LOGITS_LAST)}));
        expected.emplace_back(step.logits.begin(), step.logits.begin() + vocabulary_);
      }
      continue;
    }
    const Tokens drafts = drafts_for(stream, 1, count, count);
    const StepResult step = wait(submit(
        {drafted(token_row(sequence, first, WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST), drafts)}));
    const std::vector<Drawn> found = drawn(step, 0);
    ASSERT_EQ(step.rows[0].logits_count, 16u);
    ASSERT_GE(found.size(), 1u);
    for (size_t i = 0; i < 16; ++i) {
      const float* const logits = step.logits.data() + i * vocabulary_;
      for (uint32_t id = 0; id < vocabulary_; ++id)
        ASSERT_NEAR(logits[id], expected[i][id], 4e-1f) << "logit " << id << " of position " << i;
      if (i < found.size()) {
        EXPECT_EQ(found[i].token, std::max_element(logits, logits + vocabulary_) - logits);
      }
    }
  }
}

TEST_P(Drafts, end_at_a_stop_token_and_continue_after_it) {
  create_engine(draft_options());
  const wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  const Tokens stream = tokens_of(plain_run(kDraftPrompt, sampling, 12));
  const Tokens drafts(stream.begin() + 1, stream.begin() + 11);
  const Tokens stops = {-5, stream[4], 1 << 30};
  const auto end =
      static_cast<size_t>(std::find(stream.begin() + 1, stream.end(), stream[4]) - stream.begin());
  const wcuda_sequence sequence = create_sequence();
  wait(submit({token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE)}));
  wcuda_row row = drafted(feed_row(sequence), drafts);
  row.stop_tokens = stops.data();
  row.stop_count = static_cast<uint32_t>(stops.size());

  const StepResult step = wait(submit({row}));

  EXPECT_EQ(tokens_of(drawn(step, 0)), Tokens(stream.begin() + 1, stream.begin() + 1 + end));
  EXPECT_EQ(step.rows[0].token, stream[4]);
  EXPECT_EQ(length(sequence), kDraftPrompt.size() + end);
  for (size_t i = end + 1; i < stream.size(); ++i)
    EXPECT_EQ(wait(submit({feed_row(sequence)})).rows[0].token, stream[i]) << i;
}

TEST_P(Drafts, have_one_mask_each) {
  create_engine(draft_options());
  const size_t words = (vocabulary_ + 31) / 32;
  const auto mask_after = [&](size_t count) {
    std::mt19937 generator(static_cast<uint32_t>(count) + 100);
    std::vector<uint32_t> mask(words);
    for (uint32_t& word : mask) word = static_cast<uint32_t>(generator() & generator());
    return mask;
  };
  const auto masks_from = [&](size_t first, size_t count) {
    std::vector<uint32_t> masks;
    for (size_t i = 0; i < count; ++i) {
      const std::vector<uint32_t> one = mask_after(first + i);
      masks.insert(masks.end(), one.begin(), one.end());
    }
    return masks;
  };
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.temperature = 1.0f;
  sampling.top_logprobs = 2;
  std::vector<Drawn> expected;
  const auto run = [&](size_t draft_count) {
    const wcuda_sequence sequence = create_sequence();
    std::vector<Drawn> stream;
    wcuda_row row = token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE);
    while (stream.size() < 20) {
      const Tokens drafts = drafts_for(tokens_of(expected), stream.size(), draft_count,
                                       draft_count - stream.size() % 2);
      const std::vector<uint32_t> masks = masks_from(stream.size(), 1 + draft_count);
      sampling.mask = masks.data();
      sampling.mask_words = masks.size();
      row.sampling = &sampling;
      const std::vector<Drawn> now = drawn(wait(submit({drafted(row, drafts)})), 0);
      stream.insert(stream.end(), now.begin(), now.end());
      row = feed_row(sequence);
    }
    wcuda_sequence_destroy(sequence);
    return stream;
  };
  expected = run(0);
  const std::vector<Drawn> found = run(4);

  ASSERT_GE(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(found[i], expected[i]) << i;
  // One mask is not enough.
  const Tokens drafts = {1, 2};
  const std::vector<uint32_t> mask = mask_after(0);
  sampling.mask = mask.data();
  sampling.mask_words = mask.size();
  wcuda_row row = token_row(create_sequence(), kDraftPrompt, WCUDA_ROW_SAMPLE);
  row.sampling = &sampling;
  uint64_t ticket = 0;
  EXPECT_EQ(try_submit({drafted(row, drafts)}, &ticket), WCUDA_INVALID_ARGUMENT);
}

// The row that meets the position again ends as it does without drafts.
TEST_P(Drafts, end_before_a_position_at_which_nothing_can_be_sampled) {
  create_engine(draft_options());
  const size_t words = (vocabulary_ + 31) / 32;
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  const Tokens stream = tokens_of(plain_run(kDraftPrompt, sampling, 8));
  const Tokens drafts(stream.begin() + 1, stream.begin() + 7);
  std::vector<uint32_t> masks(7 * words, ~0u);
  std::fill_n(masks.begin() + static_cast<std::ptrdiff_t>(3 * words), words, 0);
  const wcuda_sequence sequence = create_sequence();
  wait(submit({token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE)}));
  sampling.mask = masks.data();
  sampling.mask_words = masks.size();
  wcuda_row row = drafted(feed_row(sequence), drafts);
  row.sampling = &sampling;

  const StepResult step = wait(submit({row}));

  EXPECT_EQ(step.rows[0].status, WCUDA_ROW_OK);
  EXPECT_EQ(tokens_of(drawn(step, 0)), Tokens(stream.begin() + 1, stream.begin() + 4));
  EXPECT_EQ(length(sequence), kDraftPrompt.size() + 3);
  const std::vector<uint32_t> nothing(words, 0);
  sampling.mask = nothing.data();
  sampling.mask_words = words;
  row = feed_row(sequence);
  row.sampling = &sampling;
  EXPECT_EQ(wait(submit({row})).rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(length(sequence), kDraftPrompt.size() + 3);
}

TEST_P(Drafts, of_a_row_that_fails_are_taken_back_with_it) {
  create_engine(draft_options());
  const size_t words = (vocabulary_ + 31) / 32;
  const Tokens drafts = {4, 4, 4};
  const uint64_t pages = free_pages();
  std::vector<uint32_t> masks(4 * words, ~0u);
  std::fill_n(masks.begin(), words, 0);
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.mask = masks.data();
  sampling.mask_words = masks.size();
  const wcuda_sequence sequence = create_sequence();
  wcuda_row row = token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE);
  row.sampling = &sampling;

  const StepResult step = wait(submit({drafted(row, drafts)}));

  EXPECT_EQ(step.rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(step.rows[0].token, -1);
  EXPECT_EQ(step.rows[0].sampled_count, 0u);
  EXPECT_EQ(length(sequence), 0u);
  EXPECT_EQ(free_pages(), pages);
}

TEST_P(Drafts, of_a_row_that_continues_a_failed_one_are_skipped) {
  create_engine(draft_options());
  const Tokens drafts = {4, 4, 4};
  const std::vector<uint32_t> nothing((vocabulary_ + 31) / 32, 0);
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.mask = nothing.data();
  sampling.mask_words = nothing.size();
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  const Tokens expected = generate(kDraftPrompt, 2);
  wcuda_row row = token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE);
  row.sampling = &sampling;

  const uint64_t first = submit({row, token_row(other, kDraftPrompt, WCUDA_ROW_SAMPLE)});
  const uint64_t second = submit({drafted(feed_row(sequence), drafts), feed_row(other)});
  EXPECT_EQ(wait(first).rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(length(sequence), 0u);
  const StepResult step = wait(second);

  EXPECT_EQ(step.rows[0].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(step.rows[0].sampled_count, 0u);
  EXPECT_EQ(step.rows[1].status, WCUDA_ROW_OK);
  EXPECT_EQ(tokens_of(drawn(step, 1)), Tokens{expected[1]});
  EXPECT_EQ(length(sequence), 0u);
}

TEST_P(Drafts, may_follow_a_token_that_is_still_being_sampled) {
  create_engine(draft_options());
  const Tokens stream = generate(kDraftPrompt, 12);
  const Tokens drafts = drafts_for(stream, 1, 9, 6);
  const wcuda_sequence sequence = create_sequence();

  const uint64_t first = submit({token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE)});
  const uint64_t second = submit({drafted(feed_row(sequence), drafts)});
  EXPECT_EQ(wait(first).rows[0].token, stream[0]);
  EXPECT_EQ(tokens_of(drawn(wait(second), 0)), Tokens(stream.begin() + 1, stream.begin() + 8));
  for (size_t i = 8; i < stream.size(); ++i)
    EXPECT_EQ(wait(submit({feed_row(sequence)})).rows[0].token, stream[i]);
}

TEST_P(Drafts, are_in_steps_with_late_rows) {
  create_engine(draft_options());
  const Tokens stream = generate(kDraftPrompt, 8), drafts = drafts_for(stream, 1, 5, 3);
  const wcuda_sequence late = create_sequence(), drafting = create_sequence();
  const uint32_t flags = WCUDA_ROW_SAMPLE | WCUDA_ROW_SAMPLE_LATE;
  const wcuda_late_row all = WCUDA_LATE_ROW_INIT;
  wait(submit({token_row(drafting, kDraftPrompt, WCUDA_ROW_SAMPLE)}));

  const uint64_t ticket =
      submit({drafted(feed_row(drafting), drafts), token_row(late, kDraftPrompt, flags)});
  ASSERT_OK(wcuda_step_sample(engine_, ticket, &all, 1, &error_));
  const StepResult step = wait(ticket);

  EXPECT_EQ(tokens_of(drawn(step, 0)), Tokens(stream.begin() + 1, stream.begin() + 5));
  EXPECT_EQ(tokens_of(drawn(step, 1)), Tokens{stream[0]});
}

TEST_P(Drafts, in_flight_leave_a_bound_of_the_length_and_hold_the_sequence) {
  create_engine(draft_options());
  Tokens prompt(60, 3);
  const Tokens stream = generate(prompt, 8);
  const Tokens drafts = drafts_for(stream, 0, 6, 2);
  const wcuda_sequence sequence = create_sequence();
  const uint64_t pages = free_pages();
  const uint64_t ticket = submit({drafted(token_row(sequence, prompt, WCUDA_ROW_SAMPLE), drafts)});

  EXPECT_EQ(length(sequence), 66u);
  EXPECT_EQ(free_pages(), pages - 2) << "pages for all drafts";
  uint64_t next = 0;
  const Tokens one = {3};
  EXPECT_EQ(try_submit({token_row(sequence, one, 0)}, &next), WCUDA_INVALID_STATE);
  EXPECT_NE(std::string(error_.message).find("waited for"), std::string::npos);
  wcuda_sequence forked{77};
  EXPECT_EQ(wcuda_sequence_fork(sequence, &forked, &error_), WCUDA_INVALID_STATE);
  int32_t token = 0;
  EXPECT_EQ(wcuda_sequence_tokens_get(sequence, 60, 1, &token, &error_), WCUDA_INVALID_STATE);
  ASSERT_OK(wcuda_sequence_tokens_get(sequence, 59, 1, &token, &error_));
  const wcuda_page_key key = {{1}};
  EXPECT_EQ(wcuda_sequence_publish(sequence, 0, &key, 1, &error_), WCUDA_OUT_OF_RANGE);
  wcuda_pinned pinned{0};
  wcuda_event copied{0};
  ASSERT_OK(wcuda_pinned_create(context_, 1 << 20, &pinned, &error_));
  ASSERT_OK(wcuda_event_create(context_, &copied, &error_));
  EXPECT_EQ(wcuda_sequence_save(sequence, pinned, 0, copied, &error_), WCUDA_INVALID_STATE);
  wcuda_pinned_destroy(pinned);
  wcuda_event_destroy(copied);
  wait(ticket);

  EXPECT_EQ(length(sequence), 62u);
  EXPECT_EQ(free_pages(), pages - 1);
  EXPECT_EQ(wcuda_sequence_publish(sequence, 0, &key, 1, &error_), WCUDA_OUT_OF_RANGE);
  const wcuda_sequence copy = fork(sequence);
  for (size_t i = 3; i < stream.size(); ++i) {
    const StepResult step = wait(submit({feed_row(sequence), feed_row(copy)}));
    EXPECT_EQ(step.rows[0].token, stream[i]);
    EXPECT_EQ(step.rows[1].token, stream[i]);
  }
}

TEST_P(Drafts, in_flight_can_be_truncated_destroyed_and_drained) {
  create_engine(draft_options());
  const Tokens stream = generate(kDraftPrompt, 10);
  const Tokens drafts = drafts_for(stream, 1, 6, 4), first = {stream[0]};
  const auto size = static_cast<uint32_t>(kDraftPrompt.size());
  const auto begin = [&](wcuda_sequence sequence) {
    wait(submit({token_row(sequence, kDraftPrompt, 0)}));
    return submit({drafted(token_row(sequence, first, WCUDA_ROW_SAMPLE), drafts)});
  };
  uint64_t next = 0;
  // Among the drafts: first three of the four that hold, then more than hold.
  for (const uint32_t kept : {3u, 5u}) {
    const wcuda_sequence sequence = create_sequence();
    const uint64_t ticket = begin(sequence);
    ASSERT_OK(wcuda_sequence_truncate(sequence, size + 1 + kept, &error_));
    EXPECT_EQ(try_submit({token_row(sequence, first, 0)}, &next), WCUDA_INVALID_STATE);
    EXPECT_EQ(drawn(wait(ticket), 0).size(), 5u);
    const uint32_t left = std::min(kept, 4u);
    EXPECT_EQ(length(sequence), size + 1 + left);
    EXPECT_EQ(try_submit({feed_row(sequence)}, &next), WCUDA_INVALID_STATE) << "truncated";
    const Tokens more = {stream[left + 1]};
    EXPECT_EQ(wait(submit({token_row(sequence, more, WCUDA_ROW_SAMPLE)})).rows[0].token,
              stream[left + 2]);
  }
  // Before the drafts, and before the row: the next step may continue at once, also with drafts.
  for (const uint32_t kept : {1u, 0u}) {
    const wcuda_sequence sequence = create_sequence();
    const uint64_t ticket = begin(sequence);
    ASSERT_OK(wcuda_sequence_truncate(sequence, size + kept, &error_));
    const Tokens more = {stream[kept]}, more_drafts = drafts_for(stream, kept + 1, 3, 2);
    const uint64_t later =
        submit({drafted(token_row(sequence, more, WCUDA_ROW_SAMPLE), more_drafts)});
    EXPECT_EQ(drawn(wait(ticket), 0).size(), 5u);
    EXPECT_EQ(length(sequence), size + kept + 4);
    EXPECT_EQ(tokens_of(drawn(wait(later), 0)),
              Tokens(stream.begin() + kept + 1, stream.begin() + kept + 4));
    EXPECT_EQ(length(sequence), size + kept + 3);
    EXPECT_EQ(wait(submit({feed_row(sequence)})).rows[0].token, stream[kept + 4]);
  }
  for (const wcuda_sequence sequence : std::exchange(sequences_, {}))
    wcuda_sequence_destroy(sequence);
  const uint64_t pages = free_pages();
  wcuda_sequence sequence = create_sequence();
  const uint64_t ticket = begin(sequence);
  wcuda_sequence_destroy(sequence);
  EXPECT_EQ(free_pages(), pages);
  sequence = create_sequence();  // with the slot of the one before
  const uint64_t later = submit({token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE)});
  EXPECT_EQ(drawn(wait(ticket), 0).size(), 5u);
  EXPECT_EQ(wait(later).rows[0].token, stream[0]);
  submit({drafted(feed_row(sequence), drafts)});
  ASSERT_OK(wcuda_engine_drain(engine_, &error_));
  EXPECT_EQ(length(sequence), size + 5);
  EXPECT_EQ(wait(submit({feed_row(sequence)})).rows[0].token, stream[6]);
}

// Rows with drafts, without them and prompts in chunks, in steps of which two are in flight.
TEST_P(Drafts, in_any_composition_give_each_sequence_its_own_tokens) {
  create_engine(draft_options());
  constexpr uint32_t kCount = 6;
  const Tokens bias_tokens = {3, 6, 4};
  const std::vector<float> bias_values = {1.5f, -2.0f, 3.0f};
  const std::vector<wcuda_sampling> samplings = all_samplings(bias_tokens, bias_values);
  std::vector<Tokens> prompts;
  std::vector<std::vector<Drawn>> expected;
  for (uint32_t i = 0; i < kCount; ++i) {
    prompts.emplace_back(3 + 11 * i);
    for (size_t j = 0; j < prompts[i].size(); ++j)
      prompts[i][j] = static_cast<int32_t>((i * 31 + j * 7) % vocabulary_);
    expected.push_back(plain_run(prompts[i], samplings[i]));
  }
  const uint64_t pages = free_pages();
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    std::mt19937 generator(seed);
    struct Planned {
      uint32_t index;
      size_t expected_count;
    };
    struct Flight {
      uint64_t ticket;
      std::vector<Planned> rows;
    };
    std::deque<Flight> in_flight;
    std::vector<wcuda_sequence> sequences;
    std::vector<std::vector<Drawn>> found(kCount);
    std::vector<bool> is_busy(kCount, false);
    for (uint32_t i = 0; i < kCount; ++i) sequences.push_back(create_sequence());
    const auto finish = [&] {
      const Flight flight = in_flight.front();
      in_flight.pop_front();
      const StepResult step = wait(flight.ticket);
      for (size_t r = 0; r < flight.rows.size(); ++r) {
        const Planned& row = flight.rows[r];
        const std::vector<Drawn> now = drawn(step, r);
        EXPECT_EQ(now.size(), row.expected_count);
        found[row.index].insert(found[row.index].end(), now.begin(), now.end());
        is_busy[row.index] = false;
      }
    };
    for (uint32_t left = kCount; left > 0;) {
      Flight flight{0, {}};
      std::vector<wcuda_row> rows;
      std::deque<Tokens> drafts;
      size_t tokens = 0;
      for (uint32_t i = 0; i < kCount; ++i) {
        const size_t done = found[i].size();
        if (is_busy[i] || done + 16 > kStreamTokens || generator() % 4 == 0) continue;
        const size_t count = generator() % 3 == 0 ? 0 : generator() % 12;
        const size_t good = generator() % (count + 1);
        tokens += (done == 0 ? prompts[i].size() : 1) + count;
        if (tokens > 96) break;
        drafts.push_back(drafts_for(tokens_of(expected[i]), done, count, good));
        wcuda_row row = done == 0 ? token_row(sequences[i], prompts[i], WCUDA_ROW_SAMPLE)
                                  : feed_row(sequences[i]);
        row.sampling = &samplings[i];
        rows.push_back(drafted(row, drafts.back()));
        flight.rows.push_back({i, good + 1});
        is_busy[i] = true;
      }
      if (!rows.empty()) {
        ASSERT_OK(try_submit(rows, &flight.ticket));
        in_flight.push_back(flight);
      }
      if (in_flight.size() == 2 || (rows.empty() && !in_flight.empty())) finish();
      left =
          static_cast<uint32_t>(std::count_if(found.begin(), found.end(), [](const auto& stream) {
            return stream.size() + 16 <= kStreamTokens;
          }));
    }
    while (!in_flight.empty()) finish();
    for (uint32_t i = 0; i < kCount; ++i) {
      for (size_t t = 0; t < std::min(found[i].size(), expected[i].size()); ++t)
        ASSERT_EQ(found[i][t], expected[i][t]) << "token " << t << " of sequence " << i;
      wcuda_sequence_destroy(sequences[i]);
    }
    EXPECT_EQ(free_pages(), pages) << "composition " << seed;
  }
}

TEST_P(Drafts, are_refused_where_they_are_not_possible) {
  wcuda_engine_options options = draft_options();
  options.max_draft_tokens = 20;
  create_engine(options);
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  const wcuda_row row = token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE);
  const Tokens drafts(16, 3), ten(10, 3), eleven(11, 3), unknown = {3, 1 << 20};
  uint64_t ticket = 0;
  EXPECT_EQ(try_submit({drafted(row, drafts)}, &ticket), WCUDA_LIMIT_EXCEEDED);
  EXPECT_EQ(try_submit({drafted(row, ten),
                        drafted(token_row(other, kDraftPrompt, WCUDA_ROW_SAMPLE), eleven)},
                       &ticket),
            WCUDA_LIMIT_EXCEEDED);
  EXPECT_NE(std::string(error_.message).find("max_draft_tokens is 20"), std::string::npos);
  EXPECT_EQ(try_submit({drafted(row, unknown)}, &ticket), WCUDA_OUT_OF_RANGE);
  EXPECT_NE(std::string(error_.message).find("draft token 1"), std::string::npos);
  for (const uint32_t flags :
       {uint32_t{0}, WCUDA_ROW_SAMPLE | WCUDA_ROW_SAMPLE_LATE,
        WCUDA_ROW_SAMPLE | WCUDA_ROW_HIDDEN_SUM, uint32_t{WCUDA_ROW_LOGITS_LAST}})
    EXPECT_EQ(try_submit({drafted(token_row(sequence, kDraftPrompt, flags), ten)}, &ticket),
              WCUDA_INVALID_ARGUMENT);
  wcuda_row null = row;
  null.draft_count = 1;
  EXPECT_EQ(try_submit({null}, &ticket), WCUDA_INVALID_ARGUMENT);
  null = row;
  null.stop_count = 1;
  EXPECT_EQ(try_submit({null}, &ticket), WCUDA_INVALID_ARGUMENT);
  const Tokens long_prompt(80, 1);
  EXPECT_EQ(try_submit({drafted(token_row(sequence, long_prompt, WCUDA_ROW_SAMPLE), ten),
                        token_row(other, drafts, 0)},
                       &ticket),
            WCUDA_LIMIT_EXCEEDED);
  EXPECT_EQ(length(sequence), 0u);

  ticket = submit({drafted(row, ten)});
  capacity_ = 10;
  StepResult step;
  EXPECT_EQ(try_wait(ticket, &step), WCUDA_BUFFER_TOO_SMALL);
  EXPECT_NE(std::string(error_.message).find("sampled_capacity is 10, the step needs 11"),
            std::string::npos);
  capacity_ = 11;
  EXPECT_EQ(try_wait(ticket, &step), WCUDA_OK) << error_.message;
  // Rows without drafts need no such arrays.
  capacity_ = 0;
  step = wait(submit({feed_row(sequence)}));
  EXPECT_EQ(step.rows[0].sampled_count, 0u);
  EXPECT_GE(step.rows[0].token, 0);
}

TEST_P(Drafts, count_in_the_positions_of_a_sequence_and_in_the_pages) {
  wcuda_engine_options options = draft_options();
  options.max_sequences = 2;
  options.max_sequence_tokens = 70;
  options.kv_tokens = 128;
  create_engine(options);
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  const Tokens prompt(64, 5), ten(10, 3), six(6, 3), five(5, 3), one = {7};
  wait(submit({token_row(sequence, prompt, 0)}));
  uint64_t ticket = 0;
  const wcuda_row row = token_row(sequence, one, WCUDA_ROW_SAMPLE);
  EXPECT_EQ(try_submit({drafted(row, six)}, &ticket), WCUDA_LIMIT_EXCEEDED);
  wait(submit({token_row(other, one, 0)}));
  EXPECT_EQ(try_submit({drafted(row, five)}, &ticket), WCUDA_OUT_OF_PAGES);
  wcuda_sequence_destroy(other);
  EXPECT_EQ(length(sequence), 64u);

  EXPECT_EQ(wait(submit({drafted(row, five)})).rows[0].status, WCUDA_ROW_OK);
}

TEST_P(Drafts, take_the_scratch_memory_of_the_plan_and_none_without_the_option) {
  wcuda_engine_options options = small_options();
  options.max_logits_rows = 0;
  wcuda_plan without = WCUDA_PLAN_INIT, with = WCUDA_PLAN_INIT;
  ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &without, &error_));
  options.max_draft_tokens = 15;
  ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &with, &error_));
  create_engine(options);
  wcuda_engine_info info = WCUDA_ENGINE_INFO_INIT;
  ASSERT_OK(wcuda_engine_info_get(engine_, &info, &error_));

  EXPECT_GE(with.scratch_bytes - without.scratch_bytes,
            uint64_t{2} * 15 * vocabulary_ * sizeof(float));
  EXPECT_EQ(info.scratch_bytes, with.scratch_bytes);
  EXPECT_EQ(info.max_draft_tokens, 15u);
  EXPECT_EQ(info.max_batch_rows, uint32_t{kMaxRows});
  EXPECT_EQ(info.max_logits_rows, kMaxRows + 15u);
}

}  // namespace
}  // namespace wcuda
