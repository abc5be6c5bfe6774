// Each node of a step alone, on a fresh Ops object and the memory as it is within the step, gives
// the bits that it gives there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/open.h"
#include "core/vram/memory.h"
#include "llm/engine/runner.h"
#include "llm/gguf/gguf.h"
#include "llm/gguf/source.h"
#include "llm/model/model.h"
#include "llm/model/tiny_model.h"
#include "support/backend_name.h"

namespace wcuda::engine {
namespace {

// A row: tokens, first position.
using Rows = std::vector<std::pair<uint32_t, uint32_t>>;

struct Case {
  const char* name;
  Rows rows;
  bool is_batch_invariant = false;
  uint32_t flags = 0;  // of each row
  bool keeps_features = false;
};

std::vector<Case> cases() {
  Rows many;
  for (uint32_t i = 0; i < 140; ++i) many.push_back({1, i % 60});
  return {{"one token", {{1, 100}}},
          {"one token far on", {{1, 400}}},
          {"three rows of one token", {{1, 5}, {1, 70}, {1, 300}}},
          {"twelve rows of one token", Rows(12, {1, 90})},
          {"140 rows of one token", many},
          {"a prompt of 5", {{5, 0}}},
          {"a prompt of 40", {{40, 30}}},
          {"a prompt of 200", {{200, 0}}},
          {"prompts and tokens", {{150, 20}, {1, 300}, {2, 63}}},
          {"batch-invariant prompts and tokens", {{150, 20}, {1, 300}, {2, 63}}, true},
          {"sums of hidden states", {{150, 20}, {1, 300}}, false, kernels::kRowHiddenSum},
          {"log probabilities of own tokens",
           {{5, 20}, {1, 300}, {3, 63}},
           false,
           kernels::kRowTokenLogprobs},
          {"features for a draft head", {{150, 20}, {1, 300}}, false, 0, true}};
}

class StepNodes : public ::testing::TestWithParam<int32_t> {
 protected:
  bool is_host() const { return GetParam() == WCUDA_BACKEND_HOST; }

  Status open(const Case& c) {
    kv_ = vram::Buffer();
    scratch_ = vram::Buffer();
    machine_ = Machine();
    batch_ = ops::Batch();
    inputs_ = kernels::StepStart();
    OpenOptions options;
    options.backend = GetParam();
    options.host_thread_count = 2;
    WCUDA_ASSIGN(const Opened opened, open_backend(options));
    backend_ = opened.backend;
    machine_.memory = vram::Memory::create(backend_, 0);
    testing::TinyModel tiny;
    tiny.weight_type = testing::kQ4_K;
    tiny.embedding_type = testing::kQ6_K;
    tiny.embedding_length = 1024;
    tiny.feed_forward_length = 2048;
    tiny.head_count = 8;
    tiny.kv_head_count = 2;
    tiny.head_length = 128;
    tiny.vocabulary_size = 515;
    tiny.has_all_biases = true;
    file_ = tiny.build();
    WCUDA_ASSIGN(const auto source, gguf::open_memory(file_.data(), file_.size()));
    WCUDA_ASSIGN(const auto file, gguf::Gguf::open(source));
    WCUDA_ASSIGN(machine_.model, model::Model::load(machine_.memory, file, {}));
    const model::Config& config = machine_.model->config();
    constexpr wcuda_engine_options kDefaults = WCUDA_ENGINE_OPTIONS_INIT;
    Limits& limits = machine_.limits;
    WCUDA_ASSIGN(limits, resolve_limits(kDefaults, config));
    limits.batch_invariant = c.is_batch_invariant;
    limits.has_hidden_states = (c.flags & kernels::kRowHidden) != 0;
    limits.has_token_logprobs = (c.flags & kernels::kRowTokenLogprobs) != 0;
    limits.keeps_features = c.keeps_features;
    for (uint32_t i = 0; i < model::kFeatureLayers; ++i) limits.feature_layers[i] = i;
    if (c.keeps_features) limits.kept_feature_width = 3 * config.embedding_length;
    limits.max_top_logprobs = limits.has_token_logprobs ? 4 : 0;
    limits.persistent_layers = ops::PersistentLayers::kOn;
    // As small as the case allows, because the whole memory is copied around each node.
    limits.max_sequences = limits.max_batch_rows = limits.max_logits_rows =
        static_cast<uint32_t>(c.rows.size());
    limits.max_sequence_tokens = 512;
    limits.max_batch_tokens = limits.page_count = 0;
    for (const auto& [count, first] : c.rows) {
      limits.max_batch_tokens += count;
      limits.page_count += (first + count - 1) / ops::kPageTokens + 1;
    }
    WCUDA_ASSIGN(machine_.ops, ops::make_ops(backend_));
    WCUDA_ASSIGN(machine_.layout,
                 plan_layout(limits, config, machine_.ops->scratch_bytes(limits), kInputBytes));
    WCUDA_ASSIGN(kv_, machine_.memory->allocate(machine_.layout.kv_bytes, WCUDA_PURPOSE_KV, "kv"));
    WCUDA_ASSIGN(scratch_, machine_.memory->allocate(machine_.layout.scratch_bytes,
                                                     WCUDA_PURPOSE_SCRATCH, "scratch"));
    machine_.kv = static_cast<uint8_t*>(kv_.data());
    machine_.scratch = static_cast<uint8_t*>(scratch_.data());
    WCUDA_TRY(machine_.ops->prepare(limits, machine_.scratch + machine_.layout.ops));
    WCUDA_TRY(machine_.find_gate_norms());
    WCUDA_TRY(backend_->synchronize());
    WCUDA_TRY(backend_->fill(machine_.kv, machine_.layout.kv_bytes, 0, 1, {}));
    machine_.pool = {{machine_.kv + machine_.layout.pages, limits.kv_type, limits.page_count,
                      config.kv_head_count, config.head_length, machine_.layout.kv_row_bytes},
                     machine_.layout.pool_layer_count};
    machine_.kept_features = {machine_.pool.data, limits.page_count, config.layer_count,
                              machine_.layout.page_layer_bytes, limits.kept_feature_width};
    return backend_->synchronize();
  }

  // The arrays of a step and, on a device, the block from which they are dealt out.
  Status lay_out(const Case& c) {
    const Rows& rows = c.rows;
    const Limits& limits = machine_.limits;
    const Layout& layout = machine_.layout;
    std::vector<int32_t> tokens;
    std::vector<uint32_t> positions, token_rows, logits;
    std::vector<ops::StepRow> step_rows;
    std::vector<uint32_t> scored_indices;
    std::vector<kernels::ScoredToken> scored;
    const uint32_t stride = limits.pages_per_sequence();
    std::vector<uint32_t> tables(rows.size() * stride, 0);
    uint32_t next_page = 0;
    shape_ = {};
    shape_.min_row_tokens = UINT32_MAX;
    for (uint32_t r = 0; r < rows.size(); ++r) {
      const auto [count, first] = rows[r];
      const auto token = static_cast<uint32_t>(tokens.size());
      step_rows.push_back({token, count, first, r, c.flags});
      for (uint32_t i = 0; i < count; ++i) {
        tokens.push_back(static_cast<int32_t>((token + i) * 31 % 515));
        positions.push_back(first + i);
        token_rows.push_back(r);
        if (!limits.has_token_logprobs) continue;
        scored_indices.push_back(token + i);
        scored.push_back({static_cast<int32_t>((token + i) * 7 % 515), r, i % 5});
      }
      for (uint32_t p = 0; p <= (first + count - 1) / ops::kPageTokens; ++p)
        tables[r * stride + p] = next_page++;
      logits.push_back(token + count - 1);
      shape_.min_row_tokens = std::min(shape_.min_row_tokens, count);
      shape_.max_row_tokens = std::max(shape_.max_row_tokens, count);
      shape_.max_positions = std::max(shape_.max_positions, first + count);
    }
    shape_.token_count = static_cast<uint32_t>(tokens.size());
    shape_.row_count = shape_.logits_count = static_cast<uint32_t>(rows.size());
    shape_.has_hidden_states = limits.has_hidden_states;
    shape_.scored_count = static_cast<uint32_t>(scored.size());
    batch_.token_count = shape_.token_count;
    batch_.row_count = shape_.row_count;
    batch_.page_table_stride = stride;
    batch_.max_row_tokens = shape_.max_row_tokens;
    batch_.max_positions = shape_.max_positions;
    batch_.tokens = machine_.in_ticket<int32_t>(0, layout.tokens);
    batch_.positions = machine_.in_ticket<uint32_t>(0, layout.positions);
    batch_.token_rows = machine_.in_ticket<uint32_t>(0, layout.token_rows);
    batch_.rows = machine_.in_ticket<ops::StepRow>(0, layout.rows);
    batch_.page_tables = machine_.in_ticket<uint32_t>(0, layout.page_tables);
    batch_.has_persistent_layers = machine_.plan(shape_).has_persistent_layers;

    // Segments 0 to 5 or 7 of the block, which lies in the memory of the runner.
    uint8_t* const area = machine_.scratch + layout.runner;
    std::vector<uint8_t> block(align_up(sizeof(kernels::InputHeader), 16));
    kernels::InputHeader header{};
    uint32_t segment = 0;
    const auto add = [&](const auto& values, uint64_t target, uint64_t row_count) {
      const auto row_bytes = static_cast<uint32_t>(values.size() * sizeof(values[0]) / row_count);
      header.segments[segment] = {static_cast<uint32_t>(row_count), row_bytes,
                                  static_cast<uint32_t>(block.size()), 0};
      inputs_.inputs.targets[segment] = machine_.in_ticket<uint8_t>(0, target);
      inputs_.inputs.target_strides[segment++] = row_bytes;
      for (uint64_t row = 0; row < row_count; ++row) {
        const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data()) + row * row_bytes;
        block.insert(block.end(), bytes, bytes + row_bytes);
        block.resize(align_up(block.size(), 16));
      }
    };
    add(tokens, layout.tokens, 1);
    add(positions, layout.positions, 1);
    add(token_rows, layout.token_rows, 1);
    add(step_rows, layout.rows, 1);
    add(tables, layout.page_tables, rows.size());
    add(logits, layout.logits_indices, 1);
    if (limits.has_token_logprobs) {
      add(scored_indices, layout.scored_indices, 1);
      add(scored, layout.scored, 1);
    }
    std::memcpy(block.data(), &header, sizeof header);
    WCUDA_CHECK(block.size() <= kStatusesOffset);
    inputs_.inputs.block = area;
    inputs_.inputs.segment_count = segment;
    inputs_.tokens = 0;
    inputs_.rows = 3;
    inputs_.page_tables = 4;
    inputs_.begin.row_count = shape_.row_count;
    inputs_.begin.history_stride = limits.history_stride();
    inputs_.begin.rows = batch_.rows;
    inputs_.begin.statuses = reinterpret_cast<int32_t*>(area + kStatusesOffset);
    inputs_.begin.tokens = machine_.in_ticket<int32_t>(0, layout.tokens);
    inputs_.begin.fed_tokens = reinterpret_cast<int32_t*>(area + kFedOffset);
    inputs_.begin.history = machine_.history(0);
    step_.batch = &batch_;
    step_.inputs = &inputs_;
    step_.pool = machine_.pool;
    step_.features.kept = machine_.kept_features;
    std::copy_n(limits.feature_layers, model::kFeatureLayers, step_.features.kept_layers);
    step_.activations = machine_.activations();
    step_.gate_norms = machine_.gate_norms.empty() ? nullptr : machine_.gate_norms.data();
    step_.logits_indices = machine_.in_ticket<uint32_t>(0, layout.logits_indices);
    step_.logits = machine_.in_ticket<float>(0, layout.logits);
    step_.hidden_states = machine_.in_ticket<float>(0, layout.hidden_states);
    step_.scored_indices = machine_.in_ticket<uint32_t>(0, layout.scored_indices);
    step_.scored = machine_.in_ticket<kernels::ScoredToken>(0, layout.scored);
    step_.top_stride = limits.max_top_logprobs;
    step_.token_logprobs = machine_.in_ticket<float>(0, layout.token_logprobs);
    step_.token_top_tokens = machine_.in_ticket<int32_t>(0, layout.token_top_tokens);
    step_.token_top_logprobs = machine_.in_ticket<float>(0, layout.token_top_logprobs);
    step_.row_statuses = inputs_.begin.statuses;
    WCUDA_TRY(backend_->copy_to_device(area, block.data(), block.size()));
    if (!is_host()) return {};
    std::fill_n(step_.row_statuses, rows.size(), kernels::kRowOk);
    for (uint32_t i = 0; i < segment; ++i) {
      const auto& entry = header.segments[i];
      const uint64_t pitch = align_up(entry.row_bytes, 16);
      for (uint32_t row = 0; row < entry.row_count; ++row)
        std::memcpy(inputs_.inputs.targets[i] + row * uint64_t{entry.row_bytes},
                    block.data() + entry.offset + row * pitch, entry.row_bytes);
    }
    return {};
  }

  static bool is_table(ops::Form form) {
    return form == ops::Form::kAttentionPlan || form == ops::Form::kTokensAndPlan ||
           form == ops::Form::kRotaryTable;
  }

  struct Snapshot {
    std::vector<uint8_t> kv, scratch;
  };
  Status read(Snapshot* snapshot) const {
    snapshot->kv.resize(machine_.layout.kv_bytes);
    snapshot->scratch.resize(machine_.layout.scratch_bytes);
    WCUDA_TRY(backend_->synchronize());
    WCUDA_TRY(backend_->copy_to_host(snapshot->kv.data(), machine_.kv, snapshot->kv.size()));
    return backend_->copy_to_host(snapshot->scratch.data(), machine_.scratch,
                                  snapshot->scratch.size());
  }
  Status write(const Snapshot& snapshot) const {
    WCUDA_TRY(backend_->copy_to_device(machine_.kv, snapshot.kv.data(), snapshot.kv.size()));
    WCUDA_TRY(backend_->copy_to_device(machine_.scratch, snapshot.scratch.data(),
                                       snapshot.scratch.size()));
    return backend_->synchronize();
  }
  // Where the two differ. Of the scratch memory of the operations only tables for later nodes
  // count, and nodes that compute one write nothing else there; other nodes leave partial sums in
  // any order.
  std::string difference(const ops::Node& node, const Snapshot& a, const Snapshot& b) const {
    if (a.kv != b.kv) return "KV pages or histories";
    const auto same = [&](uint64_t begin, uint64_t end) {
      return std::memcmp(a.scratch.data() + begin, b.scratch.data() + begin, end - begin) == 0;
    };
    if (!same(0, machine_.layout.ops)) return "scratch before that of the operations";
    if (!same(machine_.layout.runner, a.scratch.size())) return "scratch of the runner";
    if (is_table(node.output) && !same(machine_.layout.ops, machine_.layout.runner))
      return ops::form_name(node.output);
    return {};
  }

  // The memory around each node of a step.
  class Recorder : public NodeObserver {
   public:
    explicit Recorder(const StepNodes& test) : test_(test) {}
    Status before(size_t) override {
      if (!snapshots.empty()) return {};
      snapshots.emplace_back();
      return test_.read(&snapshots.back());
    }
    Status after(size_t) override {
      snapshots.emplace_back();
      return test_.read(&snapshots.back());
    }
    std::vector<Snapshot> snapshots;

   private:
    const StepNodes& test_;
  };

  Status run_alone(const ops::StepPlan& plan, size_t node, const Snapshot& before,
                   Snapshot* after) {
    WCUDA_ASSIGN(const auto ops, ops::make_ops(backend_));
    WCUDA_TRY(ops->prepare(machine_.limits, machine_.scratch + machine_.layout.ops));
    WCUDA_TRY(backend_->synchronize());
    WCUDA_TRY(write(before));
    WCUDA_TRY(queue(
        [&] {
          return run_node(machine_.model->config(), machine_.model->weights(), *ops, plan, node,
                          step_);
        },
        *ops));
    return read(after);
  }
  Status queue(const std::function<Status()>& work, ops::Ops& ops) const {
    return is_host() ? work() : backend_->queue(ops.stream(), work);
  }

  static constexpr uint64_t kStatusesOffset = 320 << 10, kFedOffset = 336 << 10,
                            kInputBytes = 352 << 10;
  std::string file_;
  std::shared_ptr<Backend> backend_;
  vram::Buffer kv_, scratch_;
  Machine machine_;
  ops::StepShape shape_;
  ops::Batch batch_;
  kernels::StepStart inputs_;
  StepArgs step_;
};

INSTANTIATE_TEST_SUITE_P(Host, StepNodes, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, StepNodes, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(StepNodes, give_alone_the_bits_they_give_within_the_step) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Status status = open(c);
    ASSERT_TRUE(status.ok()) << status.message();
    status = lay_out(c);
    ASSERT_TRUE(status.ok()) << status.message();
    const ops::StepPlan plan = machine_.plan(shape_);
    const ops::DeviceTraits& device = machine_.ops->device();
    EXPECT_EQ(plan.has_persistent_layers,
              device.has_resident_grid && device.compute_capability >= 90 &&
                  device.compute_capability < 100 && shape_.token_count == 1);
    Recorder recorder(*this);
    status = queue(
        [&] {
          return forward(machine_.model->config(), machine_.model->weights(), *machine_.ops, plan,
                         step_, &recorder);
        },
        *machine_.ops);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(recorder.snapshots.size(), plan.nodes.size() + 1);

    Snapshot after;
    for (size_t i = 0; i < plan.nodes.size(); ++i) {
      const ops::Node& node = plan.nodes[i];
      status = run_alone(plan, i, recorder.snapshots[i], &after);

      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(difference(node, recorder.snapshots[i + 1], after), "")
          << operation_name(node.operation) << " by " << kernel_name(node.kernel) << " of layer "
          << node.layer;
    }
  }
}

}  // namespace
}  // namespace wcuda::engine
