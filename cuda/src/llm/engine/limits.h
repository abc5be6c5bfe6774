// The limits of an engine, and the memory that follows from them.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "llm/model/model.h"
#include "llm/ops/ops.h"
#include "worker_cuda/llm.h"

namespace wcuda::engine {

class Engine;

// What engine options name by handles.
struct Peers {
  std::shared_ptr<const model::Model> draft_head;  // for which the engine keeps features
  std::shared_ptr<Engine> target;                  // whose features the engine of a head reads
};

// Checked wcuda_engine_options with resolved defaults, and the sizes of the model.
struct Limits : ops::Limits {
  bool poison_free_pages = false;
  bool has_hidden_states = false;
  bool has_token_logprobs = false;
  uint32_t max_sequences = 0;
  uint32_t max_step_rows = 0;  // of a caller; kernels have max_batch_rows, one more for each draft
  uint32_t max_draft_tokens = 0;  // of all rows of a step
  uint32_t max_top_logprobs = 0;
  uint32_t page_count = 0;
  uint32_t kept_feature_width = 0;     // 0: keeps none
  uint32_t target_sequence_pages = 0;  // of a draft head: pages of a sequence of its target

  uint32_t pages_per_sequence() const {
    return static_cast<uint32_t>(ceil_div(max_sequence_tokens, ops::kPageTokens));
  }
  // Tokens of a step whose log probabilities may be wanted.
  uint32_t max_scored_tokens() const { return has_token_logprobs ? max_batch_tokens : 0; }
  // The tokens of one sequence, and the one that is sampled after its last position.
  uint32_t history_stride() const { return max_sequence_tokens + 1; }
};

Result<Limits> resolve_limits(const wcuda_engine_options& options, const model::Config& config,
                              const Peers& peers = {});

// Offsets, in bytes, in the two blocks that an engine allocates. They are multiples of 256.
struct Layout {
  // Block "kv".
  uint64_t pages = 0;    // ops::KvPool
  uint64_t history = 0;  // int32 (max_sequences, history_stride)
  uint64_t kv_bytes = 0;
  // Block "scratch", shared by all steps.
  uint64_t x = 0;          // f32 (max_batch_tokens, embedding_length)
  uint64_t query = 0;      // f32 (max_batch_tokens, head_count * head_length)
  uint64_t key = 0;        // f32 (max_batch_tokens, kv_head_count * head_length)
  uint64_t value = 0;      // f32, likewise
  uint64_t attention = 0;  // f32, as query
  uint64_t hidden = 0;     // f32 (max_batch_tokens, feed_forward_length)
  // The next five only of a draft head.
  uint64_t features = 0;     // f32 (max_batch_tokens, feature_width)
  uint64_t fused = 0;        // f32 (max_batch_tokens, embedding_length)
  uint64_t head_input = 0;   // f32 (max_batch_tokens, 2 * embedding_length)
  uint64_t states = 0;       // f32 (max_sequences, embedding_length)
  uint64_t head_logits = 0;  // f32 (max_logits_rows, tokens of the head), if it maps tokens
  uint64_t ops = 0;          // Ops::scratch_bytes
  uint64_t runner = 0;       // engine::runner_bytes
  // Block "scratch", once for each of two tickets in flight; add ticket_stride for the second.
  uint64_t ticket = 0;
  uint64_t tokens = 0;            // int32 (max_batch_tokens), as all below from the ticket's start
  uint64_t positions = 0;         // uint32 (max_batch_tokens)
  uint64_t token_rows = 0;        // uint32 (max_batch_tokens)
  uint64_t rows = 0;              // ops::StepRow (max_batch_rows)
  uint64_t page_tables = 0;       // uint32 (max_batch_rows, pages_per_sequence)
  uint64_t feature_tables = 0;    // uint32 (max_batch_rows, target_sequence_pages)
  uint64_t logits_indices = 0;    // uint32 (max_logits_rows)
  uint64_t logits = 0;            // f32 (max_logits_rows, vocabulary)
  uint64_t top_tokens = 0;        // int32 (max_batch_rows, max_top_logprobs)
  uint64_t top_logprobs = 0;      // f32, likewise
  uint64_t hidden_states = 0;     // f32 (max_batch_rows, embedding_length), if there are any
  uint64_t scored_indices = 0;    // uint32 (max_scored_tokens)
  uint64_t scored = 0;            // ScoredToken (max_scored_tokens)
  uint64_t token_logprobs = 0;    // f32 (max_scored_tokens)
  uint64_t token_top_tokens = 0;  // int32 (max_scored_tokens, max_top_logprobs)
  uint64_t token_top_logprobs = 0;  // f32, likewise
  uint64_t ticket_stride = 0;
  uint64_t scratch_bytes = 0;

  uint32_t kv_row_bytes = 0;
  uint64_t page_layer_bytes = 0;  // of one page in one layer
  uint32_t pool_layer_count = 0;  // layers of the model, and those that hold features
  uint64_t page_bytes = 0;        // of one page in all of them
};

// Pure; every sum is checked. `ops_scratch_bytes` comes from Ops::scratch_bytes, `runner_bytes`
// from engine::runner_bytes.
Result<Layout> plan_layout(const Limits& limits, const model::Config& config,
                           uint64_t ops_scratch_bytes, uint64_t runner_bytes);

// Returns whether steps of one token use persistent fused layers, or WCUDA_UNSUPPORTED if the
// limits require them and no kernel supports the model's matrices on this device.
Result<bool> plan_persistent_layers(const Limits& limits, const model::Config& config,
                                    const model::Weights& weights, const ops::DeviceTraits& device);

// Returns an estimate of the device memory that the driver takes for the captured graphs of an
// engine: those of warm-up, and as many of longer rows as there may be.
uint64_t plan_graph_bytes(const Limits& limits, const model::Config& config,
                          const model::Weights& weights, const ops::DeviceTraits& device,
                          bool has_persistent_layers);

// The plan of an engine, before any memory is allocated.
struct Plan {
  Limits limits;
  Layout layout;
  bool has_persistent_layers = false;
};
Result<Plan> plan_engine(const Backend& backend, const ops::Ops& ops, const model::Config& config,
                         const model::Weights& weights, const wcuda_engine_options& options,
                         const Peers& peers = {});

}  // namespace wcuda::engine
