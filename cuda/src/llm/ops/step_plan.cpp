#include "llm/ops/step_plan.h"

#include <algorithm>
#include <iterator>

#include "kernels/attention/attention_choice.h"
#include "kernels/linear/linear_table.h"
#include "kernels/linear/persistent_plan.h"
#include "llm/ops/linear_plan.h"

namespace wcuda::ops {
namespace {

static_assert(kPersistentLayersMax == kernels::kPersistentLayersMax);

uint32_t head_tiles(const model::Config& config, const StepShape& shape) {
  return shape.row_count * kernels::decode_head_tiles(config.head_count, config.kv_head_count);
}

class Planner {
 public:
  Planner(const model::Config& config, const model::Weights& weights, const Limits& limits,
          const DeviceTraits& device, const StepShape& shape)
      : config_(config), weights_(weights), limits_(limits), device_(device) {
    plan_.shape = shape;
    for (uint32_t layer = 0; layer < config.layer_count; ++layer)
      plan_.has_persistent_layers |= persistent_count(layer) != 0;
  }

  StepPlan run() {
    plan_.nodes.reserve(7 + uint64_t{config_.layer_count} * 7);
    start();
    add(Operation::kEmbed, on_device(Kernel::kEmbed), kNoLayer, Form::kTokens, Form::kF32);
    if (config_.draft_head.exists()) head_input();
    for (uint32_t layer = 0; layer < config_.layer_count; ++layer) {
      if (!has_next_) linear(Operation::kQueryKeyValue, layer);
      has_next_ = false;
      keep_features(layer);  // nothing has been added to x since the last layer
      attention(layer);
      after_attention(layer);
    }
    keep_features(config_.layer_count);
    if (config_.draft_head.exists())
      add(Operation::kKeepStates, on_device(Kernel::kKeepStates), kNoLayer, Form::kF32,
          Form::kStates);
    if (plan_.shape.has_hidden_states)
      add(Operation::kHiddenState, on_device(Kernel::kHiddenState), kNoLayer, Form::kF32,
          Form::kF32);
    const uint32_t part = limits_.max_logits_rows;
    for (uint32_t first = 0; first < plan_.shape.scored_count; first += part)
      score(first, std::min(part, plan_.shape.scored_count - first));
    if (plan_.shape.logits_count != 0 && !has_next_) linear(Operation::kLogits, kNoLayer);
    if (plan_.shape.logits_count != 0 && config_.draft_head.maps_tokens)
      add(Operation::kScatterLogits, on_device(Kernel::kScatterLogits), kNoLayer, Form::kF32,
          Form::kF32);
    if (plan_.shape.logits_count != 0 && config_.logit_softcap != 0.0f)
      add(Operation::kSoftcapLogits, on_device(Kernel::kSoftcap), kNoLayer, Form::kF32, Form::kF32);
    return std::move(plan_);
  }

 private:
  const StepShape& shape() const { return plan_.shape; }
  bool is_decode() const { return shape().max_row_tokens == 1; }
  Kernel on_device(Kernel kernel) const { return device_.is_host ? Kernel::kHost : kernel; }

  Node& add(Operation operation, Kernel kernel, uint32_t layer, Form input, Form output) {
    plan_.nodes.push_back({operation, kernel, layer, input, output});
    return plan_.nodes.back();
  }

  void start() {
    if (device_.is_host) {
      if (config_.rope_dimension_count != 0)
        add(Operation::kRotaryTable, Kernel::kHost, kNoLayer, Form::kNone, Form::kRotaryTable);
      return;
    }
    if (is_decode()) {
      add(Operation::kStartStep, Kernel::kAttentionPlanStart, kNoLayer, Form::kNone,
          Form::kTokensAndPlan);
      return;
    }
    add(Operation::kScatterInputs, Kernel::kInputScatter, kNoLayer, Form::kNone, Form::kTokens);
    add(Operation::kBeginRows, Kernel::kBeginStep, kNoLayer, Form::kTokens, Form::kTokens);
    add(Operation::kPlanAttention, Kernel::kAttentionPlan, kNoLayer, Form::kNone,
        Form::kAttentionPlan);
  }

  // ---- draft heads

  void head_input() {
    if (shape().has_features) {
      add(Operation::kReadFeatures, on_device(Kernel::kReadFeatures), kNoLayer, Form::kFeatures,
          Form::kF32);
      linear(Operation::kFuseFeatures, kNoLayer);
    }
    add(Operation::kHeadInput, on_device(Kernel::kHeadInput), 0,
        shape().has_features ? Form::kF32 : Form::kStates, Form::kF32);
  }

  void keep_features(uint32_t layer) {
    const auto& kept = limits_.feature_layers;
    if (limits_.keeps_features &&
        std::find(std::begin(kept), std::end(kept), layer) != std::end(kept))
      add(Operation::kKeepFeatures, on_device(Kernel::kKeepFeatures), layer, Form::kF32,
          Form::kFeatures);
  }

  void score(uint32_t first, uint32_t count) {
    const size_t from = plan_.nodes.size();
    LinearShape logits = shape_of(Operation::kLogits, kNoLayer);
    logits.token_count = count;
    add(Operation::kLogits, linear_kernel(logits, limits_, device_), kNoLayer, Form::kF32,
        Form::kF32);
    if (config_.logit_softcap != 0.0f)
      add(Operation::kSoftcapLogits, on_device(Kernel::kSoftcap), kNoLayer, Form::kF32, Form::kF32);
    add(Operation::kTokenLogprobs, on_device(Kernel::kTokenLogprobs), kNoLayer, Form::kF32,
        Form::kF32);
    for (size_t i = from; i < plan_.nodes.size(); ++i) {
      plan_.nodes[i].scored_first = first;
      plan_.nodes[i].scored_count = count;
    }
  }

  // ---- attention

  // Returns whether attention also rotates queries and keys, and stores keys and values.
  bool attention_rotates() const {
    return !device_.is_host && is_decode() && !shape().has_drafts &&
           config_.rope_dimension_count % 2 == 0 &&
           config_.rope_dimension_count <= config_.head_length;
  }

  void attention(uint32_t layer) {
    Form input = Form::kUnrotated;
    const Form output = attention_output(layer);
    if (!attention_rotates()) {
      Node& node =
          add(Operation::kRotateAndStore, on_device(Kernel::kRopeKv), layer, input, Form::kPages);
      if (device_.is_host && config_.rope_dimension_count != 0) node.table = Form::kRotaryTable;
      input = Form::kPages;
    }
    if (device_.is_host) {
      add(Operation::kAttention, Kernel::kHost, layer, input, Form::kF32);
      return;
    }
    if (!is_decode()) {
      const bool has_warpgroup =
          device_.has_warpgroup_code &&
          kernels::prefill_has_warpgroup(config_.head_length, device_.compute_capability);
      const Kernel prefill = shape().expanded_heads != 0 ? Kernel::kAttentionPrefillExpanded
                             : has_warpgroup             ? Kernel::kAttentionPrefillWarpgroup
                                                         : Kernel::kAttentionPrefill;
      add(Operation::kAttention, prefill, layer, input, output).table = Form::kAttentionPlan;
      if (shape().min_row_tokens > 1) return;
    }
    const auto add_kernel = [&](Kernel kernel, Form from, Form to) {
      add(Operation::kAttention, kernel, layer, from, to).table = Form::kAttentionPlan;
    };
    if (!shape().has_shared_prefix) return add_kernel(decode_kernel(), input, output);
    add_kernel(decode_kernel(), input, Form::kPartials);
    add_kernel(Kernel::kAttentionShared, Form::kPartials, Form::kPartials);
    add_kernel(Kernel::kAttentionJoin, Form::kPartials, output);
  }

  // Returns the form in which attention passes its results to the output projection.
  Form attention_output(uint32_t layer) const {
    const LinearShape reader = shape_of(Operation::kAttentionOutput, layer);
    if (!attention_writes_operand(reader, is_decode(), limits_, device_)) return Form::kF32;
    return linear_kernel(reader, limits_, device_) == Kernel::kLinearBatch ? Form::kBatchHalf
                                                                           : Form::kHalf;
  }

  Kernel decode_kernel() const {
    if (limits_.batch_invariant || !is_decode()) return Kernel::kAttentionDecode;
    const kernels::DecodeGrid grid = kernels::choose_decode_grid(
        config_.head_length, device_.compute_capability, device_.sm_count,
        head_tiles(config_, shape()), shape().max_positions, plan_.has_persistent_layers);
    if (!grid.has_groups) return Kernel::kAttentionDecode;
    return grid.cluster_blocks != 0 ? Kernel::kAttentionDecodeCluster
                                    : Kernel::kAttentionDecodeGroup;
  }

  // ---- linear layers

  LinearShape shape_of(Operation operation, uint32_t layer) const {
    LinearShape linear;
    linear.token_count =
        operation == Operation::kLogits ? shape().logits_count : shape().token_count;
    const auto add_matrix = [&linear](const model::Weight& weight) {
      linear.types[linear.matrix_count] = weight.type;
      linear.rows[linear.matrix_count++] = weight.rows;
      linear.cols = weight.cols;
    };
    if (operation == Operation::kLogits) {
      linear.has_norm = true;
      add_matrix(weights_.output);
      return linear;
    }
    if (operation == Operation::kFuseFeatures) {
      add_matrix(weights_.features);
      return linear;
    }
    const model::LayerWeights& w = weights_.layers[layer];
    if (operation == Operation::kQueryKeyValue) {
      linear.has_norm = !config_.draft_head.exists();
      add_matrix(w.query);
      add_matrix(w.key);
      add_matrix(w.value);
    } else if (operation == Operation::kGateUp) {
      linear.has_norm = linear.is_gate = true;
      linear.has_bias = w.gate_bias != nullptr || w.up_bias != nullptr;
      add_matrix(w.gate);
      add_matrix(w.up);
    } else {
      linear.is_added = true;
      add_matrix(operation == Operation::kDown ? w.down : w.attention_output);
    }
    return linear;
  }

  void linear(Operation operation, uint32_t layer) {
    const LinearShape linear = shape_of(operation, layer);
    const bool passes_half =
        (operation == Operation::kGateUp || operation == Operation::kDown) &&
        gate_writes_operand(shape_of(Operation::kGateUp, layer), limits_, device_);
    // The operand is packed_gemm's, so down is too, however small.
    add(operation, passes_half ? Kernel::kPackedGemm : linear_kernel(linear, limits_, device_),
        layer,
        operation == Operation::kAttentionOutput       ? attention_output(layer)
        : passes_half && operation == Operation::kDown ? Form::kHalf
                                                       : Form::kF32,
        linear.is_added                          ? Form::kResidual
        : operation == Operation::kQueryKeyValue ? Form::kUnrotated
        : passes_half                            ? Form::kHalf
                                                 : Form::kF32);
  }

  // Adds the output projection and the feed-forward, if possible fused with the following layer.
  void after_attention(uint32_t layer) {
    constexpr Operation kOwn[] = {Operation::kAttentionOutput, Operation::kGateUp,
                                  Operation::kDown};
    const uint32_t fused = persistent_count(layer);
    if (fused != 0) {
      Node& node = add(Operation::kPersistentLayers, Kernel::kPersistentLayers, layer,
                       plan_.nodes.back().output, Form::kResidual);
      node.fused_count = fused;
      if (fused == 2) node.output = Form::kF32;
      if (fused == 4) {
        has_next_ = true;
        node.output = Form::kUnrotated;
        if (layer + 1 == config_.layer_count) node.output = Form::kF32;
      }
    }
    for (uint32_t i = fused; i < 3; ++i) linear(kOwn[i], layer);
  }

  // Returns how many linear layers, from the output projection on, one kernel computes.
  uint32_t persistent_count(uint32_t layer) const {
    if (shape().token_count != 1 || shape().scored_count != 0 ||
        !allows_persistent_layers(limits_, device_))
      return 0;
    const bool is_last = layer + 1 == config_.layer_count;
    uint32_t count = is_last && shape().logits_count == 0 ? 3 : 4;
    kernels::PersistentLayerShape layers[kernels::kPersistentLayersMax];
    for (uint32_t i = 0; i < count; ++i) {
      constexpr Operation kOwn[] = {Operation::kAttentionOutput, Operation::kGateUp,
                                    Operation::kDown};
      const LinearShape linear = i < 3     ? shape_of(kOwn[i], layer)
                                 : is_last ? shape_of(Operation::kLogits, kNoLayer)
                                           : shape_of(Operation::kQueryKeyValue, layer + 1);
      layers[i].matrix_count = linear.matrix_count;
      std::copy_n(linear.types, 3, layers[i].types);
      std::copy_n(linear.rows, 3, layers[i].rows);
      layers[i].cols = linear.cols;
      layers[i].is_gate = linear.is_gate;
      layers[i].is_added = linear.is_added;
      layers[i].has_norm = linear.has_norm;
    }
    while (count >= 2 &&
           !kernels::plan_persistent_layers(layers, count, device_.compute_capability,
                                            device_.sm_count, device_.shared_bytes_max, nullptr))
      --count;
    return count >= 2 ? count : 0;
  }

  const model::Config& config_;
  const model::Weights& weights_;
  const Limits& limits_;
  const DeviceTraits& device_;
  StepPlan plan_;
  bool has_next_ = false;  // the last node also computed the next linear layer
};

}  // namespace

StepPlan plan_step(const model::Config& config, const model::Weights& weights, const Limits& limits,
                   const DeviceTraits& device, const StepShape& shape) {
  return Planner(config, weights, limits, device, shape).run();
}

bool allows_shared_prefix(const model::Config& config, const Limits& limits,
                          const DeviceTraits& device, const StepShape& shape) {
  return !device.is_host && device.has_warpgroup_code && !limits.batch_invariant &&
         kernels::prefill_has_warpgroup(config.head_length, device.compute_capability) &&
         config.sliding_window == 0 &&
         config.head_count / config.kv_head_count <= kernels::kDecodeSharedHeadsMax &&
         shape.max_row_tokens == 1 && shape.row_count <= kernels::kDecodeSharedRowsMax &&
         head_tiles(config, shape) > device.sm_count;
}

uint64_t expanded_pages_max(const Limits& limits) {
  return kernels::expanded_pages_max(limits.kv_type, limits.head_length, limits.kv_head_count,
                                     limits.max_sequence_tokens, limits.max_batch_tokens);
}

uint32_t choose_expanded_heads(const Limits& limits, const DeviceTraits& device,
                               const kernels::LongRows& rows) {
  if (!device.has_warpgroup_code ||
      !kernels::prefill_has_warpgroup(limits.head_length, device.compute_capability))
    return 0;
  return kernels::choose_expanded_heads(rows, limits.head_length, limits.head_count,
                                        limits.kv_head_count, expanded_pages_max(limits));
}

bool allows_persistent_layers(const Limits& limits, const DeviceTraits& device) {
  // With batch_invariant, one token is computed by the same kernel as many.
  if (limits.batch_invariant || !device.has_resident_grid) return false;
  if (limits.persistent_layers == PersistentLayers::kAuto)
    return limits.embedding_length >= kernels::kPersistentEmbeddingMin;
  return limits.persistent_layers == PersistentLayers::kOn;
}

LayerOperation fused_operation(const Node& node, uint32_t index, uint32_t layer_count) {
  switch (index) {
    case 0:
      return {Operation::kAttentionOutput, node.layer};
    case 1:
      return {Operation::kGateUp, node.layer};
    case 2:
      return {Operation::kDown, node.layer};
    default:
      if (node.layer + 1 == layer_count) return {Operation::kLogits, kNoLayer};
      return {Operation::kQueryKeyValue, node.layer + 1};
  }
}

const char* operation_name(Operation operation) {
  constexpr const char* kNames[] = {"start_step",       "scatter_inputs",   "begin_rows",
                                    "plan_attention",   "rotary_table",     "embed",
                                    "read_features",    "fuse_features",    "head_input",
                                    "query_key_value",  "rotate_and_store", "attention",
                                    "attention_output", "gate_up",          "down",
                                    "keep_features",    "keep_states",      "hidden_state",
                                    "logits",           "scatter_logits",   "softcap_logits",
                                    "token_logprobs",   "persistent_layers"};
  static_assert(std::size(kNames) == static_cast<size_t>(Operation::kPersistentLayers) + 1);
  return kNames[static_cast<size_t>(operation)];
}

const char* kernel_name(Kernel kernel) {
  constexpr const char* kNames[] = {"host",
                                    "attention_plan_start",
                                    "input_scatter",
                                    "begin_step",
                                    "attention_plan",
                                    "embed",
                                    "linear_vector",
                                    "linear_batch",
                                    "packed_gemm",
                                    "persistent_layers",
                                    "rope_kv",
                                    "attention_decode",
                                    "attention_decode_group",
                                    "attention_decode_cluster",
                                    "attention_prefill",
                                    "attention_prefill_warpgroup",
                                    "attention_prefill_expanded",
                                    "attention_shared",
                                    "attention_join",
                                    "softcap",
                                    "hidden_state",
                                    "token_logprobs",
                                    "keep_features",
                                    "read_features",
                                    "head_input",
                                    "keep_states",
                                    "scatter_logits"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kernel::kScatterLogits) + 1);
  return kNames[static_cast<size_t>(kernel)];
}

const char* form_name(Form form) {
  constexpr const char* kNames[] = {"-",
                                    "tokens",
                                    "f32",
                                    "f32 unrotated",
                                    "f32 residual",
                                    "f16 operand",
                                    "f16 operand of linear_batch",
                                    "f32 and KV pages",
                                    "partial results",
                                    "bf16 features in pages",
                                    "f32 states of sequences",
                                    "attention plan",
                                    "tokens and attention plan",
                                    "rotary table"};
  static_assert(std::size(kNames) == static_cast<size_t>(Form::kRotaryTable) + 1);
  return kNames[static_cast<size_t>(form)];
}

}  // namespace wcuda::ops
