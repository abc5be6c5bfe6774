// THE forward pass: read this to know what the engine computes. Architectures differ in Config
// alone.
#include "llm/engine/forward.h"

namespace wcuda::engine {

Status forward(const model::Model& model, ops::Ops& ops, const ops::Batch& batch,
               const ops::KvPool& pool, const Activations& activations,
               const LogitsRequest& request) {
  const model::Config& config = model.config();
  const model::Weights& weights = model.weights();
  ops::Rope rope;
  rope.pairing = config.rope_pairing;
  rope.dimension_count = config.rope_dimension_count;
  rope.frequencies = weights.rope_frequencies;
  rope.magnitude = config.rope_magnitude;

  WCUDA_TRY(ops.begin_step(batch, pool, config.sliding_window));
  WCUDA_TRY(ops.embed({&batch, weights.token_embedding, config.embedding_scale, activations.x}));

  for (uint32_t layer = 0; layer < config.layer_count; ++layer) {
    const model::LayerWeights& w = weights.layers[layer];

    ops::AttentionInputArgs input{};
    input.batch = &batch;
    input.x = activations.x;
    input.norm = w.attention_norm;
    input.epsilon = config.norm_epsilon;
    input.query = w.query;
    input.key = w.key;
    input.value = w.value;
    input.query_bias = w.query_bias;
    input.key_bias = w.key_bias;
    input.value_bias = w.value_bias;
    input.query_norm = w.query_norm;
    input.key_norm = w.key_norm;
    input.rope = rope;
    input.head_count = config.head_count;
    input.pool = pool;
    input.layer = layer;
    input.query_out = activations.query;
    WCUDA_TRY(ops.attention_input(input));

    ops::AttentionArgs attention{};
    attention.batch = &batch;
    attention.query = activations.query;
    attention.head_count = config.head_count;
    attention.scale = config.attention_scale;
    attention.window = config.sliding_window;
    attention.pool = pool;
    attention.layer = layer;
    attention.out = activations.attention;
    WCUDA_TRY(ops.attention(attention));

    WCUDA_TRY(ops.project({batch.token_count, activations.attention, w.attention_output,
                           w.attention_output_bias, activations.x}));

    WCUDA_TRY(ops.feed_forward_input({batch.token_count, activations.x, w.feed_forward_norm,
                                      config.norm_epsilon, w.gate, w.up, w.gate_bias, w.up_bias,
                                      config.activation, activations.hidden}));

    WCUDA_TRY(
        ops.project({batch.token_count, activations.hidden, w.down, w.down_bias, activations.x}));
  }

  if (request.count != 0)
    WCUDA_TRY(
        ops.logits({request.count, request.token_indices, activations.x, weights.output_norm,
                    config.norm_epsilon, weights.output, weights.output_bias, request.logits}));
  return ops.end_step();
}

}  // namespace wcuda::engine
