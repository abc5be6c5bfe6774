// Tensor names and shapes of the dense decoders.
#include "llm/model/tensor_list.h"

namespace wcuda::model {
namespace {

void list_layer(const Config& c, const DenseDecoder& family, uint32_t layer, TensorList* list) {
  using L = LayerWeights;
  const uint32_t dim = c.embedding_length, hidden = c.feed_forward_length;
  const uint32_t width = family.attention_width != 0 ? family.attention_width : dim;
  const uint32_t queries = c.head_count * c.head_length, keys = c.kv_head_count * c.head_length;
  const Presence bias = family.query_key_value_bias, other = family.other_bias;

  list->add_vector(layer, "attn_norm.weight", &L::attention_norm, dim, Presence::kRequired);
  list->add_matrix(layer, "attn_q.weight", &L::query, queries, width);
  list->add_matrix(layer, "attn_k.weight", &L::key, keys, width);
  list->add_matrix(layer, "attn_v.weight", &L::value, keys, width);
  list->add_vector(layer, "attn_q.bias", &L::query_bias, queries, bias);
  list->add_vector(layer, "attn_k.bias", &L::key_bias, keys, bias);
  list->add_vector(layer, "attn_v.bias", &L::value_bias, keys, bias);
  list->add_vector(layer, "attn_q_norm.weight", &L::query_norm, c.head_length,
                   family.query_key_norm);
  list->add_vector(layer, "attn_k_norm.weight", &L::key_norm, c.head_length, family.query_key_norm);
  list->add_vector(layer, "attn_sinks.weight", &L::attention_sinks, c.head_count,
                   family.attention_sinks);
  list->add_matrix(layer, "attn_output.weight", &L::attention_output, dim, queries);
  list->add_vector(layer, "attn_output.bias", &L::attention_output_bias, dim, other);
  list->add_vector(layer, "ffn_norm.weight", &L::feed_forward_norm, dim, Presence::kRequired);
  list->add_matrix(layer, "ffn_gate.weight", &L::gate, hidden, dim);
  list->add_matrix(layer, "ffn_up.weight", &L::up, hidden, dim);
  list->add_matrix(layer, "ffn_down.weight", &L::down, dim, hidden);
  list->add_vector(layer, "ffn_gate.bias", &L::gate_bias, hidden, other);
  list->add_vector(layer, "ffn_up.bias", &L::up_bias, hidden, other);
  list->add_vector(layer, "ffn_down.bias", &L::down_bias, dim, other);
}

}  // namespace

void TensorList::add(TensorSlot slot) {
  if (slot.presence == Presence::kNone) return;
  if (slot.layer >= 0) slot.name = "blk." + std::to_string(slot.layer) + "." + slot.name;
  slots_.push_back(std::move(slot));
}

void list_dense_decoder(const Config& config, const DenseDecoder& family, TensorList* list) {
  const uint32_t vocabulary = config.vocabulary_size, dim = config.embedding_length;
  const uint32_t outputs = family.output_rows != 0 ? family.output_rows : vocabulary;
  list->add_matrix("token_embd.weight", &Weights::token_embedding, vocabulary, dim,
                   family.token_embedding);
  list->add_vector("output_norm.weight", &Weights::output_norm, dim, Presence::kRequired);
  list->add_matrix("output.weight", &Weights::output, outputs, dim, Presence::kOptional);
  list->add_vector("output.bias", &Weights::output_bias, outputs, Presence::kOptional);
  for (uint32_t layer = 0; layer < config.layer_count; ++layer)
    list_layer(config, family, layer, list);
}

}  // namespace wcuda::model
