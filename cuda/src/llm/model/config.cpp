// Hyper-parameters that all families share, and their checks.
#include "llm/model/config.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "llm/model/rope.h"

namespace wcuda::model {
namespace {

// A key that changes what a model computes in a way that this version lacks, unless its value is
// `neutral` (a bool counts as 0 or 1).
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
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"use_parallel_residual", 0},
    {"rope.dimension_sections", 0},
    {"ssm.state_size", 0},
};

Status check_refused_keys(const Keys& keys) {
  for (const RefusedKey& refused : kRefusedKeys) {
    gguf::Value value;
    if (!keys.file().find(keys.full(refused.key), &value)) continue;
    const double number =
        static_cast<double>(value.u64) + static_cast<double>(value.i64) + value.f64;
    const bool is_number = value.type != gguf::ValueType::kString &&
                           value.type != gguf::ValueType::kArray &&
                           value.type != gguf::ValueType::kNone;
    if (is_number && number == refused.neutral) continue;
    if (!is_number)
      return Status::error(WCUDA_UNSUPPORTED, "key '%s' is set, which is not supported",
                           keys.full(refused.key).c_str());
    return Status::error(WCUDA_UNSUPPORTED, "key '%s' is %g, only %g is supported",
                         keys.full(refused.key).c_str(), number, refused.neutral);
  }
  return {};
}

Status read_heads(const Keys& keys, Config* config) {
  WCUDA_ASSIGN(config->head_count, keys.count("attention.head_count", kMaxHeadCount));
  WCUDA_ASSIGN(config->kv_head_count,
               keys.count("attention.head_count_kv", kMaxHeadCount, config->head_count));
  if (config->head_count % config->kv_head_count != 0)
    return Status::error(WCUDA_MALFORMED, "%u heads are no multiple of %u key-value heads",
                         config->head_count, config->kv_head_count);

  const bool has_length = keys.has("attention.key_length");
  if (!has_length && config->embedding_length % config->head_count != 0)
    return Status::error(WCUDA_MALFORMED, "embedding length %u is no multiple of %u heads",
                         config->embedding_length, config->head_count);
  const uint32_t fallback = config->embedding_length / config->head_count;
  WCUDA_ASSIGN(config->head_length, keys.count("attention.key_length", kMaxHeadLength, fallback));
  WCUDA_ASSIGN(const uint32_t value_length,
               keys.count("attention.value_length", kMaxHeadLength, fallback));
  if (config->head_length != value_length)
    return Status::error(WCUDA_UNSUPPORTED, "keys of %u and values of %u elements: only equal ones",
                         config->head_length, value_length);
  if (config->head_length % 2 != 0)
    return Status::error(WCUDA_UNSUPPORTED, "heads of %u elements: only even lengths",
                         config->head_length);
  const uint64_t width = uint64_t{config->head_count} * config->head_length;
  if (width > kMaxFeedForwardLength)
    return Status::error(WCUDA_UNSUPPORTED, "%u heads of %u elements, at most %u elements together",
                         config->head_count, config->head_length, kMaxFeedForwardLength);
  return {};
}

// The vocabulary is what the embedding table has rows for; the tokenizer must agree.
Status read_vocabulary(const Keys& keys, Config* config) {
  const gguf::Gguf& file = keys.file();
  const gguf::Tensor* table = file.find_tensor("token_embd.weight");
  if (table == nullptr)
    return Status::error(WCUDA_MALFORMED, "tensor 'token_embd.weight' is missing");
  const uint64_t rows = table->dimensions[1];
  if (rows > kMaxVocabularySize)
    return Status::error(WCUDA_UNSUPPORTED,
                         "tensor 'token_embd.weight' has %llu rows, at most %u tokens",
                         static_cast<unsigned long long>(rows), kMaxVocabularySize);
  config->vocabulary_size = static_cast<uint32_t>(rows);

  for (const char* key :
       {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
    gguf::Value value;
    if (!file.find(key, &value)) continue;
    if (value.type != gguf::ValueType::kArray || value.count != rows)
      return Status::error(
          WCUDA_MALFORMED, "key '%s' has %llu elements, tensor 'token_embd.weight' %llu rows", key,
          static_cast<unsigned long long>(value.count), static_cast<unsigned long long>(rows));
  }
  return {};
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}
bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Every tokenizer.ggml.…_token_id.
Status check_special_tokens(const gguf::Gguf& file, uint32_t vocabulary_size) {
  for (uint64_t i = 0; i < file.value_count(); ++i) {
    const gguf::Value value = file.value(i);
    if (!starts_with(value.key, "tokenizer.ggml.") || !ends_with(value.key, "_token_id")) continue;
    WCUDA_ASSIGN(const uint32_t id, file.get_u32(value.key));
    if (id >= vocabulary_size)
      return Status::error(WCUDA_MALFORMED, "key '%.*s' is %u, the vocabulary has %u tokens",
                           static_cast<int>(std::min<size_t>(value.key.size(), 80)),
                           value.key.data(), id, vocabulary_size);
  }
  return {};
}

Status read_common(const Keys& keys, Config* config) {
  WCUDA_ASSIGN(config->layer_count, keys.count("block_count", kMaxLayerCount));
  WCUDA_ASSIGN(config->embedding_length, keys.count("embedding_length", kMaxEmbeddingLength));
  WCUDA_ASSIGN(config->feed_forward_length,
               keys.count("feed_forward_length", kMaxFeedForwardLength));
  WCUDA_ASSIGN(config->context_length, keys.count("context_length", kMaxContextLength));
  WCUDA_TRY(read_heads(keys, config));
  WCUDA_TRY(read_vocabulary(keys, config));
  WCUDA_TRY(check_special_tokens(keys.file(), config->vocabulary_size));

  WCUDA_ASSIGN(config->norm_epsilon, keys.positive("attention.layer_norm_rms_epsilon"));
  const float scale = 1.0f / std::sqrt(static_cast<float>(config->head_length));
  WCUDA_ASSIGN(config->attention_scale, keys.positive("attention.scale", scale));
  WCUDA_ASSIGN(config->embedding_scale, keys.positive("embedding_scale", 1.0f));
  WCUDA_ASSIGN(config->sliding_window, keys.u32("attention.sliding_window", 0));
  config->tied_embeddings = keys.file().find_tensor("output.weight") == nullptr;
  return read_rope(keys, config);
}

}  // namespace

Result<ReadConfig> read_config(const gguf::Gguf& file) {
  ReadConfig read;
  const auto name = file.get_string("general.architecture");
  if (name.status().code() == WCUDA_NOT_FOUND)
    return Status::error(WCUDA_MALFORMED, "%s", name.status().message());
  if (!name.ok()) return name.status();
  WCUDA_ASSIGN(read.arch, find_arch(*name));
  read.config.architecture = read.arch->name;

  const Keys keys(file, read.arch->name);
  WCUDA_TRY(check_refused_keys(keys));
  WCUDA_TRY(read_common(keys, &read.config));
  WCUDA_TRY(read.arch->fill(keys, &read.config));
  return read;
}

}  // namespace wcuda::model
