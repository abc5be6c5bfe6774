// A small random model of any family and weight type, as a GGUF file in memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "llm/gguf/gguf_builder.h"
#include "llm/quant/format.h"

namespace wcuda::testing {

using namespace tensor_type;

struct TinyModel {
  std::string architecture = "llama";
  uint32_t weight_type = kQ8_0;  // of all matrices; blocks of 256 need lengths that are multiples
  uint32_t embedding_type = kQ8_0;  // of token_embd and output
  uint32_t vector_type = kF32;      // F32, F16 or BF16
  uint32_t layer_count = 2;
  uint32_t embedding_length = 64;
  uint32_t feed_forward_length = 96;
  uint32_t head_count = 4;
  uint32_t kv_head_count = 2;
  uint32_t head_length = 16;
  uint32_t vocabulary_size = 97;
  uint32_t context_length = 512;
  uint32_t rope_dimension_count = 0;  // 0: not written, which means head_length
  float rope_frequency_base = 10000.0f;
  bool has_output = false;          // false: tied embeddings
  bool has_all_biases = false;      // llama: those of queries, keys and values too
  bool has_rope_factors = false;    // rope_freqs.weight
  bool has_tokens = true;           // tokenizer.ggml.tokens
  uint32_t nan_token = UINT32_MAX;  // embedding_type kQ8_0: the token whose embedding is NaN
  uint32_t seed = 1;
  std::set<std::string> omit;  // keys and tensors left out; the caller may add them otherwise

  // Sizes that every weight type can hold.
  static TinyModel of_type(uint32_t weight_type) {
    TinyModel model;
    model.weight_type = weight_type;
    model.embedding_type = weight_type;
    model.embedding_length = 256;
    model.feed_forward_length = 512;
    model.head_length = 64;
    return model;
  }

  GgufBuilder builder() const;
  std::string build() const { return builder().build(); }
};

// Blocks of a type with values of about 0.1, random otherwise.
class BlockGenerator {
 public:
  BlockGenerator(uint32_t type, std::mt19937* generator)
      : format_(*quant::find_format(type)), generator_(*generator) {
    // Random bytes, thrown again until the values are finite and neither all zero nor large.
    for (int tries = 0; pool_.size() < kPoolSize && tries < 1000000; ++tries) {
      std::string block(format_.block_bytes, '\0');
      for (char& byte : block) byte = static_cast<char>(generator_());
      std::vector<float> values(format_.block_elements);
      format_.unpack(reinterpret_cast<const uint8_t*>(block.data()), values.data());
      float largest = 0.0f;
      bool finite = true;
      for (const float value : values) {
        finite = finite && std::isfinite(value);
        largest = std::max(largest, std::fabs(value));
      }
      if (finite && largest > 0.02f && largest < 0.4f) pool_.push_back(block);
    }
  }
  // Data of `elements` elements, a whole number of blocks.
  std::string take(uint64_t elements) {
    std::string data;
    for (uint64_t i = 0; i < elements / format_.block_elements; ++i)
      data += pool_.at(generator_() % pool_.size());
    return data;
  }

 private:
  static constexpr size_t kPoolSize = 256;
  const quant::Format& format_;
  std::mt19937& generator_;
  std::vector<std::string> pool_;
};

// Values of a vector in F32, F16 or BF16; exact in each when they are multiples of 1/64 near 1.
inline std::string vector_data(const std::vector<float>& values, uint32_t type) {
  std::string data;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000, exponent = bits >> 23 & 0xff;
    const uint32_t half =
        exponent < 113 ? sign : sign | (exponent - 112) << 10 | (bits >> 13 & 0x3ff);
    if (type == kF32) GgufBuilder::append(&data, bits);
    if (type == kF16) GgufBuilder::append(&data, static_cast<uint16_t>(half));
    if (type == kBF16) GgufBuilder::append(&data, static_cast<uint16_t>(bits >> 16));
  }
  return data;
}

inline GgufBuilder TinyModel::builder() const {
  std::mt19937 generator(seed);
  BlockGenerator weights(weight_type, &generator), embeddings(embedding_type, &generator);
  GgufBuilder b;
  const std::string a = architecture + ".";
  const auto wanted = [this](const std::string& name) { return omit.count(name) == 0; };
  const auto u32 = [&](const std::string& key, uint32_t value) {
    if (wanted(key)) b.u32(key, value);
  };
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols, bool embedding) {
    BlockGenerator& blocks = embedding ? embeddings : weights;
    std::string data = blocks.take(rows * cols);
    if (name == "token_embd.weight" && nan_token < rows) {  // f16 scales of q8_0
      const uint64_t row_bytes = data.size() / rows;
      for (uint64_t at = 0; at < row_bytes; at += 34)
        data.replace(nan_token * row_bytes + at, 2, "\x00\x7e", 2);
    }
    if (wanted(name)) b.tensor(name, {cols, rows}, embedding ? embedding_type : weight_type, data);
  };
  const auto vector = [&](const std::string& name, uint64_t count, float middle) {
    std::vector<float> values(count);
    for (float& value : values)
      value = middle + static_cast<float>(static_cast<int>(generator() % 33) - 16) / 64.0f;
    if (wanted(name)) b.tensor(name, {count}, vector_type, vector_data(values, vector_type));
  };

  if (wanted("general.architecture")) b.string("general.architecture", architecture);
  u32(a + "block_count", layer_count);
  u32(a + "embedding_length", embedding_length);
  u32(a + "feed_forward_length", feed_forward_length);
  u32(a + "attention.head_count", head_count);
  u32(a + "attention.head_count_kv", kv_head_count);
  u32(a + "attention.key_length", head_length);
  u32(a + "attention.value_length", head_length);
  u32(a + "context_length", context_length);
  if (rope_dimension_count) u32(a + "rope.dimension_count", rope_dimension_count);
  if (wanted(a + "rope.freq_base")) b.f32(a + "rope.freq_base", rope_frequency_base);
  if (wanted(a + "attention.layer_norm_rms_epsilon"))
    b.f32(a + "attention.layer_norm_rms_epsilon", 1e-5f);
  if (has_tokens) {
    std::vector<std::string> tokens;
    for (uint32_t i = 0; i < vocabulary_size; ++i) tokens.push_back("t" + std::to_string(i));
    b.string("tokenizer.ggml.model", "gpt2").strings("tokenizer.ggml.tokens", tokens);
    if (wanted("tokenizer.ggml.merges")) b.strings("tokenizer.ggml.merges", {"t 0"});
  }

  const uint32_t queries = head_count * head_length, keys = kv_head_count * head_length;
  matrix("token_embd.weight", vocabulary_size, embedding_length, true);
  if (has_rope_factors) {
    std::vector<float> factors(head_length / 2);
    for (size_t i = 0; i < factors.size(); ++i) factors[i] = 1.0f + 0.5f * static_cast<float>(i);
    if (wanted("rope_freqs.weight")) b.tensor_f32("rope_freqs.weight", {factors.size()}, factors);
  }
  for (uint32_t i = 0; i < layer_count; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    vector(layer + "attn_norm.weight", embedding_length, 1.0f);
    matrix(layer + "attn_q.weight", queries, embedding_length, false);
    matrix(layer + "attn_k.weight", keys, embedding_length, false);
    matrix(layer + "attn_v.weight", keys, embedding_length, false);
    if (architecture == "qwen2" || has_all_biases) {
      vector(layer + "attn_q.bias", queries, 0.0f);
      vector(layer + "attn_k.bias", keys, 0.0f);
      vector(layer + "attn_v.bias", keys, 0.0f);
    }
    if (architecture == "qwen3") {
      vector(layer + "attn_q_norm.weight", head_length, 1.0f);
      vector(layer + "attn_k_norm.weight", head_length, 1.0f);
    }
    matrix(layer + "attn_output.weight", embedding_length, queries, false);
    vector(layer + "ffn_norm.weight", embedding_length, 1.0f);
    matrix(layer + "ffn_gate.weight", feed_forward_length, embedding_length, false);
    matrix(layer + "ffn_up.weight", feed_forward_length, embedding_length, false);
    matrix(layer + "ffn_down.weight", embedding_length, feed_forward_length, false);
    if (has_all_biases) {
      vector(layer + "attn_output.bias", embedding_length, 0.0f);
      vector(layer + "ffn_gate.bias", feed_forward_length, 0.0f);
      vector(layer + "ffn_up.bias", feed_forward_length, 0.0f);
      vector(layer + "ffn_down.bias", embedding_length, 0.0f);
    }
  }
  vector("output_norm.weight", embedding_length, 1.0f);
  if (has_output) matrix("output.weight", vocabulary_size, embedding_length, true);
  return b;
}

}  // namespace wcuda::testing
