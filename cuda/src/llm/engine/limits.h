// The limits of an engine, and the memory that follows from them.
#pragma once

#include <cstdint>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "llm/model/model.h"
#include "llm/ops/ops.h"
#include "worker_cuda/llm.h"

namespace wcuda::engine {

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

  uint32_t pages_per_sequence() const {
    return static_cast<uint32_t>(ceil_div(max_sequence_tokens, ops::kPageTokens));
  }
  // Tokens of a step whose log probabilities may be wanted.
  uint32_t max_scored_tokens() const { return has_token_logprobs ? max_batch_tokens : 0; }
  // The tokens of one sequence, and the one that is sampled after its last position.
  uint32_t history_stride() const { return max_sequence_tokens + 1; }
};

Result<Limits> resolve_limits(const wcuda_engine_options& options, const model::Config& config);

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
  uint64_t ops = 0;        // Ops::scratch_bytes
  uint64_t runner = 0;     // engine::runner_bytes
  // Block "scratch", once for each of two tickets in flight; add ticket_stride for the second.
  uint64_t ticket = 0;
  uint64_t tokens = 0;            // int32 (max_batch_tokens), as all below from the ticket's start
  uint64_t positions = 0;         // uint32 (max_batch_tokens)
  uint64_t token_rows = 0;        // uint32 (max_batch_tokens)
  uint64_t rows = 0;              // ops::StepRow (max_batch_rows)
  uint64_t page_tables = 0;       // uint32 (max_batch_rows, pages_per_sequence)
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
  uint64_t page_bytes = 0;  // of one page in all layers
};

// Pure; every sum is checked. `ops_scratch_bytes` comes from Ops::scratch_bytes, `runner_bytes`
// from engine::runner_bytes.
Result<Layout> plan_layout(const Limits& limits, const model::Config& config,
                           uint64_t ops_scratch_bytes, uint64_t runner_bytes);

// Returns whether steps of one token use persistent fused layers, or WCUDA_UNSUPPORTED if the
// limits require them and no kernel supports the model's matrices on this device.
Result<bool> plan_persistent_layers(const Limits& limits, const model::Config& config,
                                    const model::Weights& weights, const ops::DeviceTraits& device);

// The plan of an engine, before any memory is allocated.
struct Plan {
  Limits limits;
  Layout layout;
  bool has_persistent_layers = false;
};
Result<Plan> plan_engine(const Backend& backend, const ops::Ops& ops, const model::Config& config,
                         const model::Weights& weights, const wcuda_engine_options& options);

}  // namespace wcuda::engine
