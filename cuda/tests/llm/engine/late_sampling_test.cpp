// Rows that are sampled after their step was submitted, through the C interface.
#include <algorithm>
#include <deque>
#include <random>
#include <thread>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::StepResult;

const std::vector<int32_t> kLatePrompt = {1, 5, 9, 2, 7};
constexpr uint32_t kLate = WCUDA_ROW_SAMPLE | WCUDA_ROW_SAMPLE_LATE;

class LateSampling : public testing::EngineFixture {
 protected:
  using Mask = std::vector<uint32_t>;

  Mask mask_of(const std::vector<int32_t>& allowed) const {
    Mask mask((vocabulary_ + 31) / 32, 0);
    for (const int32_t token : allowed)
      mask[static_cast<uint32_t>(token) / 32] |= 1u << (static_cast<uint32_t>(token) % 32);
    return mask;
  }
  static wcuda_late_row late_row(const Mask& mask) {
    wcuda_late_row row = WCUDA_LATE_ROW_INIT;
    row.mask = mask.data();
    row.mask_words = mask.size();
    return row;
  }
  static wcuda_late_row unmasked() { return WCUDA_LATE_ROW_INIT; }
  static wcuda_late_row held() {
    wcuda_late_row row = WCUDA_LATE_ROW_INIT;
    row.is_held = 1;
    return row;
  }
  wcuda_status try_sample(uint64_t ticket, const std::vector<wcuda_late_row>& rows) {
    return wcuda_step_sample(engine_, ticket, rows.data(), rows.size(), &error_);
  }
  void sample(uint64_t ticket, const std::vector<wcuda_late_row>& rows) {
    ASSERT_OK(try_sample(ticket, rows));
  }
};
INSTANTIATE_TEST_SUITE_P(Host, LateSampling, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, LateSampling, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(LateSampling, draws_what_sampling_at_once_draws_with_every_parameter) {
  create_engine(small_options());
  std::vector<int32_t> allowed;
  for (uint32_t token = 0; token < vocabulary_; token += 3)
    allowed.push_back(static_cast<int32_t>(token));
  const Mask mask = mask_of(allowed);
  const std::vector<int32_t> bias_tokens = {3, 6, 4};
  const std::vector<float> bias_values = {1.5f, -2.0f, 7.0f};
  std::vector<wcuda_sampling> samplings(4, WCUDA_SAMPLING_INIT);
  samplings[1].temperature = 0.9f;
  samplings[1].seed = 11;
  samplings[1].top_k = 9;
  samplings[1].top_logprobs = 3;
  samplings[2].repetition_penalty = 1.7f;
  samplings[2].presence_penalty = 0.4f;
  samplings[2].bias_count = bias_tokens.size();
  samplings[2].bias_tokens = bias_tokens.data();
  samplings[2].bias_values = bias_values.data();
  samplings[3].temperature = 1.4f;
  for (wcuda_sampling sampling : samplings) {
    // A row that is not late is in the same step.
    const wcuda_sequence at_once = create_sequence(), late = create_sequence();
    wcuda_row rows[] = {token_row(at_once, kLatePrompt, WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST),
                        token_row(late, kLatePrompt, kLate | WCUDA_ROW_LOGITS_LAST)};
    for (int step = 0; step < 6; ++step) {
      wcuda_sampling masked = sampling;
      masked.mask = mask.data();
      masked.mask_words = mask.size();
      rows[0].sampling = &masked;
      rows[1].sampling = &sampling;
      const uint64_t ticket = submit({rows[0], rows[1]});
      sample(ticket, {late_row(mask)});
      const StepResult result = wait(ticket);

      ASSERT_EQ(result.rows[0].status, WCUDA_ROW_OK);
      EXPECT_EQ(result.rows[1].status, WCUDA_ROW_OK);
      EXPECT_EQ(result.rows[1].token, result.rows[0].token);
      EXPECT_EQ(result.rows[1].token % 3, 0);
      EXPECT_EQ(result.rows[1].logprob, result.rows[0].logprob);
      ASSERT_EQ(result.rows[1].top_count, sampling.top_logprobs);
      for (uint32_t i = 0; i < sampling.top_logprobs; ++i) {
        EXPECT_EQ(result.top_tokens[i], result.top_tokens[sampling.top_logprobs + i]);
        EXPECT_EQ(result.top_logprobs[i], result.top_logprobs[sampling.top_logprobs + i]);
      }
      EXPECT_TRUE(std::equal(result.logits.begin(), result.logits.begin() + vocabulary_,
                             result.logits.begin() + vocabulary_));
      rows[0] = feed_row(at_once);
      rows[1] = feed_row(late, kLate);
      rows[0].flags |= WCUDA_ROW_LOGITS_LAST;
      rows[1].flags |= WCUDA_ROW_LOGITS_LAST;
    }
  }
}

TEST_P(LateSampling, a_step_may_follow_before_and_one_that_continues_the_row_after_it) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kLatePrompt, 4);
  const std::vector<int32_t> second_prompt = {4, 4, 8};
  const std::vector<int32_t> expected_other = generate(second_prompt, 2);
  const wcuda_sequence late = create_sequence(), other = create_sequence();

  const uint64_t first = submit({token_row(late, kLatePrompt, kLate)});
  const uint64_t second = submit({token_row(other, second_prompt, WCUDA_ROW_SAMPLE)});
  sample(first, {unmasked()});
  EXPECT_EQ(wait(first).rows[0].token, expected[0]);
  const uint64_t third = submit({feed_row(late, kLate), feed_row(other)});
  EXPECT_EQ(wait(second).rows[0].token, expected_other[0]);
  sample(third, {unmasked()});
  const uint64_t fourth = submit({feed_row(late)});
  const StepResult result = wait(third);

  EXPECT_EQ(result.rows[0].token, expected[1]);
  EXPECT_EQ(result.rows[1].token, expected_other[1]);
  EXPECT_EQ(wait(fourth).rows[0].token, expected[2]);
}

// Both steps have late rows, and the later one is sampled first.
TEST_P(LateSampling, two_steps_may_wait_and_are_sampled_in_any_order) {
  create_engine(small_options());
  const std::vector<int32_t> second_prompt = {4, 4, 8};
  const wcuda_sequence one = create_sequence(), two = create_sequence();
  wcuda_sampling biased = WCUDA_SAMPLING_INIT, plain = WCUDA_SAMPLING_INIT;
  const int32_t token = 17, other_token = 23;
  const float value = 100.0f;
  biased.bias_count = 1;
  biased.bias_tokens = &token;
  biased.bias_values = &value;
  plain = biased;
  plain.bias_tokens = &other_token;
  wcuda_row first_row = token_row(one, kLatePrompt, kLate);
  first_row.sampling = &biased;
  wcuda_row second_row = token_row(two, second_prompt, kLate);
  second_row.sampling = &plain;

  const uint64_t first = submit({first_row}), second = submit({second_row});
  sample(second, {unmasked()});
  sample(first, {unmasked()});

  EXPECT_EQ(wait(first).rows[0].token, token);
  EXPECT_EQ(wait(second).rows[0].token, other_token);
}

TEST_P(LateSampling, a_held_row_can_be_had_again_fed_or_not) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kLatePrompt, 4);
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  const uint64_t pages = free_pages();

  uint64_t ticket = submit(
      {token_row(sequence, kLatePrompt, kLate), token_row(other, kLatePrompt, WCUDA_ROW_SAMPLE)});
  sample(ticket, {held()});
  EXPECT_EQ(length(sequence), 0u);
  EXPECT_EQ(free_pages(), pages - 1);
  // The same row again, while the step that had it is in flight.
  const uint64_t again = submit({token_row(sequence, kLatePrompt, kLate)});
  StepResult result = wait(ticket);
  EXPECT_EQ(result.rows[0].status, WCUDA_ROW_HELD);
  EXPECT_EQ(result.rows[0].token, -1);
  EXPECT_EQ(result.rows[0].logprob, 0.0f);
  EXPECT_EQ(result.rows[0].top_count, 0u);
  EXPECT_EQ(result.rows[1].token, expected[0]);
  sample(again, {unmasked()});
  // Holds rows that feed a token which the host does not know yet.
  for (int hold = 0; hold < 2; ++hold) {
    ticket = submit({feed_row(sequence, kLate)});
    if (hold == 0) {
      EXPECT_EQ(wait(again).rows[0].token, expected[0]);
    }
    sample(ticket, {held()});
    EXPECT_EQ(length(sequence), kLatePrompt.size());
    EXPECT_EQ(wait(ticket).rows[0].status, WCUDA_ROW_HELD);
  }
  std::vector<int32_t> tokens;
  for (int i = 1; i < 4; ++i) {
    ticket = submit({feed_row(sequence, kLate)});
    sample(ticket, {unmasked()});
    tokens.push_back(wait(ticket).rows[0].token);
  }

  EXPECT_EQ(tokens, std::vector<int32_t>(expected.begin() + 1, expected.end()));
  int32_t known = -1;
  ASSERT_OK(wcuda_sequence_tokens_get(sequence, kLatePrompt.size(), 1, &known, &error_));
  EXPECT_EQ(known, expected[0]);
}

TEST_P(LateSampling, a_mask_that_allows_nothing_takes_the_sequence_back) {
  create_engine(small_options());
  const wcuda_sequence sequence = create_sequence();
  const Mask nothing = mask_of({});

  const uint64_t first = submit({token_row(sequence, kLatePrompt, kLate)});
  sample(first, {late_row(nothing)});
  const uint64_t second = submit({feed_row(sequence, kLate)});
  sample(second, {unmasked()});

  EXPECT_EQ(wait(first).rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(length(sequence), 0u);
  EXPECT_EQ(wait(second).rows[0].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(length(sequence), 0u);
}

// A held row that continues a failed one is skipped, like any other.
TEST_P(LateSampling, a_held_row_after_a_failed_one_is_skipped) {
  create_engine(small_options());
  const wcuda_sequence sequence = create_sequence();
  const Mask nothing = mask_of({});

  const uint64_t first = submit({token_row(sequence, kLatePrompt, kLate)});
  sample(first, {late_row(nothing)});
  const uint64_t second = submit({feed_row(sequence, kLate)});
  sample(second, {held()});
  EXPECT_EQ(wait(first).rows[0].status, WCUDA_ROW_EMPTY_MASK);

  EXPECT_EQ(wait(second).rows[0].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(length(sequence), 0u);
  uint64_t ticket = 0;
  EXPECT_EQ(try_submit({feed_row(sequence)}, &ticket), WCUDA_INVALID_STATE);
}

TEST_P(LateSampling, refuses_what_is_wrong_and_leaves_the_step_as_it_is) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kLatePrompt, 2);
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  const Mask all((vocabulary_ + 31) / 32, ~0u);
  wcuda_sampling masked = WCUDA_SAMPLING_INIT;
  masked.mask = all.data();
  masked.mask_words = all.size();
  wcuda_row row = token_row(sequence, kLatePrompt, kLate);
  row.sampling = &masked;
  uint64_t ticket = 0;
  EXPECT_EQ(try_submit({row}, &ticket), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "row 0 is late: wcuda_step_sample takes its mask");
  EXPECT_EQ(try_submit({token_row(sequence, kLatePrompt, WCUDA_ROW_SAMPLE_LATE)}, &ticket),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(try_sample(1, {unmasked()}), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "ticket 1 is not in flight");
  const uint64_t plain = submit({token_row(other, kLatePrompt, WCUDA_ROW_SAMPLE)});
  EXPECT_EQ(try_sample(plain, {}), WCUDA_INVALID_STATE);
  wait(plain);

  ticket = submit({token_row(sequence, kLatePrompt, kLate), feed_row(other)});
  StepResult ignored;
  EXPECT_EQ(try_wait(ticket, &ignored), WCUDA_INVALID_STATE);
  EXPECT_EQ(wcuda_engine_warm_up(engine_, &error_), WCUDA_INVALID_STATE);
  wcuda_sequence forked{77};
  EXPECT_EQ(wcuda_sequence_fork(sequence, &forked, &error_), WCUDA_INVALID_STATE);
  EXPECT_EQ(forked.id, 77u);
  uint64_t next = 0;
  EXPECT_EQ(try_submit({feed_row(other), feed_row(sequence)}, &next), WCUDA_INVALID_STATE);
  EXPECT_EQ(try_submit({token_row(sequence, kLatePrompt, 0)}, &next), WCUDA_INVALID_STATE);
  EXPECT_EQ(try_sample(ticket, {}), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(try_sample(ticket, {unmasked(), unmasked()}), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(try_sample(ticket, std::vector<wcuda_late_row>(kMaxRows + 1, unmasked())),
            WCUDA_LIMIT_EXCEEDED);
  EXPECT_EQ(try_sample(ticket + 1, {unmasked()}), WCUDA_INVALID_ARGUMENT);
  wcuda_late_row wrong = late_row(all);
  --wrong.mask_words;
  EXPECT_EQ(try_sample(ticket, {wrong}), WCUDA_INVALID_ARGUMENT);
  wrong = late_row(all);
  wrong.struct_size = 7;
  EXPECT_EQ(try_sample(ticket, {wrong}), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_step_sample(engine_, ticket, nullptr, 1, &error_), WCUDA_INVALID_ARGUMENT);
  sample(ticket, {late_row(all)});
  EXPECT_EQ(try_sample(ticket, {late_row(all)}), WCUDA_INVALID_STATE);
  EXPECT_EQ(wait(ticket).rows[0].token, expected[0]);
  EXPECT_EQ(try_sample(ticket, {late_row(all)}), WCUDA_INVALID_ARGUMENT);

  wait(submit({feed_row(sequence)}));
}

TEST_P(LateSampling, drain_holds_rows_that_are_not_sampled) {
  create_engine(small_options());
  const std::vector<int32_t> expected = generate(kLatePrompt, 2);
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  const uint64_t first = submit({token_row(sequence, kLatePrompt, kLate)});
  submit({token_row(other, kLatePrompt, kLate)});

  ASSERT_OK(wcuda_engine_drain(engine_, &error_));

  EXPECT_EQ(length(sequence), 0u);
  EXPECT_EQ(length(other), 0u);
  EXPECT_EQ(try_sample(first, {unmasked()}), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wait(submit({token_row(sequence, kLatePrompt, WCUDA_ROW_SAMPLE)})).rows[0].token,
            expected[0]);
}

// TearDown finds no memory left behind.
TEST_P(LateSampling, an_engine_is_destroyed_with_rows_that_are_not_sampled) {
  create_engine(small_options());
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  submit({token_row(sequence, kLatePrompt, kLate)});
  submit({token_row(other, kLatePrompt, WCUDA_ROW_SAMPLE)});
}

// The new sequence gets the slot of the old one, whose token must not become part of it.
TEST_P(LateSampling, a_destroyed_sequence_is_held_and_its_slot_may_be_used_at_once) {
  wcuda_engine_options options = small_options();
  options.max_sequences = 1;
  create_engine(options);
  const std::vector<int32_t> expected = generate(kLatePrompt, 3);
  const Mask mask = mask_of({expected[0] == 3 ? 4 : 3});
  wcuda_sequence sequence = create_sequence();
  const uint64_t first = submit({token_row(sequence, kLatePrompt, kLate)});
  wcuda_sequence_destroy(sequence);
  sequence = create_sequence();
  const uint64_t second = submit({token_row(sequence, kLatePrompt, WCUDA_ROW_SAMPLE)});
  sample(first, {late_row(mask)});

  EXPECT_EQ(wait(first).rows[0].status, WCUDA_ROW_HELD);
  const uint64_t third = submit({feed_row(sequence)});
  EXPECT_EQ(wait(second).rows[0].token, expected[0]);
  EXPECT_EQ(wait(third).rows[0].token, expected[1]);
  EXPECT_EQ(length(sequence), kLatePrompt.size() + 1);
}

TEST_P(LateSampling, a_sequence_is_truncated_before_its_row_is_sampled_or_held) {
  create_engine(small_options());
  const std::vector<int32_t> rest(kLatePrompt.begin() + 2, kLatePrompt.end());
  const std::vector<int32_t> expected = generate(kLatePrompt, 2);
  for (const wcuda_late_row& row : {unmasked(), held()}) {
    const wcuda_sequence sequence = create_sequence();
    wait(submit({token_row(sequence, {kLatePrompt.begin(), kLatePrompt.begin() + 4}, 0)}));
    const std::vector<int32_t> detour = {8, 8, 8};
    const uint64_t ticket = submit({token_row(sequence, detour, kLate)});
    ASSERT_OK(wcuda_sequence_truncate(sequence, 2, &error_));
    uint64_t next = 0;
    EXPECT_EQ(try_submit({token_row(sequence, rest, kLate)}, &next), WCUDA_INVALID_STATE);
    sample(ticket, {row});
    next = submit({token_row(sequence, rest, WCUDA_ROW_SAMPLE)});
    wait(ticket);

    EXPECT_EQ(wait(next).rows[0].token, expected[0]);
    EXPECT_EQ(wait(submit({feed_row(sequence)})).rows[0].token, expected[1]);
  }
}

TEST_P(LateSampling, masks_come_from_another_thread_while_the_step_runs) {
  create_engine(small_options());
  const wcuda_sequence sequence = create_sequence();
  wcuda_row row = token_row(sequence, kLatePrompt, kLate);
  for (int32_t token = 0; token < 40; ++token) {
    const uint64_t ticket = submit({row});
    std::thread([&, mask = mask_of({token})] {
      wcuda_error error{};
      const wcuda_late_row late = late_row(mask);
      EXPECT_EQ(wcuda_step_sample(engine_, ticket, &late, 1, &error), WCUDA_OK) << error.message;
    }).join();
    EXPECT_EQ(wait(ticket).rows[0].token, token);
    row = feed_row(sequence, kLate);
  }
}

// Sequences that each have their own masks, which depend on the last token: together in steps, two
// in flight, some rows late and some of these held, they get the tokens that they get alone.
TEST_P(LateSampling, any_composition_and_any_holds_give_each_sequence_its_own_tokens) {
  wcuda_engine_options options = small_options();
  options.flags = WCUDA_ENGINE_BATCH_INVARIANT | WCUDA_ENGINE_POISON_FREE_PAGES;
  options.max_batch_tokens = 300;
  options.kv_tokens = 64 * 32;
  create_engine(options);
  constexpr uint32_t kSequences = 12, kTokens = 14;
  const auto mask_after = [&](uint32_t index, uint32_t count) {
    std::mt19937 generator(index * 1000 + count);
    Mask mask((vocabulary_ + 31) / 32);
    for (uint32_t& word : mask) word = static_cast<uint32_t>(generator() | generator());
    return mask;
  };
  const auto sampling_of = [](uint32_t index) {
    wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
    sampling.temperature = index % 3 == 0 ? 0.0f : 1.1f;
    sampling.top_k = index % 3 == 1 ? 12 : 0;
    sampling.presence_penalty = index % 4 == 3 ? 0.8f : 0.0f;
    sampling.seed = index;
    return sampling;
  };
  const auto prompt_of = [&](uint32_t index) {
    std::vector<int32_t> prompt(1 + index * 5 % 23);
    for (size_t i = 0; i < prompt.size(); ++i)
      prompt[i] = static_cast<int32_t>((index * 31 + i * 7) % vocabulary_);
    return prompt;
  };
  std::vector<std::vector<int32_t>> expected(kSequences);
  for (uint32_t i = 0; i < kSequences; ++i) {
    const std::vector<int32_t> prompt = prompt_of(i);
    const wcuda_sequence sequence = create_sequence();
    wcuda_row row = token_row(sequence, prompt, WCUDA_ROW_SAMPLE);
    while (expected[i].size() < kTokens) {
      const Mask mask = mask_after(i, static_cast<uint32_t>(expected[i].size()));
      wcuda_sampling sampling = sampling_of(i);
      sampling.mask = mask.data();
      sampling.mask_words = mask.size();
      row.sampling = &sampling;
      expected[i].push_back(wait(submit({row})).rows[0].token);
      row = feed_row(sequence);
    }
    wcuda_sequence_destroy(sequence);
  }

  uint32_t late_count = 0, held_count = 0;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    std::mt19937 generator(seed);
    struct Planned {
      uint32_t index;
      bool is_late, is_held;
      uint32_t count;  // tokens before the one that it draws
    };
    struct Flight {
      uint64_t ticket;
      std::vector<Planned> rows;
      bool is_sampled;
    };
    std::vector<std::vector<int32_t>> prompts, drawn(kSequences);
    std::vector<wcuda_sequence> sequences;
    std::vector<uint32_t> begun(kSequences, 0);  // tokens drawn or being drawn
    std::deque<Flight> in_flight;
    for (uint32_t i = 0; i < kSequences; ++i) {
      prompts.push_back(prompt_of(i));
      sequences.push_back(create_sequence());
    }
    const auto sample_late = [&](Flight& flight) {
      std::vector<wcuda_late_row> late;
      std::deque<Mask> masks;
      for (const Planned& row : flight.rows) {
        if (!row.is_late) continue;
        masks.push_back(mask_after(row.index, row.count));
        late.push_back(row.is_held ? held() : late_row(masks.back()));
        begun[row.index] -= row.is_held;
        ++late_count;
        held_count += row.is_held;
      }
      if (!late.empty()) sample(flight.ticket, late);
      flight.is_sampled = true;
    };
    const auto finish = [&] {
      Flight flight = in_flight.front();
      if (!flight.is_sampled) sample_late(flight);
      in_flight.pop_front();
      const StepResult result = wait(flight.ticket);
      for (size_t i = 0; i < flight.rows.size(); ++i) {
        const Planned& row = flight.rows[i];
        EXPECT_EQ(result.rows.at(i).status, row.is_held ? WCUDA_ROW_HELD : WCUDA_ROW_OK);
        if (!row.is_held) drawn[row.index].push_back(result.rows[i].token);
      }
    };
    while (std::any_of(begun.begin(), begun.end(), [](uint32_t n) { return n < kTokens; })) {
      std::vector<bool> waits(kSequences, false);
      for (const Flight& flight : in_flight)
        for (const Planned& row : flight.rows)
          if (row.is_late && !flight.is_sampled) waits[row.index] = true;
      Flight flight{0, {}, false};
      std::vector<wcuda_row> rows;
      std::deque<wcuda_sampling> samplings;
      std::deque<Mask> masks;
      for (uint32_t i = 0; i < kSequences; ++i) {
        if (waits[i] || begun[i] == kTokens || generator() % 4 == 0) continue;
        const bool is_late = generator() % 3 != 0, is_held = is_late && generator() % 4 == 0;
        flight.rows.push_back({i, is_late, is_held, begun[i]});
        const uint32_t flags = is_late ? kLate : WCUDA_ROW_SAMPLE;
        rows.push_back(begun[i] == 0 ? token_row(sequences[i], prompts[i], flags)
                                     : feed_row(sequences[i], flags));
        samplings.push_back(sampling_of(i));
        if (!is_late) {
          masks.push_back(mask_after(i, begun[i]));
          samplings.back().mask = masks.back().data();
          samplings.back().mask_words = masks.back().size();
        }
        rows.back().sampling = &samplings.back();
        ++begun[i];
        if (begun[i] == 1 && std::count(begun.begin(), begun.end(), 0u) > 8) break;
      }
      if (!rows.empty()) {
        ASSERT_OK(try_submit(rows, &flight.ticket));
        in_flight.push_back(flight);
      }
      if (generator() % 2 == 0)
        for (Flight& any : in_flight)
          if (!any.is_sampled) sample_late(any);
      if (in_flight.size() == 2 || rows.empty()) finish();
    }
    while (!in_flight.empty()) finish();
    // A row that was held at the end is missing.
    for (uint32_t i = 0; i < kSequences; ++i) {
      ASSERT_LE(drawn[i].size(), expected[i].size());
      EXPECT_TRUE(std::equal(drawn[i].begin(), drawn[i].end(), expected[i].begin()))
          << "sequence " << i << " of composition " << seed;
      wcuda_sequence_destroy(sequences[i]);
    }
  }
  EXPECT_GT(late_count, 500u);
  EXPECT_GT(held_count, 100u);
}

}  // namespace
}  // namespace wcuda
