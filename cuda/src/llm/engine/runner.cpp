// Code that all runners share, and the choice of the runner for a backend.
#include "llm/engine/runner.h"

#include <algorithm>

#include "llm/engine/cuda_runner.h"
#include "llm/engine/host_runner.h"
#include "llm/ops/linear_plan.h"
#include "llm/ops/sampling.h"

namespace wcuda::engine {

StepInputs Machine::inputs(uint32_t parity) const {
  return {in_ticket<int32_t>(parity, layout.tokens),
          in_ticket<uint32_t>(parity, layout.positions),
          in_ticket<uint32_t>(parity, layout.token_rows),
          in_ticket<ops::StepRow>(parity, layout.rows),
          in_ticket<uint32_t>(parity, layout.page_tables),
          limits.pages_per_sequence(),
          in_ticket<uint32_t>(parity, layout.logits_indices),
          in_ticket<uint32_t>(parity, layout.scored_indices),
          in_ticket<kernels::ScoredToken>(parity, layout.scored),
          in_ticket<uint32_t>(parity, layout.feature_tables),
          limits.target_sequence_pages};
}

ops::Batch Machine::batch(uint32_t parity, const ops::StepShape& shape) const {
  const StepInputs in = inputs(parity);
  return {{shape.token_count, shape.row_count, limits.pages_per_sequence(), in.positions,
           in.token_rows, in.rows, in.page_tables},
          shape.max_row_tokens,
          shape.max_positions,
          in.tokens,
          shape.has_shared_prefix,
          shape.expanded_heads,
          shape.has_drafts,
          has_persistent_layers && shape.token_count == 1 && shape.scored_count == 0};
}

Status Machine::find_gate_norms() {
  if (!ops::needs_gate_norms(limits, ops->device())) return {};
  float* const work = activations().hidden;
  const uint64_t bytes = uint64_t{limits.max_batch_tokens} * limits.feed_forward_length * 4;
  for (const model::LayerWeights& layer : model->weights().layers) {
    ops::GateNorms norms;
    WCUDA_ASSIGN(norms.gate, ops->row_norm_max(layer.gate, work, bytes));
    WCUDA_ASSIGN(norms.up, ops->row_norm_max(layer.up, work, bytes));
    gate_norms.push_back(norms);
  }
  return {};
}

StepArgs Machine::step(uint32_t parity, const ops::Batch& batch) const {
  StepArgs step;
  step.batch = &batch;
  step.pool = pool;
  step.activations = activations();
  step.logits_indices = inputs(parity).logits_indices;
  step.scored_indices = inputs(parity).scored_indices;
  step.scored = inputs(parity).scored;
  step.top_stride = limits.max_top_logprobs;
  step.token_logprobs = in_ticket<float>(parity, layout.token_logprobs);
  step.token_top_tokens = in_ticket<int32_t>(parity, layout.token_top_tokens);
  step.token_top_logprobs = in_ticket<float>(parity, layout.token_top_logprobs);
  step.logits = in_ticket<float>(parity, layout.logits);
  step.hidden_states = in_ticket<float>(parity, layout.hidden_states);
  step.gate_norms = gate_norms.empty() ? nullptr : gate_norms.data();
  FeatureArgs& features = step.features;
  features.kept = kept_features;
  std::copy_n(limits.feature_layers, model::kFeatureLayers, features.kept_layers);
  features.read = target_features;
  features.page_tables = inputs(parity).feature_tables;
  features.page_table_stride = limits.target_sequence_pages;
  const auto at = [this](uint64_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  features.features = at(layout.features);
  features.fused = at(layout.fused);
  features.input = at(layout.head_input);
  features.states = at(layout.states);
  features.logits = at(layout.head_logits);
  return step;
}

uint64_t runner_bytes(const Backend& backend, const Limits& limits, const model::Config& config) {
  if (!backend.is_host()) return cuda_runner_bytes(limits, config);
  return ops::sample_work_bytes(config.vocabulary_size);
}

Result<std::unique_ptr<Runner>> make_runner(const Machine& machine) {
  if (!machine.memory->backend().is_host()) return make_cuda_runner(machine);
  return make_host_runner(machine);
}

}  // namespace wcuda::engine
