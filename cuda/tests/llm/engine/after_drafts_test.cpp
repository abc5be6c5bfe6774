// The row after drafts in flight, through the C interface: it begins where the device found the end
// of the accepted drafts, and gives what it gives after a wait.
#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>

#include "kernels/attention/attention_table.h"
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

constexpr uint32_t kLateFlags = WCUDA_ROW_SAMPLE | WCUDA_ROW_SAMPLE_LATE;

class AfterDrafts : public testing::DraftFixture {
 protected:
  void add_outputs(wcuda_step_output* output) override {
    DraftFixture::add_outputs(output);
    if (hidden_states_.empty()) return;
    output->hidden_states_capacity = hidden_states_.size();
    output->hidden_states = hidden_states_.data();
  }

  static Tokens long_prompt(uint32_t length) {
    Tokens prompt(length);
    for (uint32_t i = 0; i < length; ++i) prompt[i] = static_cast<int32_t>(i * 7 % 50);
    return prompt;
  }
  // Feeds a prompt except its last token, in rows that fit a step.
  void prefill(wcuda_sequence sequence, const Tokens& prompt) {
    for (size_t first = 0; first + 1 < prompt.size();) {
      const size_t count = std::min<size_t>(prompt.size() - 1 - first, 90);
      const auto begin = prompt.begin() + static_cast<std::ptrdiff_t>(first);
      const Tokens chunk(begin, begin + static_cast<std::ptrdiff_t>(count));
      wait(submit({token_row(sequence, chunk, 0)}));
      first += count;
    }
  }

  // A sequence after kDraftPrompt and the token that it samples, with six drafts in flight, of
  // which four hold, and the row after them:
  //
  //   position   0 … 4  | 5 | 6  7  8  9 10 11 | 6 + accepted
  //   row        prompt |       drafting       |    next
  //
  // The first of them draws stream[1] to stream[5], the next one stream[6].
  struct InFlight {
    wcuda_sequence sequence;
    uint64_t drafting, next;
  };
  static constexpr uint32_t kDraftsFrom = 6, kDraftCount = 6, kGood = 4;
  static constexpr uint32_t kBound = kDraftsFrom + kDraftCount + 1, kEnd = kDraftsFrom + kGood + 1;
  InFlight begin(const Tokens& stream) {
    const wcuda_sequence sequence = create_sequence();
    const Tokens drafts = drafts_for(stream, 1, kDraftCount, kGood), first = {stream[0]};
    wait(submit({token_row(sequence, kDraftPrompt, 0)}));
    const uint64_t drafting =
        submit({drafted(token_row(sequence, first, WCUDA_ROW_SAMPLE), drafts)});
    return {sequence, drafting, submit({feed_row(sequence)})};
  }
  // What is drawn after a prompt: by rows that wait for each other, and by a row with drafts, a row
  // after it without a wait, and a third one while that is in flight.
  static constexpr uint32_t kBorderDrafts = 5;
  std::vector<Drawn> run_to_border(const Tokens& prompt, const wcuda_sampling& sampling) {
    const wcuda_sequence sequence = create_sequence();
    const Tokens last = {prompt.back()};
    prefill(sequence, prompt);
    const std::vector<Drawn> all =
        draw(token_row(sequence, last, WCUDA_ROW_SAMPLE), sampling, kBorderDrafts + 3);
    wcuda_sequence_destroy(sequence);
    return all;
  }
  std::vector<Drawn> run_over_border(const Tokens& prompt, const wcuda_sampling& sampling,
                                     const Tokens& drafts) {
    const wcuda_sequence sequence = create_sequence();
    const Tokens last = {prompt.back()};
    prefill(sequence, prompt);
    wcuda_row row = drafted(token_row(sequence, last, WCUDA_ROW_SAMPLE), drafts);
    wcuda_row next = feed_row(sequence);
    row.sampling = next.sampling = &sampling;
    const uint64_t first = submit({row}), second = submit({next});
    std::vector<Drawn> all = drawn(wait(first), 0);
    const uint64_t third = submit({next});
    for (const uint64_t ticket : {second, third}) all.push_back(drawn(wait(ticket), 0).at(0));
    wcuda_sequence_destroy(sequence);
    return all;
  }
  void expect_drafting(const InFlight& rows, const Tokens& stream) {
    EXPECT_EQ(tokens_of(drawn(wait(rows.drafting), 0)),
              Tokens(stream.begin() + 1, stream.begin() + 6));
  }
  void expect_next(const InFlight& rows, const Tokens& stream) {
    const StepResult step = wait(rows.next);
    EXPECT_EQ(step.rows[0].status, WCUDA_ROW_OK);
    EXPECT_EQ(step.rows[0].first_position, kEnd - 1);
    EXPECT_EQ(step.rows[0].token_count, 1u);
    EXPECT_EQ(tokens_of(drawn(step, 0)), Tokens{stream[6]});
  }
  void sample(uint64_t ticket, const std::vector<wcuda_late_row>& rows) {
    ASSERT_OK(wcuda_step_sample(engine_, ticket, rows.data(), rows.size(), &error_));
  }
  bool message_has(const std::string& part) const {
    return std::string(error_.message).find(part) != std::string::npos;
  }

  std::vector<float> hidden_states_;
};
INSTANTIATE_TEST_SUITE_P(Host, AfterDrafts, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, AfterDrafts, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

// The page border is at position 64, within the stream.
TEST_P(AfterDrafts, a_fed_row_continues_where_the_device_ended) {
  create_engine(draft_options());
  const Tokens bias_tokens = {3, 6, 4};
  const std::vector<float> bias_values = {1.5f, -2.0f, 3.0f};
  const Tokens prompt = long_prompt(50);
  const auto size = static_cast<uint32_t>(prompt.size());
  const uint64_t all_pages = free_pages();
  const auto pages_of = [](size_t length) { return (length + 63) / 64; };
  std::mt19937 generator(3);
  for (const wcuda_sampling& sampling : all_samplings(bias_tokens, bias_values)) {
    const std::vector<Drawn> expected = plain_run(prompt, sampling);
    const Tokens stream = tokens_of(expected);
    for (uint32_t count = 1; count <= WCUDA_ROW_DRAFT_TOKENS_MAX; ++count) {
      const wcuda_sequence sequence = create_sequence();
      std::vector<Drawn> found;
      wcuda_row row = token_row(sequence, prompt, WCUDA_ROW_SAMPLE), next = feed_row(sequence);
      row.sampling = next.sampling = &sampling;
      for (uint32_t round = 0; found.size() + 17 <= kStreamTokens; ++round) {
        const uint32_t some = generator() % (count + 1);
        const uint32_t good = round % 3 == 0 ? 0 : round % 3 == 1 ? count : some;
        const Tokens drafts = drafts_for(stream, found.size(), count, good);
        const uint32_t bound = length(sequence) + row.token_count + count + 1;

        const uint64_t ticket = submit({drafted(row, drafts)}), next_ticket = submit({next});
        EXPECT_EQ(length(sequence), bound);
        EXPECT_EQ(free_pages(), all_pages - pages_of(bound)) << "pages of the longest case";

        const std::vector<Drawn> now = drawn(wait(ticket), 0);
        ASSERT_EQ(now.size(), good + 1);
        found.insert(found.end(), now.begin(), now.end());
        ASSERT_EQ(length(sequence), size + found.size());
        EXPECT_EQ(free_pages(), all_pages - pages_of(length(sequence)));

        const StepResult step = wait(next_ticket);
        ASSERT_EQ(step.rows[0].status, WCUDA_ROW_OK);
        EXPECT_EQ(step.rows[0].first_position, size + found.size() - 1);
        EXPECT_EQ(step.rows[0].token_count, 1u);
        found.push_back(drawn(step, 0).at(0));
        EXPECT_EQ(length(sequence), size + found.size() - 1);
        row = next;
      }
      ASSERT_GE(found.size(), 20u);
      for (size_t i = 0; i < found.size(); ++i)
        ASSERT_EQ(found[i], expected[i]) << "token " << i << " with " << count << " drafts";
      Tokens known(found.size() - 1);
      ASSERT_OK(wcuda_sequence_tokens_get(sequence, size, static_cast<uint32_t>(known.size()),
                                          known.data(), &error_));
      EXPECT_TRUE(std::equal(known.begin(), known.end(), stream.begin()));
      wcuda_sequence_destroy(sequence);
    }
  }
  EXPECT_EQ(free_pages(), all_pages);
}

constexpr uint32_t kClassEnd = kernels::kDecodeGroupSizes[0].lone_positions();

// Borders of pages, and of the class of steps that have graphs of their own: the row's bound may
// lie in another class than the row.
TEST_P(AfterDrafts, lie_on_either_side_of_a_border) {
  wcuda_engine_options options = draft_options();
  options.max_sequence_tokens = kClassEnd + 64;
  create_engine(options);
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.temperature = 1.0f;
  sampling.seed = 5;
  sampling.presence_penalty = 0.5f;
  for (const uint32_t border : {64u, 128u, kClassEnd})
    for (uint32_t size = border - kBorderDrafts - 2; size <= border + 1; ++size) {
      const Tokens prompt = long_prompt(size);
      const std::vector<Drawn> expected = run_to_border(prompt, sampling);
      for (uint32_t good = 0; good <= kBorderDrafts; ++good) {
        const std::vector<Drawn> found = run_over_border(
            prompt, sampling, drafts_for(tokens_of(expected), 0, kBorderDrafts, good));
        ASSERT_EQ(found.size(), good + 3);
        for (size_t i = 0; i < found.size(); ++i)
          ASSERT_EQ(found[i], expected[i])
              << "token " << i << " after " << size << ", " << good << " good drafts";
      }
    }
}

// The same with the kernels of engines whose results may depend on the batch: attention chooses
// them by the bound. Where two tokens are about as likely, rounding may decide.
TEST_P(AfterDrafts, draw_the_same_tokens_by_kernels_that_depend_on_the_bound) {
  wcuda_engine_options options = draft_options(0);
  options.max_sequence_tokens = kClassEnd + 64;
  create_engine(options);
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.top_logprobs = 2;
  uint32_t compared = 0;
  for (const uint32_t border : {64u, kClassEnd})
    for (uint32_t size = border - kBorderDrafts - 2; size <= border + 1; ++size) {
      const Tokens prompt = long_prompt(size);
      const std::vector<Drawn> expected = run_to_border(prompt, sampling);
      for (uint32_t good = 0; good <= kBorderDrafts; ++good) {
        const std::vector<Drawn> found = run_over_border(
            prompt, sampling, drafts_for(tokens_of(expected), 0, kBorderDrafts, good));
        for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i, ++compared) {
          const std::vector<float>& likely = expected[i].top_logprobs;
          ASSERT_NEAR(found[i].logprob, expected[i].logprob, 1e-2)
              << "token " << i << " after " << size << ", " << good << " good drafts";
          if (found[i].token == expected[i].token) continue;
          ASSERT_LT(likely.at(0) - likely.at(1), 1e-2);
          break;
        }
      }
    }
  EXPECT_GT(compared, 400u);
}

// The row is computed as after a wait: all that it may return is the same, bit by bit.
TEST_P(AfterDrafts, the_next_row_returns_logits_and_hidden_states) {
  create_engine(draft_options(WCUDA_ENGINE_BATCH_INVARIANT | WCUDA_ENGINE_HIDDEN_STATES));
  wcuda_model_info info = WCUDA_MODEL_INFO_INIT;
  ASSERT_OK(wcuda_model_info_get(model_, &info, &error_));
  hidden_states_.assign(size_t{kMaxRows} * info.embedding_length, NAN);
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.flags = WCUDA_SAMPLING_RAW_LOGPROBS;
  sampling.repetition_penalty = 1.5f;
  sampling.penalty_from = 7;
  sampling.penalty_last_n = 3;
  sampling.top_logprobs = 4;
  sampling.temperature = 0.7f;
  const Tokens stream = tokens_of(plain_run(kDraftPrompt, sampling, 8));
  const auto logits_end = static_cast<std::ptrdiff_t>(vocabulary_);
  for (const uint32_t good : {0u, 3u, 5u}) {
    const Tokens drafts = drafts_for(stream, 0, 5, good);
    std::vector<float> logits[2], states[2];
    std::vector<Drawn> tokens[2];
    for (const bool waits : {true, false}) {
      const wcuda_sequence sequence = create_sequence();
      wcuda_row row = drafted(token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE), drafts);
      wcuda_row next =
          feed_row(sequence, WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST | WCUDA_ROW_HIDDEN_LAST);
      row.sampling = next.sampling = &sampling;
      const uint64_t first = submit({row});
      const uint64_t early = waits ? 0 : submit({next});
      EXPECT_EQ(drawn(wait(first), 0).size(), good + 1);
      const StepResult step = wait(waits ? submit({next}) : early);
      tokens[waits] = drawn(step, 0);
      logits[waits].assign(step.logits.begin(), step.logits.begin() + logits_end);
      states[waits].assign(
          hidden_states_.begin(),
          hidden_states_.begin() + static_cast<std::ptrdiff_t>(info.embedding_length));
    }
    EXPECT_EQ(tokens[0], tokens[1]);
    EXPECT_EQ(tokens[0].at(0).token, stream[good + 1]);
    EXPECT_EQ(logits[0], logits[1]);
    EXPECT_EQ(states[0], states[1]);
  }
}

// Prompts in one row, rows with drafts, rows without and late rows, each after any of them.
TEST_P(AfterDrafts, in_any_composition_each_sequence_gets_its_own_tokens) {
  create_engine(draft_options());
  constexpr uint32_t kCount = 6;
  const Tokens bias_tokens = {3, 6, 4};
  const std::vector<float> bias_values = {1.5f, -2.0f, 3.0f};
  const std::vector<wcuda_sampling> samplings = all_samplings(bias_tokens, bias_values);
  std::vector<Tokens> prompts, streams;
  std::vector<std::vector<Drawn>> expected;
  for (uint32_t i = 0; i < kCount; ++i) {
    prompts.push_back(long_prompt(3 + 11 * i));
    expected.push_back(plain_run(prompts[i], samplings[i]));
    streams.push_back(tokens_of(expected[i]));
  }
  const uint64_t pages = free_pages();
  uint32_t continued = 0, continued_late = 0;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    std::mt19937 generator(seed);
    struct Planned {
      uint32_t index;
      size_t draft_count, good;
    };
    struct Flight {
      uint64_t ticket = 0;
      std::vector<Planned> rows;
      size_t late_count = 0;  // not sampled yet
    };
    std::deque<Flight> in_flight;
    std::vector<wcuda_sequence> sequences;
    std::vector<std::vector<Drawn>> found(kCount);
    for (uint32_t i = 0; i < kCount; ++i) sequences.push_back(create_sequence());
    const auto sample_late = [&] {
      for (Flight& flight : in_flight)
        if (const size_t count = std::exchange(flight.late_count, 0); count != 0)
          sample(flight.ticket, std::vector<wcuda_late_row>(count, WCUDA_LATE_ROW_INIT));
    };
    const auto finish = [&] {
      if (in_flight.front().late_count != 0) sample_late();
      const Flight flight = in_flight.front();
      in_flight.pop_front();
      const StepResult step = wait(flight.ticket);
      for (size_t r = 0; r < flight.rows.size(); ++r) {
        const Planned& row = flight.rows[r];
        std::vector<Drawn>& stream = found[row.index];
        EXPECT_EQ(step.rows[r].first_position + step.rows[r].token_count,
                  prompts[row.index].size() + stream.size() + row.good);
        const std::vector<Drawn> now = drawn(step, r);
        ASSERT_EQ(now.size(), row.good + 1);
        stream.insert(stream.end(), now.begin(), now.end());
      }
    };
    for (bool is_done = false; !is_done && !HasFailure();) {
      Flight flight;
      std::vector<wcuda_row> rows;
      std::deque<Tokens> drafts;
      size_t tokens = 0;
      is_done = true;
      for (uint32_t i = 0; i < kCount; ++i) {
        const Planned* before = nullptr;
        for (const Flight& other : in_flight)
          for (const Planned& row : other.rows)
            if (row.index == i) before = &row;
        const size_t done = found[i].size() + (before == nullptr ? 0 : before->good + 1);
        if (done + 16 > kStreamTokens) continue;
        is_done = false;
        if (generator() % 4 == 0) continue;
        const bool is_unknown = before != nullptr && before->draft_count != 0;
        const size_t count = is_unknown || generator() % 3 == 0 ? 0 : generator() % 9;
        const size_t good = generator() % (count + 1);
        const bool is_late = count == 0 && done != 0 && generator() % 4 == 0;
        tokens += (done == 0 ? prompts[i].size() : 1) + count;
        if (tokens > 96) break;
        drafts.push_back(drafts_for(streams[i], done, count, good));
        wcuda_row row = done == 0 ? token_row(sequences[i], prompts[i], WCUDA_ROW_SAMPLE)
                                  : feed_row(sequences[i], is_late ? kLateFlags : WCUDA_ROW_SAMPLE);
        row.sampling = &samplings[i];
        rows.push_back(drafted(row, drafts.back()));
        flight.rows.push_back({i, count, good});
        flight.late_count += is_late;
        continued += is_unknown;
        continued_late += is_unknown && is_late;
      }
      if (!rows.empty()) {
        sample_late();  // rows that these may continue
        ASSERT_OK(try_submit(rows, &flight.ticket));
        in_flight.push_back(flight);
        if (generator() % 2 == 0) sample_late();
      }
      if (in_flight.size() == 2 || (rows.empty() && !in_flight.empty())) finish();
    }
    while (!in_flight.empty()) finish();
    for (uint32_t i = 0; i < kCount; ++i) {
      ASSERT_GT(found[i].size() + 16, kStreamTokens);
      for (size_t t = 0; t < std::min(found[i].size(), expected[i].size()); ++t)
        ASSERT_EQ(found[i][t], expected[i][t])
            << "token " << t << " of sequence " << i << ", composition " << seed;
      wcuda_sequence_destroy(sequences[i]);
    }
    EXPECT_EQ(free_pages(), pages) << "composition " << seed;
  }
  EXPECT_GT(continued, 100u);
  EXPECT_GT(continued_late, 10u);
}

// The stop token is the input of the next row, as it is after a wait. It may be any of the drafts,
// the first one too, or a token after them.
TEST_P(AfterDrafts, the_next_row_has_a_stop_token_as_its_input) {
  create_engine(draft_options());
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.temperature = 1.3f;
  const std::vector<Drawn> expected = plain_run(kDraftPrompt, sampling, 10);
  const Tokens stream = tokens_of(expected);
  const Tokens drafts(stream.begin(), stream.begin() + 6);
  for (size_t stop = 0; stop <= 7; ++stop) {
    const Tokens stops = {-5, stream[stop], 1 << 30};
    const auto at =
        static_cast<size_t>(std::find(stream.begin(), stream.end(), stream[stop]) - stream.begin());
    const size_t end = std::min<size_t>(at, 6);
    const wcuda_sequence sequence = create_sequence();
    wcuda_row row = drafted(token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE), drafts);
    wcuda_row next = feed_row(sequence);
    row.sampling = next.sampling = &sampling;
    row.stop_tokens = stops.data();
    row.stop_count = static_cast<uint32_t>(stops.size());

    const uint64_t first = submit({row}), second = submit({next});
    EXPECT_EQ(drawn(wait(first), 0).size(), end + 1);
    EXPECT_EQ(length(sequence), kDraftPrompt.size() + end + 1);
    const StepResult step = wait(second);

    EXPECT_EQ(step.rows[0].first_position, kDraftPrompt.size() + end);
    EXPECT_EQ(drawn(step, 0).at(0), expected[end + 1]) << "stop token " << stop;
    EXPECT_EQ(length(sequence), kDraftPrompt.size() + end + 1);
  }
}

TEST_P(AfterDrafts, the_next_row_follows_the_last_position_at_which_a_token_was_sampled) {
  create_engine(draft_options());
  const size_t words = (vocabulary_ + 31) / 32;
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  const Tokens stream = tokens_of(plain_run(kDraftPrompt, sampling, 9));
  const Tokens drafts(stream.begin() + 1, stream.begin() + 7);
  for (std::ptrdiff_t failing = 1; failing <= 6; ++failing) {
    std::vector<uint32_t> masks(7 * words, ~0u);
    std::fill_n(masks.begin() + failing * static_cast<std::ptrdiff_t>(words), words, 0);
    const wcuda_sequence sequence = create_sequence();
    wait(submit({token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE)}));
    sampling.mask = masks.data();
    sampling.mask_words = masks.size();
    wcuda_row row = drafted(feed_row(sequence), drafts);
    row.sampling = &sampling;

    const uint64_t first = submit({row}), second = submit({feed_row(sequence)});
    EXPECT_EQ(drawn(wait(first), 0).size(), static_cast<size_t>(failing));
    const StepResult step = wait(second);

    EXPECT_EQ(step.rows[0].token, stream[static_cast<size_t>(failing) + 1]);
    EXPECT_EQ(length(sequence), kDraftPrompt.size() + static_cast<uint32_t>(failing) + 1);
  }
}

TEST_P(AfterDrafts, a_row_after_a_failed_one_is_skipped) {
  create_engine(draft_options());
  const size_t words = (vocabulary_ + 31) / 32;
  const Tokens stream = generate(kDraftPrompt, 5);
  const Tokens drafts = drafts_for(stream, 1, 4, 2);
  std::vector<uint32_t> masks(5 * words, ~0u);
  std::fill_n(masks.begin(), words, 0);
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.mask = masks.data();
  sampling.mask_words = masks.size();
  const wcuda_sequence failing = create_sequence(), other = create_sequence();
  wait(submit({token_row(failing, kDraftPrompt, WCUDA_ROW_SAMPLE),
               token_row(other, kDraftPrompt, WCUDA_ROW_SAMPLE)}));
  const uint64_t pages = free_pages();
  wcuda_row row = drafted(feed_row(failing), drafts);
  row.sampling = &sampling;

  const uint64_t first = submit({row, drafted(feed_row(other), drafts)});
  const uint64_t second = submit({feed_row(other), feed_row(failing)});
  StepResult step = wait(first);
  EXPECT_EQ(step.rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(drawn(step, 1).size(), 3u);
  EXPECT_EQ(length(failing), kDraftPrompt.size());
  EXPECT_EQ(free_pages(), pages);
  step = wait(second);

  EXPECT_EQ(step.rows[1].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(step.rows[1].first_position, kDraftPrompt.size() + 1);
  EXPECT_EQ(step.rows[1].sampled_count, 0u);
  EXPECT_EQ(step.rows[0].token, stream[4]);
  EXPECT_EQ(length(failing), kDraftPrompt.size());
  EXPECT_EQ(length(other), kDraftPrompt.size() + 4);
  const Tokens again = {stream[0]};
  EXPECT_EQ(wait(submit({token_row(failing, again, WCUDA_ROW_SAMPLE)})).rows[0].token, stream[1]);
}

// Of three rows the first fails, so the drafts and the row after them are skipped one by one.
TEST_P(AfterDrafts, a_row_after_skipped_drafts_is_refused_or_skipped) {
  create_engine(draft_options());
  const std::vector<uint32_t> nothing((vocabulary_ + 31) / 32, 0);
  const Tokens drafts = {4, 4, 4};
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.mask = nothing.data();
  sampling.mask_words = nothing.size();
  const wcuda_sequence sequence = create_sequence();
  wcuda_row row = token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE);
  row.sampling = &sampling;

  const uint64_t first = submit({row}), second = submit({drafted(feed_row(sequence), drafts)});
  EXPECT_EQ(wait(first).rows[0].status, WCUDA_ROW_EMPTY_MASK);
  uint64_t third = 0;
  EXPECT_EQ(try_submit({feed_row(sequence)}, &third), WCUDA_INVALID_STATE);
  EXPECT_EQ(wait(second).rows[0].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(length(sequence), 0u);
}

// A fork that was made while a row is in flight continues that row with drafts, and these drafts.
TEST_P(AfterDrafts, of_a_fork_follow_the_row_of_its_source) {
  create_engine(draft_options());
  const Tokens prompt = long_prompt(62), stream = generate(prompt, 9);
  const wcuda_sequence source = create_sequence();
  const uint64_t first = submit({token_row(source, prompt, WCUDA_ROW_SAMPLE)});
  const wcuda_sequence forked = fork(source);
  const Tokens drafts = drafts_for(stream, 1, 4, 3), fewer = drafts_for(stream, 1, 3, 1);
  const uint64_t second =
      submit({drafted(feed_row(source), drafts), drafted(feed_row(forked), fewer)});
  EXPECT_EQ(wait(first).rows[0].token, stream[0]);
  const uint64_t third = submit({feed_row(forked), feed_row(source)});
  StepResult step = wait(second);
  EXPECT_EQ(drawn(step, 0).size(), 4u);
  EXPECT_EQ(drawn(step, 1).size(), 2u);
  step = wait(third);

  EXPECT_EQ(step.rows[0].token, stream[3]);
  EXPECT_EQ(step.rows[1].token, stream[5]);
  EXPECT_EQ(length(forked), 65u);
  EXPECT_EQ(length(source), 67u);
  step = wait(submit({feed_row(source), feed_row(forked)}));
  EXPECT_EQ(step.rows[0].token, stream[6]);
  EXPECT_EQ(step.rows[1].token, stream[4]);
}

// The mask of such a row may depend on what the drafts become: it is due after their step.
TEST_P(AfterDrafts, the_next_row_may_be_late) {
  create_engine(draft_options());
  const Tokens stream = generate(kDraftPrompt, 10);
  const Tokens drafts = drafts_for(stream, 1, 6, 4);
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  sampling.repetition_penalty = 1.4f;
  sampling.temperature = 1.0f;
  sampling.seed = 9;
  std::vector<uint32_t> mask((vocabulary_ + 31) / 32, 0x6db6db6du);
  wcuda_late_row masked = WCUDA_LATE_ROW_INIT, held = WCUDA_LATE_ROW_INIT;
  masked.mask = mask.data();
  masked.mask_words = mask.size();
  held.is_held = 1;
  // What a row that waits draws.
  std::vector<Drawn> expected;
  for (const bool after_wait : {true, false, true}) {
    const wcuda_sequence sequence = create_sequence();
    wait(submit({token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE)}));
    const uint64_t first = submit({drafted(feed_row(sequence), drafts)});
    wcuda_row next = feed_row(sequence, kLateFlags);
    next.sampling = &sampling;
    if (expected.empty()) {
      wait(first);
      const uint64_t late = submit({next});
      sample(late, {masked});
      expected = drawn(wait(late), 0);
      continue;
    }
    const uint64_t late = submit({next});
    if (!after_wait) sample(late, {masked});
    EXPECT_EQ(drawn(wait(first), 0).size(), 5u);
    if (after_wait) sample(late, {masked});
    EXPECT_EQ(drawn(wait(late), 0), expected);
    EXPECT_EQ(length(sequence), kDraftPrompt.size() + 6);
  }
  for (const bool after_wait : {true, false}) {
    const wcuda_sequence sequence = create_sequence();
    wait(submit({token_row(sequence, kDraftPrompt, WCUDA_ROW_SAMPLE)}));
    const uint64_t first = submit({drafted(feed_row(sequence), drafts)});
    const uint64_t late = submit({feed_row(sequence, kLateFlags)});
    if (!after_wait) {
      sample(late, {held});
      EXPECT_EQ(length(sequence), kDraftPrompt.size() + 7) << "a bound";
    }
    wait(first);
    if (after_wait) sample(late, {held});
    EXPECT_EQ(length(sequence), kDraftPrompt.size() + 5);
    const uint64_t again = submit({feed_row(sequence)});
    const StepResult step = wait(late);
    EXPECT_EQ(step.rows[0].status, WCUDA_ROW_HELD);
    EXPECT_EQ(step.rows[0].first_position, kDraftPrompt.size() + 5);
    EXPECT_EQ(wait(again).rows[0].token, stream[6]);
  }
}

// Positions are bounds: a row whose bound is removed is removed.
TEST_P(AfterDrafts, can_be_truncated) {
  create_engine(draft_options());
  const Tokens stream = generate(kDraftPrompt, 12);
  const auto size = static_cast<uint32_t>(kDraftPrompt.size());
  for (uint32_t kept = 0; kept <= kBound; ++kept) {
    const InFlight rows = begin(stream);
    ASSERT_EQ(length(rows.sequence), kBound);
    ASSERT_OK(wcuda_sequence_truncate(rows.sequence, kept, &error_));
    EXPECT_EQ(length(rows.sequence), kept);
    expect_drafting(rows, stream);
    const uint32_t left = kept == kBound ? kEnd : std::min(kept, kEnd - 1);
    EXPECT_EQ(length(rows.sequence), left) << "truncated to " << kept;

    // The next step continues, while the row that was removed is in flight.
    const Tokens more = left < size ? Tokens(kDraftPrompt.begin() + left, kDraftPrompt.end())
                                    : Tokens{stream[left - size]};
    uint64_t later = 0;
    if (kept == kBound) {
      later = submit({feed_row(rows.sequence)});
    } else {
      EXPECT_EQ(try_submit({feed_row(rows.sequence)}, &later), WCUDA_INVALID_STATE);
      later = submit({token_row(rows.sequence, more, WCUDA_ROW_SAMPLE)});
    }
    expect_next(rows, stream);
    EXPECT_EQ(wait(later).rows[0].token, left < size ? stream[0] : stream[left - size + 1])
        << "truncated to " << kept;
    wcuda_sequence_destroy(rows.sequence);
  }
  // When the step of the drafts has been waited for, lengths are exact.
  const InFlight rows = begin(stream);
  expect_drafting(rows, stream);
  EXPECT_EQ(wcuda_sequence_truncate(rows.sequence, kEnd + 1, &error_), WCUDA_OUT_OF_RANGE);
  ASSERT_OK(wcuda_sequence_truncate(rows.sequence, kEnd - 1, &error_));
  const Tokens more = {stream[5]};
  const uint64_t later = submit({token_row(rows.sequence, more, WCUDA_ROW_SAMPLE)});
  expect_next(rows, stream);
  EXPECT_EQ(wait(later).rows[0].token, stream[6]);
}

TEST_P(AfterDrafts, can_be_destroyed_and_drained) {
  create_engine(draft_options());
  const Tokens stream = generate(kDraftPrompt, 8);
  const uint64_t pages = free_pages();
  InFlight rows = begin(stream);
  wcuda_sequence_destroy(rows.sequence);
  EXPECT_EQ(free_pages(), pages);
  const wcuda_sequence other = create_sequence();  // with the slot of the one before
  expect_drafting(rows, stream);
  const uint64_t later = submit({token_row(other, kDraftPrompt, WCUDA_ROW_SAMPLE)});
  expect_next(rows, stream);
  EXPECT_EQ(wait(later).rows[0].token, stream[0]);

  rows = begin(stream);
  expect_drafting(rows, stream);
  wcuda_sequence_destroy(rows.sequence);
  expect_next(rows, stream);

  rows = begin(stream);
  ASSERT_OK(wcuda_engine_drain(engine_, &error_));
  EXPECT_EQ(length(rows.sequence), kEnd);
  EXPECT_EQ(wait(submit({feed_row(rows.sequence)})).rows[0].token, stream[7]);
}

TEST_P(AfterDrafts, hold_the_sequence_until_their_step_has_been_waited_for) {
  create_engine(draft_options());
  const Tokens prompt = long_prompt(60), stream = generate(prompt, 10);
  const Tokens drafts = drafts_for(stream, 0, 8, 6), one = {3};
  const wcuda_sequence sequence = create_sequence();
  const uint64_t first = submit({drafted(token_row(sequence, prompt, WCUDA_ROW_SAMPLE), drafts)});
  uint64_t ticket = 0;
  EXPECT_EQ(try_submit({token_row(sequence, one, 0)}, &ticket), WCUDA_INVALID_STATE);
  EXPECT_TRUE(message_has("row 0: 8 drafts of the sequence, from position 60 on"))
      << error_.message;
  EXPECT_TRUE(message_has("WCUDA_ROW_FEED_SAMPLED")) << error_.message;
  EXPECT_EQ(try_submit({drafted(feed_row(sequence), one)}, &ticket), WCUDA_INVALID_STATE);
  EXPECT_TRUE(message_has("WCUDA_ROW_FEED_SAMPLED and no drafts")) << error_.message;
  EXPECT_EQ(length(sequence), 68u);

  const uint64_t second = submit({feed_row(sequence)});
  EXPECT_EQ(try_submit({feed_row(sequence)}, &ticket), WCUDA_QUEUE_FULL);
  const wcuda_page_key key = {{1}};
  wcuda_sequence forked{77};
  int32_t token = 0;
  wcuda_pinned pinned{0};
  wcuda_event copied{0};
  ASSERT_OK(wcuda_pinned_create(context_, 1 << 20, &pinned, &error_));
  ASSERT_OK(wcuda_event_create(context_, &copied, &error_));
  EXPECT_EQ(wcuda_sequence_fork(sequence, &forked, &error_), WCUDA_INVALID_STATE);
  EXPECT_TRUE(message_has("waited for first")) << error_.message;
  EXPECT_EQ(wcuda_sequence_publish(sequence, 0, &key, 1, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_sequence_save(sequence, pinned, 0, copied, &error_), WCUDA_INVALID_STATE);
  EXPECT_EQ(wcuda_sequence_tokens_get(sequence, 60, 1, &token, &error_), WCUDA_INVALID_STATE);
  ASSERT_OK(wcuda_sequence_tokens_get(sequence, 59, 1, &token, &error_));

  EXPECT_EQ(drawn(wait(first), 0).size(), 7u);
  EXPECT_EQ(length(sequence), 67u);
  const wcuda_sequence copy = fork(sequence), attached = create_sequence();
  ASSERT_OK(wcuda_sequence_publish(sequence, 0, &key, 1, &error_));
  ASSERT_OK(wcuda_sequence_save(sequence, pinned, 0, copied, &error_));
  ASSERT_OK(wcuda_sequence_tokens_get(sequence, 65, 1, &token, &error_));
  EXPECT_EQ(token, stream[5]);
  EXPECT_EQ(wcuda_sequence_tokens_get(sequence, 66, 1, &token, &error_), WCUDA_INVALID_STATE);
  EXPECT_EQ(wait(second).rows[0].token, stream[7]);
  ASSERT_OK(wcuda_sequence_tokens_get(copy, 66, 1, &token, &error_));
  EXPECT_EQ(token, stream[6]);
  for (size_t i = 8; i < stream.size(); ++i) {
    const StepResult step = wait(submit({feed_row(sequence), feed_row(copy)}));
    EXPECT_EQ(step.rows[0].token, stream[i]);
    EXPECT_EQ(step.rows[1].token, stream[i]);
  }
  Tokens whole = prompt;
  whole.insert(whole.end(), stream.begin(), stream.begin() + 5);
  uint32_t found = 0;
  ASSERT_OK(wcuda_sequence_attach(attached, whole.data(), static_cast<uint32_t>(whole.size()), &key,
                                  1, &found, &error_));
  EXPECT_EQ(found, 64u);
  const Tokens last = {stream[4]};
  EXPECT_EQ(wait(submit({token_row(attached, last, WCUDA_ROW_SAMPLE)})).rows[0].token, stream[5]);
  wcuda_pinned_destroy(pinned);
  wcuda_event_destroy(copied);
}

TEST_P(AfterDrafts, count_with_their_bound_in_pages_and_positions) {
  wcuda_engine_options options = draft_options();
  options.max_sequences = 2;
  options.max_sequence_tokens = 66;
  options.kv_tokens = 128;
  create_engine(options);
  const Tokens prompt = long_prompt(60), stream = generate(prompt, 6);
  const Tokens one = {7};
  const Tokens four = drafts_for(stream, 0, 4, 1), six = drafts_for(stream, 0, 6, 2);
  const wcuda_sequence other = create_sequence();
  wait(submit({token_row(other, one, 0)}));
  wcuda_sequence sequence = create_sequence();
  uint64_t ticket = 0;
  uint64_t first = submit({drafted(token_row(sequence, prompt, WCUDA_ROW_SAMPLE), four)});
  EXPECT_EQ(try_submit({feed_row(sequence)}, &ticket), WCUDA_OUT_OF_PAGES);
  EXPECT_TRUE(message_has("needs 1 KV pages, 0 of 2 are free")) << error_.message;
  EXPECT_EQ(length(sequence), 64u);
  EXPECT_EQ(drawn(wait(first), 0).size(), 2u);
  EXPECT_EQ(wait(submit({feed_row(sequence)})).rows[0].token, stream[2]);
  wcuda_sequence_destroy(sequence);
  wcuda_sequence_destroy(other);

  sequence = create_sequence();
  first = submit({drafted(token_row(sequence, prompt, WCUDA_ROW_SAMPLE), six)});
  EXPECT_EQ(try_submit({feed_row(sequence)}, &ticket), WCUDA_LIMIT_EXCEEDED);
  EXPECT_TRUE(message_has("1 tokens after 66 would pass max_sequence_tokens 66")) << error_.message;
  EXPECT_EQ(drawn(wait(first), 0).size(), 3u);
  EXPECT_EQ(wait(submit({feed_row(sequence)})).rows[0].token, stream[3]);
}

// The page that the next row turned out not to need serves the step after it.
TEST_P(AfterDrafts, give_back_pages_while_the_next_row_is_in_flight) {
  wcuda_engine_options options = draft_options();
  options.max_sequences = 2;
  options.max_sequence_tokens = 128;
  options.kv_tokens = 128;
  create_engine(options);
  const Tokens prompt = long_prompt(60), stream = generate(prompt, 8);
  const Tokens drafts = drafts_for(stream, 0, 4, 1);
  const Tokens other_stream = generate(kDraftPrompt, 2);
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();

  const uint64_t first = submit({drafted(token_row(sequence, prompt, WCUDA_ROW_SAMPLE), drafts)});
  const uint64_t second = submit({feed_row(sequence)});
  EXPECT_EQ(free_pages(), 0u);
  EXPECT_EQ(drawn(wait(first), 0).size(), 2u);
  EXPECT_EQ(free_pages(), 1u);
  const uint64_t third =
      submit({feed_row(sequence), token_row(other, kDraftPrompt, WCUDA_ROW_SAMPLE)});
  EXPECT_EQ(free_pages(), 0u);
  EXPECT_EQ(wait(second).rows[0].token, stream[2]);
  const StepResult step = wait(third);

  EXPECT_EQ(step.rows[0].token, stream[3]);
  EXPECT_EQ(step.rows[1].token, other_stream[0]);
  const StepResult last = wait(submit({feed_row(other), feed_row(sequence)}));
  EXPECT_EQ(last.rows[0].token, other_stream[1]);
  EXPECT_EQ(last.rows[1].token, stream[4]);
}

// The graph of a step does not depend on whether its rows continue drafts.
TEST_P(AfterDrafts, use_the_graphs_of_other_steps_and_can_be_profiled) {
  create_engine(draft_options());
  const Tokens stream = generate(kDraftPrompt, 8);
  ASSERT_OK(wcuda_engine_warm_up(engine_, &error_));
  InFlight rows = begin(stream);
  expect_drafting(rows, stream);
  const StepResult step = wait(rows.next);
  EXPECT_EQ(step.rows[0].token, stream[6]);
  EXPECT_FALSE(step.captured);

  ASSERT_OK(wcuda_engine_profile_set(engine_, 1, &error_));
  rows = begin(stream);
  expect_drafting(rows, stream);
  expect_next(rows, stream);
}

// After one token all logits are NaN.
class AfterDraftsOfNan : public AfterDrafts {
 protected:
  static constexpr int32_t kNanToken = 7;
  testing::TinyModel tiny_model() const override {
    testing::TinyModel tiny = EngineFixture::tiny_model();
    tiny.nan_token = kNanToken;
    tiny.has_output = true;
    return tiny;
  }
};
INSTANTIATE_TEST_SUITE_P(Host, AfterDraftsOfNan, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, AfterDraftsOfNan, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(AfterDraftsOfNan, the_next_row_ends_as_it_does_after_a_wait) {
  create_engine(draft_options());
  const Tokens prompt = {1, 5, 9, 2}, nan = {kNanToken};
  const Tokens stream = generate(prompt, 4);
  // The draft was drawn, but nothing can be drawn after it: the next row has it as its input.
  const Tokens same = {kNanToken, kNanToken};
  const std::vector<float> bias = {1e6f};
  wcuda_sampling forced = WCUDA_SAMPLING_INIT;
  forced.bias_count = 1;
  forced.bias_tokens = nan.data();
  forced.bias_values = bias.data();
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  wcuda_row row = drafted(token_row(sequence, prompt, WCUDA_ROW_SAMPLE), same);
  row.sampling = &forced;
  const Tokens drafts = drafts_for(stream, 0, 2, 2);

  uint64_t first = submit({row, drafted(token_row(other, prompt, WCUDA_ROW_SAMPLE), drafts)});
  uint64_t second = submit({feed_row(sequence), feed_row(other)});
  StepResult step = wait(first);
  EXPECT_EQ(tokens_of(drawn(step, 0)), nan);
  EXPECT_EQ(drawn(step, 1).size(), 3u);
  step = wait(second);
  EXPECT_EQ(step.rows[0].status, WCUDA_ROW_NOT_FINITE);
  EXPECT_EQ(step.rows[0].first_position, prompt.size());
  EXPECT_EQ(length(sequence), prompt.size());
  EXPECT_EQ(step.rows[1].token, stream[3]);

  // The row that has the drafts fails itself.
  first = submit({drafted(token_row(sequence, nan, WCUDA_ROW_SAMPLE), drafts)});
  second = submit({feed_row(sequence)});
  EXPECT_EQ(wait(first).rows[0].status, WCUDA_ROW_NOT_FINITE);
  EXPECT_EQ(wait(second).rows[0].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(length(sequence), prompt.size());
  const Tokens more = {stream[0]};
  EXPECT_EQ(wait(submit({token_row(sequence, more, WCUDA_ROW_SAMPLE)})).rows[0].token, stream[1]);
}

}  // namespace
}  // namespace wcuda
