// Steps that fail as a whole: no length moves, and the later ticket ends for the same cause.
#include <gtest/gtest.h>

#include <atomic>

#include "core/backend/open.h"
#include "llm/engine/engine.h"
#include "llm/engine/failing_submit.h"
#include "llm/model/tiny_model.h"

namespace wcuda::engine {
namespace {

// The host's operations, of which the k-th feed-forward fails once k reaches zero.
class FailingOps : public ops::Ops {
 public:
  FailingOps(std::unique_ptr<ops::Ops> inner, std::atomic<int>* countdown)
      : inner_(std::move(inner)), countdown_(countdown) {}
  uint64_t scratch_bytes(const ops::Limits& l) const override { return inner_->scratch_bytes(l); }
  Status prepare(const ops::Limits& l, void* scratch) override {
    return inner_->prepare(l, scratch);
  }
  Status warm_up() override { return inner_->warm_up(); }
  const ops::DeviceTraits& device() const override { return inner_->device(); }
  Result<float> row_norm_max(const ops::Weight& w, void* work, uint64_t bytes) override {
    return inner_->row_norm_max(w, work, bytes);
  }
  Status start(const ops::Node& n, const ops::StartArgs& a) override { return inner_->start(n, a); }
  Status embed(const ops::Node& n, const ops::EmbedArgs& a) override { return inner_->embed(n, a); }
  Status linear(const ops::Node& n, const ops::LinearArgs& a) override {
    if (n.operation == ops::Operation::kGateUp && (*countdown_)-- == 0)
      return Status::error(WCUDA_DEVICE_ERROR, "injected failure");
    return inner_->linear(n, a);
  }
  Status persistent_layers(const ops::Node& n, const ops::LinearArgs* a, uint32_t count) override {
    return inner_->persistent_layers(n, a, count);
  }
  Status rope_kv(const ops::Node& n, const ops::RopeKvArgs& a) override {
    return inner_->rope_kv(n, a);
  }
  Status attention(const ops::Node& n, const ops::AttentionArgs& a) override {
    return inner_->attention(n, a);
  }
  Status hidden_state(const ops::Node& n, const ops::HiddenStateArgs& a) override {
    return inner_->hidden_state(n, a);
  }
  Status softcap(const ops::Node& n, const ops::SoftcapArgs& a) override {
    return inner_->softcap(n, a);
  }
  Status keep_features(const ops::Node& n, const ops::KeepFeaturesArgs& a) override {
    return inner_->keep_features(n, a);
  }
  Status read_features(const ops::Node& n, const ops::ReadFeaturesArgs& a) override {
    return inner_->read_features(n, a);
  }
  Status head_input(const ops::Node& n, const ops::HeadInputArgs& a) override {
    return inner_->head_input(n, a);
  }
  Status keep_states(const ops::Node& n, const ops::KeepStatesArgs& a) override {
    return inner_->keep_states(n, a);
  }
  Status scatter_logits(const ops::Node& n, const ops::ScatterLogitsArgs& a) override {
    return inner_->scatter_logits(n, a);
  }
  Status token_logprobs(const ops::Node& n, const ops::TokenLogprobsArgs& a) override {
    return inner_->token_logprobs(n, a);
  }

 private:
  std::unique_ptr<ops::Ops> inner_;
  std::atomic<int>* countdown_;
};

class FailingStep : public ::testing::Test {
 protected:
  void SetUp() override {
    OpenOptions open;
    open.backend = WCUDA_BACKEND_HOST;
    open.host_thread_count = 1;
    auto opened = open_backend(open);
    ASSERT_TRUE(opened.ok());
    memory_ = vram::Memory::create(opened->backend, 0);
    file_bytes_ = testing::TinyModel{}.build();
    auto source = gguf::open_memory(file_bytes_.data(), file_bytes_.size());
    ASSERT_TRUE(source.ok());
    auto file = gguf::Gguf::open(source.take());
    ASSERT_TRUE(file.ok());
    auto model = model::Model::load(memory_, file.take(), {});
    ASSERT_TRUE(model.ok()) << model.status().message();
    auto ops = ops::make_ops(opened->backend);
    ASSERT_TRUE(ops.ok());
    wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
    options.max_sequence_tokens = 128;
    options.max_draft_tokens = 4;
    auto engine = Engine::create(model.take(), options,
                                 std::make_unique<FailingOps>(ops.take(), &countdown_));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = engine.take();
    sequence_ = engine_->create_sequence().take();
  }

  Result<uint64_t> submit(std::shared_ptr<Sequence> sequence, const std::vector<int32_t>& tokens) {
    Row row;
    row.sequence = std::move(sequence);
    row.tokens = tokens.data();
    row.step.token_count = static_cast<uint32_t>(tokens.size());
    row.step.flags = kernels::kRowSample;
    return engine_->submit({row});
  }
  Result<uint64_t> feed(std::shared_ptr<Sequence> sequence) {
    Row row;
    row.sequence = std::move(sequence);
    row.step.token_count = 1;
    row.step.flags = kernels::kRowFeedSampled | kernels::kRowSample;
    return engine_->submit({row});
  }
  Status wait(uint64_t ticket) {
    wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
    output.rows = &row_;
    output.row_capacity = 1;
    return engine_->wait(ticket, -1, &output);
  }

  std::atomic<int> countdown_{1 << 30};
  std::string file_bytes_;
  std::shared_ptr<vram::Memory> memory_;
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Sequence> sequence_;
  wcuda_row_result row_ = WCUDA_ROW_RESULT_INIT;
};

TEST_F(FailingStep, leaves_lengths_and_outputs_and_fails_the_later_ticket_too) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  ASSERT_TRUE(wait(submit(sequence_, tokens).take()).ok());
  row_.token = 4242;

  countdown_ = 1;
  const uint64_t first = submit(sequence_, tokens).take();
  const uint64_t second = feed(sequence_).take();
  EXPECT_EQ(engine_->length(*sequence_), 7u);
  const Status one = wait(first);
  EXPECT_EQ(engine_->length(*sequence_), 3u);
  const Status two = wait(second);

  EXPECT_EQ(one.code(), WCUDA_DEVICE_ERROR);
  EXPECT_STREQ(one.message(), "injected failure");
  EXPECT_STREQ(two.message(), "injected failure");
  EXPECT_EQ(row_.token, 4242);
  EXPECT_EQ(engine_->length(*sequence_), 3u);
  EXPECT_EQ(engine_->info().free_page_count, engine_->info().limits.page_count - 1);
}

TEST_F(FailingStep, the_engine_continues_after_it_with_the_same_result) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  ASSERT_TRUE(wait(submit(sequence_, tokens).take()).ok());
  const int32_t expected = row_.token;
  const auto other = engine_->create_sequence().take();

  countdown_ = 0;
  EXPECT_FALSE(wait(submit(other, tokens).take()).ok());
  EXPECT_EQ(engine_->length(*other), 0u);
  EXPECT_TRUE(wait(submit(other, tokens).take()).ok());

  EXPECT_EQ(row_.token, expected);
}

TEST_F(FailingStep, a_submit_without_host_memory_changes_no_row_of_the_step) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const auto other = engine_->create_sequence().take();
  ASSERT_TRUE(wait(submit(sequence_, tokens).take()).ok());
  ASSERT_TRUE(wait(submit(other, tokens).take()).ok());
  std::vector<Row> rows(2);
  rows[0].sequence = sequence_;
  rows[1].sequence = other;
  for (Row& row : rows) {
    row.step.token_count = 1;
    row.step.flags = kernels::kRowFeedSampled | kernels::kRowSample;
  }
  rows[1].drafts = tokens.data();
  rows[1].draft_count = 2;
  const int64_t failures =
      testing::fail_each_allocation_of_submit(*engine_, rows, [&](bool failed, int64_t k) {
        EXPECT_EQ(engine_->length(*sequence_), failed ? 3u : 4u) << "allocation " << k;
        EXPECT_EQ(engine_->length(*other), failed ? 3u : 6u) << "allocation " << k;
      });
  EXPECT_GT(failures, 10);
  EXPECT_TRUE(engine_->drain().ok());
}

TEST_F(FailingStep, takes_drafts_back_with_their_row) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  ASSERT_TRUE(wait(submit(sequence_, tokens).take()).ok());
  Row row;
  row.sequence = sequence_;
  row.step.token_count = 1;
  row.step.flags = kernels::kRowFeedSampled | kernels::kRowSample;
  row.drafts = tokens.data();
  row.draft_count = 3;

  countdown_ = 0;
  const uint64_t ticket = engine_->submit({row}).take();
  EXPECT_EQ(engine_->length(*sequence_), 7u);
  EXPECT_EQ(engine_->drain().code(), WCUDA_OK);

  EXPECT_EQ(engine_->length(*sequence_), 3u);
  EXPECT_EQ(wait(ticket).code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(feed(sequence_).status().code(), WCUDA_INVALID_STATE);
  EXPECT_TRUE(wait(submit(sequence_, tokens).take()).ok());
}

TEST_F(FailingStep, takes_back_drafts_and_the_row_that_continues_them) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  ASSERT_TRUE(wait(submit(sequence_, tokens).take()).ok());
  Row row;
  row.sequence = sequence_;
  row.step.token_count = 1;
  row.step.flags = kernels::kRowFeedSampled | kernels::kRowSample;
  row.drafts = tokens.data();
  row.draft_count = 3;
  const uint32_t pages = engine_->info().free_page_count;

  countdown_ = 0;
  const uint64_t first = engine_->submit({row}).take();
  const uint64_t second = feed(sequence_).take();
  EXPECT_EQ(engine_->length(*sequence_), 8u);
  std::vector<int32_t> sampled(4);
  std::vector<float> logprobs(4);
  std::vector<uint32_t> top_counts(4);
  wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
  output.rows = &row_;
  output.row_capacity = 1;
  output.sampled_capacity = sampled.size();
  output.sampled_tokens = sampled.data();
  output.sampled_logprobs = logprobs.data();
  output.sampled_top_counts = top_counts.data();
  EXPECT_STREQ(engine_->wait(first, -1, &output).message(), "injected failure");
  EXPECT_EQ(engine_->length(*sequence_), 3u);
  EXPECT_STREQ(wait(second).message(), "injected failure");
  EXPECT_EQ(engine_->length(*sequence_), 3u);

  // The second of the two steps alone. Layers: two, so the third call is its first.
  ASSERT_TRUE(wait(submit(sequence_, tokens).take()).ok());
  countdown_ = static_cast<int>(engine_->config().layer_count);
  const uint64_t third = engine_->submit({row}).take();
  const uint64_t fourth = feed(sequence_).take();
  ASSERT_TRUE(engine_->wait(third, -1, &output).ok());
  const uint32_t accepted = row_.token_count - 1;
  EXPECT_STREQ(wait(fourth).message(), "injected failure");
  EXPECT_EQ(engine_->length(*sequence_), 7u + accepted);
  EXPECT_EQ(engine_->info().free_page_count, pages);
}

TEST_F(FailingStep, a_submit_without_host_memory_keeps_the_drafts_in_flight) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  ASSERT_TRUE(wait(submit(sequence_, tokens).take()).ok());
  Row drafting;
  drafting.sequence = sequence_;
  drafting.step.token_count = 1;
  drafting.step.flags = kernels::kRowFeedSampled | kernels::kRowSample;
  Row next = drafting;
  drafting.drafts = tokens.data();
  drafting.draft_count = 3;
  ASSERT_TRUE(engine_->submit({drafting}).ok());
  const std::vector<Row> rows = {next};
  const int64_t failures =
      testing::fail_each_allocation_of_submit(*engine_, rows, [&](bool failed, int64_t k) {
        EXPECT_EQ(engine_->length(*sequence_), failed ? 7u : 8u) << "allocation " << k;
      });
  EXPECT_GT(failures, 5);
  EXPECT_EQ(engine_->fork(sequence_).status().code(), WCUDA_INVALID_STATE);
  EXPECT_TRUE(engine_->drain().ok());
  EXPECT_TRUE(engine_->fork(sequence_).ok());
}

TEST_F(FailingStep, takes_all_keys_of_pages) {
  const std::vector<int32_t> page(ops::kPageTokens, 4);
  const wcuda_page_key key{{1}}, other_key{{2}}, cached_key{{3}};
  const auto cached = engine_->create_sequence().take(), held = engine_->create_sequence().take();
  for (const auto& sequence : {sequence_, cached, held})
    ASSERT_TRUE(wait(submit(sequence, page).take()).ok());
  ASSERT_TRUE(engine_->publish(*sequence_, 0, &key, 1).ok());
  ASSERT_TRUE(engine_->publish(*cached, 0, &cached_key, 1).ok());
  engine_->destroy(*cached);
  EXPECT_EQ(engine_->info().cached_page_count, 1u);

  countdown_ = 0;
  const uint64_t ticket = submit(held, page).take();
  ASSERT_TRUE(engine_->publish(*held, 0, &other_key, 1).ok());
  EXPECT_FALSE(wait(ticket).ok());

  EXPECT_EQ(engine_->info().cached_page_count, 0u);
  const auto empty = engine_->create_sequence().take();
  for (const wcuda_page_key& lost : {key, other_key, cached_key})
    EXPECT_EQ(engine_->attach(*empty, page.data(), ops::kPageTokens, &lost, 1).take(), 0u);
  ASSERT_TRUE(engine_->publish(*sequence_, 0, &key, 1).ok());
  EXPECT_EQ(engine_->attach(*empty, page.data(), ops::kPageTokens, &key, 1).take(),
            ops::kPageTokens);
}

TEST_F(FailingStep, a_fork_made_meanwhile_goes_back_too) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  ASSERT_TRUE(wait(submit(sequence_, tokens).take()).ok());

  countdown_ = 0;
  const uint64_t ticket = submit(sequence_, tokens).take();
  const auto fork = engine_->fork(sequence_).take();
  EXPECT_EQ(engine_->length(*fork), 6u);
  EXPECT_FALSE(wait(ticket).ok());

  EXPECT_EQ(engine_->length(*fork), 3u);
  EXPECT_EQ(feed(fork).status().code(), WCUDA_INVALID_STATE);
  EXPECT_TRUE(wait(submit(fork, tokens).take()).ok());
}

}  // namespace
}  // namespace wcuda::engine
