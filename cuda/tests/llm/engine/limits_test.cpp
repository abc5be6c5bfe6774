#include "llm/engine/limits.h"

#include <gtest/gtest.h>

#include <cstring>

#include "llm/ops/planned_model.h"

namespace wcuda::engine {
namespace {

// The shape of a 135M model.
model::Config config() {
  model::Config config;
  config.layer_count = 30;
  config.vocabulary_size = 49152;
  config.embedding_length = 576;
  config.feed_forward_length = 1536;
  config.head_count = 9;
  config.kv_head_count = 3;
  config.head_length = 64;
  config.context_length = 8192;
  return config;
}

TEST(EngineLimits, zeros_become_the_documented_defaults) {
  const wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;

  const auto limits = resolve_limits(options, config());

  ASSERT_TRUE(limits.ok());
  EXPECT_EQ(limits->max_sequences, 16u);
  EXPECT_EQ(limits->max_batch_tokens, 512u);
  EXPECT_EQ(limits->max_batch_rows, 16u);
  EXPECT_EQ(limits->max_sequence_tokens, 8192u);
  EXPECT_EQ(limits->max_logits_rows, 16u);
  EXPECT_EQ(limits->page_count, 8192u / 64);
}

TEST(EngineLimits, many_short_sequences_have_512_tokens_each_by_default) {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_sequences = 100;
  options.max_sequence_tokens = 64;
  EXPECT_EQ(resolve_limits(options, config())->page_count, 100u * 512 / 64);
}

TEST(EngineLimits, rows_are_at_most_the_sequences_and_the_tokens_of_a_step) {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_sequences = 4;
  options.max_batch_rows = 9;
  EXPECT_EQ(resolve_limits(options, config())->max_step_rows, 4u);
  options.max_batch_tokens = 3;
  EXPECT_EQ(resolve_limits(options, config())->max_step_rows, 3u);
}

// A head of 576 inputs reads three features of its target, and its first layer two vectors.
TEST(EngineLimits, a_draft_head_has_the_widest_of_its_inputs_and_its_own_logits) {
  const auto head_of = [](uint32_t target_width) {
    model::Config head = config();
    head.draft_head.target_width = target_width;
    head.draft_head.vocabulary_size = 3000;
    return head;
  };
  const wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  EXPECT_EQ(resolve_limits(options, head_of(576))->head_cols_max, 3u * 576);
  EXPECT_EQ(resolve_limits(options, head_of(64))->head_cols_max, 2u * 576);

  model::Config head = head_of(576);
  const auto limits = resolve_limits(options, head);
  ASSERT_TRUE(limits.ok());
  const uint64_t without = plan_layout(*limits, head, 0, 0)->scratch_bytes;
  head.draft_head.maps_tokens = true;
  const uint64_t with = plan_layout(*limits, head, 0, 0)->scratch_bytes;
  EXPECT_EQ(with - without, align_up(limits->max_logits_rows * 3000 * sizeof(float), 256));
}

TEST(EngineLimits, refuses_unknown_flags_types_and_excess) {
  wcuda_engine_options flags = WCUDA_ENGINE_OPTIONS_INIT;
  flags.flags = uint64_t{1} << 40;
  wcuda_engine_options type = WCUDA_ENGINE_OPTIONS_INIT;
  type.kv_type = 4;
  wcuda_engine_options top = WCUDA_ENGINE_OPTIONS_INIT;
  top.max_top_logprobs = 129;

  EXPECT_EQ(resolve_limits(flags, config()).status().code(), WCUDA_INVALID_ARGUMENT);
  for (const uint64_t both :
       {WCUDA_ENGINE_PERSISTENT_LAYERS_ON | WCUDA_ENGINE_PERSISTENT_LAYERS_OFF,
        WCUDA_ENGINE_PERSISTENT_LAYERS_ON | WCUDA_ENGINE_BATCH_INVARIANT}) {
    wcuda_engine_options excluded = WCUDA_ENGINE_OPTIONS_INIT;
    excluded.flags = both;
    EXPECT_EQ(resolve_limits(excluded, config()).status().code(), WCUDA_INVALID_ARGUMENT);
  }
  EXPECT_EQ(resolve_limits(type, config()).status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(resolve_limits(top, config()).status().message(),
               "engine option max_top_logprobs is 129, at most 128 is possible");
}

TEST(EngineLimits, rows_of_logits_are_at_most_the_tokens_of_a_step) {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_batch_tokens = 8;
  options.max_logits_rows = 1000;
  EXPECT_EQ(resolve_limits(options, config())->max_logits_rows, 8u);
}

TEST(EngineLimits, pages_are_at_most_2_to_the_28) {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.kv_tokens = uint64_t{1} << 34;
  EXPECT_EQ(resolve_limits(options, config())->page_count, 1u << 28);
  ++options.kv_tokens;
  EXPECT_STREQ(resolve_limits(options, config()).status().message(),
               "engine option kv_tokens is 17179869185, at most 17179869184 is possible");
}

TEST(EngineLimits, kv_bytes_follow_from_pages_heads_and_type) {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_sequences = 1;
  options.max_sequence_tokens = 100;
  options.kv_tokens = 100;
  const auto limits = resolve_limits(options, config());
  ASSERT_TRUE(limits.ok());

  const auto layout = plan_layout(*limits, config(), 0, 0);

  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(limits->page_count, 2u);
  EXPECT_EQ(layout->page_bytes, 30u * 2 * 3 * 64 * (64 * 2));
  EXPECT_EQ(layout->kv_bytes, 2 * layout->page_bytes + align_up(101 * 4, 256));
}

TEST(EngineLimits, regions_do_not_overlap_and_are_aligned) {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_batch_tokens = 3;
  options.max_top_logprobs = 5;
  const auto limits = resolve_limits(options, config());
  ASSERT_TRUE(limits.ok());

  const auto layout = plan_layout(*limits, config(), 777, 64);

  ASSERT_TRUE(layout.ok());
  const uint64_t offsets[] = {layout->x,         layout->query,        layout->key, layout->value,
                              layout->attention, layout->hidden,       layout->ops, layout->runner,
                              layout->ticket,    layout->scratch_bytes};
  for (size_t i = 0; i + 1 < std::size(offsets); ++i) EXPECT_LT(offsets[i], offsets[i + 1]) << i;
  for (const uint64_t offset : offsets) EXPECT_EQ(offset % 256, 0u);
  EXPECT_GE(layout->runner - layout->ops, 777u);
  EXPECT_EQ(layout->scratch_bytes, layout->ticket + 2 * layout->ticket_stride);
}

TEST(EngineLimits, sizes_past_all_bounds_are_an_error) {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.kv_tokens = uint64_t{1} << 34;
  model::Config huge = config();
  huge.layer_count = 1u << 31;
  huge.kv_head_count = 1u << 31;
  const auto limits = resolve_limits(options, huge);
  ASSERT_TRUE(limits.ok());

  EXPECT_EQ(plan_layout(*limits, huge, 0, 0).status().code(), WCUDA_INVALID_ARGUMENT);

  const auto usual = resolve_limits(WCUDA_ENGINE_OPTIONS_INIT, config());
  ASSERT_TRUE(usual.ok());
  EXPECT_TRUE(plan_layout(*usual, config(), 0, 0).ok());
  EXPECT_EQ(plan_layout(*usual, config(), UINT64_MAX - 5, 0).status().code(),
            WCUDA_INVALID_ARGUMENT);
}

// 8B with 1,024 sequences: 65 MB were seen after warm-up, and a graph of longer rows takes about
// 1 MiB.
TEST(PlanGraphBytes, are_near_what_an_h200_takes) {
  const ops::Family model = ops::family("llama", 32, 4096, 14336, 32, 8, 128256);
  const auto bytes_of = [&](uint32_t rows, uint32_t tokens, const ops::DeviceTraits& device) {
    Limits limits;
    limits.max_batch_rows = limits.max_logits_rows = rows;
    limits.max_batch_tokens = tokens;
    limits.max_sequence_tokens = 8192;
    return plan_graph_bytes(limits, model.config, model.weights, device, false);
  };
  for (const ops::Device& device : ops::devices()) {
    SCOPED_TRACE(device.name);
    const uint64_t most = bytes_of(1024, 4096, device.traits);
    if (device.traits.is_host) {
      EXPECT_EQ(most, 0u);
      continue;
    }
    const uint64_t warm_up = bytes_of(1024, 1, device.traits);
    EXPECT_GT(warm_up, 50u << 20);
    EXPECT_LT(warm_up, 90u << 20);
    EXPECT_GT(most - warm_up, 40u << 20);
    EXPECT_LT(most - warm_up, 80u << 20);
    EXPECT_LT(bytes_of(16, 4096, device.traits), most);
  }
}

}  // namespace
}  // namespace wcuda::engine
