// Models of random weights in the shapes of well-known ones, served piece by piece: a 42 GB file
// need not exist. The same options give the same bytes on every machine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "worker_cuda.h"

namespace wcuda::bench {

// A dense decoder of the llama family.
struct Shape {
  const char* name;  // "8b"
  uint32_t layer_count;
  uint32_t embedding_length;
  uint32_t head_count;
  uint32_t kv_head_count;
  uint32_t head_length;
  uint32_t feed_forward_length;
  uint32_t vocabulary_size;
  bool tied_embeddings;
};

// tiny (for tests), 135m (SmolLM2), 0.5b (Qwen2.5), 0.6b (Qwen3), 1b (Llama 3.2), 8b and 70b
// (Llama 3); null for another name.
const Shape* find_shape(const std::string& name);

// A GGUF file: matrices of random blocks with values of about 0.02 and mean 0,
// so that logits stay finite at any depth, and norms of about 1.
class SyntheticModel {
 public:
  // `mix` is q4_k_m (attn_v and ffn_down of half the layers, and the output, are Q6_K, as
  // llama-quantize has it) or the name of a tensor type that all matrices have. Where the columns
  // are no multiple of a type's block, its substitute of 32-element blocks is taken, again as
  // there. WCUDA_NOT_FOUND for other names. With a vocabulary it can be served: every byte is a
  // token, the others are words. The shape NAME-head is an EAGLE-3 draft head for the model NAME.
  static Result<SyntheticModel> make(const std::string& shape, const std::string& mix,
                                     bool has_vocabulary = false);

  const Shape& shape() const { return *shape_; }
  uint64_t bytes() const { return bytes_; }
  // Bytes of all matrices that a token is multiplied with: not of an untied embedding table.
  uint64_t multiplied_bytes() const { return multiplied_bytes_; }

  // The file's bytes offset … offset + bytes - 1, within bytes(). [any thread]
  void read(uint64_t offset, uint8_t* target, uint64_t bytes) const;
  // A callback source; the model must outlive what is opened from it.
  wcuda_source source() const;
  // The whole file at `path`.
  Status write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    uint32_t type;
    std::vector<uint64_t> dimensions;
    uint64_t file_offset;
    uint64_t bytes;
    uint32_t pool;
    uint64_t pool_offset;  // where in its pool the tensor's data begins
  };

  void add(const std::string& name, const std::string& role, uint32_t layer, uint64_t rows,
           uint64_t cols);
  void add_norm(const std::string& name);
  void add_draft_tokens();
  void add_layer(uint32_t layer);
  void add_draft_head();
  void place_tensors(bool has_vocabulary);
  uint32_t pick_type(const std::string& role, uint32_t layer, uint64_t cols) const;

  const Shape* shape_ = nullptr;
  bool is_draft_head_ = false;  // of a model of this shape
  std::string mix_;
  uint32_t base_type_ = 0;
  std::string header_;  // up to the first tensor's data
  std::vector<Tensor> tensors_;
  // By type, kNormPool or kTokenPool: random blocks, repeated over a tensor. A prime number of
  // them, so that no two rows of a matrix are alike.
  std::map<uint32_t, std::vector<uint8_t>> pools_;
  uint64_t bytes_ = 0;
  uint64_t multiplied_bytes_ = 0;
};

}  // namespace wcuda::bench
