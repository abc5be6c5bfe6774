#include "llm/ops/step_plan.h"

#include <algorithm>
#include <iterator>

#include "kernels/attention/attention_choice.h"
#include "kernels/linear/persistent_plan.h"
#include "llm/ops/linear_plan.h"

namespace wcuda::ops {
namespace {

static_assert(kPersistentLayersMax == kernels::kPersistentLayersMax);

// Of smaller models layers are too short (H200, 1B Q4_K_M: 2,355 tokens a second at 0, 2,335
// without; 1,911 and 1,987 at 4,096).
constexpr uint32_t kPersistentEmbeddingMin = 4096;

class Planner {
 public:
  Planner(const model::Config& config, const model::Weights& weights, const Limits& limits,
          const DeviceTraits& device, const StepShape& shape)
      : config_(config),
        weights_(weights),
        limits_(limits),
        device_(device),
        switches_(linear_switches(device)) {
    plan_.shape = shape;
  }

  StepPlan run() {
    plan_.nodes.reserve(6 + uint64_t{config_.layer_count} * 7);
    start();
    add(Operation::kEmbed, on_device(Kernel::kEmbed), kNoLayer, Form::kTokens, Form::kF32);
    for (uint32_t layer = 0; layer < config_.layer_count; ++layer) {
      if (!has_next_) query_key_value(layer);
      has_next_ = false;
      attention(layer);
      after_attention(layer);
    }
    if (plan_.shape.logits_count != 0 && !has_next_) linear(Operation::kLogits, kNoLayer);
    if (plan_.shape.logits_count != 0 && config_.logit_softcap != 0.0f)
      add(Operation::kSoftcapLogits, on_device(Kernel::kSoftcap), kNoLayer, Form::kF32, Form::kF32);
    return std::move(plan_);
  }

 private:
  const StepShape& shape() const { return plan_.shape; }
  bool is_decode() const { return shape().max_row_tokens == 1; }
  Kernel on_device(Kernel kernel) const { return device_.is_host ? Kernel::kHost : kernel; }

  Node& add(Operation operation, Kernel kernel, uint32_t layer, Form input, Form output) {
    Node node{};
    node.operation = operation;
    node.kernel = kernel;
    node.layer = layer;
    node.input = input;
    node.output = output;
    node.fused_count = 1;
    plan_.nodes.push_back(node);
    return plan_.nodes.back();
  }

  void start() {
    if (device_.is_host) {
      if (config_.rope_dimension_count != 0)
        add(Operation::kRotaryTable, Kernel::kHost, kNoLayer, Form::kNone, Form::kNone);
      return;
    }
    if (is_decode()) {
      add(Operation::kStartStep, Kernel::kAttentionPlanStart, kNoLayer, Form::kNone, Form::kTokens);
      return;
    }
    add(Operation::kScatterInputs, Kernel::kInputScatter, kNoLayer, Form::kNone, Form::kTokens);
    add(Operation::kBeginRows, Kernel::kBeginStep, kNoLayer, Form::kTokens, Form::kTokens);
    add(Operation::kPlanAttention, Kernel::kAttentionPlan, kNoLayer, Form::kNone, Form::kNone);
  }

  // ---- attention

  // Attention of rows of one token rotates and stores on the way.
  bool attention_rotates() const {
    return !device_.is_host && is_decode() && config_.rope_dimension_count % 2 == 0 &&
           config_.rope_dimension_count <= config_.head_length;
  }

  // Whether one product computes query, key and value, whose kernel then rotates.
  bool joins() const {
    return !attention_rotates() && is_gemm_step(shape().token_count, limits_, switches_);
  }

  void query_key_value(uint32_t layer) {
    Node& node = linear(Operation::kQueryKeyValue, layer);
    node.output =
        node.kernel == Kernel::kDequantizeGemm && joins() ? Form::kJoined : Form::kUnrotated;
  }

  void attention(uint32_t layer) {
    Form input = Form::kUnrotated;
    if (!attention_rotates()) {
      const Form products = plan_.nodes.back().output;
      add(Operation::kRotateAndStore, on_device(Kernel::kRopeKv), layer, products, Form::kPages);
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
      const bool is_half = has_warpgroup && shape().min_row_tokens > 1 && takes_half();
      add(Operation::kAttention,
          has_warpgroup ? Kernel::kAttentionPrefillWarpgroup : Kernel::kAttentionPrefill, layer,
          input, is_half ? Form::kF16 : Form::kF32);
      if (shape().min_row_tokens > 1) return;
    }
    add(Operation::kAttention, decode_kernel(), layer, input, Form::kF32);
  }

  // Where each row and head tile gets a multiprocessor at least.
  Kernel decode_kernel() const {
    const uint32_t groups =
        shape().row_count * kernels::decode_head_tiles(config_.head_count, config_.kv_head_count);
    if (!kernels::decode_has_groups(config_.head_length, device_.compute_capability) ||
        limits_.batch_invariant || !is_decode() || groups > device_.sm_count)
      return Kernel::kAttentionDecode;
    const bool is_cluster = shape().max_positions > kLonePositionsMax &&
                            shape().max_positions <= kClusterPositionsMax &&
                            groups * kernels::kDecodeClusterBlocks <= device_.sm_count;
    return is_cluster ? Kernel::kAttentionDecodeCluster : Kernel::kAttentionDecodeGroup;
  }

  // Whether the output projection reads attention as f16.
  bool takes_half() const {
    const uint32_t cols = config_.head_count * config_.head_length;
    return is_gemm_step(shape().token_count, limits_, switches_) &&
           config_.embedding_length % 8 == 0 && cols % 8 == 0 && cols <= kGemmInputsMax;
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
    const model::LayerWeights& w = weights_.layers[layer];
    if (operation == Operation::kQueryKeyValue) {
      linear.has_norm = true;
      add_matrix(w.query);
      add_matrix(w.key);
      add_matrix(w.value);
    } else if (operation == Operation::kGateUp) {
      linear.has_norm = linear.is_gate = true;
      add_matrix(w.gate);
      add_matrix(w.up);
    } else {
      linear.is_added = true;
      add_matrix(operation == Operation::kDown ? w.down : w.attention_output);
    }
    return linear;
  }

  Node& linear(Operation operation, uint32_t layer) {
    const LinearShape linear = shape_of(operation, layer);
    const Kernel kernel = linear_kernel(linear, limits_, device_, switches_);
    Form input = Form::kF32, output = Form::kF32;
    if (linear.is_added) {
      input = plan_.nodes.back().output;
      output = Form::kResidual;
    } else if (linear.is_gate && kernel == Kernel::kDequantizeGemm) {
      output = Form::kGateSums;
    }
    Node& node = add(operation, kernel, layer, input, output);
    if (kernel == Kernel::kDequantizeGemm) {
      take_buffers(linear, &node);
    } else if (kernel == Kernel::kDequantizeGemmF32) {
      ordered_buffers_ = 0;  // it writes to the first buffer on the main stream
    }
    return node;
  }

  void take_buffers(const LinearShape& linear, Node* node) {
    node->first_buffer = next_buffer_;
    node->ordered_buffers = ordered_buffers_;
    node->has_second_stream = !shape().is_captured;
    const uint64_t weight_bytes = gemm_memory(limits_).weight_bytes;
    uint32_t pieces = 0;
    if (is_one_product(linear, *node)) {
      uint32_t rows = 0;
      for (uint32_t m = 0; m < linear.matrix_count; ++m) rows += linear.rows[m];
      pieces = gemm_piece_count(rows, linear.cols, weight_bytes);
    } else {
      for (uint32_t m = 0; m < linear.matrix_count; ++m)
        pieces += gemm_piece_count(linear.rows[m], linear.cols, weight_bytes);
    }
    for (uint32_t piece = 0; piece < pieces; ++piece) {
      if (node->has_second_stream) ordered_buffers_ |= static_cast<uint8_t>(1u << next_buffer_);
      next_buffer_ ^= 1;
    }
  }
  // Gate and up, and queries, keys and values that stay joined.
  bool is_one_product(const LinearShape& linear, const Node& node) const {
    return linear.is_gate || linear.matrix_count == 1 ||
           (node.operation == Operation::kQueryKeyValue && joins());
  }

  // The output projection, the feed-forward, and in one kernel with them what comes next.
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
      plan_.has_persistent_layers = true;
    }
    for (uint32_t i = fused; i < 3; ++i) linear(kOwn[i], layer);
  }

  // Linear layers from the output projection on that one kernel computes; 0: none.
  uint32_t persistent_count(uint32_t layer) const {
    if (shape().token_count != 1 || !allows_persistent_layers(limits_, device_)) return 0;
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
  const LinearSwitches switches_;
  StepPlan plan_;
  bool has_next_ = false;  // the last node computed the first product of what follows
  uint8_t next_buffer_ = 0;
  uint8_t ordered_buffers_ = 0;
};

}  // namespace

StepPlan plan_step(const model::Config& config, const model::Weights& weights, const Limits& limits,
                   const DeviceTraits& device, const StepShape& shape) {
  return Planner(config, weights, limits, device, shape).run();
}

bool allows_persistent_layers(const Limits& limits, const DeviceTraits& device) {
  // Under batch_invariant a layer is computed as it is of many tokens.
  if (limits.batch_invariant || !device.has_resident_grid) return false;
  if (limits.persistent_layers == PersistentLayers::kAuto)
    return limits.embedding_length >= kPersistentEmbeddingMin;
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
                                    "query_key_value",  "rotate_and_store", "attention",
                                    "attention_output", "gate_up",          "down",
                                    "logits",           "softcap_logits",   "persistent_layers"};
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
                                    "dequantize_gemm",
                                    "dequantize_gemm_f32",
                                    "persistent_layers",
                                    "rope_kv",
                                    "attention_decode",
                                    "attention_decode_group",
                                    "attention_decode_cluster",
                                    "attention_prefill",
                                    "attention_prefill_warpgroup",
                                    "softcap"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kernel::kSoftcap) + 1);
  return kNames[static_cast<size_t>(kernel)];
}

const char* form_name(Form form) {
  constexpr const char* kNames[] = {
      "-",   "tokens",        "f32",          "f32 joined",      "f32 unrotated",
      "f16", "f16 gate sums", "f32 residual", "f32 and KV pages"};
  static_assert(std::size(kNames) == static_cast<size_t>(Form::kPages) + 1);
  return kNames[static_cast<size_t>(form)];
}

}  // namespace wcuda::ops
