// Each node of a step alone, on a fresh Ops object and the memory as it is within the step, gives
// the bits that it gives there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/open.h"
#include "core/vram/memory.h"
#include "kernels/shared/numeric.h"
#include "llm/engine/runner.h"
#include "llm/gguf/gguf.h"
#include "llm/gguf/source.h"
#include "llm/model/model.h"
#include "llm/model/tiny_model.h"
#include "llm/ops/host/kv_rows.h"
#include "support/backend_name.h"

namespace wcuda::engine {
namespace {

// A row of a step. A draft continues the sequence of the row before it.
struct CaseRow {
  uint32_t count, first;  // tokens, first position
  uint32_t flags = 0;     // besides those of the case
  bool is_draft = false;
};
using Rows = std::vector<CaseRow>;

struct Case {
  std::string name;
  Rows rows;
  uint32_t flags = 0;  // of each row
  bool is_batch_invariant = false;
  bool keeps_features = false;
  bool is_draft_head = false;
  bool has_logit_softcap = false;
  bool has_score_softcap_and_sinks = false;
  uint32_t weight_type = testing::kQ4_K;
  int32_t kv_type = WCUDA_KV_F16;
  // The first `shared_rows` rows have the first `shared_pages` pages in common.
  uint32_t shared_rows = 0, shared_pages = 0;
  uint32_t max_batch_tokens = 0;  // at least; from 512 on operands may be passed in f16
};

Case batch_invariant(Case c) {
  c.is_batch_invariant = true;
  return c;
}
Case softcap_and_sinks(Case c) {
  c.has_score_softcap_and_sinks = true;
  return c;
}
Case draft_head(Case c) {
  c.is_draft_head = true;
  return c;
}
Case shared_prefix(Case c, uint32_t pages) {
  c.shared_rows = static_cast<uint32_t>(c.rows.size()) - 4;
  c.shared_pages = pages;
  return c;
}
Case with_operands(Case c) {
  c.max_batch_tokens = 512;
  return c;
}

// Appends a row of one token at position `first`, and drafts after it.
Rows with_drafts(Rows rows, uint32_t first, uint32_t draft_count) {
  rows.push_back({1, first});
  for (uint32_t i = 1; i <= draft_count; ++i) rows.push_back({1, first + i, 0, true});
  return rows;
}

std::vector<Case> cases() {
  Rows many, far;
  for (uint32_t i = 0; i < 140; ++i) many.push_back({1, i % 60});
  for (uint32_t i = 0; i < 140; ++i) far.push_back({1, 256 + i % 60});
  const Rows mixed = {{150, 20}, {1, 300}, {2, 63}};
  std::vector<Case> all = {
      {"one token", {{1, 100}}},
      {"one token far on", {{1, 400}}},
      {"three rows of one token", {{1, 5}, {1, 70}, {1, 300}}},
      {"twelve rows of one token", Rows(12, {1, 90})},
      {"140 rows of one token", many},
      {"a prompt of 5", {{5, 0}}},
      {"a prompt of 40", {{40, 30}}},
      {"a prompt of 200", {{200, 0}}},
      {"prompts and tokens", mixed},
      batch_invariant({"batch-invariant prompts and tokens", mixed}),
      with_operands({"40 rows of one token, f16 operands", Rows(40, {1, 90})}),
      with_operands({"prompts and tokens, f16 operands", mixed}),
      {"sums of hidden states", {{150, 20}, {1, 300}}, kernels::kRowHiddenSum},
      {"log probabilities of own tokens", {{5, 20}, {1, 300}, {3, 63}}, kernels::kRowTokenLogprobs},
      softcap_and_sinks({"softcap and sinks, one token", {{1, 400}}}),
      softcap_and_sinks({"softcap and sinks, 140 rows of one token", many}),
      softcap_and_sinks({"softcap and sinks, prompts and tokens", mixed}),
      softcap_and_sinks(batch_invariant({"softcap and sinks, batch-invariant", mixed})),
      shared_prefix({"rows that share pages", far}, 4),
      softcap_and_sinks(shared_prefix({"softcap and sinks, rows that share pages", far}, 4)),
      {"drafts", with_drafts(with_drafts({{1, 70}}, 125, 5), 300, 1)},
      {"prompts and drafts", with_drafts({{40, 30}, {1, 70}}, 125, 5)},
      batch_invariant({"batch-invariant prompts and drafts", with_drafts({{40, 30}}, 125, 5)}),
      draft_head({"draft head, one token after a state", {{1, 100}}}),
      draft_head({"draft head, one token after features", {{1, 100, kernels::kRowFeatures}}}),
      with_operands(draft_head({"draft head, features and states",
                                {{150, 20, kernels::kRowFeatures},
                                 {1, 300},
                                 {1, 70, kernels::kRowFeatures},
                                 {2, 63, kernels::kRowFeatures}}})),
  };
  Case features{"features for a draft head", {{150, 20}, {1, 300}}};
  features.keeps_features = true;
  all.push_back(features);
  Case softcap{"softcap of logits", {{5, 20}, {1, 300}}, kernels::kRowTokenLogprobs};
  softcap.has_logit_softcap = true;
  all.push_back(softcap);
  const Rows one = {{1, 400}}, few = {{12, 40}, {1, 300}}, longest = {{300, 20}, {1, 300}};
  for (const int32_t type : {WCUDA_KV_Q8_0, WCUDA_KV_FP8_E4M3, WCUDA_KV_INT10})
    for (const Rows& rows : {one, few, longest, with_drafts({}, 125, 5)}) {
      Case c{"KV type " + std::to_string(type), rows};
      c.kv_type = type;
      all.push_back(c);
    }
  for (const uint32_t type : {testing::kQ8_0, testing::kQ4_0, testing::kF16})
    for (const Rows& rows : {one, few, mixed}) {
      Case c{std::string("weights of ") + quant::find_format(type)->name, rows};
      c.weight_type = type;
      all.push_back(c);
    }
  return all;
}

constexpr uint32_t kTinyVocabulary = 515;

testing::TinyModel tiny_model(uint32_t weight_type) {
  testing::TinyModel tiny;
  tiny.weight_type = weight_type;
  tiny.embedding_type = weight_type == testing::kQ4_K ? testing::kQ6_K : weight_type;
  tiny.embedding_length = 1024;
  tiny.feed_forward_length = 2048;
  tiny.head_count = 8;
  tiny.kv_head_count = 2;
  tiny.head_length = 128;
  tiny.vocabulary_size = kTinyVocabulary;
  tiny.has_all_biases = true;
  return tiny;
}

// A draft head for this model, whose table it uses. It has all that a head can have.
std::string draft_head_file(const testing::TinyModel& target) {
  constexpr uint32_t kHeadVocabulary = 130;
  const uint32_t dim = target.embedding_length, queries = target.head_count * target.head_length,
                 keys = target.kv_head_count * target.head_length;
  std::mt19937 generator(7);
  testing::BlockGenerator blocks(target.weight_type, &generator);
  testing::GgufBuilder b;
  b.string("general.architecture", "eagle3").u32("eagle3.block_count", 1);
  b.u32("eagle3.embedding_length", dim).u32("eagle3.vocab_size", target.vocabulary_size);
  b.u32("eagle3.feed_forward_length", target.feed_forward_length);
  b.u32("eagle3.attention.head_count", target.head_count);
  b.u32("eagle3.attention.head_count_kv", target.kv_head_count);
  b.u32("eagle3.attention.key_length", target.head_length);
  b.u32("eagle3.attention.value_length", target.head_length);
  b.u32("eagle3.context_length", target.context_length);
  b.f32("eagle3.attention.layer_norm_rms_epsilon", 1e-5f);
  b.u32("eagle3.target_hidden_size", dim).array<uint32_t>("eagle3.target_layers", 4, {0, 1, 2});
  b.boolean("eagle3.norm_before_fc", 1).boolean("eagle3.norm_before_residual", 1);
  const auto matrix = [&](const char* name, uint64_t rows, uint64_t cols) {
    b.tensor(name, {cols, rows}, target.weight_type, blocks.take(rows * cols));
  };
  const auto gains = [&](const char* name, uint64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = 0.75f + static_cast<float>(generator() % 33) / 64.0f;
    b.tensor_f32(name, {count}, values);
  };
  matrix("fc.weight", dim, uint64_t{3} * dim);
  gains("enc.output_norm.weight", uint64_t{3} * dim);
  gains("blk.0.attn_norm.weight", dim);
  gains("blk.0.attn_norm_2.weight", dim);
  matrix("blk.0.attn_q.weight", queries, uint64_t{2} * dim);
  matrix("blk.0.attn_k.weight", keys, uint64_t{2} * dim);
  matrix("blk.0.attn_v.weight", keys, uint64_t{2} * dim);
  matrix("blk.0.attn_output.weight", dim, queries);
  gains("blk.0.ffn_norm.weight", dim);
  matrix("blk.0.ffn_gate.weight", target.feed_forward_length, dim);
  matrix("blk.0.ffn_up.weight", target.feed_forward_length, dim);
  matrix("blk.0.ffn_down.weight", dim, target.feed_forward_length);
  gains("output_norm.weight", dim);
  matrix("output.weight", kHeadVocabulary, dim);
  std::string tokens;
  for (int64_t i = 0; i < kHeadVocabulary; ++i) testing::GgufBuilder::append(&tokens, 3 * i + 1);
  b.tensor("d2t", {kHeadVocabulary}, testing::kI64, tokens);
  return b.build();
}

// Pages of each row, and how many there are in all.
struct PageTables {
  std::vector<std::vector<uint32_t>> rows;
  uint32_t page_count = 0;
};

PageTables page_tables(const Case& c) {
  PageTables tables;
  for (uint32_t r = 0; r < c.rows.size(); ++r) {
    const CaseRow& row = c.rows[r];
    std::vector<uint32_t> pages;
    if (row.is_draft) pages = tables.rows.back();
    if (r != 0 && r < c.shared_rows)
      pages.assign(tables.rows[0].begin(), tables.rows[0].begin() + c.shared_pages);
    while (pages.size() <= (row.first + row.count - 1) / ops::kPageTokens)
      pages.push_back(tables.page_count++);
    tables.rows.push_back(std::move(pages));
  }
  return tables;
}

class StepNodes : public ::testing::TestWithParam<int32_t> {
 protected:
  bool is_host() const { return GetParam() == WCUDA_BACKEND_HOST; }

  Status open(const Case& c) {
    kv_ = vram::Buffer();
    scratch_ = vram::Buffer();
    sinks_ = vram::Buffer();
    machine_ = Machine();
    batch_ = ops::Batch();
    inputs_ = kernels::StepStart();
    WCUDA_TRY(load(c));
    machine_.memory = memory_;
    machine_.model = c.is_draft_head ? head_ : model_;
    config_ = machine_.model->config();
    weights_ = machine_.model->weights();
    WCUDA_TRY(set_limits(c));
    const Limits& limits = machine_.limits;
    WCUDA_ASSIGN(machine_.ops, ops::make_ops(backend_));
    WCUDA_ASSIGN(machine_.layout,
                 plan_layout(limits, config_, machine_.ops->scratch_bytes(limits), kInputBytes));
    WCUDA_ASSIGN(kv_, memory_->allocate(machine_.layout.kv_bytes, WCUDA_PURPOSE_KV, "kv"));
    WCUDA_ASSIGN(scratch_, memory_->allocate(machine_.layout.scratch_bytes, WCUDA_PURPOSE_SCRATCH,
                                             "scratch"));
    machine_.kv = static_cast<uint8_t*>(kv_.data());
    machine_.scratch = static_cast<uint8_t*>(scratch_.data());
    WCUDA_TRY(machine_.ops->prepare(limits, machine_.scratch + machine_.layout.ops));
    WCUDA_TRY(machine_.find_gate_norms());
    WCUDA_TRY(backend_->synchronize());
    machine_.pool = {{machine_.kv + machine_.layout.pages, limits.kv_type, limits.page_count,
                      config_.kv_head_count, config_.head_length, machine_.layout.kv_row_bytes},
                     machine_.layout.pool_layer_count};
    machine_.kept_features = {machine_.pool.data, limits.page_count, config_.layer_count,
                              machine_.layout.page_layer_bytes, limits.kept_feature_width};
    // A draft head reads what its own pages hold in place of those of a target.
    if (c.is_draft_head) machine_.target_features = machine_.kept_features;
    WCUDA_TRY(fill_memory());
    return add_softcaps(c);
  }

  // Loads the model of the case, unless it is that of the case before.
  Status load(const Case& c) {
    if (backend_ == nullptr) {
      OpenOptions options;
      options.backend = GetParam();
      options.host_thread_count = 2;
      WCUDA_ASSIGN(const Opened opened, open_backend(options));
      backend_ = opened.backend;
      memory_ = vram::Memory::create(backend_, 0);
    }
    const testing::TinyModel tiny = tiny_model(c.weight_type);
    const auto load_file =
        [&](const std::string& bytes,
            std::shared_ptr<model::Model> target) -> Result<std::shared_ptr<model::Model>> {
      WCUDA_ASSIGN(const auto source, gguf::open_memory(bytes.data(), bytes.size()));
      WCUDA_ASSIGN(const auto file, gguf::Gguf::open(source));
      model::LoadOptions options;
      options.target = std::move(target);
      return model::Model::load(memory_, file, options);
    };
    if (model_ == nullptr || weight_type_ != c.weight_type) {
      head_ = model_ = nullptr;
      WCUDA_ASSIGN(model_, load_file(tiny.build(), nullptr));
      weight_type_ = c.weight_type;
    }
    if (!c.is_draft_head || head_ != nullptr) return {};
    WCUDA_ASSIGN(head_, load_file(draft_head_file(tiny), model_));
    return {};
  }

  // As small as the case allows, because the whole memory is copied around each node.
  Status set_limits(const Case& c) {
    wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
    options.kv_type = c.kv_type;
    Limits& limits = machine_.limits;
    WCUDA_ASSIGN(limits, resolve_limits(options, config_));
    limits.batch_invariant = c.is_batch_invariant;
    limits.has_hidden_states = (c.flags & kernels::kRowHidden) != 0;
    limits.has_token_logprobs = (c.flags & kernels::kRowTokenLogprobs) != 0;
    limits.keeps_features = c.keeps_features;
    for (uint32_t i = 0; i < model::kFeatureLayers; ++i) limits.feature_layers[i] = i;
    if (c.keeps_features || c.is_draft_head)
      limits.kept_feature_width = model::kFeatureLayers * config_.embedding_length;
    limits.max_top_logprobs = limits.has_token_logprobs ? 4 : 0;
    limits.persistent_layers = ops::PersistentLayers::kOn;
    limits.max_sequences = limits.max_batch_rows = limits.max_logits_rows =
        static_cast<uint32_t>(c.rows.size());
    limits.max_sequence_tokens = 512;
    if (c.is_draft_head) limits.target_sequence_pages = limits.pages_per_sequence();
    limits.max_batch_tokens = 0;
    for (const CaseRow& row : c.rows) limits.max_batch_tokens += row.count;
    limits.max_batch_tokens = std::max(limits.max_batch_tokens, c.max_batch_tokens);
    limits.page_count = page_tables(c).page_count;
    return {};
  }

  // Sets what a step finds from steps before: keys and values, features and states.
  Status fill_memory() {
    std::mt19937 generator(3);
    const auto value = [&] { return static_cast<float>(generator() % 257) / 128.0f - 1.0f; };
    const ops::KvPool& pool = machine_.pool;
    const uint64_t plane_bytes = uint64_t{ops::kPageTokens} * pool.row_bytes;  // of a head
    std::vector<uint8_t> kv(machine_.layout.kv_bytes);
    uint8_t* const pages = kv.data() + machine_.layout.pages;
    constexpr uint64_t kDistinct = 5;  // so that neither heads nor pages are equal
    std::vector<uint8_t> planes(kDistinct * plane_bytes);
    std::vector<float> row(pool.head_length);
    for (uint64_t i = 0; i < kDistinct * ops::kPageTokens; ++i) {
      std::generate(row.begin(), row.end(), value);
      ops::host::write_kv_row(pool.format, row.data(), pool.head_length, i % ops::kPageTokens,
                              &planes[i * pool.row_bytes]);
    }
    const uint64_t kv_planes =
        uint64_t{config_.layer_count} * pool.page_count * 2 * pool.head_count;
    for (uint64_t i = 0; i < kv_planes; ++i)
      std::copy_n(&planes[i % kDistinct * plane_bytes], plane_bytes, pages + i * plane_bytes);
    auto* const features = reinterpret_cast<uint16_t*>(pages + kv_planes * plane_bytes);
    const uint64_t feature_layers = pool.layer_count - config_.layer_count;
    std::generate_n(features,
                    feature_layers * pool.page_count * machine_.layout.page_layer_bytes / 2,
                    [&] { return float_to_bf16(value()); });
    WCUDA_TRY(backend_->copy_to_device(machine_.kv, kv.data(), kv.size()));
    if (!config_.draft_head.exists()) return backend_->synchronize();
    std::vector<float> states(uint64_t{machine_.limits.max_sequences} * config_.embedding_length);
    std::generate(states.begin(), states.end(), value);
    WCUDA_TRY(backend_->copy_to_device(machine_.scratch + machine_.layout.states, states.data(),
                                       states.size() * sizeof(float)));
    return backend_->synchronize();
  }

  // Adds what no family of models that can be loaded has.
  Status add_softcaps(const Case& c) {
    if (c.has_logit_softcap) config_.logit_softcap = 30.0f;
    if (!c.has_score_softcap_and_sinks) return {};
    config_.attention_softcap = 20.0f;
    std::vector<float> sinks;  // (layer_count, head_count)
    for (uint32_t i = 0; i < config_.layer_count * config_.head_count; ++i)
      sinks.push_back(static_cast<float>(i) / 4.0f - 1.0f);
    const uint64_t bytes = sinks.size() * sizeof(float);
    WCUDA_ASSIGN(sinks_, memory_->allocate(bytes, WCUDA_PURPOSE_WEIGHTS, "sinks"));
    for (uint32_t i = 0; i < config_.layer_count; ++i)
      weights_.layers[i].attention_sinks =
          reinterpret_cast<const float*>(sinks_.data()) + uint64_t{i} * config_.head_count;
    return backend_->copy_to_device(sinks_.data(), sinks.data(), bytes);
  }

  ops::StepPlan plan() const {
    return ops::plan_step(config_, weights_, machine_.limits, machine_.ops->device(), shape_);
  }

  struct Arrays {
    std::vector<int32_t> tokens;
    std::vector<uint32_t> positions, token_rows;
    std::vector<ops::StepRow> rows;
    std::vector<uint32_t> page_tables, logits, scored_indices;
    std::vector<kernels::ScoredToken> scored;
  };

  // Sets the shape of the step, and returns its arrays.
  Arrays arrange(const Case& c) {
    const Limits& limits = machine_.limits;
    const PageTables pages = page_tables(c);
    const uint32_t stride = limits.pages_per_sequence();
    Arrays a;
    a.page_tables.resize(c.rows.size() * stride);
    shape_ = {};
    shape_.min_row_tokens = UINT32_MAX;
    uint32_t slot = UINT32_MAX;
    for (uint32_t r = 0; r < c.rows.size(); ++r) {
      const CaseRow& row = c.rows[r];
      const auto token = static_cast<uint32_t>(a.tokens.size());
      if (!row.is_draft) ++slot;
      a.rows.push_back({token, row.count, row.first, slot, row.flags | c.flags});
      for (uint32_t i = 0; i < row.count; ++i) {
        a.tokens.push_back(static_cast<int32_t>((token + i) * 31 % kTinyVocabulary));
        a.positions.push_back(row.first + i);
        a.token_rows.push_back(r);
        if (!limits.has_token_logprobs) continue;
        a.scored_indices.push_back(token + i);
        a.scored.push_back({static_cast<int32_t>((token + i) * 7 % kTinyVocabulary), r, i % 5});
      }
      std::copy(pages.rows[r].begin(), pages.rows[r].end(), &a.page_tables[r * stride]);
      a.logits.push_back(token + row.count - 1);
      shape_.min_row_tokens = std::min(shape_.min_row_tokens, row.count);
      shape_.max_row_tokens = std::max(shape_.max_row_tokens, row.count);
      shape_.max_positions = std::max(shape_.max_positions, row.first + row.count);
      shape_.has_drafts |= row.is_draft;
      shape_.has_features |= (a.rows[r].flags & kernels::kRowFeatures) != 0;
      if (row.count == 1) continue;
      ++shape_.long_rows.row_count;
      shape_.long_rows.token_count += row.count;
      shape_.long_rows.page_count += static_cast<uint32_t>(pages.rows[r].size());
    }
    shape_.token_count = static_cast<uint32_t>(a.tokens.size());
    shape_.row_count = shape_.logits_count = static_cast<uint32_t>(c.rows.size());
    shape_.has_hidden_states = limits.has_hidden_states;
    shape_.scored_count = static_cast<uint32_t>(a.scored.size());
    const ops::DeviceTraits& device = machine_.ops->device();
    shape_.expanded_heads = ops::choose_expanded_heads(limits, device, shape_.long_rows);
    shape_.has_shared_prefix =
        c.shared_rows != 0 && ops::allows_shared_prefix(config_, limits, device, shape_);
    if (!shape_.has_shared_prefix) return a;
    a.rows[0].shared_rows = static_cast<uint16_t>(c.shared_rows);
    for (uint32_t r = 0; r < c.shared_rows; ++r)
      a.rows[r].shared_pages = static_cast<uint16_t>(c.shared_pages);
    return a;
  }

  // The arrays of a step and, on a device, the block from which they are dealt out.
  Status lay_out(const Case& c) {
    const Limits& limits = machine_.limits;
    const Layout& layout = machine_.layout;
    const Arrays a = arrange(c);
    machine_.has_persistent_layers = plan().has_persistent_layers;
    batch_ = machine_.batch(0, shape_);
    step_ = machine_.step(0, batch_);

    // The segments of the block, which lies in the memory of the runner.
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
    add(a.tokens, layout.tokens, 1);
    add(a.positions, layout.positions, 1);
    add(a.token_rows, layout.token_rows, 1);
    add(a.rows, layout.rows, 1);
    add(a.page_tables, layout.page_tables, a.rows.size());
    add(a.logits, layout.logits_indices, 1);
    if (limits.has_token_logprobs) {
      add(a.scored_indices, layout.scored_indices, 1);
      add(a.scored, layout.scored, 1);
    }
    if (c.is_draft_head) add(a.page_tables, layout.feature_tables, a.rows.size());
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
    step_.inputs = &inputs_;
    step_.row_statuses = inputs_.begin.statuses;
    WCUDA_TRY(backend_->copy_to_device(area, block.data(), block.size()));
    if (!is_host()) return {};
    std::fill_n(step_.row_statuses, a.rows.size(), kernels::kRowOk);
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

  std::vector<float> logits(const Snapshot& snapshot) const {
    std::vector<float> values(uint64_t{shape_.logits_count} * config_.vocabulary_size);
    const auto offset = reinterpret_cast<uint8_t*>(step_.logits) - machine_.scratch;
    std::memcpy(values.data(), snapshot.scratch.data() + offset, values.size() * sizeof(float));
    return values;
  }
  static bool are_finite(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
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

  // Partial results lie in the scratch memory of the operations, so a node that computes them runs
  // with those after it, up to the one that joins them.
  static size_t end_of(const ops::StepPlan& plan, size_t node) {
    while (plan.nodes[node].output == ops::Form::kPartials) ++node;
    return node + 1;
  }
  Status run_alone(const ops::StepPlan& plan, size_t node, const Snapshot& before,
                   Snapshot* after) {
    WCUDA_ASSIGN(const auto ops, ops::make_ops(backend_));
    WCUDA_TRY(ops->prepare(machine_.limits, machine_.scratch + machine_.layout.ops));
    WCUDA_TRY(backend_->synchronize());
    WCUDA_TRY(write(before));
    WCUDA_TRY(queue(
        [&]() -> Status {
          for (size_t i = node; i < end_of(plan, node); ++i)
            WCUDA_TRY(run_node(config_, weights_, *ops, plan, i, step_));
          return {};
        },
        *ops));
    return read(after);
  }
  Status queue(const std::function<Status()>& work, ops::Ops& ops) const {
    return is_host() ? work() : backend_->queue(ops.stream(), work);
  }

  static constexpr uint64_t kStatusesOffset = 320 << 10, kFedOffset = 336 << 10,
                            kInputBytes = 352 << 10;
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<vram::Memory> memory_;
  std::shared_ptr<model::Model> model_, head_;
  uint32_t weight_type_ = 0;  // of both
  vram::Buffer kv_, scratch_, sinks_;
  Machine machine_;
  model::Config config_;  // of the model, and what the case changes
  model::Weights weights_;
  ops::StepShape shape_;
  ops::Batch batch_;
  kernels::StepStart inputs_;
  StepArgs step_;
};

INSTANTIATE_TEST_SUITE_P(Host, StepNodes, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, StepNodes, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

bool has_persistent_kernel(const ops::DeviceTraits& device) {
  return device.has_resident_grid && device.compute_capability >= 90 &&
         device.compute_capability < 100;
}

// Operations that no step of the backend has.
bool is_foreign(ops::Operation operation, const ops::DeviceTraits& device) {
  switch (operation) {
    case ops::Operation::kRotaryTable:
      return !device.is_host;
    case ops::Operation::kStartStep:
    case ops::Operation::kScatterInputs:
    case ops::Operation::kBeginRows:
    case ops::Operation::kPlanAttention:
      return device.is_host;
    case ops::Operation::kPersistentLayers:
      return !has_persistent_kernel(device);
    default:
      return false;
  }
}

TEST_P(StepNodes, give_alone_the_bits_they_give_within_the_step) {
  std::set<ops::Operation> operations;
  std::set<ops::Kernel> kernels;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name + ", " + std::to_string(c.rows.size()) + " rows, the first of " +
                 std::to_string(c.rows[0].count));
    Status status = open(c);
    ASSERT_TRUE(status.ok()) << status.message();
    status = lay_out(c);
    ASSERT_TRUE(status.ok()) << status.message();
    if (c.shared_rows != 0 && !shape_.has_shared_prefix) continue;
    const ops::StepPlan plan = this->plan();
    EXPECT_EQ(plan.has_persistent_layers, has_persistent_kernel(machine_.ops->device()) &&
                                              shape_.token_count == 1 &&
                                              c.weight_type == testing::kQ4_K);
    Recorder recorder(*this);
    status =
        queue([&] { return forward(config_, weights_, *machine_.ops, plan, step_, &recorder); },
              *machine_.ops);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(recorder.snapshots.size(), plan.nodes.size() + 1);
    ASSERT_TRUE(are_finite(logits(recorder.snapshots.back())));

    Snapshot after;
    for (size_t i = 0; i < plan.nodes.size(); ++i) {
      const ops::Node& node = plan.nodes[i];
      operations.insert(node.operation);
      kernels.insert(node.kernel);
      status = run_alone(plan, i, recorder.snapshots[i], &after);

      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(difference(node, recorder.snapshots[end_of(plan, i)], after), "")
          << operation_name(node.operation) << " by " << kernel_name(node.kernel) << " of layer "
          << node.layer;
    }
  }

  const ops::DeviceTraits& device = machine_.ops->device();
  for (auto i = 0u; i <= static_cast<uint32_t>(ops::Operation::kPersistentLayers); ++i) {
    const auto operation = static_cast<ops::Operation>(i);
    EXPECT_EQ(operations.count(operation) == 0, is_foreign(operation, device))
        << operation_name(operation);
  }
  if (!device.has_warpgroup_code || device.compute_capability != 90) return;
  for (const ops::Kernel kernel :
       {ops::Kernel::kAttentionDecode, ops::Kernel::kAttentionShared, ops::Kernel::kAttentionJoin,
        ops::Kernel::kAttentionPrefillWarpgroup, ops::Kernel::kAttentionPrefillExpanded})
    EXPECT_EQ(kernels.count(kernel), 1u) << kernel_name(kernel);
}

}  // namespace
}  // namespace wcuda::engine
