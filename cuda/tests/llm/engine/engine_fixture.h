// A tiny random model behind the C interface, on the host and on a CUDA device, for tests of
// engines and steps.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "llm/model/tiny_model.h"
#include "worker_cuda.h"

namespace wcuda::testing {

// Outputs of one step with room for everything it may return.
struct StepResult {
  std::vector<wcuda_row_result> rows;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
  std::vector<float> logits;
  bool captured = false;
};

// The parameter is the backend; instantiated as "Host" and as "Gpu" (see gpu_suites.cpp).
class EngineFixture : public ::testing::TestWithParam<int32_t> {
 protected:
  static constexpr uint32_t kMaxRows = 16;

  void SetUp() override {
    if (IsSkipped()) return;
    open_context();
    if (HasFatalFailure()) return;
    file_ = tiny_model().build();
    wcuda_source source = WCUDA_SOURCE_INIT;
    source.kind = WCUDA_SOURCE_MEMORY;
    source.data = file_.data();
    source.size = file_.size();
    ASSERT_OK(wcuda_gguf_open(&source, &gguf_, &error_));
    ASSERT_OK(wcuda_model_load(context_, gguf_, nullptr, &model_, &error_));
    wcuda_model_info info = WCUDA_MODEL_INFO_INIT;
    ASSERT_OK(wcuda_model_info_get(model_, &info, &error_));
    vocabulary_ = info.vocabulary_size;
  }

  virtual void open_context() {
    wcuda_context_options context = WCUDA_CONTEXT_OPTIONS_INIT;
    context.backend = GetParam();
    if (GetParam() == WCUDA_BACKEND_HOST) context.host_thread_count = 2;
    ASSERT_OK(wcuda_context_create(&context, &context_, &error_));
  }

  virtual TinyModel tiny_model() const {
    TinyModel tiny;
    tiny.head_length = 32;
    return tiny;
  }

  void TearDown() override {
    if (context_.id == 0) return;
    for (const wcuda_sequence sequence : sequences_) wcuda_sequence_destroy(sequence);
    wcuda_engine_destroy(engine_);
    wcuda_model_unload(model_);
    wcuda_gguf_close(gguf_);
    wcuda_memory_info memory = WCUDA_MEMORY_INFO_INIT;
    ASSERT_OK(wcuda_context_memory_get(context_, WCUDA_PURPOSE_ANY, &memory, &error_));
    EXPECT_EQ(memory.current_bytes, 0u) << "the engine or the model left memory behind";
    wcuda_context_destroy(context_);
  }

  void ASSERT_OK(wcuda_status status) {
    ASSERT_EQ(status, WCUDA_OK) << wcuda_status_name(status) << ": " << error_.message;
  }

  static wcuda_engine_options small_options() {
    wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
    options.max_sequences = kMaxRows;
    options.max_batch_tokens = 96;
    options.max_sequence_tokens = 256;
    options.max_logits_rows = 96;
    options.max_top_logprobs = 8;
    options.kv_tokens = 64 * 12;
    return options;
  }

  void create_engine(const wcuda_engine_options& options) {
    ASSERT_OK(wcuda_engine_create(model_, &options, &engine_, &error_));
  }

  wcuda_sequence create_sequence() {
    wcuda_sequence sequence{0};
    EXPECT_EQ(wcuda_sequence_create(engine_, &sequence, &error_), WCUDA_OK) << error_.message;
    sequences_.push_back(sequence);
    return sequence;
  }

  wcuda_sequence fork(wcuda_sequence source) {
    wcuda_sequence sequence{0};
    EXPECT_EQ(wcuda_sequence_fork(source, &sequence, &error_), WCUDA_OK) << error_.message;
    sequences_.push_back(sequence);
    return sequence;
  }

  uint32_t length(wcuda_sequence sequence) {
    uint32_t length = UINT32_MAX;
    EXPECT_EQ(wcuda_sequence_length_get(sequence, &length, &error_), WCUDA_OK) << error_.message;
    return length;
  }

  uint64_t free_pages() {
    wcuda_engine_info info = WCUDA_ENGINE_INFO_INIT;
    EXPECT_EQ(wcuda_engine_info_get(engine_, &info, &error_), WCUDA_OK) << error_.message;
    return info.kv_free_page_count;
  }

  static wcuda_row token_row(wcuda_sequence sequence, const std::vector<int32_t>& tokens,
                             uint32_t flags) {
    wcuda_row row = WCUDA_ROW_INIT;
    row.sequence = sequence;
    row.tokens = tokens.data();
    row.token_count = static_cast<uint32_t>(tokens.size());
    row.flags = flags;
    return row;
  }
  static wcuda_row feed_row(wcuda_sequence sequence, uint32_t flags = WCUDA_ROW_SAMPLE) {
    wcuda_row row = WCUDA_ROW_INIT;
    row.sequence = sequence;
    row.token_count = 1;
    row.flags = flags | WCUDA_ROW_FEED_SAMPLED;
    return row;
  }

  wcuda_status try_submit(const std::vector<wcuda_row>& rows, uint64_t* ticket) {
    wcuda_step step = WCUDA_STEP_INIT;
    step.row_count = static_cast<uint32_t>(rows.size());
    step.rows = rows.data();
    return wcuda_step_submit(engine_, &step, ticket, &error_);
  }
  uint64_t submit(const std::vector<wcuda_row>& rows) {
    uint64_t ticket = 0;
    EXPECT_EQ(try_submit(rows, &ticket), WCUDA_OK) << error_.message;
    return ticket;
  }

  // Tests of outputs that version 1 of the interface does not have set them here.
  virtual void add_outputs(wcuda_step_output*) {}
  wcuda_status try_wait(uint64_t ticket, StepResult* result) {
    result->rows.resize(kMaxRows, WCUDA_ROW_RESULT_INIT);
    result->rows[0].struct_size = sizeof(wcuda_row_result);
    result->top_tokens.resize(kMaxRows * 8);
    result->top_logprobs.resize(kMaxRows * 8);
    result->logits.resize(size_t{96} * vocabulary_);
    wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
    output.row_capacity = kMaxRows;
    output.rows = result->rows.data();
    output.top_capacity = result->top_tokens.size();
    output.top_tokens = result->top_tokens.data();
    output.top_logprobs = result->top_logprobs.data();
    output.logits_capacity = result->logits.size();
    output.logits = result->logits.data();
    add_outputs(&output);
    const wcuda_status status = wcuda_step_wait(engine_, ticket, -1, &output, &error_);
    if (status != WCUDA_OK) return status;
    result->rows.resize(output.row_count);
    result->captured = output.captured != 0;
    return status;
  }
  StepResult wait(uint64_t ticket) {
    StepResult result;
    EXPECT_EQ(try_wait(ticket, &result), WCUDA_OK) << error_.message;
    return result;
  }

  // Greedy continuation of `prompt`, one step a token.
  std::vector<int32_t> generate(const std::vector<int32_t>& prompt, uint32_t count) {
    const wcuda_sequence sequence = create_sequence();
    std::vector<int32_t> tokens;
    wcuda_row row = token_row(sequence, prompt, WCUDA_ROW_SAMPLE);
    while (tokens.size() < count) {
      tokens.push_back(wait(submit({row})).rows.at(0).token);
      row = feed_row(sequence);
    }
    wcuda_sequence_destroy(sequence);
    return tokens;
  }

  wcuda_error error_{};
  wcuda_context context_{0};
  std::string file_;
  wcuda_gguf gguf_{0};
  wcuda_model model_{0};
  wcuda_engine engine_{0};
  uint32_t vocabulary_ = 0;
  std::vector<wcuda_sequence> sequences_;
};

}  // namespace wcuda::testing
