// TensorList: names and shapes of an architecture's tensors, and the member of Weights for each.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "llm/model/model.h"

namespace wcuda::model {

enum class Presence { kNone, kOptional, kRequired };

// One tensor. A matrix has rows outputs of cols inputs: dimensions (cols, rows) in the file. A
// vector has rows elements and cols 1: dimensions (rows).
struct TensorSlot {
  std::string name;
  Presence presence = Presence::kRequired;
  bool is_vector = false;
  uint32_t rows = 0;
  uint32_t cols = 1;
  // Exactly one of the four members is set: the target in Weights.
  int64_t layer = -1;
  Weight Weights::*matrix = nullptr;
  Vector Weights::*vector = nullptr;
  Weight LayerWeights::*layer_matrix = nullptr;
  Vector LayerWeights::*layer_vector = nullptr;

  Weight& matrix_in(Weights& weights) const {
    return layer < 0 ? weights.*matrix : weights.layers[static_cast<size_t>(layer)].*layer_matrix;
  }
  Vector& vector_in(Weights& weights) const {
    return layer < 0 ? weights.*vector : weights.layers[static_cast<size_t>(layer)].*layer_vector;
  }
};

class TensorList {
 public:
  void add_matrix(const char* name, Weight Weights::*member, uint32_t rows, uint32_t cols,
                  Presence presence) {
    add({name, presence, false, rows, cols, -1, member});
  }
  void add_vector(const char* name, Vector Weights::*member, uint32_t count, Presence presence) {
    add({name, presence, true, count, 1, -1, nullptr, member});
  }
  // Adds matrix "blk.<layer>.<name>".
  void add_matrix(uint32_t layer, const char* name, Weight LayerWeights::*member, uint32_t rows,
                  uint32_t cols) {
    add({name, Presence::kRequired, false, rows, cols, layer, nullptr, nullptr, member});
  }
  void add_vector(uint32_t layer, const char* name, Vector LayerWeights::*member, uint32_t count,
                  Presence presence) {
    add({name, presence, true, count, 1, layer, nullptr, nullptr, nullptr, member});
  }
  // Allows tensors of this name in any layer, without using them.
  void ignore_in_layers(const char* name) { ignored_.insert(name); }

  const std::vector<TensorSlot>& slots() const { return slots_; }
  bool is_ignored_in_layers(const std::string& name) const { return ignored_.count(name) > 0; }

 private:
  void add(TensorSlot slot);

  std::vector<TensorSlot> slots_;
  std::set<std::string> ignored_;
};

// The differences between the dense families.
struct DenseDecoder {
  Presence query_key_value_bias;
  Presence other_bias;  // of the attention output and of the feed-forward
  Presence query_key_norm;
  Presence attention_sinks = Presence::kNone;
  Presence token_embedding = Presence::kRequired;
  uint32_t attention_width = 0;  // inputs of query, key and value; 0: embedding_length
  uint32_t output_rows = 0;      // 0: vocabulary_size
};
// Lists the tensors of a decoder with gated feed-forward.
void list_dense_decoder(const Config& config, const DenseDecoder& family, TensorList* list);

}  // namespace wcuda::model
