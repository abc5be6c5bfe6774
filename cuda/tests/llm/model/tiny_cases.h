// The smallest model of each kind that the loader distinguishes: seeds of the model fuzzer.
#pragma once

#include <string>
#include <vector>

#include "llm/model/tiny_model.h"

namespace wcuda::testing {

struct ModelCase {
  std::string name;
  std::string bytes;
  bool loads = true;
};

inline TinyModel smallest_model(const std::string& architecture, uint32_t type = kF32) {
  TinyModel tiny;
  tiny.architecture = architecture;
  tiny.weight_type = tiny.embedding_type = type;
  tiny.layer_count = 1;
  tiny.embedding_length = type == kF32 ? 4 : 32;
  tiny.feed_forward_length = type == kF32 ? 5 : 32;
  tiny.head_count = 2;
  tiny.kv_head_count = 1;
  tiny.head_length = type == kF32 ? 2 : 32;
  tiny.vocabulary_size = 3;
  return tiny;
}

// A draft head of smallest_model("llama"). With `own_tokens` it has an embedding table, and an
// output for the tokens 0 and 2.
inline GgufBuilder smallest_head(bool own_tokens) {
  constexpr uint32_t kDim = 4, kHeadLength = 2, kHeads = 2, kHidden = 5, kTargetDim = 4;
  GgufBuilder b;
  b.string("general.architecture", "eagle3").u32("eagle3.block_count", 1);
  b.u32("eagle3.context_length", 512).u32("eagle3.embedding_length", kDim);
  b.u32("eagle3.feed_forward_length", kHidden).u32("eagle3.attention.head_count", kHeads);
  b.u32("eagle3.attention.head_count_kv", 1).u32("eagle3.attention.key_length", kHeadLength);
  b.u32("eagle3.attention.value_length", kHeadLength).u32("eagle3.vocab_size", 3);
  b.f32("eagle3.attention.layer_norm_rms_epsilon", 1e-5f);
  b.array<uint32_t>("eagle3.target_layers", 4, {0, 1, 1});
  b.u32("eagle3.target_hidden_size", kTargetDim);
  b.boolean("eagle3.norm_before_residual", own_tokens ? 1 : 0);
  b.boolean("eagle3.norm_before_fc", own_tokens ? 1 : 0);
  const auto tensor = [&b](const std::string& name, std::vector<uint64_t> dimensions) {
    uint64_t count = 1;
    for (const uint64_t dimension : dimensions) count *= dimension;
    std::vector<float> values(count);
    for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 7) / 8.0f - 0.25f;
    b.tensor(name, std::move(dimensions), kF32, vector_data(values, kF32));
  };
  tensor("fc.weight", {3 * kTargetDim, kDim});
  if (own_tokens) {
    tensor("enc.output_norm.weight", {3 * kTargetDim});
    tensor("token_embd.weight", {kDim, 3});
    tensor("output.weight", {kDim, 2});
    std::string ids;
    for (const uint64_t id : {0, 2}) GgufBuilder::append(&ids, id);
    b.tensor("d2t", {2}, kI64, ids);
  }
  for (const char* name : {"attn_norm", "attn_norm_2", "ffn_norm"})
    tensor(std::string("blk.0.") + name + ".weight", {kDim});
  tensor("blk.0.attn_q.weight", {2 * kDim, kHeads * kHeadLength});
  tensor("blk.0.attn_k.weight", {2 * kDim, kHeadLength});
  tensor("blk.0.attn_v.weight", {2 * kDim, kHeadLength});
  tensor("blk.0.attn_output.weight", {kHeads * kHeadLength, kDim});
  tensor("blk.0.ffn_gate.weight", {kDim, kHidden});
  tensor("blk.0.ffn_up.weight", {kDim, kHidden});
  tensor("blk.0.ffn_down.weight", {kHidden, kDim});
  tensor("output_norm.weight", {kDim});
  return b;
}

inline std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  for (const char* name : {"llama", "qwen2", "qwen3"})
    cases.push_back({name, smallest_model(name).build(), true});
  for (const uint32_t type : {kQ4_0, kQ4_1, kQ8_0, kF16, kBF16})
    cases.push_back(
        {"llama-type-" + std::to_string(type), smallest_model("llama", type).build(), true});

  TinyModel all = smallest_model("llama");
  all.has_output = all.has_all_biases = all.has_rope_factors = true;
  all.vector_type = kF16;
  cases.push_back({"llama-everything", all.build(), true});
  GgufBuilder yarn = smallest_model("llama").builder();
  yarn.string("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4.0f);
  yarn.u32("llama.rope.scaling.original_context_length", 64);
  yarn.f32("llama.rope.scaling.yarn_log_multiplier", 0.5f);
  cases.push_back({"llama-yarn", yarn.build(), true});
  GgufBuilder window = smallest_model("llama").builder();
  window.u32("llama.attention.sliding_window", 9).u32("tokenizer.ggml.bos_token_id", 1);
  window.u32("llama.expert_count", 0).f32("llama.rope.scale_linear", 2.0f);
  cases.push_back({"llama-window", window.build(), true});
  TinyModel wide = smallest_model("llama");
  wide.vocabulary_size = 17;  // past one strip of rows
  cases.push_back({"llama-odd-rows", wide.build(), true});

  const auto heads_by_layer = [&](const char* name, std::vector<uint32_t> heads, bool loads) {
    TinyModel tiny = smallest_model("llama");
    tiny.layer_count = static_cast<uint32_t>(heads.size());
    tiny.omit.insert("llama.attention.head_count_kv");
    GgufBuilder builder = tiny.builder();
    builder.array<uint32_t>("llama.attention.head_count_kv", 4, heads);
    cases.push_back({name, builder.build(), loads});
  };
  heads_by_layer("kv-heads-by-layer", {1, 1}, true);
  heads_by_layer("kv-heads-differ", {1, 2}, false);
  const std::vector<uint8_t> bytes(3, 1);
  GgufBuilder scores = smallest_model("llama").builder(), types = smallest_model("llama").builder();
  scores.array<uint8_t>("tokenizer.ggml.scores", 0, bytes);
  types.array<uint8_t>("tokenizer.ggml.token_type", 0, bytes);
  cases.push_back({"token-scores-u8", scores.build(), false});
  cases.push_back({"token-types-u8", types.build(), false});
  TinyModel no_merges = smallest_model("llama");
  no_merges.omit.insert("tokenizer.ggml.merges");
  cases.push_back({"gpt2-without-merges", no_merges.build(), false});

  cases.push_back({"eagle3", smallest_head(true).build(), true});
  cases.push_back({"eagle3-without-tokens", smallest_head(false).build(), true});
  return cases;
}

}  // namespace wcuda::testing
