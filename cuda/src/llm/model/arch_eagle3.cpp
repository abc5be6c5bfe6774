// eagle3: the draft heads of EAGLE-3, one decoder layer that reads features of a target model.
#include <cinttypes>

#include "llm/model/arch.h"
#include "llm/model/config.h"

namespace wcuda::model {
namespace {

Result<bool> read_flag(const Keys& keys, const char* key) {
  gguf::Value value;
  if (!keys.file().find(keys.full(key), &value)) return false;
  if (value.type != gguf::ValueType::kBool)
    return malformed("key '%s' is of type %s, must be a bool", keys.full(key).c_str(),
                     gguf::value_type_name(value.type));
  return value.u64 != 0;
}

Status read_target_layers(const Keys& keys, DraftHead* head) {
  if (!keys.has("target_layers"))
    return malformed("the file has no key '%s'", keys.full("target_layers").c_str());
  WCUDA_ASSIGN(const std::vector<uint32_t> layers,
               keys.file().get_u32s(keys.full("target_layers")));
  if (layers.size() != kFeatureLayers)
    return malformed("key '%s' has %zu elements, must have %u", keys.full("target_layers").c_str(),
                     layers.size(), kFeatureLayers);
  for (uint32_t i = 0; i < kFeatureLayers; ++i) {
    if (layers[i] > kMaxLayerCount)
      return malformed("key '%s' names layer %u, at most %u are possible",
                       keys.full("target_layers").c_str(), layers[i], kMaxLayerCount);
    head->target_layers[i] = layers[i];
  }
  return {};
}

Status fill_draft_head(const Keys& keys, Config* config) {
  config->rope_pairing = RopePairing::kAdjacent;
  if (config->layer_count != 1)
    return unsupported("a draft head of %u layers, only 1 is supported", config->layer_count);
  DraftHead& head = config->draft_head;
  WCUDA_ASSIGN(head.target_width, keys.count("target_hidden_size", kMaxEmbeddingLength));
  WCUDA_TRY(read_target_layers(keys, &head));
  WCUDA_ASSIGN(head.norms_residual, read_flag(keys, "norm_before_residual"));
  WCUDA_ASSIGN(head.norms_features, read_flag(keys, "norm_before_fc"));

  // Without own output or table those of the target are used, which have its width.
  const gguf::Tensor* const output = keys.file().find_tensor("output.weight");
  const bool has_table = keys.file().find_tensor("token_embd.weight") != nullptr;
  if ((output == nullptr || !has_table) && head.target_width != config->embedding_length)
    return malformed(
        "the file has no tensor '%s', and the target's has %u columns, the head a width of %u",
        output == nullptr ? "output.weight" : "token_embd.weight", head.target_width,
        config->embedding_length);
  head.vocabulary_size = config->vocabulary_size;
  const gguf::Tensor* const tokens = keys.file().find_tensor(kDraftTokensTensor);
  if (tokens == nullptr) return {};
  if (output == nullptr)
    return malformed("the file has tensor '%s', but no 'output.weight'", kDraftTokensTensor);
  if (tokens->type != TensorType::kI64 || tokens->dimension_count != 1 ||
      tokens->element_count == 0 || tokens->element_count > config->vocabulary_size)
    return malformed(
        "tensor '%s' is of type %s and %" PRIu64 " elements, must be I64 and have 1 to %u",
        kDraftTokensTensor, tokens->format->name, tokens->element_count, config->vocabulary_size);
  head.vocabulary_size = static_cast<uint32_t>(tokens->element_count);
  head.maps_tokens = true;
  return {};
}

void list_draft_head(const Config& config, TensorList* list) {
  const DraftHead& head = config.draft_head;
  const uint32_t dim = config.embedding_length;
  list->add_matrix("fc.weight", &Weights::features, dim, head.feature_width(), Presence::kRequired);
  list->add_vector("enc.output_norm.weight", &Weights::features_norm, head.feature_width(),
                   head.norms_features ? Presence::kRequired : Presence::kNone);
  list->add_vector(0, "attn_norm_2.weight", &LayerWeights::state_norm, dim, Presence::kRequired);
  DenseDecoder family{Presence::kNone, Presence::kNone, Presence::kNone};
  family.token_embedding = Presence::kOptional;
  family.attention_width = 2 * dim;
  family.output_rows = head.vocabulary_size;
  list_dense_decoder(config, family, list);
}

}  // namespace

const Arch kArchEagle3{"eagle3", fill_draft_head, list_draft_head, false, true};

Status read_draft_tokens(const std::vector<int64_t>& ids, uint32_t vocabulary_size,
                         DraftHead* head) {
  std::vector<bool> is_taken(vocabulary_size);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= int64_t{vocabulary_size})
      return malformed("element %zu of tensor '%s' is %" PRId64 ", the vocabulary has %u", i,
                       kDraftTokensTensor, ids[i], vocabulary_size);
    const auto id = static_cast<uint32_t>(ids[i]);
    if (is_taken[id])
      return malformed("token %u occurs twice in tensor '%s'", id, kDraftTokensTensor);
    is_taken[id] = true;
    head->tokens.push_back(static_cast<int32_t>(id));
  }
  return {};
}

}  // namespace wcuda::model
