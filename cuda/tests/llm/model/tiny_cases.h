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
  return cases;
}

}  // namespace wcuda::testing
