// Sequences that are saved to pinned memory, restored, and continue as if nothing had happened.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::StepResult;

class SavedSequence : public testing::EngineFixture {
 protected:
  void SetUp() override {
    EngineFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    wcuda_engine_options options = small_options();
    options.max_batch_tokens = 192;
    options.flags = WCUDA_ENGINE_POISON_FREE_PAGES;
    options.kv_tokens = uint64_t{WCUDA_KV_PAGE_TOKENS} * 6;
    create_engine(options);
    ASSERT_OK(wcuda_event_create(context_, &done_, &error_));
    wcuda_engine_info info = WCUDA_ENGINE_INFO_INIT;
    ASSERT_OK(wcuda_engine_info_get(engine_, &info, &error_));
    page_bytes_ = info.kv_token_bytes * WCUDA_KV_PAGE_TOKENS;
    ASSERT_OK(wcuda_pinned_create(context_, kOffset + 3 * page_bytes_, &pinned_, &error_));
    sampling_.repetition_penalty = 1.5f;  // depends on the history of all positions
    sampling_.penalty_last_n = 200;
  }
  void TearDown() override {
    wcuda_pinned_destroy(pinned_);
    wcuda_event_destroy(done_);
    EngineFixture::TearDown();
  }

  static std::vector<int32_t> prompt(size_t count, int32_t salt = 0) {
    std::vector<int32_t> tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(i * 7 + i / 5 + salt) % 31;
    return tokens;
  }
  StepResult append(wcuda_sequence sequence, const std::vector<int32_t>& tokens) {
    wcuda_row row = token_row(sequence, tokens, WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST);
    row.sampling = &sampling_;
    StepResult result = wait(submit({row}));
    result.logits.resize(vocabulary_);
    return result;
  }
  wcuda_status try_save(wcuda_sequence sequence) {
    return wcuda_sequence_save(sequence, pinned_, kOffset, done_, &error_);
  }
  wcuda_status try_restore(wcuda_sequence sequence, const std::vector<int32_t>& tokens) {
    return wcuda_sequence_restore(sequence, tokens.data(), static_cast<uint32_t>(tokens.size()),
                                  pinned_, kOffset, done_, &error_);
  }
  void wait_for_copy() { ASSERT_OK(wcuda_event_wait(done_, -1, &error_)); }

  static constexpr uint64_t kOffset = 48;
  uint64_t page_bytes_ = 0;
  wcuda_pinned pinned_{0};
  wcuda_event done_{0};
  wcuda_sampling sampling_ = WCUDA_SAMPLING_INIT;
};
INSTANTIATE_TEST_SUITE_P(Host, SavedSequence, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, SavedSequence, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(SavedSequence, continues_with_the_same_bits_after_its_pages_were_overwritten) {
  const std::vector<int32_t> tokens = prompt(150), next = {3, 1, 4};
  const wcuda_sequence unsaved = create_sequence(), first = create_sequence();
  append(unsaved, tokens);
  append(first, tokens);
  const StepResult expected = append(unsaved, next);
  wcuda_sequence_destroy(unsaved);

  ASSERT_OK(try_save(first));
  wcuda_sequence_destroy(first);
  const wcuda_sequence other = create_sequence();
  append(other, prompt(190, 5));
  wcuda_sequence_destroy(other);
  wait_for_copy();
  const wcuda_sequence second = create_sequence();
  ASSERT_OK(try_restore(second, tokens));
  EXPECT_EQ(free_pages(), 3u);
  std::vector<int32_t> history(tokens.size());
  ASSERT_OK(wcuda_sequence_tokens_get(second, 0, 150, history.data(), &error_));
  EXPECT_EQ(history, tokens);
  const StepResult result = append(second, next);
  wait_for_copy();

  EXPECT_EQ(result.logits, expected.logits);
  EXPECT_EQ(result.rows[0].token, expected.rows[0].token);
  EXPECT_EQ(result.rows[0].logprob, expected.rows[0].logprob);
}

TEST_P(SavedSequence, includes_the_steps_in_flight_and_can_be_restored_shorter) {
  const std::vector<int32_t> tokens = prompt(100), rest = {5, 6}, last = {9};
  std::vector<int32_t> whole = tokens;
  whole.insert(whole.end(), rest.begin(), rest.end());
  const wcuda_sequence sequence = create_sequence();
  const uint64_t one = submit({token_row(sequence, tokens, 0)});
  const uint64_t two = submit({token_row(sequence, rest, 0)});

  ASSERT_OK(try_save(sequence));
  wcuda_sequence_destroy(sequence);
  wait(one);
  wait(two);
  wait_for_copy();
  for (const uint32_t count : {102u, 100u, 64u, 3u}) {
    const std::vector<int32_t> part(whole.begin(), whole.begin() + count);
    const wcuda_sequence computed = create_sequence(), restored = create_sequence();
    ASSERT_OK(try_restore(restored, part));
    append(computed, {part.begin(), part.begin() + std::min(count, 100u)});
    if (count > 100) append(computed, rest);
    const StepResult expected = append(computed, last);
    EXPECT_EQ(append(restored, last).rows[0].token, expected.rows[0].token) << count;
    wait_for_copy();
    wcuda_sequence_destroy(computed);
    wcuda_sequence_destroy(restored);
  }
}

TEST_P(SavedSequence, writes_only_its_own_pages_one_after_the_other) {
  const wcuda_sequence two_pages = create_sequence(), empty = create_sequence();
  append(two_pages, prompt(90));
  void* data = nullptr;
  uint64_t bytes = 0;
  ASSERT_OK(wcuda_pinned_data_get(pinned_, &data, &bytes, &error_));
  auto* const begin = static_cast<uint8_t*>(data);
  std::memset(begin, 0xa5, bytes);

  ASSERT_OK(try_save(empty));
  wait_for_copy();
  EXPECT_EQ(begin[kOffset], 0xa5);
  ASSERT_OK(try_save(two_pages));
  wait_for_copy();

  const std::vector<uint8_t> untouched(kOffset + page_bytes_, 0xa5);
  EXPECT_EQ(std::memcmp(begin, untouched.data(), kOffset), 0);
  EXPECT_NE(std::memcmp(begin + kOffset, untouched.data(), page_bytes_), 0);
  EXPECT_NE(std::memcmp(begin + kOffset + page_bytes_, untouched.data(), page_bytes_), 0);
  EXPECT_EQ(std::memcmp(begin + kOffset + 2 * page_bytes_, untouched.data(), page_bytes_), 0);
  ASSERT_OK(try_restore(empty, {}));
  EXPECT_EQ(length(empty), 0u);
}

TEST_P(SavedSequence, keeps_the_memory_whose_handles_are_destroyed_until_the_copy_is_done) {
  const wcuda_sequence sequence = create_sequence();
  const std::vector<int32_t> tokens = prompt(150);
  const uint64_t ticket = submit({token_row(sequence, tokens, 0)});

  ASSERT_OK(try_save(sequence));
  wcuda_pinned_destroy(std::exchange(pinned_, {0}));
  wcuda_event_destroy(std::exchange(done_, {0}));
  wait(ticket);

  EXPECT_EQ(length(sequence), 150u);  // TearDown finds no memory left
}

TEST_P(SavedSequence, does_not_fit_is_an_error_with_the_numbers_and_changes_nothing) {
  const wcuda_sequence full = create_sequence(), empty = create_sequence();
  const std::vector<int32_t> most = prompt(192);
  append(full, most);
  append(full, prompt(10));
  EXPECT_EQ(try_save(full), WCUDA_BUFFER_TOO_SMALL);
  const std::string numbers = std::to_string(3 * page_bytes_) +
                              " bytes of pinned memory, 4 pages need " +
                              std::to_string(4 * page_bytes_);
  EXPECT_EQ(error_.message, numbers);
  ASSERT_OK(wcuda_sequence_truncate(full, 192, &error_));
  ASSERT_OK(try_save(full));

  EXPECT_EQ(try_restore(full, most), WCUDA_INVALID_STATE);
  EXPECT_EQ(try_restore(empty, prompt(200)), WCUDA_BUFFER_TOO_SMALL);
  EXPECT_EQ(try_restore(empty, prompt(257)), WCUDA_LIMIT_EXCEEDED);
  std::vector<int32_t> wrong = most;
  wrong.back() = static_cast<int32_t>(vocabulary_);
  EXPECT_EQ(try_restore(empty, wrong), WCUDA_OUT_OF_RANGE);
  const wcuda_sequence other = create_sequence();
  append(other, {1});
  EXPECT_EQ(try_restore(empty, most), WCUDA_OUT_OF_PAGES);
  EXPECT_STREQ(error_.message, "192 tokens need 3 KV pages, 2 of 6 are free");
  EXPECT_EQ(wcuda_sequence_save(full, pinned_, UINT64_MAX, done_, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_sequence_save(full, {0}, 0, done_, &error_), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_sequence_save(full, pinned_, 0, {0}, &error_), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_sequence_restore(empty, nullptr, 1, pinned_, 0, done_, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(length(empty), 0u);
  EXPECT_EQ(free_pages(), 2u);

  wcuda_sequence_destroy(other);
  ASSERT_OK(try_restore(empty, most));
  EXPECT_EQ(free_pages(), 0u);
}

TEST_P(SavedSequence, memory_and_event_are_of_the_same_context) {
  const wcuda_sequence sequence = create_sequence();
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = GetParam();
  wcuda_context context{0};
  wcuda_pinned foreign_memory{0};
  wcuda_event foreign_event{0};
  ASSERT_OK(wcuda_context_create(&options, &context, &error_));
  ASSERT_OK(wcuda_pinned_create(context, 64, &foreign_memory, &error_));
  ASSERT_OK(wcuda_event_create(context, &foreign_event, &error_));

  EXPECT_EQ(wcuda_sequence_save(sequence, foreign_memory, 0, done_, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_sequence_save(sequence, pinned_, 0, foreign_event, &error_),
            WCUDA_INVALID_ARGUMENT);

  wcuda_event_destroy(foreign_event);
  wcuda_pinned_destroy(foreign_memory);
  wcuda_context_destroy(context);
}

TEST_P(SavedSequence, waits_for_late_rows_to_be_sampled) {
  const wcuda_sequence sequence = create_sequence(), other = create_sequence();
  const std::vector<int32_t> tokens = {1, 2};
  const uint64_t ticket =
      submit({token_row(sequence, tokens, WCUDA_ROW_SAMPLE | WCUDA_ROW_SAMPLE_LATE)});

  EXPECT_EQ(try_save(other), WCUDA_INVALID_STATE);
  EXPECT_EQ(try_restore(other, {}), WCUDA_INVALID_STATE);
  wcuda_late_row late = WCUDA_LATE_ROW_INIT;
  ASSERT_OK(wcuda_step_sample(engine_, ticket, &late, 1, &error_));
  ASSERT_OK(try_save(sequence));
  wait(ticket);
}

}  // namespace
}  // namespace wcuda
