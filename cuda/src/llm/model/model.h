// A loaded model: its hyper-parameters, its weights on the device, and how it is loaded.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/vram/memory.h"
#include "llm/gguf/gguf.h"
#include "llm/model/weight.h"

namespace wcuda::model {

// The features of a token, which a draft head reads, are the residual streams of a target model
// before this many of its layers, one after the other.
constexpr uint32_t kFeatureLayers = 3;

// What a draft head has besides a decoder (EAGLE-3: Li, Wei, Zhang, Zhang 2025; architecture eagle3
// of llama.cpp). A head is no model of its own: its inputs are features of its target model.
struct DraftHead {
  uint32_t target_width = 0;  // embedding length of the target; 0: this is no draft head
  uint32_t target_layers[kFeatureLayers] = {};  // the target's layer count: after its last layer
  bool norms_features = false;   // before `features`, which projects them to the head's width
  bool norms_residual = false;   // the residual stream begins with the normed projection
  uint32_t vocabulary_size = 0;  // tokens that the head can draft: rows of the output matrix
  bool maps_tokens = false;      // its tokens are not numbered as the target's
  std::vector<int32_t> tokens;   // (vocabulary_size) the target's tokens, if so; read when loaded

  bool exists() const { return target_width != 0; }
  uint32_t feature_width() const { return kFeatureLayers * target_width; }
};

// Hyper-parameters and flags of a dense decoder. An architecture fills them in, and they are
// checked as a whole. The forward pass reads nothing else.
struct Config {
  std::string architecture;
  uint32_t layer_count = 0;
  uint32_t vocabulary_size = 0;
  uint32_t embedding_length = 0;
  uint32_t feed_forward_length = 0;
  uint32_t head_count = 0;
  uint32_t kv_head_count = 0;
  uint32_t head_length = 0;     // of queries, keys and values
  uint32_t context_length = 0;  // of the training
  uint32_t sliding_window = 0;  // 0: none
  float norm_epsilon = 0.0f;
  float attention_scale = 0.0f;  // resolved: 1 / sqrt(head_length) unless the file says otherwise
  float embedding_scale = 1.0f;
  float attention_softcap = 0.0f;  // scores become softcap * tanh(score / softcap); 0: unchanged
  float logit_softcap = 0.0f;      // the same for logits
  float rope_frequency_base = 10000.0f;
  RopePairing rope_pairing = RopePairing::kAdjacent;
  uint32_t rope_dimension_count = 0;
  float rope_magnitude = 1.0f;          // YaRN
  std::vector<float> rope_frequencies;  // (rope_dimension_count / 2) scaling and factors applied
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;  // no output.weight: the embedding table is used
  DraftHead draft_head;
};

struct LayerWeights {
  Vector attention_norm = nullptr;  // (embedding_length); in a draft head that of the token
  Vector state_norm = nullptr;      // (embedding_length) of a draft head's state
  Weight query, key, value;  // (heads * head_length, embedding_length; in a draft head twice that)
  Vector query_bias = nullptr, key_bias = nullptr, value_bias = nullptr;
  Vector attention_sinks = nullptr;  // (head_count) an extra score of each head, whose value is 0
  Vector query_norm = nullptr, key_norm = nullptr;  // (head_length)
  Weight attention_output;                          // (embedding_length, heads * head_length)
  Vector attention_output_bias = nullptr;
  Vector feed_forward_norm = nullptr;
  Weight gate, up;  // (feed_forward_length, embedding_length)
  Weight down;      // (embedding_length, feed_forward_length)
  Vector gate_bias = nullptr, up_bias = nullptr, down_bias = nullptr;
};

struct Weights {
  Weight token_embedding;  // (vocabulary, embedding_length)
  Weight output;           // the same; equals token_embedding when tied
  Vector output_norm = nullptr;
  Vector output_bias = nullptr;
  Vector rope_frequencies = nullptr;
  std::vector<LayerWeights> layers;
  // Of a draft head.
  Weight features;                        // (embedding_length, feature_width)
  Vector features_norm = nullptr;         // (feature_width)
  const int32_t* draft_tokens = nullptr;  // (draft_head.vocabulary_size); null: the target's tokens
};

// The exact memory that a load needs, computed from the header alone. If rope factors are the data
// of a tensor (Llama 3), config.rope_frequencies does not have them yet; loading applies them.
struct LoadPlan {
  Config config;
  uint64_t weights_bytes = 0;
  uint64_t staging_bytes = 0;  // pinned host memory, while loading
  uint64_t loading_bytes = 0;  // device memory besides the weights, while loading
  uint64_t parameter_count = 0;
  Weights weights;  // types, shapes and bytes of all matrices, without addresses
};
class Model;
// Matrices that a draft head takes from its `target` are not part of the plan's bytes. Without a
// target only their shapes are known.
Result<LoadPlan> plan_load(const Backend& backend, const gguf::Gguf& file,
                           const Model* target = nullptr);

using Digest = std::array<uint8_t, 32>;

struct TensorDigests {
  Digest file;      // BLAKE3 of its bytes as in the file
  Digest resident;  // of its bytes on the device
};

// A tensor of the file on the device.
struct ResidentTensor {
  std::string name;
  uint64_t index = 0;  // into the file's tensors
  Weight matrix;       // a vector is f32, with cols 1 and the type of the file
  bool is_vector = false;
  TensorDigests digests{};  // taken while loading
};

struct LoadOptions {
  // phase (WCUDA_LOAD_PLAN to _SEAL; the caller reports _DONE), bytes of the file done,
  // total; returns false to stop. Runs on the loading thread. May be empty.
  std::function<bool(int32_t, uint64_t, uint64_t)> progress;
  // Called at least every 16 MiB read, on any thread and concurrently. May be empty.
  std::function<bool()> is_cancelled;
  // The model whose features a draft head reads, in the same memory; a file of another architecture
  // must not have one. The head keeps it loaded.
  std::shared_ptr<Model> target;
};

class Model {
 public:
  // On failure, no memory stays allocated.
  static Result<std::shared_ptr<Model>> load(std::shared_ptr<vram::Memory> memory,
                                             std::shared_ptr<gguf::Gguf> file,
                                             const LoadOptions& options);
  const Config& config() const { return plan_.config; }
  const Weights& weights() const { return weights_; }
  const LoadPlan& plan() const { return plan_; }
  const std::shared_ptr<vram::Memory>& memory() const { return memory_; }
  const std::shared_ptr<Model>& target() const { return target_; }  // of a draft head
  // In the order of the file, without rope factors, because these become part of a table.
  const std::vector<ResidentTensor>& tensors() const { return tensors_; }

  // Returns the digests of tensor `index` of the file, which were computed while loading. On the
  // host, the digest of the file's bytes is computed from the weights, restored to the order of the
  // file. Returns WCUDA_NOT_FOUND for a tensor that is not among the weights. Thread-safe.
  Result<TensorDigests> digests(uint64_t index) const;
  // Thread-safe. Computes every resident digest again. WCUDA_INTEGRITY names the first that
  // differs.
  Status verify() const;

 private:
  friend class Loader;
  Status take_digests();
  Model() = default;
  std::shared_ptr<vram::Memory> memory_;
  std::shared_ptr<Model> target_;
  LoadPlan plan_;
  Weights weights_;
  std::vector<vram::Buffer> buffers_;
  std::vector<ResidentTensor> tensors_;
};

}  // namespace wcuda::model
