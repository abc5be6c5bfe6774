// The host implementation of Ops. Each operation computes immediately, on a pool of threads.
#include "llm/ops/host/host_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/checked.h"
#include "core/base/thread_pool.h"
#include "kernels/shared/arena.h"
#include "llm/ops/host/kv_rows.h"
#include "llm/ops/host/linear.h"
#include "llm/ops/host/rope.h"
#include "llm/ops/sampling.h"
#include "llm/quant/format.h"
#include "llm/quant/layout_host.h"

namespace wcuda::ops::host {
namespace {

constexpr uint32_t kTokensAChunk = 8;  // of work that is small for one token

uint32_t cols_max(const Limits& limits) {
  return std::max({limits.embedding_length, limits.feed_forward_length,
                   limits.head_count * limits.head_length, limits.head_cols_max});
}

class HostOps final : public Ops {
 public:
  HostOps(std::unique_ptr<ThreadPool> pool, const Kernels& kernels)
      : pool_(std::move(pool)), kernels_(kernels), linear_(*pool_, kernels) {}

  uint64_t scratch_bytes(const Limits& limits) const override {
    Arena arena;
    Scratch scratch;
    lay_out(limits, &arena, &scratch);
    return arena.bytes();
  }

  Status prepare(const Limits& limits, void* scratch) override {
    WCUDA_CHECK(scratch != nullptr && limits.kv_head_count > 0 && limits.max_batch_tokens > 0);
    WCUDA_CHECK(limits.head_count % limits.kv_head_count == 0);
    limits_ = limits;
    Arena arena(scratch);
    lay_out(limits, &arena, &scratch_);
    linear_.prepare(token_count_max(limits), cols_max(limits), scratch_.linear);
    return {};
  }

  Status warm_up() override {
    WCUDA_CHECK(scratch_.rope != nullptr);
    std::memset(scratch_.rope, 0, scratch_.bytes);
    pool_->parallel_for(pool_->thread_count(), [](uint32_t, uint32_t) {});
    return {};
  }

  const DeviceTraits& device() const override { return traits_; }
  Result<float> row_norm_max(const Weight&, void*, uint64_t) override {
    return Status::error(WCUDA_NOT_AVAILABLE, "the host needs no norms of rows");
  }
  Status start(const Node& node, const StartArgs& args) override;
  Status embed(const Node& node, const EmbedArgs& args) override;
  Status linear(const Node& node, const LinearArgs& args) override;
  Status persistent_layers(const Node&, const LinearArgs*, uint32_t) override {
    return Status::error(WCUDA_INTERNAL, "no persistent layers on the host");
  }
  Status rope_kv(const Node& node, const RopeKvArgs& args) override;
  Status attention(const Node& node, const AttentionArgs& args) override;
  Status hidden_state(const Node& node, const HiddenStateArgs& args) override;
  Status softcap(const Node& node, const SoftcapArgs& args) override;
  Status keep_features(const Node& node, const KeepFeaturesArgs& args) override;
  Status read_features(const Node& node, const ReadFeaturesArgs& args) override;
  Status head_input(const Node& node, const HeadInputArgs& args) override;
  Status keep_states(const Node& node, const KeepStatesArgs& args) override;
  Status scatter_logits(const Node& node, const ScatterLogitsArgs& args) override;
  Status token_logprobs(const Node& node, const TokenLogprobsArgs& args) override;

 private:
  struct Scratch {
    float* rope = nullptr;       // cosines and sines of the step's positions
    float* attention = nullptr;  // (threads, attention_work_floats)
    uint8_t* linear = nullptr;
    uint8_t* row_work = nullptr;  // (threads, row_work_bytes)
    uint64_t bytes = 0;
  };

  static uint32_t token_count_max(const Limits& limits) {
    return std::max(limits.max_batch_tokens, limits.max_logits_rows);
  }
  static uint64_t attention_floats(const Limits& limits) {
    const uint32_t group_size = limits.head_count / std::max(limits.kv_head_count, 1u);
    return align_up(attention_work_floats(limits.head_length, group_size), 64);
  }
  void lay_out(const Limits& limits, Arena* arena, Scratch* scratch) const {
    const uint64_t threads = pool_->thread_count();
    scratch->rope =
        arena->take<float>(rope_table_floats(limits.max_batch_tokens, limits.head_length));
    scratch->attention = arena->take<float>(threads * attention_floats(limits));
    scratch->linear =
        arena->take<uint8_t>(linear_.work_bytes(token_count_max(limits), cols_max(limits)));
    scratch->row_work =
        arena->take<uint8_t>(threads * align_up(Linear::row_work_bytes(cols_max(limits)), 64));
    scratch->bytes = arena->bytes();
  }

  Status check_batch(const Batch* batch) const {
    WCUDA_CHECK(batch != nullptr && scratch_.rope != nullptr);
    WCUDA_CHECK(batch->token_count <= limits_.max_batch_tokens);
    WCUDA_CHECK(batch->row_count <= limits_.max_batch_rows);
    return {};
  }
  Status check_pool(const KvPool& pool, uint32_t layer, uint32_t head_count) const {
    WCUDA_CHECK(pool.data != nullptr && layer < pool.layer_count);
    WCUDA_CHECK(pool.head_length == limits_.head_length &&
                pool.head_count == limits_.kv_head_count);
    WCUDA_CHECK(head_count == limits_.head_count);
    WCUDA_CHECK(pool.row_bytes != 0 &&
                pool.row_bytes == kv_row_bytes(pool.format, pool.head_length));
    return {};
  }
  // Calls function(token, thread) for each token, several tokens a chunk.
  template <class Function>
  void for_tokens(uint32_t token_count, const Function& function) {
    const auto chunks = static_cast<uint32_t>(ceil_div(token_count, kTokensAChunk));
    pool_->parallel_for(chunks, [&](uint32_t chunk, uint32_t thread) {
      const uint32_t end = std::min((chunk + 1) * kTokensAChunk, token_count);
      for (uint32_t token = chunk * kTokensAChunk; token < end; ++token) function(token, thread);
    });
  }
  // Norms, rotates and stores the heads of one token.
  void finish_token(const RopeKvArgs& args, uint32_t token) const;

  std::unique_ptr<ThreadPool> pool_;
  const Kernels& kernels_;
  Linear linear_;
  Limits limits_{};
  Scratch scratch_;
  const DeviceTraits traits_;
};

Status HostOps::start(const Node& node, const StartArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  WCUDA_CHECK(node.operation == Operation::kRotaryTable);
  WCUDA_CHECK(args.rope.dimension_count % 2 == 0 && args.rope.frequencies != nullptr &&
              args.rope.dimension_count <= limits_.head_length);
  fill_rope_table(args.rope, args.batch->positions, args.batch->token_count, scratch_.rope);
  return {};
}

Status HostOps::embed(const Node&, const EmbedArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  const Weight& table = args.table;
  WCUDA_CHECK(table.data != nullptr && args.out != nullptr && table.cols <= cols_max(limits_));
  for (uint32_t t = 0; t < args.batch->token_count; ++t)
    WCUDA_CHECK(static_cast<uint32_t>(args.batch->tokens[t]) < table.rows);
  // All rows are alike: what fails, fails for each.
  WCUDA_TRY(quant::host_layout_bytes(table.type, table.layout, table.rows, table.cols).status());
  const quant::Format* format = quant::find_format(table.type);
  WCUDA_CHECK(format != nullptr && format->is_loadable);
  const uint64_t row_work_bytes = align_up(Linear::row_work_bytes(cols_max(limits_)), 64);
  for_tokens(args.batch->token_count, [&](uint32_t token, uint32_t thread) {
    float* out = args.out + uint64_t{token} * table.cols;
    const auto row = static_cast<uint32_t>(args.batch->tokens[token]);
    const Status status =
        Linear::expand_row(table, row, scratch_.row_work + thread * row_work_bytes, out);
    for (uint32_t i = 0; i < table.cols; ++i) out[i] = status.ok() ? out[i] * args.scale : NAN;
  });
  return {};
}

Status HostOps::rope_kv(const Node&, const RopeKvArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  WCUDA_TRY(check_pool(args.pool, args.layer, args.head_count));
  WCUDA_CHECK(args.query != nullptr && args.key != nullptr && args.value != nullptr);
  WCUDA_CHECK(args.rope.dimension_count % 2 == 0 &&
              args.rope.dimension_count <= args.pool.head_length);
  for_tokens(args.batch->token_count, [&](uint32_t token, uint32_t) { finish_token(args, token); });
  return {};
}

void HostOps::finish_token(const RopeKvArgs& args, uint32_t token) const {
  const KvPool& pool = args.pool;
  const uint32_t n = pool.head_length;
  const Batch& batch = *args.batch;
  const auto finish_head = [&](float* head, Vector norm) {
    if (norm != nullptr) kernels_.rms_norm(head, norm, n, args.epsilon, head);
    if (args.rope.dimension_count != 0) rotate_head(args.rope, scratch_.rope, token, head);
    if (pool.format == KvType::kInt10) hadamard_head(head, n);
  };
  for (uint32_t h = 0; h < args.head_count; ++h)
    finish_head(args.query + (uint64_t{token} * args.head_count + h) * n, args.query_norm);

  const uint32_t position = batch.positions[token];
  const auto write_row = [&](const float* values, uint8_t* row) {
    if (pool.format == KvType::kF16 && kernels_.to_halves != nullptr)
      kernels_.to_halves(values, n, row);
    else
      write_kv_row(pool.format, values, n, position, row);
  };
  const uint32_t* pages =
      batch.page_tables + uint64_t{batch.token_rows[token]} * batch.page_table_stride;
  const uint32_t page = pages[position / kPageTokens];
  for (uint32_t h = 0; h < pool.head_count; ++h) {
    const uint64_t offset = (uint64_t{token} * pool.head_count + h) * n;
    const uint64_t row = (uint64_t{h} * kPageTokens + position % kPageTokens) * pool.row_bytes;
    finish_head(args.key + offset, args.key_norm);
    write_row(args.key + offset, pool.keys(args.layer, page) + row);
    write_row(args.value + offset, pool.values(args.layer, page) + row);
  }
}

Status HostOps::attention(const Node&, const AttentionArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  WCUDA_TRY(check_pool(args.pool, args.layer, args.head_count));
  const Batch& batch = *args.batch;
  const KvPool& pool = args.pool;
  // Chunk c is tile c / heads, counted over the rows, of key-value head c % heads.
  const uint32_t group_size = args.head_count / pool.head_count;
  const uint32_t tile_tokens = attention_tile_tokens(group_size);
  uint32_t tile_count = 0;
  for (uint32_t r = 0; r < batch.row_count; ++r) {
    const StepRow& row = batch.rows[r];
    WCUDA_CHECK(uint64_t{row.first_token} + row.token_count <= batch.token_count);
    WCUDA_CHECK(row.token_count == 0 ||
                (row.first_position + row.token_count - 1) / kPageTokens < batch.page_table_stride);
    tile_count += static_cast<uint32_t>(ceil_div(row.token_count, tile_tokens));
  }
  const uint64_t token_stride = uint64_t{args.head_count} * pool.head_length;
  pool_->parallel_for(tile_count * pool.head_count, [&](uint32_t chunk, uint32_t thread) {
    uint32_t index = chunk / pool.head_count;
    const uint32_t head = chunk % pool.head_count;
    uint32_t r = 0;
    for (;; ++r) {
      const auto tiles = static_cast<uint32_t>(ceil_div(batch.rows[r].token_count, tile_tokens));
      if (index < tiles) break;
      index -= tiles;
    }
    const StepRow& row = batch.rows[r];
    const uint32_t done = index * tile_tokens;
    const uint64_t offset =
        (row.first_token + done) * token_stride + uint64_t{head} * group_size * pool.head_length;
    AttentionTile tile{};
    tile.kv_type = static_cast<uint32_t>(pool.format);
    tile.head_length = pool.head_length;
    tile.row_bytes = pool.row_bytes;
    tile.keys = pool.keys(args.layer, 0) + uint64_t{head} * kPageTokens * pool.row_bytes;
    tile.values = pool.values(args.layer, 0) + uint64_t{head} * kPageTokens * pool.row_bytes;
    tile.page_bytes = 2 * pool.plane_bytes();
    tile.page_table = batch.page_tables + uint64_t{r} * batch.page_table_stride;
    tile.query = args.query + offset;
    tile.out = args.out + offset;
    tile.token_stride = token_stride;
    tile.token_count = std::min(tile_tokens, row.token_count - done);
    tile.group_size = group_size;
    tile.first_position = row.first_position + done;
    tile.window = args.window;
    tile.scale = args.scale;
    tile.softcap = args.softcap;
    tile.sinks = args.sinks == nullptr ? nullptr : args.sinks + head * group_size;
    tile.work = scratch_.attention + thread * attention_floats(limits_);
    kernels_.attend(tile);
  });
  return {};
}

Status HostOps::hidden_state(const Node&, const HiddenStateArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  WCUDA_CHECK(args.x != nullptr && args.norm != nullptr && args.out != nullptr);
  WCUDA_CHECK(args.cols <= cols_max(limits_));
  const uint64_t row_work_bytes = align_up(Linear::row_work_bytes(cols_max(limits_)), 64);
  pool_->parallel_for(args.batch->row_count, [&](uint32_t r, uint32_t thread) {
    const StepRow& row = args.batch->rows[r];
    if (row.hidden_states_returned() == 0) return;
    const bool is_sum = (row.flags & kernels::kRowHiddenSum) != 0;
    const bool is_last = (row.flags & kernels::kRowHiddenLast) != 0;
    const uint32_t first = row.first_token + (is_last ? row.token_count - 1 : 0);
    float* const out = args.out + uint64_t{r} * args.cols;
    kernels_.rms_norm(args.x + uint64_t{first} * args.cols, args.norm, args.cols, args.epsilon,
                      out);
    auto* const h = reinterpret_cast<float*>(scratch_.row_work + thread * row_work_bytes);
    for (uint32_t i = 1; is_sum && i < row.token_count; ++i) {
      kernels_.rms_norm(args.x + (uint64_t{first} + i) * args.cols, args.norm, args.cols,
                        args.epsilon, h);
      for (uint32_t c = 0; c < args.cols; ++c) out[c] += h[c];
    }
  });
  return {};
}

Status HostOps::keep_features(const Node&, const KeepFeaturesArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  WCUDA_CHECK(args.x != nullptr && args.pages.data != nullptr && args.pages.width % 3 == 0);
  const Batch& batch = *args.batch;
  const uint32_t cols = args.pages.width / 3;
  for_tokens(batch.token_count, [&](uint32_t token, uint32_t) {
    const uint32_t position = batch.positions[token];
    const uint32_t page =
        batch.page_tables[uint64_t{batch.token_rows[token]} * batch.page_table_stride +
                          position / kPageTokens];
    const kernels::FeatureRow features(args.pages, page, position);
    for (uint32_t third = 0; third < 3; ++third) {
      if ((args.thirds >> third & 1) == 0) continue;
      for (uint32_t c = 0; c < cols; ++c)
        *features.at(third * cols + c) = float_to_bf16(args.x[uint64_t{token} * cols + c]);
    }
  });
  return {};
}

Status HostOps::read_features(const Node&, const ReadFeaturesArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  WCUDA_CHECK(args.out != nullptr && args.pages.data != nullptr && args.page_tables != nullptr);
  const Batch& batch = *args.batch;
  const uint32_t width = args.pages.width;
  for_tokens(batch.token_count, [&](uint32_t token, uint32_t) {
    float* const out = args.out + uint64_t{token} * width;
    const uint32_t row = batch.token_rows[token], position = batch.positions[token];
    if ((batch.rows[row].flags & kernels::kRowFeatures) == 0) {
      std::fill_n(out, width, 0.0f);
      return;
    }
    const uint32_t page =
        args.page_tables[uint64_t{row} * args.page_table_stride + position / kPageTokens];
    const kernels::FeatureRow features(args.pages, page, position);
    for (uint32_t c = 0; c < width; ++c) out[c] = bf16_to_float(*features.at(c));
    if (args.norm != nullptr) kernels_.rms_norm(out, args.norm, width, args.epsilon, out);
  });
  return {};
}

Status HostOps::head_input(const Node&, const HeadInputArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  WCUDA_CHECK(args.token_norm != nullptr && args.state_norm != nullptr && args.states != nullptr);
  const Batch& batch = *args.batch;
  const uint32_t cols = args.cols;
  for_tokens(batch.token_count, [&](uint32_t token, uint32_t) {
    const StepRow& row = batch.rows[batch.token_rows[token]];
    const float* const state = (row.flags & kernels::kRowFeatures) != 0
                                   ? args.g + uint64_t{token} * cols
                                   : args.states + uint64_t{row.sequence_slot} * cols;
    float* const input = args.input + uint64_t{token} * 2 * cols;
    kernels_.rms_norm(args.embedding + uint64_t{token} * cols, args.token_norm, cols, args.epsilon,
                      input);
    kernels_.rms_norm(state, args.state_norm, cols, args.epsilon, input + cols);
    std::copy_n(args.norms_residual ? input + cols : state, cols, args.x + uint64_t{token} * cols);
  });
  return {};
}

Status HostOps::keep_states(const Node&, const KeepStatesArgs& args) {
  WCUDA_TRY(check_batch(args.batch));
  WCUDA_CHECK(args.x != nullptr && args.states != nullptr);
  for (uint32_t r = 0; r < args.batch->row_count; ++r) {
    const StepRow& row = args.batch->rows[r];
    const uint64_t last = uint64_t{row.first_token} + row.token_count - 1;
    std::copy_n(args.x + last * args.cols, args.cols,
                args.states + uint64_t{row.sequence_slot} * args.cols);
  }
  return {};
}

Status HostOps::scatter_logits(const Node&, const ScatterLogitsArgs& args) {
  WCUDA_CHECK(args.logits != nullptr && args.tokens != nullptr && args.out != nullptr);
  pool_->parallel_for(args.count, [&](uint32_t i, uint32_t) {
    float* const out = args.out + uint64_t{i} * args.vocabulary;
    const float* const logits = args.logits + uint64_t{i} * args.head_vocabulary;
    std::fill_n(out, args.vocabulary, std::numeric_limits<float>::lowest());
    for (uint32_t j = 0; j < args.head_vocabulary; ++j) out[args.tokens[j]] = logits[j];
  });
  return {};
}

Status HostOps::softcap(const Node&, const SoftcapArgs& args) {
  WCUDA_CHECK(args.values != nullptr && args.softcap > 0.0f);
  constexpr uint64_t kChunk = 4096;
  pool_->parallel_for(static_cast<uint32_t>(ceil_div(args.count, kChunk)),
                      [&](uint32_t chunk, uint32_t) {
                        const uint64_t end = std::min((chunk + uint64_t{1}) * kChunk, args.count);
                        for (uint64_t i = chunk * kChunk; i < end; ++i)
                          args.values[i] = args.softcap * std::tanh(args.values[i] / args.softcap);
                      });
  return {};
}

Status HostOps::token_logprobs(const Node&, const TokenLogprobsArgs& args) {
  WCUDA_CHECK(args.count <= limits_.max_logits_rows && args.row_statuses != nullptr);
  std::vector<RowStatus> statuses(args.count, RowStatus::kOk);
  pool_->parallel_for(args.count, [&](uint32_t i, uint32_t) {
    const kernels::ScoredToken& scored = args.tokens[i];
    int32_t* const tokens = args.top_tokens + uint64_t{i} * args.top_stride;
    float* const logprobs = args.top_logprobs + uint64_t{i} * args.top_stride;
    const SampleResult result =
        token_logprob(args.logits + uint64_t{i} * args.vocabulary, args.vocabulary,
                      static_cast<uint32_t>(scored.token), scored.top, tokens, logprobs);
    statuses[i] = result.status;
    args.logprobs[i] = result.logprob;
    std::fill(tokens + result.top_count, tokens + scored.top, -1);
    std::fill(logprobs + result.top_count, logprobs + scored.top,
              -std::numeric_limits<float>::infinity());
  });
  for (uint32_t i = 0; i < args.count; ++i) {
    int32_t& row = args.row_statuses[args.tokens[i].row];
    if (row == kernels::kRowOk) row = static_cast<int32_t>(statuses[i]);
  }
  return {};
}

Status HostOps::linear(const Node&, const LinearArgs& args) {
  WCUDA_CHECK(args.token_count <= token_count_max(limits_) && args.weight_count > 0 &&
              args.weight_count <= kLinearWeightsMax);
  for (uint32_t i = 0; args.token_indices != nullptr && i < args.token_count; ++i)
    WCUDA_CHECK(args.token_indices[i] < limits_.max_batch_tokens);
  Product products[kLinearWeightsMax];
  for (uint32_t i = 0; i < args.weight_count; ++i) {
    products[i].weight = args.weights[i];
    products[i].bias = args.biases[i];
    products[i].target = args.outputs[i];
  }
  uint32_t count = args.weight_count;
  if (args.epilogue == Epilogue::kAdd) {
    WCUDA_CHECK(count == 1);
    products[0].output = Output::kAdd;
  } else if (args.epilogue == Epilogue::kGate) {
    WCUDA_CHECK(count == 2);
    products[0].output =
        args.activation == Activation::kSilu ? Output::kSiluMultiply : Output::kGeluMultiply;
    products[0].up = args.weights[1];
    products[0].up_bias = args.biases[1];
    count = 1;
  }
  return linear_.run(
      {args.x, args.token_count, args.weights[0].cols, args.token_indices, args.norm, args.epsilon},
      products, count);
}

}  // namespace

Result<std::unique_ptr<Ops>> make_host_ops(uint32_t thread_count, const Kernels& kernels) {
  WCUDA_ASSIGN(std::unique_ptr<ThreadPool> pool, ThreadPool::create(thread_count));
  return std::unique_ptr<Ops>(new HostOps(std::move(pool), kernels));
}

}  // namespace wcuda::ops::host
