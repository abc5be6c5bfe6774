#include "llm/engine/step_report.h"

#include <algorithm>
#include <cinttypes>

#include "core/base/text.h"
#include "llm/engine/step_shape.h"
#include "llm/quant/layout_gpu.h"

namespace wcuda::engine {
namespace {

// Sets the bytes that the matrices have on a CUDA device, if the backend is not one.
Status place_on_gpu(model::Weights* weights) {
  const auto place = [](model::Weight* weight) -> Status {
    if (weight->rows == 0) return {};
    WCUDA_ASSIGN(weight->bytes, quant::gpu_layout_bytes(weight->type, weight->rows, weight->cols));
    return {};
  };
  for (model::LayerWeights& layer : weights->layers)
    for (model::Weight* weight : {&layer.query, &layer.key, &layer.value, &layer.attention_output,
                                  &layer.gate, &layer.up, &layer.down})
      WCUDA_TRY(place(weight));
  WCUDA_TRY(place(&weights->token_embedding));
  return place(&weights->output);
}

Result<ops::DeviceRates> rates_of(const std::shared_ptr<Backend>& backend,
                                  std::string_view device) {
  if (!device.empty()) {
    if (const ops::DeviceRates* const row = ops::find_device_rates(device))
      return ops::DeviceRates(*row);
    return Status::error(WCUDA_NOT_FOUND, "no measured rates of a device '%s' (there are: H200)",
                         printable(device).c_str());
  }
  WCUDA_ASSIGN(const std::unique_ptr<ops::Ops> ops, ops::make_ops(backend));
  return device_rates(backend->caps(), ops->device());
}

}  // namespace

ops::DeviceRates device_rates(const wcuda_device_caps& caps, const ops::DeviceTraits& traits) {
  ops::DeviceRates rates;
  const std::string_view name(caps.name);
  const ops::DeviceRates* const row = ops::find_device_rates(name.substr(name.rfind(' ') + 1));
  if (row != nullptr) rates = *row;
  if (row == nullptr) rates.bytes_per_second = static_cast<double>(caps.memory_bandwidth);
  rates.traits = traits;
  return rates;
}

Result<StepReport> report_step(const std::shared_ptr<Backend>& backend, const gguf::Gguf& file,
                               const wcuda_engine_options& options, const Peers& peers,
                               const wcuda_step_shape& asked, std::string_view device) {
  StepReport report;
  WCUDA_ASSIGN(report.rates, rates_of(backend, device));
  WCUDA_ASSIGN(model::LoadPlan load, model::plan_load(*backend, file));
  if (!report.rates.traits.is_host) WCUDA_TRY(place_on_gpu(&load.weights));
  WCUDA_ASSIGN(const Limits limits, resolve_limits(options, load.config, peers));
  WCUDA_ASSIGN(const bool has_persistent_layers,
               plan_persistent_layers(limits, load.config, load.weights, report.rates.traits));

  ops::CostShape cost;
  cost.row_count = std::max(asked.row_count, 1u);
  cost.row_tokens = std::max(asked.row_tokens, 1u);
  cost.context_positions = asked.context_tokens;
  cost.kv_row_bytes = ops::kv_row_bytes(limits.kv_type, load.config.head_length);
  const uint64_t tokens = uint64_t{cost.row_count} * cost.row_tokens;
  const uint64_t positions = uint64_t{cost.row_tokens} + cost.context_positions;
  if (cost.row_count > limits.max_batch_rows || tokens > limits.max_batch_tokens ||
      positions > limits.max_sequence_tokens)
    return Status::error(WCUDA_OUT_OF_RANGE,
                         "a step of %u rows, %" PRIu64 " tokens and %" PRIu64
                         " positions is beyond the engine's %u, %u and %u",
                         cost.row_count, tokens, positions, limits.max_batch_rows,
                         limits.max_batch_tokens, limits.max_sequence_tokens);
  ops::StepShape shape;
  shape.token_count = static_cast<uint32_t>(tokens);
  shape.row_count = cost.row_count;
  shape.logits_count = std::min(cost.row_count, limits.max_logits_rows);
  shape.min_row_tokens = shape.max_row_tokens = cost.row_tokens;
  shape.max_positions = static_cast<uint32_t>(positions);
  // Rows of a draft head that have one token continue with the state of the last one.
  shape.has_features = load.config.draft_head.exists() && cost.row_tokens > 1;
  if (cost.row_tokens > 1)
    shape.long_rows = {cost.row_count, shape.token_count,
                       cost.row_count * kernels::divide_up(shape.max_positions, ops::kPageTokens)};
  if (!report.rates.traits.is_host) shape = launched_shape(shape, limits, has_persistent_layers);
  shape.expanded_heads = ops::choose_expanded_heads(limits, report.rates.traits, shape.long_rows);
  report.plan = ops::plan_step(load.config, load.weights, limits, report.rates.traits, shape);
  for (const ops::Node& node : report.plan.nodes)
    report.costs.push_back(ops::node_cost(load.config, load.weights, report.plan, node, cost));
  return report;
}

}  // namespace wcuda::engine
