// The forward pass, from token ids to logits.
#pragma once

#include "llm/model/model.h"
#include "llm/ops/ops.h"

namespace wcuda::engine {

// The activations of a step, in device memory; shapes as in engine/limits.h.
struct Activations {
  float* x;          // (token_count, embedding_length) the residual stream
  float* query;      // (token_count, head_count * head_length)
  float* key;        // (token_count, kv_head_count * head_length)
  float* value;      // likewise
  float* attention;  // (token_count, head_count * head_length)
  float* hidden;     // (token_count, feed_forward_length)
};

// What a step keeps for a draft head, and what a step of a draft head has besides those of others.
struct FeatureArgs {
  kernels::FeaturePages kept;
  uint32_t kept_layers[model::kFeatureLayers] = {};
  kernels::FeaturePages read;             // of the target
  const uint32_t* page_tables = nullptr;  // (row_count, stride) of the target's sequences
  uint32_t page_table_stride = 0;
  float* features = nullptr;  // the next five as in engine/limits.h
  float* fused = nullptr;
  float* input = nullptr;
  float* states = nullptr;
  float* logits = nullptr;
};

// The inputs and outputs of a step.
struct StepArgs {
  const ops::Batch* batch = nullptr;
  const kernels::StepStart* inputs = nullptr;  // as in ops::StartArgs
  ops::KvPool pool;
  Activations activations{};
  const uint32_t* logits_indices = nullptr;  // (logits_count) tokens whose logits are wanted
  float* logits = nullptr;                   // (logits_count, vocabulary)
  float* hidden_states = nullptr;            // (row_count, embedding_length)
  // Own tokens of rows whose log probabilities are wanted.
  const uint32_t* scored_indices = nullptr;      // (scored_count) the token before each
  const kernels::ScoredToken* scored = nullptr;  // (scored_count)
  uint32_t top_stride = 0;                       // max_top_logprobs
  float* token_logprobs = nullptr;               // (scored_count)
  int32_t* token_top_tokens = nullptr;           // (scored_count, top_stride)
  float* token_top_logprobs = nullptr;           // likewise
  int32_t* row_statuses = nullptr;               // (row_count)
  const ops::GateNorms* gate_norms = nullptr;    // (layer_count); null if no plan needs them
  FeatureArgs features;
};

// Called before and after each node.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  virtual Status before(size_t node) = 0;
  virtual Status after(size_t node) = 0;
};

// Runs the model over a batch according to `plan`: appends keys and values to the pages and
// computes the requested logits. `observer` may be null.
Status forward(const model::Config& config, const model::Weights& weights, ops::Ops& ops,
               const ops::StepPlan& plan, const StepArgs& step, NodeObserver* observer = nullptr);
// Runs only node `index` of the plan.
Status run_node(const model::Config& config, const model::Weights& weights, ops::Ops& ops,
                const ops::StepPlan& plan, size_t index, const StepArgs& step);

}  // namespace wcuda::engine
