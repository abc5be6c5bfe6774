// THE forward pass: read this to know what the engine computes. Architectures differ only in
// Config. ops/step_plan.h defines which operations are fused and which kernel computes them.
#include "llm/engine/forward.h"

#include "core/base/status.h"

namespace wcuda::engine {
namespace {

using ops::Form;
using ops::Node;
using ops::Operation;

// The arguments of each node of a step.
class Pass {
 public:
  Pass(const model::Config& config, const model::Weights& weights, ops::Ops& ops,
       const ops::StepPlan& plan, const StepArgs& step)
      : config_(config),
        weights_(weights),
        ops_(ops),
        plan_(plan),
        step_(step),
        a_(step.activations),
        f_(step.features) {
    rope_.pairing = config_.rope_pairing;
    rope_.dimension_count = config_.rope_dimension_count;
    rope_.frequencies = weights_.rope_frequencies;
    rope_.magnitude = config_.rope_magnitude;
  }

  Status run(const Node& node) {
    switch (node.operation) {
      case Operation::kStartStep:
      case Operation::kScatterInputs:
      case Operation::kBeginRows:
      case Operation::kPlanAttention:
      case Operation::kRotaryTable:
        return ops_.start(node,
                          {step_.batch, step_.inputs, step_.pool, config_.sliding_window, rope_});
      case Operation::kEmbed:
        return ops_.embed(node,
                          {step_.batch, weights_.token_embedding, config_.embedding_scale, a_.x});
      case Operation::kReadFeatures:
        return ops_.read_features(node,
                                  {step_.batch, f_.read, f_.page_tables, f_.page_table_stride,
                                   weights_.features_norm, config_.norm_epsilon, f_.features});
      case Operation::kHeadInput:
        return ops_.head_input(node, head_input());
      case Operation::kKeepFeatures:
        return ops_.keep_features(node, {step_.batch, a_.x, f_.kept, thirds(node.layer)});
      case Operation::kKeepStates:
        return ops_.keep_states(node, {step_.batch, config_.embedding_length, a_.x, f_.states});
      case Operation::kScatterLogits:
        return ops_.scatter_logits(
            node, {plan_.shape.logits_count, config_.draft_head.vocabulary_size,
                   config_.vocabulary_size, f_.logits, weights_.draft_tokens, step_.logits});
      case Operation::kRotateAndStore:
        return ops_.rope_kv(node, rope_kv(node));
      case Operation::kAttention:
        return attention(node);
      case Operation::kPersistentLayers:
        return persistent_layers(node);
      case Operation::kHiddenState:
        return ops_.hidden_state(node,
                                 {step_.batch, a_.x, config_.embedding_length, weights_.output_norm,
                                  config_.norm_epsilon, a_.hidden, step_.hidden_states});
      case Operation::kSoftcapLogits:
        return ops_.softcap(
            node, {step_.logits, uint64_t{plan_.logits_count(node)} * config_.vocabulary_size,
                   config_.logit_softcap});
      case Operation::kTokenLogprobs:
        return token_logprobs(node);
      case Operation::kFuseFeatures:
      case Operation::kQueryKeyValue:
      case Operation::kAttentionOutput:
      case Operation::kGateUp:
      case Operation::kDown:
      case Operation::kLogits:
        return ops_.linear(node, linear(node));
    }
    return {};
  }

 private:
  ops::LinearArgs linear(const Node& node) const {
    ops::LinearArgs args = linear(node.operation, node.layer);
    if (node.scored_count == 0) return args;
    args.token_count = node.scored_count;
    args.token_indices = step_.scored_indices + node.scored_first;
    return args;
  }
  ops::LinearArgs linear(Operation operation, uint32_t layer) const {
    ops::LinearArgs args{};
    args.token_count = step_.batch->token_count;
    args.activation = config_.activation;
    if (operation == Operation::kLogits) {
      args.token_count = plan_.shape.logits_count;
      args.token_indices = step_.logits_indices;
      norm(weights_.output_norm, &args);
      add(weights_.output, weights_.output_bias,
          config_.draft_head.maps_tokens ? f_.logits : step_.logits, &args);
      return args;
    }
    if (operation == Operation::kFuseFeatures) {
      args.x = f_.features;
      add(weights_.features, nullptr, f_.fused, &args);
      return args;
    }
    const model::LayerWeights& w = weights_.layers[layer];
    switch (operation) {
      case Operation::kQueryKeyValue:
        norm(w.attention_norm, &args);
        if (config_.draft_head.exists()) {  // head_input has normed it
          args.x = f_.input;
          args.norm = nullptr;
        }
        add(w.query, w.query_bias, a_.query, &args);
        add(w.key, w.key_bias, a_.key, &args);
        add(w.value, w.value_bias, a_.value, &args);
        break;
      case Operation::kAttentionOutput:
        args.x = a_.attention;
        args.epilogue = ops::Epilogue::kAdd;
        add(w.attention_output, w.attention_output_bias, a_.x, &args);
        break;
      case Operation::kGateUp:
        norm(w.feed_forward_norm, &args);
        args.epilogue = ops::Epilogue::kGate;
        add(w.gate, w.gate_bias, a_.hidden, &args);
        add(w.up, w.up_bias, nullptr, &args);
        args.reader = &w.down;
        if (step_.gate_norms != nullptr) args.gate_norms = step_.gate_norms + layer;
        break;
      default:  // kDown
        args.x = a_.hidden;
        args.epilogue = ops::Epilogue::kAdd;
        add(w.down, w.down_bias, a_.x, &args);
    }
    return args;
  }
  void norm(ops::Vector gain, ops::LinearArgs* args) const {
    args->x = a_.x;
    args->norm = gain;
    args->epsilon = config_.norm_epsilon;
  }
  static void add(const ops::Weight& weight, ops::Vector bias, float* output,
                  ops::LinearArgs* args) {
    const uint32_t i = args->weight_count++;
    args->weights[i] = weight;
    args->biases[i] = bias;
    args->outputs[i] = output;
  }

  // Returns the thirds of the features that are the input of a layer, as bits.
  uint32_t thirds(uint32_t layer) const {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < model::kFeatureLayers; ++i)
      bits |= uint32_t{f_.kept_layers[i] == layer} << i;
    return bits;
  }

  ops::HeadInputArgs head_input() const {
    ops::HeadInputArgs args{};
    args.batch = step_.batch;
    args.cols = config_.embedding_length;
    args.embedding = args.x = a_.x;
    args.g = f_.fused;
    args.states = f_.states;
    args.token_norm = weights_.layers[0].attention_norm;
    args.state_norm = weights_.layers[0].state_norm;
    args.epsilon = config_.norm_epsilon;
    args.norms_residual = config_.draft_head.norms_residual;
    args.input = f_.input;
    return args;
  }

  Status persistent_layers(const Node& node) {
    ops::LinearArgs layers[ops::kPersistentLayersMax];
    WCUDA_CHECK(node.fused_count <= ops::kPersistentLayersMax);
    for (uint32_t i = 0; i < node.fused_count; ++i) {
      const ops::LayerOperation part = ops::fused_operation(node, i, config_.layer_count);
      layers[i] = linear(part.operation, part.layer);
    }
    return ops_.persistent_layers(node, layers, node.fused_count);
  }

  ops::RopeKvArgs rope_kv(const Node& node) const {
    const model::LayerWeights& w = weights_.layers[node.layer];
    ops::RopeKvArgs args{};
    args.batch = step_.batch;
    args.query = a_.query;
    args.key = a_.key;
    args.value = a_.value;
    args.query_norm = w.query_norm;
    args.key_norm = w.key_norm;
    args.epsilon = config_.norm_epsilon;
    args.rope = rope_;
    args.head_count = config_.head_count;
    args.pool = step_.pool;
    args.layer = node.layer;
    return args;
  }

  Status attention(const Node& node) {
    const ops::RopeKvArgs unrotated = rope_kv(node);
    ops::AttentionArgs args{};
    args.batch = step_.batch;
    args.query = a_.query;
    args.head_count = config_.head_count;
    args.scale = config_.attention_scale;
    args.window = config_.sliding_window;
    args.softcap = config_.attention_softcap;
    args.sinks = weights_.layers[node.layer].attention_sinks;
    args.pool = step_.pool;
    args.layer = node.layer;
    args.out = a_.attention;
    args.reader = &weights_.layers[node.layer].attention_output;
    if (node.input == Form::kUnrotated) args.rope_kv = &unrotated;
    return ops_.attention(node, args);
  }

  Status token_logprobs(const Node& node) {
    const uint64_t top = uint64_t{node.scored_first} * step_.top_stride;
    ops::TokenLogprobsArgs args{};
    args.count = node.scored_count;
    args.vocabulary = config_.vocabulary_size;
    args.tokens = step_.scored + node.scored_first;
    args.logits = step_.logits;
    args.top_stride = step_.top_stride;
    args.logprobs = step_.token_logprobs + node.scored_first;
    args.top_tokens = step_.token_top_tokens + top;
    args.top_logprobs = step_.token_top_logprobs + top;
    args.row_statuses = step_.row_statuses;
    return ops_.token_logprobs(node, args);
  }

  const model::Config& config_;
  const model::Weights& weights_;
  ops::Ops& ops_;
  const ops::StepPlan& plan_;
  const StepArgs& step_;
  const Activations& a_;
  const FeatureArgs& f_;
  ops::Rope rope_;
};

}  // namespace

Status forward(const model::Config& config, const model::Weights& weights, ops::Ops& ops,
               const ops::StepPlan& plan, const StepArgs& step, NodeObserver* observer) {
  Pass pass(config, weights, ops, plan, step);
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    if (observer != nullptr) WCUDA_TRY(observer->before(i));
    WCUDA_TRY(pass.run(plan.nodes[i]));
    if (observer != nullptr) WCUDA_TRY(observer->after(i));
  }
  return {};
}

Status run_node(const model::Config& config, const model::Weights& weights, ops::Ops& ops,
                const ops::StepPlan& plan, size_t index, const StepArgs& step) {
  return Pass(config, weights, ops, plan, step).run(plan.nodes[index]);
}

}  // namespace wcuda::engine
