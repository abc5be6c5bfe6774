#include "llm/model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "llm/gguf/gguf_open.h"
#include "llm/model/rope.h"
#include "llm/model/tiny_model.h"

namespace wcuda::model {
namespace {

using testing::GgufBuilder;
using testing::TinyModel;

// Reads the Config of the bytes; they and the file live as long as this.
struct Read {
  explicit Read(std::string file_bytes) : bytes(std::move(file_bytes)) {
    auto opened = testing::open_bytes(bytes);
    if (!opened.ok()) {
      status = opened.status();
      return;
    }
    file = opened.take();
    auto read = read_config(*file);
    status = read.status();
    if (read.ok()) config = read->config;
  }
  std::string bytes;
  std::shared_ptr<gguf::Gguf> file;
  Status status;
  Config config;
};

// A tiny llama without `key`, which `add` may write otherwise.
template <class Add>
Read read_without(const std::string& key, Add&& add, TinyModel tiny = {}) {
  tiny.omit.insert(key);
  GgufBuilder builder = tiny.builder();
  add(builder);
  return Read(builder.build());
}
Read read_u32(const std::string& key, uint32_t value) {
  return read_without(key, [&](GgufBuilder& b) { b.u32(key, value); });
}
Read read_f32(const std::string& key, float value) {
  return read_without(key, [&](GgufBuilder& b) { b.f32(key, value); });
}
std::string message_of(const Read& read) { return read.status.message(); }

TEST(Config, holds_the_hyper_parameters_of_a_file) {
  const Read read(TinyModel().build());

  ASSERT_TRUE(read.status.ok()) << read.status.message();
  const Config& c = read.config;
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.layer_count, 2u);
  EXPECT_EQ(c.vocabulary_size, 97u);
  EXPECT_EQ(c.embedding_length, 64u);
  EXPECT_EQ(c.feed_forward_length, 96u);
  EXPECT_EQ(c.head_count, 4u);
  EXPECT_EQ(c.kv_head_count, 2u);
  EXPECT_EQ(c.head_length, 16u);
  EXPECT_EQ(c.context_length, 512u);
  EXPECT_EQ(c.sliding_window, 0u);
  EXPECT_FLOAT_EQ(c.norm_epsilon, 1e-5f);
  EXPECT_FLOAT_EQ(c.attention_scale, 0.25f);
  EXPECT_EQ(c.embedding_scale, 1.0f);
  EXPECT_EQ(c.rope_pairing, RopePairing::kAdjacent);
  EXPECT_EQ(c.rope_dimension_count, 16u);
  EXPECT_EQ(c.rope_frequencies.size(), 8u);
  EXPECT_EQ(c.rope_magnitude, 1.0f);
  EXPECT_TRUE(c.tied_embeddings);
}

TEST(Config, differs_by_family) {
  TinyModel tiny;
  for (const char* name : {"qwen2", "qwen3"}) {
    tiny.architecture = name;
    const Read read(tiny.build());
    ASSERT_TRUE(read.status.ok()) << read.status.message();
    EXPECT_EQ(read.config.rope_pairing, RopePairing::kHalves);
    EXPECT_EQ(read.config.architecture, name);
  }
}

TEST(Config, takes_defaults_for_keys_that_may_be_absent) {
  TinyModel tiny;
  tiny.kv_head_count = 4;
  tiny.has_tokens = false;
  for (const char* key : {"attention.head_count_kv", "attention.key_length",
                          "attention.value_length", "rope.freq_base"})
    tiny.omit.insert(std::string("llama.") + key);

  const Read read(tiny.build());

  ASSERT_TRUE(read.status.ok()) << read.status.message();
  EXPECT_EQ(read.config.kv_head_count, 4u);
  EXPECT_EQ(read.config.head_length, 16u);
  EXPECT_EQ(read.config.rope_frequency_base, 10000.0f);
}

TEST(Config, names_an_unsupported_architecture_and_those_supported) {
  TinyModel tiny;
  tiny.architecture = "mamba";

  const Read read(tiny.build());

  EXPECT_EQ(read.status.code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(message_of(read),
            "architecture 'mamba' is not supported (supported: llama, qwen2, qwen3, eagle3)");
}

TEST(Config, names_a_required_key_that_is_missing) {
  for (const char* key : {"general.architecture", "llama.block_count", "llama.embedding_length",
                          "llama.feed_forward_length", "llama.attention.head_count",
                          "llama.context_length", "llama.attention.layer_norm_rms_epsilon"}) {
    const Read read = read_without(key, [](GgufBuilder&) {});
    EXPECT_EQ(read.status.code(), WCUDA_MALFORMED) << key;
    EXPECT_NE(message_of(read).find(key), std::string::npos) << message_of(read);
  }
}

TEST(Config, refuses_counts_at_and_past_their_limits) {
  struct Limit {
    const char* key;
    uint32_t limit;
  };
  for (const auto& [key, limit] : {Limit{"llama.block_count", kMaxLayerCount},
                                   Limit{"llama.embedding_length", kMaxEmbeddingLength},
                                   Limit{"llama.feed_forward_length", kMaxFeedForwardLength},
                                   Limit{"llama.attention.head_count", kMaxHeadCount},
                                   Limit{"llama.attention.head_count_kv", kMaxHeadCount},
                                   Limit{"llama.attention.key_length", kMaxHeadLength},
                                   Limit{"llama.context_length", kMaxContextLength}}) {
    EXPECT_EQ(read_u32(key, 0).status.code(), WCUDA_MALFORMED) << key;
    for (const uint32_t value : {limit + 1, UINT32_MAX}) {
      const Read read = read_u32(key, value);
      EXPECT_EQ(read.status.code(), WCUDA_UNSUPPORTED) << key;
      EXPECT_NE(message_of(read).find(std::to_string(value)), std::string::npos);
    }
  }
}

TEST(Config, refuses_keys_of_the_wrong_type) {
  const auto text = [](const char* key) {
    return read_without(key, [&](GgufBuilder& b) { b.string(key, "7"); }).status.code();
  };
  EXPECT_EQ(text("llama.block_count"), WCUDA_UNSUPPORTED);
  EXPECT_EQ(text("llama.attention.layer_norm_rms_epsilon"), WCUDA_UNSUPPORTED);
  EXPECT_EQ(text("llama.rope.freq_base"), WCUDA_UNSUPPORTED);
  EXPECT_EQ(read_u32("general.architecture", 3).status.code(), WCUDA_UNSUPPORTED);
}

TEST(Config, refuses_heads_that_do_not_divide) {
  EXPECT_EQ(read_u32("llama.attention.head_count_kv", 3).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(read_u32("llama.attention.head_count_kv", 8).status.code(), WCUDA_MALFORMED);

  TinyModel tiny;
  tiny.omit = {"llama.attention.key_length", "llama.attention.value_length"};
  const Read read = read_without(
      "llama.attention.head_count", [](GgufBuilder& b) { b.u32("llama.attention.head_count", 6); },
      tiny);
  EXPECT_EQ(read.status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(message_of(read), "embedding length 64 is not a multiple of 6 heads");
}

TEST(Config, refuses_heads_that_are_too_wide_together) {
  TinyModel tiny;
  tiny.omit = {"llama.attention.head_count", "llama.attention.head_count_kv",
               "llama.attention.value_length"};
  const Read read = read_without(
      "llama.attention.key_length",
      [](GgufBuilder& b) {
        b.u32("llama.attention.head_count", kMaxHeadCount);
        b.u32("llama.attention.head_count_kv", 1);
        b.u32("llama.attention.key_length", 64).u32("llama.attention.value_length", 64);
      },
      tiny);
  EXPECT_EQ(read.status.code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(message_of(read), "65536 heads of 64 elements, at most 2097152 elements together");
}

TEST(Config, takes_counts_that_are_written_for_each_layer) {
  const auto with = [](const char* key, const std::vector<uint32_t>& values) {
    TinyModel tiny;
    tiny.layer_count = 3;
    return read_without(
        key, [&](GgufBuilder& b) { b.array<uint32_t>(key, 4, values); }, tiny);
  };
  const char* const kv = "llama.attention.head_count_kv";
  EXPECT_EQ(with(kv, {2, 2, 2}).config.kv_head_count, 2u);
  EXPECT_EQ(with(kv, {1, 1, 1}).config.kv_head_count, 1u);
  EXPECT_EQ(with("llama.attention.head_count", {4, 4, 4}).config.head_count, 4u);
  EXPECT_EQ(with("llama.feed_forward_length", {96, 96, 96}).config.feed_forward_length, 96u);

  const Read differs = with(kv, {2, 2, 4});
  EXPECT_EQ(differs.status.code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(
      message_of(differs),
      "key 'llama.attention.head_count_kv' differs between layers: layers 0 to 1: 2, layer 2: "
      "4; must be equal");
  EXPECT_EQ(with("llama.feed_forward_length", {96, 64, 96}).status.code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(message_of(with(kv, {2, 2})),
            "key 'llama.attention.head_count_kv' has 2 elements, the model 3 layers");
  EXPECT_EQ(with(kv, {2, 2, 2, 2}).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(with(kv, {}).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(with(kv, {0, 0, 0}).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(with(kv, {8, 8, 8}).status.code(), WCUDA_MALFORMED) << "4 heads";
  const uint32_t many = kMaxHeadCount + 1;
  EXPECT_EQ(with(kv, {many, many, many}).status.code(), WCUDA_UNSUPPORTED);
}

TEST(Config, lists_the_first_eight_runs_of_layers_that_differ) {
  TinyModel tiny;
  tiny.layer_count = 12;
  const char* const key = "llama.attention.head_count_kv";
  const auto add = [&](GgufBuilder& b) {
    b.array<uint32_t>(key, 4, {4, 4, 4, 1, 2, 1, 2, 1, 2, 2, 1, 2});
  };
  EXPECT_EQ(
      message_of(read_without(key, add, tiny)),
      "key 'llama.attention.head_count_kv' differs between layers: layers 0 to 2: 4, layer 3: "
      "1, layer 4: 2, layer 5: 1, layer 6: 2, layer 7: 1, layers 8 to 9: 2, layer 10: 1, ...; "
      "must be equal");
}

TEST(Config, refuses_odd_and_unequal_head_lengths) {
  EXPECT_EQ(read_u32("llama.attention.value_length", 32).status.code(), WCUDA_UNSUPPORTED);
  TinyModel tiny;
  tiny.weight_type = tiny.embedding_type = testing::kF32;
  tiny.head_length = 15;
  EXPECT_EQ(Read(tiny.build()).status.code(), WCUDA_UNSUPPORTED);
}

TEST(Config, refuses_rope_sizes_that_are_odd_or_past_the_head) {
  EXPECT_EQ(read_u32("llama.rope.dimension_count", 8).status.code(), WCUDA_OK);
  EXPECT_EQ(read_u32("llama.rope.dimension_count", 7).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(read_u32("llama.rope.dimension_count", 0).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(read_u32("llama.rope.dimension_count", 18).status.code(), WCUDA_UNSUPPORTED);
}

TEST(Config, refuses_numbers_that_are_not_finite_or_not_above_zero) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base",
                          "llama.attention.scale", "llama.rope.scaling.attn_factor"})
    for (const float value : {0.0f, -1.0f, inf, -inf, std::nanf("")})
      EXPECT_EQ(read_f32(key, value).status.code(), WCUDA_MALFORMED) << key << " " << value;
  EXPECT_EQ(read_f32("llama.rope.freq_base", 1.0f).status.code(), WCUDA_MALFORMED);
  for (const float value : {-1.0f, inf, std::nanf("")})
    EXPECT_EQ(read_f32("llama.rope.scaling.factor", value).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(read_f32("llama.rope.scaling.factor", 1e-42f).status.code(), WCUDA_MALFORMED);
}

// A family that has both softcaps; it reads the keys of llama.
const Arch kSoftcapped{"llama", [](const Keys&, Config*) { return Status(); }, nullptr, true};

TEST(Config, softcaps_are_those_of_the_file_where_the_family_has_them) {
  const auto read = [](float attention, float logits) {
    const std::string bytes = TinyModel()
                                  .builder()
                                  .f32("llama.attn_logit_softcapping", attention)
                                  .f32("llama.final_logit_softcapping", logits)
                                  .build();
    return read_config(**testing::open_bytes(bytes), kSoftcapped);
  };

  const auto both = read(50.0f, 30.0f), none = read(0.0f, 0.0f);
  ASSERT_TRUE(both.ok()) << both.status().message();
  ASSERT_TRUE(none.ok()) << none.status().message();

  EXPECT_EQ(both->attention_softcap, 50.0f);
  EXPECT_EQ(both->logit_softcap, 30.0f);
  EXPECT_EQ(none->attention_softcap, 0.0f);
  EXPECT_EQ(none->logit_softcap, 0.0f);
  for (const float value : {-1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_EQ(read(value, 30.0f).status().code(), WCUDA_MALFORMED) << value;
    EXPECT_EQ(read(50.0f, value).status().code(), WCUDA_MALFORMED) << value;
  }
  const std::string without = TinyModel().build();
  const auto absent = read_config(**testing::open_bytes(without), kSoftcapped);
  ASSERT_TRUE(absent.ok()) << absent.status().message();
  EXPECT_EQ(absent->attention_softcap, 0.0f);
  EXPECT_EQ(absent->logit_softcap, 0.0f);
}

TEST(TensorList, attention_sinks_are_a_vector_of_a_family_that_has_them) {
  const Read read(TinyModel().build());
  ASSERT_TRUE(read.status.ok()) << read.status.message();
  TensorList with, without;
  list_dense_decoder(
      read.config, {Presence::kNone, Presence::kNone, Presence::kNone, Presence::kRequired}, &with);
  list_dense_decoder(read.config, {Presence::kNone, Presence::kNone, Presence::kNone}, &without);

  uint32_t found = 0;
  for (const TensorSlot& slot : with.slots()) {
    if (slot.name != "blk." + std::to_string(found) + ".attn_sinks.weight") continue;
    ++found;
    EXPECT_TRUE(slot.is_vector);
    EXPECT_EQ(slot.presence, Presence::kRequired);
    EXPECT_EQ(slot.rows, read.config.head_count);
    EXPECT_EQ(slot.layer_vector, &LayerWeights::attention_sinks);
  }

  EXPECT_EQ(found, read.config.layer_count);
  EXPECT_EQ(without.slots().size() + found, with.slots().size());
}

TEST(Config, refuses_features_it_lacks_and_accepts_their_neutral_values) {
  EXPECT_EQ(read_u32("llama.expert_count", 8).status.code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(read_u32("llama.expert_count", 0).status.code(), WCUDA_OK);
  EXPECT_EQ(read_f32("llama.logit_scale", 2.0f).status.code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(read_f32("llama.logit_scale", 1.0f).status.code(), WCUDA_OK);
  for (const char* key : {"llama.attn_logit_softcapping", "llama.final_logit_softcapping"}) {
    EXPECT_EQ(read_f32(key, 30.0f).status.code(), WCUDA_UNSUPPORTED);
    EXPECT_EQ(read_f32(key, 0.0f).status.code(), WCUDA_OK);
  }
  // 0: the window holds in every layer; from 1 on, some see everything.
  EXPECT_EQ(read_u32("llama.attention.sliding_window_pattern", 0).status.code(), WCUDA_OK);
  EXPECT_EQ(read_u32("llama.attention.sliding_window_pattern", 1).status.code(), WCUDA_UNSUPPORTED);
  const auto causal = [](uint8_t value) {
    return read_without("llama.attention.causal",
                        [&](GgufBuilder& b) { b.boolean("llama.attention.causal", value); });
  };
  EXPECT_EQ(causal(0).status.code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(causal(1).status.code(), WCUDA_OK);
  const Read pattern = read_without("llama.attention.sliding_window_pattern", [](GgufBuilder& b) {
    b.array<uint8_t>("llama.attention.sliding_window_pattern", 7, {1, 0});
  });
  EXPECT_EQ(message_of(pattern),
            "key 'llama.attention.sliding_window_pattern' is set, which is not supported");
}

TEST(Config, reads_what_changes_the_computation) {
  EXPECT_EQ(read_u32("llama.attention.sliding_window", 9).config.sliding_window, 9u);
  EXPECT_EQ(read_f32("llama.attention.scale", 0.5f).config.attention_scale, 0.5f);
  EXPECT_EQ(read_f32("llama.embedding_scale", 8.0f).config.embedding_scale, 8.0f);
  TinyModel tiny;
  tiny.has_output = true;
  EXPECT_FALSE(Read(tiny.build()).config.tied_embeddings);
}

TEST(Config, refuses_a_vocabulary_that_disagrees_with_the_embedding) {
  const auto tokens = [](size_t count) {
    TinyModel tiny;
    tiny.has_tokens = false;
    return Read(
        tiny.builder().strings("tokenizer.ggml.tokens", std::vector<std::string>(count)).build());
  };
  EXPECT_EQ(tokens(97).status.code(), WCUDA_OK);
  EXPECT_EQ(tokens(96).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(message_of(tokens(98)),
            "key 'tokenizer.ggml.tokens' has 98 elements, tensor 'token_embd.weight' 97 rows");
  const Read scores = read_without("tokenizer.ggml.scores", [](GgufBuilder& b) {
    b.array<float>("tokenizer.ggml.scores", 6, {0.0f});
  });
  EXPECT_EQ(scores.status.code(), WCUDA_MALFORMED);
}

TEST(Config, refuses_token_scores_and_types_of_the_wrong_type) {
  const auto with = [](const char* key, uint32_t type, auto element) {
    return read_without(key, [&](GgufBuilder& b) {
      b.array(key, type, std::vector<decltype(element)>(97, element));
    });
  };
  const char* const scores = "tokenizer.ggml.scores";
  const char* const types = "tokenizer.ggml.token_type";
  EXPECT_EQ(with(scores, 6, 0.5f).status.code(), WCUDA_OK);
  EXPECT_EQ(with(types, 5, int32_t{1}).status.code(), WCUDA_OK);
  EXPECT_EQ(with(types, 4, uint32_t{1}).status.code(), WCUDA_OK);

  EXPECT_EQ(message_of(with(scores, 0, uint8_t{1})),
            "key 'tokenizer.ggml.scores' is an array of u8, must be of f32");
  EXPECT_EQ(message_of(with(types, 0, uint8_t{1})),
            "key 'tokenizer.ggml.token_type' is an array of u8, must be of i32");
  EXPECT_EQ(message_of(with(types, 6, 1.0f)),
            "key 'tokenizer.ggml.token_type' is an array of f32, must be of i32");
  EXPECT_EQ(with(scores, 5, int32_t{1}).status.code(), WCUDA_MALFORMED);
  EXPECT_EQ(message_of(read_u32(types, 1)),
            "key 'tokenizer.ggml.token_type' is of type u32, must be an array");
}

TEST(Config, refuses_a_byte_level_tokenizer_without_merges) {
  const char* const merges = "tokenizer.ggml.merges";
  const auto with = [&](auto add) { return read_without(merges, add).status; };
  const Status none = with([](GgufBuilder&) {});
  EXPECT_EQ(none.code(), WCUDA_MALFORMED);
  EXPECT_STREQ(none.message(),
               "tokenizer 'gpt2' needs key 'tokenizer.ggml.merges', which is missing");
  EXPECT_STREQ(with([&](GgufBuilder& b) { b.string(merges, "t 0"); }).message(),
               "key 'tokenizer.ggml.merges' is string, must be an array of strings");
  EXPECT_EQ(with([&](GgufBuilder& b) { b.array<uint8_t>(merges, 0, {1}); }).code(),
            WCUDA_MALFORMED);
  EXPECT_TRUE(with([&](GgufBuilder& b) { b.strings(merges, {}); }).ok())
      << "bytes alone are enough";

  TinyModel no_tokens;  // a file may come without a tokenizer
  no_tokens.has_tokens = false;
  EXPECT_TRUE(Read(no_tokens.builder().string("tokenizer.ggml.model", "gpt2").build()).status.ok());
  EXPECT_TRUE(Read(no_tokens.builder()
                       .string("tokenizer.ggml.model", "llama")
                       .strings("tokenizer.ggml.tokens", std::vector<std::string>(97))
                       .build())
                  .status.ok());
}

TEST(Config, refuses_special_tokens_outside_the_vocabulary) {
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                          "tokenizer.ggml.fim_pre_token_id"}) {
    EXPECT_EQ(read_u32(key, 96).status.code(), WCUDA_OK);
    const Read read = read_u32(key, 97);
    EXPECT_EQ(read.status.code(), WCUDA_MALFORMED);
    EXPECT_EQ(message_of(read),
              "key '" + std::string(key) + "' is 97, the vocabulary has 97 tokens");
    const Read negative = read_without(key, [&](GgufBuilder& b) { b.i32(key, -1); });
    EXPECT_EQ(negative.status.code(), WCUDA_UNSUPPORTED);
  }
}

TEST(Config, needs_an_embedding_table) {
  const Read read = read_without("token_embd.weight", [](GgufBuilder&) {});
  EXPECT_EQ(message_of(read), "tensor 'token_embd.weight' is missing");
}

TEST(RopeFactors, divide_the_frequencies) {
  std::vector<float> frequencies = {1.0f, 0.5f};
  ASSERT_TRUE(apply_rope_factors({2.0f, 8.0f}, &frequencies).ok());
  EXPECT_EQ(frequencies, (std::vector<float>{0.5f, 0.0625f}));
}

TEST(RopeFactors, are_refused_when_one_is_not_finite_or_not_above_zero) {
  // The smallest float, as a divisor, gives infinity.
  for (const float bad : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::denorm_min()}) {
    std::vector<float> frequencies = {1.0f, 0.5f};
    EXPECT_EQ(apply_rope_factors({2.0f, bad}, &frequencies).code(), WCUDA_MALFORMED);
    EXPECT_EQ(frequencies, (std::vector<float>{1.0f, 0.5f}));
  }
}

}  // namespace
}  // namespace wcuda::model
