// Defaults and ranges of the engine's options; sizes of its memory.
#include "llm/engine/limits.h"

#include <algorithm>
#include <cinttypes>

#include "core/base/checked.h"
#include "kernels/attention/attention_choice.h"
#include "kernels/shared/arena.h"
#include "llm/engine/engine.h"
#include "llm/engine/runner.h"
#include "llm/engine/step_shape.h"

namespace wcuda::engine {
namespace {

constexpr uint32_t kDefaultSequences = 16;
constexpr uint32_t kDefaultBatchTokens = 512;
constexpr uint64_t kDefaultTokensPerSequence = 512;
constexpr uint32_t kMaxSequences = 65536;
constexpr uint32_t kMaxBatchTokens = 1u << 20;
constexpr uint32_t kMaxSequenceTokens = 1u << 24;
constexpr uint32_t kMaxTopLogprobs = 128;
constexpr uint64_t kMaxPages = 1u << 28;
static_assert(WCUDA_ROW_DRAFT_TOKENS_MAX == kernels::kDecodeDraftsMax);

Status check_range(const char* name, uint64_t value, uint64_t limit) {
  if (value <= limit) return {};
  return invalid_argument("engine option %s is %" PRIu64 ", at most %" PRIu64 " is possible", name,
                          value, limit);
}

// Sets what an engine keeps for the draft head of its model.
Status keep_features(const model::Model& head, const model::Config& config, Limits* limits) {
  const model::DraftHead& reads = head.config().draft_head;
  if (!reads.exists())
    return invalid_argument("engine option draft_head is a model of architecture '%s'",
                            head.config().architecture.c_str());
  if (config.draft_head.exists())
    return invalid_argument("the engine of a draft head has no draft head");
  limits->keeps_features = true;
  std::copy_n(reads.target_layers, model::kFeatureLayers, limits->feature_layers);
  limits->kept_feature_width = reads.feature_width();
  return {};
}

// Sets what an engine of a draft head has besides those of other engines.
Status read_features(const wcuda_engine_options& options, const model::DraftHead& head,
                     const Engine* target, Limits* limits) {
  constexpr uint64_t kRefused = WCUDA_ENGINE_HIDDEN_STATES | WCUDA_ENGINE_TOKEN_LOGPROBS;
  if ((options.flags & kRefused) != 0 || options.max_draft_tokens != 0)
    return invalid_argument(
        "the engine of a draft head has no hidden states, log probabilities of own tokens and "
        "draft tokens");
  limits->head_cols_max = std::max(head.feature_width(), 2 * limits->embedding_length);
  limits->target_sequence_pages = target == nullptr ? 0 : target->limits().pages_per_sequence();
  return {};
}

const char* kv_type_name(ops::KvType type) {
  switch (type) {
    case ops::KvType::kF16:
      return "f16";
    case ops::KvType::kQ8_0:
      return "q8_0";
    case ops::KvType::kFp8E4m3:
      return "fp8 e4m3";
    case ops::KvType::kInt10:
      return "int10";
  }
  return "unknown";
}

}  // namespace

Result<Limits> resolve_limits(const wcuda_engine_options& options, const model::Config& config,
                              const Peers& peers) {
  constexpr uint64_t kPersistentFlags =
      WCUDA_ENGINE_PERSISTENT_LAYERS_ON | WCUDA_ENGINE_PERSISTENT_LAYERS_OFF;
  constexpr uint64_t kKnownFlags = WCUDA_ENGINE_BATCH_INVARIANT | WCUDA_ENGINE_POISON_FREE_PAGES |
                                   WCUDA_ENGINE_HIDDEN_STATES | WCUDA_ENGINE_TOKEN_LOGPROBS |
                                   kPersistentFlags;
  if (options.flags & ~kKnownFlags)
    return invalid_argument("engine flags 0x%" PRIx64 " contain unknown bits", options.flags);
  if (options.kv_type < WCUDA_KV_F16 || options.kv_type > WCUDA_KV_INT10)
    return invalid_argument("engine option kv_type is %d, not a WCUDA_KV_ value", options.kv_type);
  if ((options.flags & kPersistentFlags) == kPersistentFlags)
    return invalid_argument("engine flags PERSISTENT_LAYERS_ON and _OFF exclude each other");
  if ((options.flags & WCUDA_ENGINE_BATCH_INVARIANT) &&
      (options.flags & WCUDA_ENGINE_PERSISTENT_LAYERS_ON))
    return invalid_argument(
        "engine flags PERSISTENT_LAYERS_ON and BATCH_INVARIANT exclude each other");
  WCUDA_TRY(check_range("max_sequences", options.max_sequences, kMaxSequences));
  WCUDA_TRY(check_range("max_batch_tokens", options.max_batch_tokens, kMaxBatchTokens));
  WCUDA_TRY(check_range("max_sequence_tokens", options.max_sequence_tokens, kMaxSequenceTokens));
  WCUDA_TRY(check_range("max_top_logprobs", options.max_top_logprobs, kMaxTopLogprobs));
  WCUDA_TRY(check_range("max_draft_tokens", options.max_draft_tokens, kMaxBatchTokens));

  Limits limits;
  limits.embedding_length = config.embedding_length;
  limits.feed_forward_length = config.feed_forward_length;
  limits.head_count = config.head_count;
  limits.kv_head_count = config.kv_head_count;
  limits.head_length = config.head_length;
  limits.vocabulary_size = config.vocabulary_size;
  limits.kv_type = static_cast<ops::KvType>(options.kv_type);
  limits.batch_invariant = options.flags & WCUDA_ENGINE_BATCH_INVARIANT;
  limits.poison_free_pages = options.flags & WCUDA_ENGINE_POISON_FREE_PAGES;
  limits.has_hidden_states = options.flags & WCUDA_ENGINE_HIDDEN_STATES;
  limits.has_token_logprobs = options.flags & WCUDA_ENGINE_TOKEN_LOGPROBS;
  if (options.flags & WCUDA_ENGINE_PERSISTENT_LAYERS_ON)
    limits.persistent_layers = ops::PersistentLayers::kOn;
  if (options.flags & WCUDA_ENGINE_PERSISTENT_LAYERS_OFF)
    limits.persistent_layers = ops::PersistentLayers::kOff;
  limits.max_sequences = options.max_sequences ? options.max_sequences : kDefaultSequences;
  limits.max_batch_tokens =
      options.max_batch_tokens ? options.max_batch_tokens : kDefaultBatchTokens;
  limits.max_step_rows = options.max_batch_rows ? options.max_batch_rows : limits.max_sequences;
  limits.max_step_rows =
      std::min({limits.max_step_rows, limits.max_sequences, limits.max_batch_tokens});
  limits.max_draft_tokens =
      std::min({options.max_draft_tokens, WCUDA_ROW_DRAFT_TOKENS_MAX * limits.max_step_rows,
                limits.max_batch_tokens - 1});
  limits.max_batch_rows =
      std::min(limits.max_step_rows + limits.max_draft_tokens, limits.max_batch_tokens);
  limits.max_sequence_tokens = options.max_sequence_tokens
                                   ? options.max_sequence_tokens
                                   : std::min(config.context_length, kMaxSequenceTokens);
  limits.max_logits_rows =
      options.max_logits_rows ? options.max_logits_rows : limits.max_batch_rows;
  limits.max_logits_rows = std::min(limits.max_logits_rows, limits.max_batch_tokens);
  limits.max_top_logprobs = std::min(options.max_top_logprobs, config.vocabulary_size);

  const uint64_t tokens =
      options.kv_tokens ? options.kv_tokens
                        : std::max<uint64_t>(limits.max_sequence_tokens,
                                             kDefaultTokensPerSequence * limits.max_sequences);
  WCUDA_TRY(check_range("kv_tokens", tokens, kMaxPages * ops::kPageTokens));
  limits.page_count = static_cast<uint32_t>(ceil_div(tokens, ops::kPageTokens));
  if (peers.draft_head != nullptr) WCUDA_TRY(keep_features(*peers.draft_head, config, &limits));
  if (config.draft_head.exists())
    WCUDA_TRY(read_features(options, config.draft_head, peers.target.get(), &limits));
  else if (peers.target != nullptr)
    return invalid_argument("only the engine of a draft head has a target");
  return limits;
}

Result<Layout> plan_layout(const Limits& limits, const model::Config& config,
                           uint64_t ops_scratch_bytes, uint64_t runner_bytes) {
  Layout layout;
  layout.kv_row_bytes = ops::kv_row_bytes(limits.kv_type, config.head_length);
  if (layout.kv_row_bytes == 0)
    return unsupported(
        "KV type %s cannot hold heads of %u elements: q8_0 needs multiples of 32, int10 of 64",
        kv_type_name(limits.kv_type), config.head_length);

  Arena kv;
  const uint64_t page_rows = uint64_t{2} * config.kv_head_count * ops::kPageTokens;
  layout.page_layer_bytes = page_rows * layout.kv_row_bytes;
  layout.pool_layer_count =
      config.layer_count + static_cast<uint32_t>(kernels::feature_page_layers(
                               limits.kept_feature_width, layout.page_layer_bytes));
  layout.pages =
      kv.reserve({page_rows, layout.kv_row_bytes, layout.pool_layer_count, limits.page_count});
  layout.history = kv.reserve({limits.max_sequences, limits.history_stride(), sizeof(int32_t)});
  layout.kv_bytes = kv.bytes();
  layout.page_bytes = layout.page_layer_bytes * layout.pool_layer_count;

  const uint64_t tokens = limits.max_batch_tokens, rows = limits.max_batch_rows;
  Arena scratch;
  layout.x = scratch.reserve({tokens, config.embedding_length, sizeof(float)});
  layout.query = scratch.reserve({tokens, config.head_count, config.head_length, sizeof(float)});
  layout.key = scratch.reserve({tokens, config.kv_head_count, config.head_length, sizeof(float)});
  layout.value = scratch.reserve({tokens, config.kv_head_count, config.head_length, sizeof(float)});
  layout.attention =
      scratch.reserve({tokens, config.head_count, config.head_length, sizeof(float)});
  layout.hidden = scratch.reserve({tokens, config.feed_forward_length, sizeof(float)});
  if (const model::DraftHead& head = config.draft_head; head.exists()) {
    layout.features = scratch.reserve({tokens, head.feature_width(), sizeof(float)});
    layout.fused = scratch.reserve({tokens, config.embedding_length, sizeof(float)});
    layout.head_input = scratch.reserve({tokens, 2, config.embedding_length, sizeof(float)});
    layout.states = scratch.reserve({limits.max_sequences, config.embedding_length, sizeof(float)});
    layout.head_logits = scratch.reserve(
        {head.maps_tokens ? limits.max_logits_rows : 0, head.vocabulary_size, sizeof(float)});
  }
  layout.ops = scratch.reserve(ops_scratch_bytes);
  layout.runner = scratch.reserve(runner_bytes);
  layout.ticket = scratch.bytes();

  Arena ticket;
  layout.tokens = ticket.reserve({tokens, sizeof(int32_t)});
  layout.positions = ticket.reserve({tokens, sizeof(uint32_t)});
  layout.token_rows = ticket.reserve({tokens, sizeof(uint32_t)});
  layout.rows = ticket.reserve({rows, sizeof(ops::StepRow)});
  layout.page_tables = ticket.reserve({rows, limits.pages_per_sequence(), sizeof(uint32_t)});
  layout.feature_tables = ticket.reserve({rows, limits.target_sequence_pages, sizeof(uint32_t)});
  layout.logits_indices = ticket.reserve({limits.max_logits_rows, sizeof(uint32_t)});
  layout.logits = ticket.reserve({limits.max_logits_rows, config.vocabulary_size, sizeof(float)});
  layout.top_tokens = ticket.reserve({rows, limits.max_top_logprobs, sizeof(int32_t)});
  layout.top_logprobs = ticket.reserve({rows, limits.max_top_logprobs, sizeof(float)});
  layout.hidden_states =
      ticket.reserve({limits.has_hidden_states ? rows : 0, config.embedding_length, sizeof(float)});
  const uint64_t scored = limits.max_scored_tokens();
  layout.scored_indices = ticket.reserve({scored, sizeof(uint32_t)});
  layout.scored = ticket.reserve({scored, sizeof(kernels::ScoredToken)});
  layout.token_logprobs = ticket.reserve({scored, sizeof(float)});
  layout.token_top_tokens = ticket.reserve({scored, limits.max_top_logprobs, sizeof(int32_t)});
  layout.token_top_logprobs = ticket.reserve({scored, limits.max_top_logprobs, sizeof(float)});
  layout.ticket_stride = ticket.bytes();
  scratch.reserve({2, layout.ticket_stride});
  layout.scratch_bytes = scratch.bytes();

  if (!kv.ok() || !scratch.ok() || !ticket.ok())
    return invalid_argument(
        "the engine's options ask for more than 2^62 bytes (%u pages, %u sequences of %u tokens)",
        limits.page_count, limits.max_sequences, limits.max_sequence_tokens);
  return layout;
}

Result<bool> plan_persistent_layers(const Limits& limits, const model::Config& config,
                                    const model::Weights& weights,
                                    const ops::DeviceTraits& device) {
  const ops::StepShape one_token{1, 1, 1, 0, 1, limits.max_sequence_tokens};
  const bool has = ops::plan_step(config, weights, limits, device, one_token).has_persistent_layers;
  if (limits.persistent_layers == ops::PersistentLayers::kOn && !has)
    return unsupported(
        "no kernel of persistent fused layers takes this model's matrices on this device");
  return has;
}

uint64_t plan_graph_bytes(const Limits& limits, const model::Config& config,
                          const model::Weights& weights, const ops::DeviceTraits& device,
                          bool has_persistent_layers) {
  // One H200, driver 580: the graphs of warm-up took 65 MB for 8B with 1,024 sequences, which have
  // some 17,000 nodes, and 103 MB for 70B with 64, which have 31,000.
  constexpr uint64_t kNodeBytes = 4096;
  if (device.is_host) return 0;
  const auto nodes = [&](const ops::StepShape& shape) {
    return uint64_t{ops::plan_step(config, weights, limits, device, shape).nodes.size()};
  };
  uint64_t count = 0;
  for (const ops::StepShape& shape : warm_up_shapes(limits, has_persistent_layers))
    count += kGraphsOfWarmUpShape * nodes(shape);
  const uint32_t tokens = std::min(limits.max_batch_tokens, kGraphTokensMax);
  if (tokens > 1)
    count += kLongRowGraphsMax * nodes({tokens, 1, 1, tokens, tokens, limits.max_sequence_tokens});
  return count * kNodeBytes;
}

Result<Plan> plan_engine(const Backend& backend, const ops::Ops& ops, const model::Config& config,
                         const model::Weights& weights, const wcuda_engine_options& options,
                         const Peers& peers) {
  Plan plan;
  WCUDA_ASSIGN(plan.limits, resolve_limits(options, config, peers));
  WCUDA_ASSIGN(plan.layout, plan_layout(plan.limits, config, ops.scratch_bytes(plan.limits),
                                        runner_bytes(backend, plan.limits, config)));
  WCUDA_ASSIGN(plan.has_persistent_layers,
               plan_persistent_layers(plan.limits, config, weights, ops.device()));
  return plan;
}

}  // namespace wcuda::engine
