// Models and devices for plans of steps: sizes, types and traits, without memory.
#pragma once

#include <cstdint>
#include <vector>

#include "llm/ops/step_plan.h"

namespace wcuda::ops {

struct Family {
  const char* name;
  model::Config config;
  model::Weights weights;
};

// Sizes of a model of the family; all matrices Q4_K, but as in Q4_K_M value and down of the last
// layer, and the output, Q6_K.
inline Family family(const char* name, uint32_t layers, uint32_t embedding, uint32_t feed_forward,
                     uint32_t heads, uint32_t kv_heads, uint32_t vocabulary) {
  using namespace tensor_type;
  Family result{name, {}, {}};
  model::Config& config = result.config;
  config.architecture = name;
  config.layer_count = layers;
  config.vocabulary_size = vocabulary;
  config.embedding_length = embedding;
  config.feed_forward_length = feed_forward;
  config.head_count = heads;
  config.kv_head_count = kv_heads;
  config.head_length = config.rope_dimension_count = 128;
  const auto matrix = [](uint32_t type, uint32_t rows, uint32_t cols) {
    model::Weight weight;
    weight.type = type;
    weight.rows = rows;
    weight.cols = cols;
    return weight;
  };
  for (uint32_t i = 0; i < layers; ++i) {
    const uint32_t some = i + 1 == layers ? kQ6_K : kQ4_K;
    model::LayerWeights w;
    w.query = matrix(kQ4_K, heads * 128, embedding);
    w.key = matrix(kQ4_K, kv_heads * 128, embedding);
    w.value = matrix(some, kv_heads * 128, embedding);
    w.attention_output = matrix(kQ4_K, embedding, heads * 128);
    w.gate = w.up = matrix(kQ4_K, feed_forward, embedding);
    w.down = matrix(some, embedding, feed_forward);
    result.weights.layers.push_back(w);
  }
  result.weights.token_embedding = result.weights.output = matrix(kQ6_K, vocabulary, embedding);
  return result;
}

struct Device {
  const char* name;
  DeviceTraits traits;
};

inline std::vector<Device> devices() {
  DeviceTraits host, ampere, hopper;
  ampere.is_host = hopper.is_host = false;
  ampere.compute_capability = 80;
  ampere.sm_count = 108;
  ampere.shared_bytes_max = 166912;
  ampere.has_resident_grid = true;
  hopper = ampere;
  hopper.compute_capability = 90;
  hopper.sm_count = 132;
  hopper.shared_bytes_max = 232448;
  hopper.has_warpgroup_code = true;
  return {{"host", host}, {"80", ampere}, {"90", hopper}};
}

}  // namespace wcuda::ops
