// KV pages with keys: which sequences share them, what ends a key, which pages are evicted first.
#include <algorithm>
#include <map>
#include <random>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::StepResult;

constexpr uint32_t kPageTokens = WCUDA_KV_PAGE_TOKENS;

wcuda_page_key key(uint8_t number) {
  wcuda_page_key key{};
  key.bytes[0] = number;
  key.bytes[31] = 7;
  return key;
}
std::vector<wcuda_page_key> keys(std::initializer_list<uint8_t> numbers) {
  std::vector<wcuda_page_key> result;
  for (const uint8_t number : numbers) result.push_back(key(number));
  return result;
}
std::vector<int32_t> prompt(size_t count, int32_t salt = 0) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(i * 5 + i / 7 + salt) % 29;
  return tokens;
}
std::vector<int32_t> part(const std::vector<int32_t>& tokens, size_t first, size_t count = 1000) {
  const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(first);
  return {from, from + static_cast<std::ptrdiff_t>(std::min(count, tokens.size() - first))};
}

class PageKeys : public testing::EngineFixture {
 protected:
  // Rows of whole pages give the same bits in every step.
  void create_pages(uint32_t page_count, uint64_t flags = 0) {
    wcuda_engine_options options = small_options();
    options.flags = WCUDA_ENGINE_BATCH_INVARIANT | flags;
    options.kv_tokens = uint64_t{kPageTokens} * page_count;
    create_engine(options);
  }

  wcuda_engine_info info() {
    wcuda_engine_info info = WCUDA_ENGINE_INFO_INIT;
    EXPECT_EQ(wcuda_engine_info_get(engine_, &info, &error_), WCUDA_OK) << error_.message;
    EXPECT_EQ(info.kv_free_page_count + info.kv_held_page_count, info.kv_page_count);
    EXPECT_LE(info.kv_cached_page_count, info.kv_free_page_count);
    return info;
  }
  void expect_pages(uint64_t held, uint64_t cached) {
    EXPECT_EQ(info().kv_held_page_count, held);
    EXPECT_EQ(info().kv_cached_page_count, cached);
  }

  // Computes the tokens of a prompt from the sequence's length on, one page a step, and returns
  // the last result.
  StepResult compute(wcuda_sequence sequence, const std::vector<int32_t>& tokens,
                     const wcuda_sampling* sampling = nullptr) {
    for (;;) {
      const std::vector<int32_t> chunk = part(tokens, length(sequence), kPageTokens);
      wcuda_row row = token_row(sequence, chunk, WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST);
      row.sampling = sampling;
      StepResult result = wait(submit({row}));
      if (length(sequence) == tokens.size()) {
        result.logits.resize(vocabulary_);
        return result;
      }
    }
  }
  wcuda_sequence computed(const std::vector<int32_t>& tokens) {
    const wcuda_sequence sequence = create_sequence();
    compute(sequence, tokens);
    return sequence;
  }

  wcuda_status try_publish(wcuda_sequence sequence, uint32_t first_page,
                           const std::vector<wcuda_page_key>& keys) {
    return wcuda_sequence_publish(sequence, first_page, keys.data(),
                                  static_cast<uint32_t>(keys.size()), &error_);
  }
  void publish(wcuda_sequence sequence, uint32_t first_page,
               const std::vector<wcuda_page_key>& keys) {
    EXPECT_EQ(try_publish(sequence, first_page, keys), WCUDA_OK) << error_.message;
  }
  wcuda_status try_attach(wcuda_sequence sequence, const std::vector<int32_t>& tokens,
                          const std::vector<wcuda_page_key>& keys, uint32_t* attached) {
    return wcuda_sequence_attach(sequence, tokens.data(), static_cast<uint32_t>(tokens.size()),
                                 keys.data(), static_cast<uint32_t>(keys.size()), attached,
                                 &error_);
  }
  uint32_t attach(wcuda_sequence sequence, const std::vector<int32_t>& tokens,
                  const std::vector<wcuda_page_key>& keys) {
    uint32_t attached = UINT32_MAX;
    EXPECT_EQ(try_attach(sequence, tokens, keys, &attached), WCUDA_OK) << error_.message;
    EXPECT_EQ(length(sequence), attached);
    return attached;
  }
  // How many tokens a new sequence would find.
  uint32_t found(const std::vector<wcuda_page_key>& keys) {
    const wcuda_sequence sequence = create_sequence();
    const uint32_t attached = attach(sequence, prompt(keys.size() * kPageTokens), keys);
    wcuda_sequence_destroy(sequence);
    return attached;
  }

  // A row that fails: its mask allows no token.
  wcuda_row failing_row(wcuda_sequence sequence, const std::vector<int32_t>& tokens) {
    no_token_.assign((vocabulary_ + 31) / 32, 0);
    empty_mask_.mask = no_token_.data();
    empty_mask_.mask_words = no_token_.size();
    wcuda_row row = token_row(sequence, tokens, WCUDA_ROW_SAMPLE);
    row.sampling = &empty_mask_;
    return row;
  }
  std::vector<uint32_t> no_token_;
  wcuda_sampling empty_mask_ = WCUDA_SAMPLING_INIT;
};
INSTANTIATE_TEST_SUITE_P(Host, PageKeys, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, PageKeys, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(PageKeys, attached_pages_give_the_bits_of_the_whole_prompt_and_its_penalties) {
  create_pages(12, WCUDA_ENGINE_POISON_FREE_PAGES);
  const std::vector<int32_t> tokens = prompt(150);
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;  // depends on the history of all positions
  sampling.repetition_penalty = 1.5f;
  sampling.frequency_penalty = 0.5f;
  sampling.penalty_last_n = 150;
  const wcuda_sequence first = create_sequence();
  const StepResult expected = compute(first, tokens, &sampling);
  publish(first, 0, keys({1, 2}));
  expect_pages(3, 0);
  wcuda_sequence_destroy(first);
  expect_pages(0, 2);
  EXPECT_EQ(free_pages(), 12u) << "cached pages count as free";

  const wcuda_sequence second = create_sequence();
  EXPECT_EQ(attach(second, tokens, keys({1, 2})), 128u);
  expect_pages(2, 0);
  std::vector<int32_t> history(128);
  ASSERT_OK(wcuda_sequence_tokens_get(second, 0, 128, history.data(), &error_));
  EXPECT_EQ(history, part(tokens, 0, 128));
  const StepResult result = compute(second, tokens, &sampling);

  EXPECT_EQ(result.logits, expected.logits);
  EXPECT_EQ(result.rows[0].token, expected.rows[0].token);
  EXPECT_EQ(result.rows[0].logprob, expected.rows[0].logprob);
}

TEST_P(PageKeys, the_longest_run_from_the_first_key_on_is_attached) {
  create_pages(12);
  const wcuda_sequence sequence = computed(prompt(200));
  publish(sequence, 0, keys({1}));
  publish(sequence, 2, keys({3}));
  publish(sequence, 1, {});

  EXPECT_EQ(found(keys({1, 2, 3})), 64u);
  EXPECT_EQ(found(keys({2, 3})), 0u);
  EXPECT_EQ(found(keys({3, 1})), 128u) << "keys are names: the library does not know their order";
  EXPECT_EQ(found({}), 0u);
  publish(sequence, 1, keys({2}));
  EXPECT_EQ(found(keys({1, 2, 3})), 192u);
  EXPECT_EQ(found(keys({1, 2})), 128u);
}

TEST_P(PageKeys, wrong_arguments_are_errors_with_the_numbers_and_change_nothing) {
  create_pages(12);
  const wcuda_sequence sequence = computed(prompt(100)), empty = create_sequence();

  EXPECT_EQ(try_publish(sequence, 0, keys({1, 2})), WCUDA_OUT_OF_RANGE);
  EXPECT_STREQ(error_.message, "2 pages from page 0 on: a sequence of 100 tokens has 1 full pages");
  EXPECT_EQ(try_publish(sequence, UINT32_MAX, keys({1})), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(found(keys({1})), 0u);
  publish(sequence, 0, keys({1}));

  uint32_t attached = 77;
  EXPECT_EQ(try_attach(sequence, prompt(64), keys({1}), &attached), WCUDA_INVALID_STATE);
  EXPECT_STREQ(error_.message, "the sequence has 100 tokens and is not empty");
  EXPECT_EQ(try_attach(empty, prompt(127), keys({1, 2}), &attached), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "2 keys name 128 tokens, token_count is 127");
  EXPECT_EQ(try_attach(empty, prompt(320), keys({1, 2, 3, 4, 5}), &attached), WCUDA_LIMIT_EXCEEDED);
  EXPECT_STREQ(error_.message, "320 tokens, max_sequence_tokens is 256");
  std::vector<int32_t> wrong = prompt(64);
  wrong[63] = static_cast<int32_t>(vocabulary_);
  EXPECT_EQ(try_attach(empty, wrong, keys({1}), &attached), WCUDA_OUT_OF_RANGE);
  wrong[63] = -1;
  EXPECT_EQ(try_attach(empty, wrong, keys({1}), &attached), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_sequence_publish(sequence, 0, nullptr, 1, &error_), WCUDA_INVALID_ARGUMENT);
  const wcuda_page_key one = key(1);
  EXPECT_EQ(wcuda_sequence_attach(empty, nullptr, 64, &one, 1, &attached, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_sequence_attach(empty, wrong.data(), 64, nullptr, 1, &attached, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_sequence_attach(empty, wrong.data(), 64, &one, 1, nullptr, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(attached, 77u);
  EXPECT_EQ(length(empty), 0u);
  EXPECT_EQ(attach(empty, prompt(64), keys({1})), 64u);

  wcuda_sequence_destroy(sequence);
  EXPECT_EQ(try_publish(sequence, 0, keys({1})), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(try_attach(sequence, prompt(64), keys({1}), &attached), WCUDA_INVALID_HANDLE);
}

TEST_P(PageKeys, a_page_in_flight_is_found_once_its_step_has_ended_well) {
  create_pages(12);
  const std::vector<int32_t> tokens = prompt(96);
  const wcuda_sequence sequence = create_sequence();

  const std::vector<int32_t> begin = part(tokens, 0, 40), rest = part(tokens, 40);
  const uint64_t first = submit({token_row(sequence, begin, 0)});
  const uint64_t second = submit({token_row(sequence, rest, 0)});
  publish(sequence, 0, keys({1}));
  EXPECT_EQ(found(keys({1})), 0u);
  wait(first);
  EXPECT_EQ(found(keys({1})), 0u) << "the second step computes the end of the page";
  wait(second);

  EXPECT_EQ(found(keys({1})), 64u);
}

TEST_P(PageKeys, a_page_that_a_failed_row_should_have_computed_loses_its_key) {
  create_pages(12);
  const std::vector<int32_t> tokens = prompt(90);
  const wcuda_sequence sequence = create_sequence(), other = computed(part(tokens, 0, 30));

  const uint64_t ticket = submit({failing_row(sequence, tokens)});
  publish(sequence, 0, keys({1}));
  EXPECT_EQ(wait(ticket).rows[0].status, WCUDA_ROW_EMPTY_MASK);
  EXPECT_EQ(found(keys({1})), 0u);
  expect_pages(1, 0);

  // The first row fills half of the page, so the second one, which is skipped, ends it.
  const std::vector<int32_t> middle = part(tokens, 30, 10), rest = part(tokens, 40);
  const uint64_t failing = submit({failing_row(other, middle)});
  const uint64_t skipped = submit({token_row(other, rest, 0)});
  publish(other, 0, keys({2}));
  wait(failing);
  EXPECT_EQ(wait(skipped).rows[0].status, WCUDA_ROW_SKIPPED);
  EXPECT_EQ(found(keys({2})), 0u);

  compute(other, tokens);
  publish(other, 0, keys({2}));
  EXPECT_EQ(found(keys({2})), 64u) << "its keys are free again";
}

TEST_P(PageKeys, a_page_in_flight_without_an_owner_is_free_and_not_cached) {
  create_pages(12);
  const wcuda_sequence sequence = create_sequence();
  const std::vector<int32_t> tokens = prompt(64);

  const uint64_t ticket = submit({token_row(sequence, tokens, 0)});
  publish(sequence, 0, keys({1}));
  wcuda_sequence_destroy(sequence);
  expect_pages(0, 0);
  wait(ticket);

  expect_pages(0, 0);
  EXPECT_EQ(found(keys({1})), 0u);
}

TEST_P(PageKeys,
       of_two_pages_with_one_key_the_held_one_has_it_and_of_two_keys_a_page_has_the_first) {
  create_pages(12);
  const wcuda_sequence a = computed(prompt(64)), b = computed(prompt(64));
  publish(a, 0, keys({1}));
  publish(b, 0, keys({1}));
  publish(a, 0, keys({2}));
  EXPECT_EQ(found(keys({2})), 0u);

  wcuda_sequence_destroy(b);
  expect_pages(1, 0);  // its page had no key
  wcuda_sequence_destroy(a);
  expect_pages(0, 1);
  const wcuda_sequence c = computed(prompt(64));
  publish(c, 0, keys({1}));
  expect_pages(1, 0);  // the cached page lost the key to the one in use
  EXPECT_EQ(found(keys({1})), 64u);
  expect_pages(1, 0);
}

TEST_P(PageKeys, cached_pages_are_evicted_least_recently_used_first_and_from_the_end_of_a_chain) {
  create_pages(6, WCUDA_ENGINE_POISON_FREE_PAGES);
  const wcuda_sequence a = computed(prompt(192)), b = computed(prompt(128, 3));
  publish(a, 0, keys({1, 2, 3}));
  publish(b, 0, keys({11, 12}));
  wcuda_sequence_destroy(a);
  wcuda_sequence_destroy(b);
  expect_pages(0, 5);
  EXPECT_EQ(found(keys({1})), 64u);  // used now, after those of b

  const wcuda_sequence c = computed(prompt(128, 5));  // one free page, one cached page
  expect_pages(2, 4);
  EXPECT_EQ(found(keys({1, 2, 3})), 128u);  // used again, last page first
  const wcuda_sequence d = computed(prompt(128, 6));
  expect_pages(4, 2);
  EXPECT_EQ(found(keys({11})), 0u) << "least recently used";
  EXPECT_EQ(found(keys({1, 2})), 128u);
  computed(prompt(64, 8));
  EXPECT_EQ(found(keys({1, 2})), 64u);

  wcuda_sequence_destroy(c);
  wcuda_sequence_destroy(d);
}

TEST_P(PageKeys, held_pages_are_not_evicted) {
  create_pages(3);
  const wcuda_sequence a = computed(prompt(128));
  publish(a, 0, keys({1, 2}));
  wcuda_sequence_destroy(a);
  const wcuda_sequence b = create_sequence(), c = create_sequence();
  EXPECT_EQ(attach(b, prompt(64), keys({1})), 64u);

  uint64_t ticket = 0;
  const std::vector<int32_t> tokens = prompt(90);
  const std::vector<int32_t> next = {3};
  EXPECT_EQ(try_submit({token_row(c, tokens, 0), token_row(b, next, 0)}, &ticket),
            WCUDA_OUT_OF_PAGES);
  EXPECT_STREQ(error_.message, "the step needs 3 KV pages, 2 of 3 are free");
  expect_pages(1, 1);
  EXPECT_EQ(found(keys({1, 2})), 128u) << "a refused step evicts nothing";
  wait(submit({token_row(c, tokens, 0)}));

  expect_pages(3, 0);
  EXPECT_EQ(found(keys({1, 2})), 64u);
}

TEST_P(PageKeys, a_keyed_page_that_is_written_to_is_copied_if_shared_and_loses_its_key_if_not) {
  create_pages(12);
  const std::vector<int32_t> tokens = prompt(64), other = prompt(64, 9);
  std::vector<int32_t> changed = part(tokens, 0, 40);
  changed.insert(changed.end(), other.begin() + 40, other.end());
  const wcuda_sequence a = computed(tokens);
  const StepResult expected_changed = compute(create_sequence(), changed);
  publish(a, 0, keys({1}));
  const wcuda_sequence b = create_sequence();
  attach(b, tokens, keys({1}));
  expect_pages(2, 0);

  ASSERT_OK(wcuda_sequence_truncate(b, 40, &error_));
  const StepResult copied = compute(b, changed);
  expect_pages(3, 0);
  EXPECT_EQ(copied.rows[0].token, expected_changed.rows[0].token);
  EXPECT_EQ(found(keys({1})), 64u);

  ASSERT_OK(wcuda_sequence_truncate(a, 40, &error_));
  EXPECT_EQ(found(keys({1})), 64u) << "nothing is written yet";
  const StepResult in_place = compute(a, changed);
  expect_pages(3, 0);
  EXPECT_EQ(in_place.logits, copied.logits);
  EXPECT_EQ(found(keys({1})), 0u);
  publish(a, 0, keys({2}));
  EXPECT_EQ(found(keys({2})), 64u);
}

TEST_P(PageKeys, forks_and_truncated_sequences_release_pages_into_the_cache) {
  create_pages(12);
  const std::vector<int32_t> tokens = prompt(150);
  const wcuda_sequence a = computed(tokens);
  publish(a, 0, keys({1, 2}));
  const wcuda_sequence forked = fork(a);
  wcuda_sequence_destroy(a);
  expect_pages(3, 0);
  ASSERT_OK(wcuda_sequence_truncate(forked, 64, &error_));
  expect_pages(1, 1);
  ASSERT_OK(wcuda_sequence_truncate(forked, 0, &error_));
  expect_pages(0, 2);

  EXPECT_EQ(attach(forked, tokens, keys({1, 2})), 128u) << "an emptied sequence can attach";
  const StepResult whole = compute(create_sequence(), tokens);
  EXPECT_EQ(compute(forked, tokens).logits, whole.logits);
}

TEST_P(PageKeys, info_has_the_bytes_of_a_token_and_keys_take_no_device_memory) {
  create_pages(12);
  wcuda_plan plan = WCUDA_PLAN_INIT;
  wcuda_engine_options options = small_options();
  ASSERT_OK(wcuda_plan_get(context_, gguf_, &options, &plan, &error_));
  EXPECT_EQ(info().kv_token_bytes * kPageTokens, plan.kv_page_bytes);

  const auto device_bytes = [&] {
    wcuda_memory_info memory = WCUDA_MEMORY_INFO_INIT;
    EXPECT_EQ(wcuda_context_memory_get(context_, WCUDA_PURPOSE_ANY, &memory, &error_), WCUDA_OK);
    return memory.current_bytes;
  };
  const uint64_t before = device_bytes();
  const wcuda_sequence sequence = computed(prompt(192));
  publish(sequence, 0, keys({1, 2, 3}));
  wcuda_sequence_destroy(sequence);
  EXPECT_EQ(found(keys({1, 2, 3})), 192u);
  EXPECT_EQ(device_bytes(), before);
}

// Prompts with common beginnings arrive, share what they find, and leave, while pages are short.
TEST_P(PageKeys, random_histories_give_each_prompt_the_tokens_it_has_alone) {
  create_pages(9, WCUDA_ENGINE_POISON_FREE_PAGES);
  std::vector<std::vector<int32_t>> prompts;
  for (const size_t shared : {70, 130, 200})
    for (const int32_t salt : {1, 2}) {
      prompts.push_back(prompt(shared));
      const std::vector<int32_t> own = prompt(30, salt);
      prompts.back().insert(prompts.back().end(), own.begin(), own.end());
    }
  // The first 64, 128, 192 tokens of all prompts differ only at positions from 70 on.
  std::map<std::vector<int32_t>, wcuda_page_key> names;
  const auto keys_of = [&](const std::vector<int32_t>& tokens) {
    std::vector<wcuda_page_key> result;
    for (size_t end = kPageTokens; end < tokens.size(); end += kPageTokens) {
      const auto name = key(static_cast<uint8_t>(names.size()));
      result.push_back(names.emplace(part(tokens, 0, end), name).first->second);
    }
    return result;
  };
  std::vector<int32_t> expected;
  for (const auto& tokens : prompts) {
    const wcuda_sequence sequence = create_sequence();
    expected.push_back(compute(sequence, tokens).rows[0].token);
    wcuda_sequence_destroy(sequence);
  }

  std::mt19937 random(1);
  std::vector<wcuda_sequence> live;
  uint32_t attached = 0, full = 0;
  for (int i = 0; i < 150; ++i) {
    const size_t which = random() % prompts.size();
    const std::vector<int32_t>& tokens = prompts[which];
    const std::vector<wcuda_page_key> names_of = keys_of(tokens);
    const wcuda_sequence sequence = create_sequence();
    live.push_back(sequence);
    attached += attach(sequence, tokens, names_of);
    const uint64_t needed =
        (tokens.size() + kPageTokens - 1) / kPageTokens - length(sequence) / kPageTokens;
    for (; free_pages() < needed || live.size() > kMaxRows - 2; ++full) {
      const size_t leaving = random() % (live.size() - 1);
      wcuda_sequence_destroy(live[leaving]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(leaving));
    }
    ASSERT_EQ(compute(sequence, tokens).rows[0].token, expected[which]) << "history " << i;
    publish(sequence, 0, names_of);
    if (random() % 3 == 0) {
      ASSERT_OK(wcuda_sequence_truncate(sequence, random() % tokens.size(), &error_));
    }
  }
  EXPECT_GT(attached, 3000u);
  EXPECT_GT(full, 20u);
  while (!live.empty()) {
    wcuda_sequence_destroy(live.back());
    live.pop_back();
  }
  EXPECT_EQ(info().kv_held_page_count, 0u);
  EXPECT_GT(info().kv_cached_page_count, 0u);
}

}  // namespace
}  // namespace wcuda
