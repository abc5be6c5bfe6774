// Engines on a backend whose calls fail in turn: nothing is left behind, and what comes after is
// right.
#include <gtest/gtest.h>

#include "core/backend/fault_backend.h"
#include "core/backend/open.h"
#include "llm/engine/engine.h"
#include "llm/gguf/gguf_open.h"
#include "llm/model/tiny_model.h"
#include "support/backend_name.h"

namespace wcuda::engine {
namespace {

constexpr CallKind kKinds[] = {CallKind::kAllocate, CallKind::kCopy, CallKind::kLaunch,
                               CallKind::kWait, CallKind::kOther};
const std::vector<std::vector<int32_t>> kChunks = {{1, 5, 9, 2, 7, 3, 8}, {4}, {6}, {11, 12}, {2}};

// The parameter is the backend.
class EngineFault : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (IsSkipped()) return;
    OpenOptions options;
    options.backend = GetParam();
    if (GetParam() == WCUDA_BACKEND_HOST) options.host_thread_count = 1;
    const auto opened = open_backend(options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    fault_ = std::make_shared<FaultBackend>((*opened).backend);
    memory_ = vram::Memory::create(fault_, 0);
    testing::TinyModel tiny;
    tiny.head_length = 32;
    bytes_ = tiny.build();
    const auto file = testing::open_bytes(bytes_);
    ASSERT_TRUE(file.ok());
    const auto model = model::Model::load(memory_, *file, {});
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = *model;
  }

  Result<std::shared_ptr<Engine>> create() {
    wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
    options.max_sequences = 2;
    options.max_sequence_tokens = 128;
    options.max_draft_tokens = 4;
    return Engine::create(model_, options);
  }

  // A step that is tried again until it succeeds; the token that follows.
  int32_t step(Engine& engine, const std::shared_ptr<Sequence>& sequence,
               const std::vector<int32_t>& tokens, int* failures) {
    const uint32_t length = engine.length(*sequence);
    Row row;
    row.sequence = sequence;
    row.tokens = tokens.data();
    row.step.token_count = static_cast<uint32_t>(tokens.size());
    const bool is_late = tokens.size() == 1;
    row.step.flags = kernels::kRowSample | (is_late ? kernels::kRowSampleLate : 0);
    const int32_t drafts[] = {3, 8, 3};
    row.drafts = drafts;
    row.draft_count = tokens.size() == 2 ? 3 : 0;
    for (;;) {
      const auto ticket = engine.submit({row});
      Status status = ticket.status();
      if (status.ok() && is_late) {
        status = engine.sample(*ticket, {Engine::LateRow()});
        if (!status.ok()) {
          EXPECT_TRUE(engine.drain().ok());
        }
      }
      wcuda_row_result result = WCUDA_ROW_RESULT_INIT;
      if (status.ok()) {
        wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
        output.rows = &result;
        output.row_capacity = 1;
        int32_t drawn[4];
        float logprobs[4];
        uint32_t top_counts[4];
        output.sampled_capacity = 4;
        output.sampled_tokens = drawn;
        output.sampled_logprobs = logprobs;
        output.sampled_top_counts = top_counts;
        status = engine.wait(*ticket, -1, &output);
      }
      if (status.ok()) return result.token;
      EXPECT_EQ(status.code(), WCUDA_DEVICE_ERROR) << status.message();
      EXPECT_EQ(engine.length(*sequence), length);
      EXPECT_EQ(engine.info().steps_in_flight, 0u);
      if (++*failures > 3) return -1;
    }
  }

  std::vector<int32_t> tokens_of_all_chunks(Engine& engine, int* failures) {
    const auto sequence = engine.create_sequence().take();
    std::vector<int32_t> tokens;
    for (const auto& chunk : kChunks) tokens.push_back(step(engine, sequence, chunk, failures));
    engine.destroy(*sequence);
    return tokens;
  }

  size_t row_count() const { return memory_->ledger().rows().size(); }

  std::string bytes_;
  std::shared_ptr<FaultBackend> fault_;
  std::shared_ptr<vram::Memory> memory_;
  std::shared_ptr<model::Model> model_;
};
INSTANTIATE_TEST_SUITE_P(Host, EngineFault, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, EngineFault, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(EngineFault, a_failing_call_while_it_is_made_leaves_nothing) {
  const size_t rows_of_model = row_count();
  for (const CallKind kind : kKinds)
    for (uint64_t k = 1; k < 1000; ++k) {
      fault_->fail(kind, k);
      const auto engine = create();
      if (engine.ok()) {
        EXPECT_TRUE(kind != CallKind::kAllocate || k > 2);  // KV and scratch
        break;
      }
      EXPECT_EQ(engine.status().code(),
                kind == CallKind::kAllocate ? WCUDA_OUT_OF_MEMORY : WCUDA_DEVICE_ERROR);
      EXPECT_EQ(row_count(), rows_of_model) << k;
    }
}

TEST_P(EngineFault, a_failing_call_of_a_step_takes_it_back_and_the_next_try_is_right) {
  int failures = 0;
  std::vector<int32_t> expected;
  {
    const auto engine = create();
    ASSERT_TRUE(engine.ok());
    expected = tokens_of_all_chunks(**engine, &failures);
  }
  ASSERT_EQ(failures, 0);
  for (const CallKind kind : kKinds) {
    int quiet = 0;  // in a row: some failures are no harm, as that of reading a time
    for (uint64_t k = 1; quiet < 8; ++k) {
      const auto engine = create();  // captures its graphs again
      ASSERT_TRUE(engine.ok());
      failures = 0;
      fault_->fail(kind, k);
      EXPECT_EQ(tokens_of_all_chunks(**engine, &failures), expected) << k;
      fault_->fail(kind, 0);
      EXPECT_LE(failures, 1);
      quiet = failures == 0 ? quiet + 1 : 0;
    }
  }
}

TEST_P(EngineFault, a_failing_copy_of_a_restore_gives_its_pages_back) {
  const auto engine = create();
  ASSERT_TRUE(engine.ok());
  int failures = 0;
  const auto source = (*engine)->create_sequence().take();
  step(**engine, source, kChunks[0], &failures);
  const uint64_t bytes = (*engine)->info().token_bytes * ops::kPageTokens;
  const auto pinned = memory_->allocate_pinned(bytes, "saved");
  const auto done = fault_->event_create();
  ASSERT_TRUE(pinned.ok() && done.ok());
  const vram::View view = *(*pinned).view(0, bytes);
  ASSERT_TRUE((*engine)->save(*source, view, *done).ok());
  const uint32_t free_before = (*engine)->info().free_page_count;

  const auto restored = (*engine)->create_sequence().take();
  const auto count = static_cast<uint32_t>(kChunks[0].size());
  for (const CallKind kind : {CallKind::kCopy, CallKind::kOther})
    for (uint64_t k = 1;; ++k) {
      fault_->fail(kind, k);
      const Status status = (*engine)->restore(*restored, kChunks[0].data(), count, view, *done);
      fault_->fail(kind, 0);
      if (status.ok()) {
        ASSERT_TRUE((*engine)->truncate(*restored, 0).ok());
        break;
      }
      EXPECT_EQ(status.code(), WCUDA_DEVICE_ERROR);
      EXPECT_EQ((*engine)->length(*restored), 0u);
      EXPECT_EQ((*engine)->info().free_page_count, free_before);
      ++failures;
      ASSERT_LT(k, 100u);
    }
  EXPECT_GT(failures, 0);
  EXPECT_TRUE(fault_->event_synchronize(*done).ok());
  EXPECT_TRUE(fault_->event_destroy(*done).ok());
}

}  // namespace
}  // namespace wcuda::engine
