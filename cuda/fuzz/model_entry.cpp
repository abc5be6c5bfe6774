// Plans and loads foreign bytes as a model, and compares what comes out with what was planned.
#include "fuzz/model_entry.h"

#include <cmath>
#include <memory>

#include "core/backend/host_backend.h"
#include "llm/gguf/gguf.h"
#include "llm/model/model.h"
#include "llm/model/tiny_cases.h"

namespace wcuda::fuzz {
namespace {

#define WCUDA_EXPECT(condition) \
  if (!(condition)) return #condition

constexpr uint64_t kLoadedBytesMax = 8u << 20;

bool is_refusal(const Status& status) {
  return (status.code() == WCUDA_MALFORMED || status.code() == WCUDA_UNSUPPORTED) &&
         *status.message() != '\0';
}

// A head of another target than this one is refused when it is loaded.
bool is_refusal_of_head(const Status& status) {
  return status.code() == WCUDA_INVALID_ARGUMENT || is_refusal(status);
}

// The target of every draft head.
std::shared_ptr<model::Model> load_target(const std::shared_ptr<Backend>& backend) {
  static const std::string bytes = testing::smallest_model("llama").build();
  const auto file = gguf::Gguf::open(gguf::open_memory(bytes.data(), bytes.size()).take()).take();
  return model::Model::load(vram::Memory::create(backend, 0), file, {}).take();
}

// What the forward pass relies on.
std::string check_config(const model::Config& c) {
  WCUDA_EXPECT(c.layer_count > 0 && c.embedding_length > 0 && c.feed_forward_length > 0);
  WCUDA_EXPECT(c.vocabulary_size > 0 && c.context_length > 0);
  WCUDA_EXPECT(c.kv_head_count > 0 && c.head_count % c.kv_head_count == 0);
  WCUDA_EXPECT(c.head_length > 0 && c.head_length % 2 == 0);
  WCUDA_EXPECT(c.rope_dimension_count > 0 && c.rope_dimension_count <= c.head_length);
  WCUDA_EXPECT(c.rope_frequencies.size() * 2 == c.rope_dimension_count);
  for (const float frequency : c.rope_frequencies) WCUDA_EXPECT(std::isfinite(frequency));
  WCUDA_EXPECT(std::isfinite(c.rope_magnitude) && c.rope_magnitude > 0.0f);
  WCUDA_EXPECT(std::isfinite(c.norm_epsilon) && c.norm_epsilon > 0.0f);
  WCUDA_EXPECT(std::isfinite(c.attention_scale) && c.attention_scale > 0.0f);
  if (!c.draft_head.exists()) return "";
  WCUDA_EXPECT(c.layer_count == 1 && c.draft_head.vocabulary_size > 0);
  WCUDA_EXPECT(c.draft_head.vocabulary_size <= c.vocabulary_size);
  WCUDA_EXPECT(c.draft_head.maps_tokens || c.draft_head.vocabulary_size == c.vocabulary_size);
  return "";
}

bool is_matrix(const model::Weight& weight, uint64_t rows, uint64_t cols) {
  return weight.data != nullptr && weight.rows == rows && weight.cols == cols && weight.bytes > 0;
}

uint32_t touch(const model::Weight& weight) {
  uint32_t sum = 0;
  for (uint64_t i = 0; i < weight.bytes; ++i) sum += static_cast<const uint8_t*>(weight.data)[i];
  return sum;
}

// Every weight has the shape that the forward pass takes from Config, and all of its bytes.
std::string check_weights(const model::Model& model) {
  const model::Config& c = model.config();
  const model::Weights& w = model.weights();
  const uint64_t queries = uint64_t{c.head_count} * c.head_length;
  const uint64_t keys = uint64_t{c.kv_head_count} * c.head_length;
  WCUDA_EXPECT(is_matrix(w.token_embedding, c.vocabulary_size, c.embedding_length));
  WCUDA_EXPECT(w.layers.size() == c.layer_count);
  const model::DraftHead& head = c.draft_head;
  const uint32_t outputs = head.exists() ? head.vocabulary_size : c.vocabulary_size;
  const uint64_t width = uint64_t{c.embedding_length} * (head.exists() ? 2 : 1);
  WCUDA_EXPECT(is_matrix(w.output, outputs, c.embedding_length));
  if (head.exists()) {
    WCUDA_EXPECT(is_matrix(w.features, c.embedding_length, head.feature_width()));
    WCUDA_EXPECT(w.layers[0].state_norm != nullptr);
    WCUDA_EXPECT(head.norms_features == (w.features_norm != nullptr));
    WCUDA_EXPECT(head.maps_tokens == (w.draft_tokens != nullptr));
    for (uint32_t i = 0; head.maps_tokens && i < outputs; ++i)
      WCUDA_EXPECT(static_cast<uint32_t>(w.draft_tokens[i]) < c.vocabulary_size);
  }
  WCUDA_EXPECT(w.output_norm != nullptr && std::isfinite(w.rope_frequencies[0]));
  volatile uint32_t sum = touch(w.token_embedding) + touch(w.output);
  for (const model::LayerWeights& layer : w.layers) {
    WCUDA_EXPECT(is_matrix(layer.query, queries, width));
    WCUDA_EXPECT(is_matrix(layer.key, keys, width));
    WCUDA_EXPECT(is_matrix(layer.value, keys, width));
    WCUDA_EXPECT(is_matrix(layer.attention_output, c.embedding_length, queries));
    WCUDA_EXPECT(is_matrix(layer.gate, c.feed_forward_length, c.embedding_length));
    WCUDA_EXPECT(is_matrix(layer.up, c.feed_forward_length, c.embedding_length));
    WCUDA_EXPECT(is_matrix(layer.down, c.embedding_length, c.feed_forward_length));
    WCUDA_EXPECT(layer.attention_norm != nullptr && layer.feed_forward_norm != nullptr);
    sum = sum + touch(layer.query) + touch(layer.down);
  }
  return "";
}

}  // namespace

std::string exercise_model(const uint8_t* data, size_t bytes, bool* is_loaded) {
  if (is_loaded != nullptr) *is_loaded = false;
  auto source = gguf::open_memory(data, bytes);
  if (!source.ok()) return "";
  const auto file = gguf::Gguf::open(source.take());
  if (!file.ok()) return "";
  static const std::shared_ptr<Backend> backend = open_host_backend(1u << 30, 1).take();
  const auto plan = model::plan_load(*backend, **file);
  if (!plan.ok()) {
    WCUDA_EXPECT(is_refusal(plan.status()));
    return "";
  }
  if (std::string wrong = check_config(plan->config); !wrong.empty()) return wrong;
  if (plan->weights_bytes + plan->staging_bytes > kLoadedBytesMax) return "";

  const bool is_head = plan->config.draft_head.exists();
  static const std::shared_ptr<model::Model> target = load_target(backend);
  const auto memory = is_head ? target->memory() : vram::Memory::create(backend, 0);
  const uint64_t held = memory->ledger().sum(WCUDA_PURPOSE_WEIGHTS).current_bytes;
  {
    model::LoadOptions options;
    if (is_head) options.target = target;
    const auto model = model::Model::load(memory, *file, options);
    if (model.ok()) {
      WCUDA_EXPECT(memory->ledger().sum(WCUDA_PURPOSE_WEIGHTS).current_bytes - held ==
                   plan->weights_bytes);
      WCUDA_EXPECT(is_head ||
                   memory->ledger().sum(WCUDA_PURPOSE_STAGING).peak_bytes == plan->staging_bytes);
      if (std::string wrong = check_weights(**model); !wrong.empty()) return wrong;
      if (is_loaded != nullptr) *is_loaded = true;
    } else {
      WCUDA_EXPECT(is_head ? is_refusal_of_head(model.status()) : is_refusal(model.status()));
    }
  }
  WCUDA_EXPECT(memory->ledger().sum(WCUDA_PURPOSE_ANY).current_bytes == held);
  WCUDA_EXPECT(memory->ledger().sum(WCUDA_PURPOSE_STAGING).current_bytes == 0);
  return "";
}

}  // namespace wcuda::fuzz
