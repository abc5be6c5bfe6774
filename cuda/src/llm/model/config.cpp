// Reads and checks the hyper-parameters that all families share.
#include "llm/model/config.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <string>
#include <vector>

#include "llm/model/rope.h"

namespace wcuda::model {
namespace {

// These keys are read if Arch::has_softcaps, and rejected otherwise.
constexpr const char* kAttentionSoftcapKey = "attn_logit_softcapping";
constexpr const char* kLogitSoftcapKey = "final_logit_softcapping";

// A key for a feature that is not implemented. It is accepted only with the value `neutral`, which
// disables the feature (a bool counts as 0 or 1).
struct RefusedKey {
  const char* key;
  double neutral;
};
constexpr RefusedKey kRefusedKeys[] = {
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_count", 0},
    {"nextn_predict_layers", 0},
    {"leading_dense_block_count", 0},
    {"attention.causal", 1},
    {"attention.max_alibi_bias", 0},
    {"attention.clamp_kqv", 0},
    {"attention.sliding_window_pattern", 0},
    {"attention.shared_kv_layers", 0},
    {"attention.temperature_scale", 0},
    {"attention.temperature_length", 0},
    {kAttentionSoftcapKey, 0},
    {kLogitSoftcapKey, 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"use_parallel_residual", 0},
    {"rope.dimension_sections", 0},
    {"ssm.state_size", 0},
};

Status check_refused_keys(const Keys& keys, const Arch& arch) {
  for (const RefusedKey& refused : kRefusedKeys) {
    const bool is_softcap = refused.key == kAttentionSoftcapKey || refused.key == kLogitSoftcapKey;
    if (is_softcap && arch.has_softcaps) continue;
    gguf::Value value;
    if (!keys.file().find(keys.full(refused.key), &value)) continue;
    const double number =
        static_cast<double>(value.u64) + static_cast<double>(value.i64) + value.f64;
    const bool is_number = value.type != gguf::ValueType::kString &&
                           value.type != gguf::ValueType::kArray &&
                           value.type != gguf::ValueType::kNone;
    if (is_number && number == refused.neutral) continue;
    if (!is_number)
      return unsupported("key '%s' is set, which is not supported", keys.full(refused.key).c_str());
    return unsupported("key '%s' is %g, only %g is supported", keys.full(refused.key).c_str(),
                       number, refused.neutral);
  }
  return {};
}

// Returns, for example, "layers 0 to 3: 2, layer 4: 8": the first eight runs of equal values.
std::string describe_runs(const std::vector<uint32_t>& values) {
  constexpr int kMaxRuns = 8;
  std::string text;
  size_t first = 0;
  for (int run = 0; first < values.size(); ++run) {
    if (run == kMaxRuns) return text + ", ...";
    size_t end = first + 1;
    while (end < values.size() && values[end] == values[first]) ++end;
    text += (run == 0 ? "" : ", ") + std::string(end - first == 1 ? "layer " : "layers ") +
            std::to_string(first);
    if (end - first > 1) text += " to " + std::to_string(end - 1);
    text += ": " + std::to_string(values[first]);
    first = end;
  }
  return text;
}

// Reads a count that a file has once, or as an array with one integer per layer. All integers must
// be equal. If `fallback` is 0, the key is required.
Result<uint32_t> read_layer_count(const Keys& keys, const char* key, uint32_t layer_count,
                                  uint32_t limit, uint32_t fallback) {
  gguf::Value value;
  if (!keys.file().find(keys.full(key), &value) || value.type != gguf::ValueType::kArray)
    return fallback == 0 ? keys.count(key, limit) : keys.count(key, limit, fallback);
  if (value.count != layer_count)
    return malformed("key '%s' has %" PRIu64 " elements, the model %u layers",
                     keys.full(key).c_str(), value.count, layer_count);
  WCUDA_ASSIGN(const std::vector<uint32_t> values, keys.file().get_u32s(keys.full(key)));
  if (std::any_of(values.begin(), values.end(), [&](uint32_t v) { return v != values[0]; }))
    return unsupported("key '%s' differs between layers: %s; must be equal", keys.full(key).c_str(),
                       describe_runs(values).c_str());
  return keys.check_count(key, values[0], limit);
}

Status read_heads(const Keys& keys, Config* config) {
  WCUDA_ASSIGN(config->head_count, read_layer_count(keys, "attention.head_count",
                                                    config->layer_count, kMaxHeadCount, 0));
  WCUDA_ASSIGN(config->kv_head_count,
               read_layer_count(keys, "attention.head_count_kv", config->layer_count, kMaxHeadCount,
                                config->head_count));
  if (config->head_count % config->kv_head_count != 0)
    return malformed("%u heads are not a multiple of %u key-value heads", config->head_count,
                     config->kv_head_count);

  const bool has_length = keys.has("attention.key_length");
  if (!has_length && config->embedding_length % config->head_count != 0)
    return malformed("embedding length %u is not a multiple of %u heads", config->embedding_length,
                     config->head_count);
  const uint32_t fallback = config->embedding_length / config->head_count;
  WCUDA_ASSIGN(config->head_length, keys.count("attention.key_length", kMaxHeadLength, fallback));
  WCUDA_ASSIGN(const uint32_t value_length,
               keys.count("attention.value_length", kMaxHeadLength, fallback));
  if (config->head_length != value_length)
    return unsupported("attention keys have %u elements and values %u: must be equal",
                       config->head_length, value_length);
  if (config->head_length % 2 != 0)
    return unsupported("heads have %u elements: must be even", config->head_length);
  const uint64_t width = uint64_t{config->head_count} * config->head_length;
  if (width > kMaxFeedForwardLength)
    return unsupported("%u heads of %u elements, at most %u elements together", config->head_count,
                       config->head_length, kMaxFeedForwardLength);
  return {};
}

// A key of the tokenizer with an array of one element per token.
struct TokenArray {
  const char* key;
  gguf::ValueType types[2];  // of its elements; some converters write the second
};
constexpr TokenArray kTokenArrays[] = {
    {"tokenizer.ggml.tokens", {gguf::ValueType::kString, gguf::ValueType::kString}},
    {"tokenizer.ggml.scores", {gguf::ValueType::kF32, gguf::ValueType::kF32}},
    {"tokenizer.ggml.token_type", {gguf::ValueType::kI32, gguf::ValueType::kU32}},
};

// Checks that the tokenizer in the file, if any, is complete and has `vocabulary_size` tokens.
Status check_tokenizer(const gguf::Gguf& file, uint64_t vocabulary_size) {
  for (const TokenArray& array : kTokenArrays) {
    gguf::Value value;
    if (!file.find(array.key, &value)) continue;
    if (value.type != gguf::ValueType::kArray)
      return malformed("key '%s' is of type %s, must be an array", array.key,
                       gguf::value_type_name(value.type));
    if (value.element_type != array.types[0] && value.element_type != array.types[1])
      return malformed("key '%s' is an array of %s, must be of %s", array.key,
                       gguf::value_type_name(value.element_type),
                       gguf::value_type_name(array.types[0]));
    if (value.count != vocabulary_size)
      return malformed("key '%s' has %" PRIu64 " elements, tensor 'token_embd.weight' %" PRIu64
                       " rows",
                       array.key, value.count, vocabulary_size);
  }
  gguf::Value model, merges;
  const bool is_byte_level = file.has("tokenizer.ggml.tokens") &&
                             file.find("tokenizer.ggml.model", &model) && model.string == "gpt2";
  if (!is_byte_level) return {};
  if (!file.find("tokenizer.ggml.merges", &merges))
    return malformed("tokenizer 'gpt2' needs key 'tokenizer.ggml.merges', which is missing");
  if (merges.element_type != gguf::ValueType::kString)
    return malformed("key 'tokenizer.ggml.merges' is %s, must be an array of strings",
                     gguf::value_type_name(merges.type));
  return {};
}

// Reads the vocabulary size: the number of rows of the embedding table. The tokenizer must agree. A
// draft head without a table has the key vocab_size, or the target's tokenizer.
Status read_vocabulary(const Keys& keys, bool is_draft_head, Config* config) {
  const gguf::Gguf& file = keys.file();
  const gguf::Tensor* table = file.find_tensor("token_embd.weight");
  if (table == nullptr && is_draft_head) {
    gguf::Value tokens;
    const bool has_tokens = file.find("tokenizer.ggml.tokens", &tokens) && tokens.count >= 1 &&
                            tokens.count <= kMaxVocabularySize;
    const uint32_t count = has_tokens ? static_cast<uint32_t>(tokens.count) : 0;
    WCUDA_ASSIGN(config->vocabulary_size, has_tokens
                                              ? keys.count("vocab_size", kMaxVocabularySize, count)
                                              : keys.count("vocab_size", kMaxVocabularySize));
    return check_tokenizer(file, config->vocabulary_size);
  }
  if (table == nullptr) return malformed("tensor 'token_embd.weight' is missing");
  const uint64_t rows = table->dimensions[1];
  if (rows > kMaxVocabularySize)
    return unsupported("tensor 'token_embd.weight' has %" PRIu64 " rows, at most %u tokens", rows,
                       kMaxVocabularySize);
  config->vocabulary_size = static_cast<uint32_t>(rows);

  return check_tokenizer(file, rows);
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}
bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Checks every tokenizer.ggml.…_token_id.
Status check_special_tokens(const gguf::Gguf& file, uint32_t vocabulary_size) {
  for (uint64_t i = 0; i < file.value_count(); ++i) {
    const gguf::Value value = file.value(i);
    if (!starts_with(value.key, "tokenizer.ggml.") || !ends_with(value.key, "_token_id")) continue;
    WCUDA_ASSIGN(const uint32_t id, file.get_u32(value.key));
    if (id >= vocabulary_size)
      return malformed("key '%.*s' is %u, the vocabulary has %u tokens",
                       static_cast<int>(std::min<size_t>(value.key.size(), 80)), value.key.data(),
                       id, vocabulary_size);
  }
  return {};
}

Status read_common(const Keys& keys, bool is_draft_head, Config* config) {
  WCUDA_ASSIGN(config->layer_count, keys.count("block_count", kMaxLayerCount));
  WCUDA_ASSIGN(config->embedding_length, keys.count("embedding_length", kMaxEmbeddingLength));
  WCUDA_ASSIGN(
      config->feed_forward_length,
      read_layer_count(keys, "feed_forward_length", config->layer_count, kMaxFeedForwardLength, 0));
  WCUDA_ASSIGN(config->context_length, keys.count("context_length", kMaxContextLength));
  WCUDA_TRY(read_heads(keys, config));
  WCUDA_TRY(read_vocabulary(keys, is_draft_head, config));
  WCUDA_TRY(check_special_tokens(keys.file(), config->vocabulary_size));

  WCUDA_ASSIGN(config->norm_epsilon, keys.positive("attention.layer_norm_rms_epsilon"));
  const float scale = 1.0f / std::sqrt(static_cast<float>(config->head_length));
  WCUDA_ASSIGN(config->attention_scale, keys.positive("attention.scale", scale));
  WCUDA_ASSIGN(config->embedding_scale, keys.positive("embedding_scale", 1.0f));
  WCUDA_ASSIGN(config->sliding_window, keys.u32("attention.sliding_window", 0));
  config->tied_embeddings = !is_draft_head && keys.file().find_tensor("output.weight") == nullptr;
  return read_rope(keys, config);
}

}  // namespace

Result<ReadConfig> read_config(const gguf::Gguf& file) {
  ReadConfig read;
  const auto name = file.get_string("general.architecture");
  if (name.status().code() == WCUDA_NOT_FOUND) return malformed("%s", name.status().message());
  if (!name.ok()) return name.status();
  WCUDA_ASSIGN(read.arch, find_arch(*name));
  WCUDA_ASSIGN(read.config, read_config(file, *read.arch));
  return read;
}

Result<Config> read_config(const gguf::Gguf& file, const Arch& arch) {
  Config config;
  config.architecture = arch.name;
  const Keys keys(file, arch.name);
  WCUDA_TRY(check_refused_keys(keys, arch));
  WCUDA_TRY(read_common(keys, arch.is_draft_head, &config));
  if (arch.has_softcaps) {
    WCUDA_ASSIGN(config.attention_softcap, keys.not_negative(kAttentionSoftcapKey));
    WCUDA_ASSIGN(config.logit_softcap, keys.not_negative(kLogitSoftcapKey));
  }
  WCUDA_TRY(arch.fill(keys, &config));
  return config;
}

}  // namespace wcuda::model
