// Plans of steps of every family, shape class and device, as text that is committed under plans/.
// WCUDA_REWRITE_PLANS=1 rewrites the files.
#include "llm/ops/step_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "llm/ops/planned_model.h"

namespace wcuda::ops {
namespace {

// The draft head of a llama with a vocabulary of its own. Rows of several tokens read features.
Family draft_head() {
  Family head = family("eagle3", 1, 4096, 14336, 32, 8, 128256);
  head.config.draft_head.target_width = 4096;
  head.config.draft_head.vocabulary_size = 32000;
  head.config.draft_head.maps_tokens = true;
  model::LayerWeights& w = head.weights.layers[0];
  w.query.cols = w.key.cols = w.value.cols = 8192;
  head.weights.features = w.attention_output;
  head.weights.features.cols = 12288;
  head.weights.output.rows = 32000;
  return head;
}

std::vector<Family> families() {
  return {family("llama", 4, 4096, 14336, 32, 8, 128256),
          family("qwen2", 4, 3584, 18944, 28, 4, 152064),
          family("qwen3", 4, 5120, 17408, 40, 8, 151936), draft_head()};
}

// The step of a family that is launched for this shape.
StepShape shape_of(const Family& family, StepShape shape) {
  shape.has_features = family.config.draft_head.exists() && shape.max_row_tokens > 1;
  return shape;
}

struct NamedShape {
  const char* name;
  StepShape shape;
};

StepShape decode(uint32_t rows, uint32_t positions) { return {rows, rows, rows, 0, 1, positions}; }

std::vector<NamedShape> cases() {
  return {{"decode, 1 row, 200 positions", decode(1, 256)},
          {"decode, 1 row, 2000 positions", decode(1, 2048)},
          {"decode, 1 row, 4000 positions", decode(1, 8192)},
          {"decode, 1 row, 20000 positions", decode(1, 32768)},
          {"decode, 8 rows, 4000 positions", decode(8, 8192)},
          {"decode, 64 rows", decode(64, 32768)},
          {"decode, 256 rows", decode(256, 32768)},
          {"decode, 8 rows, shared prefix", {8, 8, 8, 0, 1, 8192, true}},
          {"decode, 64 rows, shared prefix", {64, 64, 64, 0, 1, 32768, true}},
          {"prefill, 1 row of 5 tokens", {5, 1, 1, 5, 5, 5}},
          {"prefill, 1 row of 100 tokens", {100, 1, 1, 100, 100, 100}},
          {"prefill, 1 row of 512 tokens", {512, 1, 1, 512, 512, 512}},
          {"prefill without logits, 2048 tokens", {2048, 1, 0, 2048, 2048, 4096}},
          {"mixed, 6 rows, 8 tokens", {8, 6, 6, 1, 3, 700}},
          {"mixed, 9 rows, 40 tokens", {40, 9, 9, 1, 32, 700}},
          {"mixed, 20 rows, 400 tokens", {400, 20, 20, 1, 300, 700}}};
}

Limits limits_of(const model::Config& config, bool is_batch_invariant) {
  Limits limits{};
  limits.max_batch_tokens = 2048;
  limits.max_batch_rows = limits.max_logits_rows = 256;
  limits.max_sequence_tokens = 32768;
  limits.embedding_length = config.embedding_length;
  limits.feed_forward_length = config.feed_forward_length;
  limits.head_count = config.head_count;
  limits.kv_head_count = config.kv_head_count;
  limits.head_length = config.head_length;
  limits.vocabulary_size = config.vocabulary_size;
  limits.batch_invariant = is_batch_invariant;
  if (config.draft_head.exists()) limits.head_cols_max = config.draft_head.feature_width();
  return limits;
}

std::string line(const Node& node, uint32_t layer_count) {
  std::string text = std::string("  ") + operation_name(node.operation);
  if (node.operation == Operation::kPersistentLayers)
    for (uint32_t i = 0; i < node.fused_count; ++i) {
      const LayerOperation part = fused_operation(node, i, layer_count);
      text += std::string(i == 0 ? "(" : ", ") +
              (part.operation == Operation::kQueryKeyValue ? "next " : "") +
              operation_name(part.operation);
    }
  if (node.operation == Operation::kPersistentLayers) text += ")";
  text += std::string(": ") + kernel_name(node.kernel) + ", " + form_name(node.input);
  if (node.table != Form::kNone) text += std::string(" by ") + form_name(node.table);
  text += std::string(" -> ") + form_name(node.output);
  return text + "\n";
}

// Nodes by layer; of layers that are alike the first.
std::string describe(const StepPlan& plan, uint32_t layer_count) {
  std::string text, block, last;
  uint32_t first = kNoLayer, end = kNoLayer;
  const auto flush = [&] {
    if (first == kNoLayer) return;
    text += "  layer " + std::to_string(first);
    if (end != first) text += " to " + std::to_string(end);
    text += "\n" + last;
    first = kNoLayer;
  };
  for (size_t i = 0; i < plan.nodes.size();) {
    const uint32_t layer = plan.nodes[i].layer;
    block.clear();
    for (; i < plan.nodes.size() && plan.nodes[i].layer == layer; ++i)
      block += (layer == kNoLayer ? "" : "  ") + line(plan.nodes[i], layer_count);
    if (layer == kNoLayer) {
      flush();
      text += block;
      continue;
    }
    if (first != kNoLayer && block != last) flush();
    if (first == kNoLayer) first = layer;
    end = layer;
    last = block;
  }
  flush();
  return text;
}

std::string plans_of(const Family& family) {
  std::string text = "Steps of " + std::string(family.name) + ": " +
                     std::to_string(family.config.layer_count) + " layers, embedding " +
                     std::to_string(family.config.embedding_length) + ", feed-forward " +
                     std::to_string(family.config.feed_forward_length) +
                     ", Q4_K with Q6_K in the last layer and the output.\n";
  for (const bool is_batch_invariant : {false, true})
    for (const Device& device : devices())
      for (const NamedShape& c : cases()) {
        const Limits limits = limits_of(family.config, is_batch_invariant);
        if (c.shape.has_shared_prefix &&
            !allows_shared_prefix(family.config, limits, device.traits, c.shape))
          continue;
        const StepPlan plan = plan_step(family.config, family.weights, limits, device.traits,
                                        shape_of(family, c.shape));
        text += std::string("\n") + c.name + "; " + device.name +
                (is_batch_invariant ? "; batch-invariant\n" : "\n") +
                describe(plan, family.config.layer_count);
      }
  return text;
}

class StepPlans : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Families, StepPlans, ::testing::Values(0, 1, 2, 3),
                         [](const auto& info) { return std::string(families()[info.param].name); });

TEST_P(StepPlans, are_those_committed) {
  const Family family = families()[GetParam()];
  const std::string path = std::string(WCUDA_TEST_DATA "/../llm/ops/plans/") + family.name + ".txt";
  const std::string plans = plans_of(family);
  const char* const rewrite = std::getenv("WCUDA_REWRITE_PLANS");
  if (rewrite != nullptr && std::string(rewrite) == "1") {
    std::ofstream(path) << plans;
    return;
  }

  std::ostringstream expected;
  expected << std::ifstream(path).rdbuf();

  EXPECT_EQ(plans, expected.str()) << "WCUDA_REWRITE_PLANS=1 writes " << path;
}

TEST(StepPlan, names_every_linear_layer_once) {
  for (const Family& family : families())
    for (const Device& device : devices())
      for (const NamedShape& c : cases()) {
        const StepPlan plan =
            plan_step(family.config, family.weights, limits_of(family.config, false), device.traits,
                      shape_of(family, c.shape));
        uint32_t count = 0;
        for (const Node& node : plan.nodes) {
          if (node.operation == Operation::kPersistentLayers) count += node.fused_count;
          if (node.operation == Operation::kQueryKeyValue ||
              node.operation == Operation::kAttentionOutput ||
              node.operation == Operation::kGateUp || node.operation == Operation::kDown ||
              node.operation == Operation::kLogits)
            ++count;
        }
        const uint32_t logits = c.shape.logits_count != 0 ? 1 : 0;
        EXPECT_EQ(count, 4 * family.config.layer_count + logits) << family.name << " " << c.name;
      }
}

TEST(StepPlan, softcap_of_logits_is_a_node_where_config_has_one) {
  Family llama = families()[0];
  llama.config.logit_softcap = 30.0f;
  const Limits limits = limits_of(llama.config, false);
  for (const Device& device : devices()) {
    const auto last = [&](uint32_t logits) {
      const StepPlan plan =
          plan_step(llama.config, llama.weights, limits, device.traits, {5, 1, logits, 5, 5, 5});
      return plan.nodes.back();
    };
    EXPECT_EQ(last(1).operation, Operation::kSoftcapLogits) << device.name;
    EXPECT_EQ(last(1).kernel, device.traits.is_host ? Kernel::kHost : Kernel::kSoftcap);
    EXPECT_EQ(last(0).operation, Operation::kDown) << "no logits, no softcap";
  }
}

TEST(StepPlan, hidden_states_are_a_node_before_the_logits) {
  const Family llama = families()[0];
  const Limits limits = limits_of(llama.config, false);
  for (const Device& device : devices()) {
    StepShape shape{5, 1, 1, 5, 5, 5};
    const StepPlan without = plan_step(llama.config, llama.weights, limits, device.traits, shape);
    shape.has_hidden_states = true;
    const StepPlan with = plan_step(llama.config, llama.weights, limits, device.traits, shape);

    ASSERT_EQ(with.nodes.size(), without.nodes.size() + 1) << device.name;
    const Node& node = with.nodes[with.nodes.size() - 2];
    EXPECT_EQ(node.operation, Operation::kHiddenState) << device.name;
    EXPECT_EQ(node.kernel, device.traits.is_host ? Kernel::kHost : Kernel::kHiddenState);
    EXPECT_EQ(with.nodes.back().operation, Operation::kLogits) << device.name;
  }
}

// Nothing adds to x between the end of a layer and the attention of the next one, so that no node
// is split.
TEST(StepPlan, features_are_kept_by_nodes_besides_those_of_other_steps) {
  const Family llama = families()[0];
  Limits limits = limits_of(llama.config, false);
  for (const Device& device : devices())
    for (const NamedShape& c : cases()) {
      limits.keeps_features = false;
      const StepPlan without =
          plan_step(llama.config, llama.weights, limits, device.traits, c.shape);
      limits.keeps_features = true;
      const uint32_t layers[] = {0, 2, 4};
      std::copy_n(layers, 3, limits.feature_layers);

      const StepPlan with = plan_step(llama.config, llama.weights, limits, device.traits, c.shape);

      std::vector<uint32_t> kept;
      StepPlan others = with;
      others.nodes.clear();
      for (const Node& node : with.nodes) {
        if (node.operation != Operation::kKeepFeatures) {
          others.nodes.push_back(node);
          continue;
        }
        kept.push_back(node.layer);
        const bool adds_next = others.nodes.back().operation == Operation::kAttention;
        EXPECT_FALSE(adds_next) << "x without what this layer adds";
      }
      EXPECT_EQ(kept, (std::vector<uint32_t>{0, 2, 4})) << device.name << " " << c.name;
      EXPECT_EQ(describe(others, 4), describe(without, 4)) << device.name << " " << c.name;
    }
}

TEST(StepPlan, own_tokens_are_scored_in_parts_before_the_logits_that_the_step_keeps) {
  Family llama = families()[0];
  llama.config.logit_softcap = 30.0f;
  Limits limits = limits_of(llama.config, false);
  limits.max_logits_rows = 200;
  for (const Device& device : devices()) {
    StepShape shape{512, 2, 2, 12, 500, 500};
    const StepPlan without = plan_step(llama.config, llama.weights, limits, device.traits, shape);
    shape.scored_count = 499;
    const StepPlan with = plan_step(llama.config, llama.weights, limits, device.traits, shape);

    ASSERT_EQ(with.nodes.size(), without.nodes.size() + 9) << device.name;
    const size_t first = without.nodes.size() - 2;
    for (uint32_t part = 0; part < 3; ++part) {
      const Node* const nodes = &with.nodes[first + 3 * part];
      EXPECT_EQ(nodes[0].operation, Operation::kLogits) << device.name;
      EXPECT_EQ(nodes[1].operation, Operation::kSoftcapLogits) << device.name;
      EXPECT_EQ(nodes[2].operation, Operation::kTokenLogprobs) << device.name;
      EXPECT_EQ(nodes[2].kernel, device.traits.is_host ? Kernel::kHost : Kernel::kTokenLogprobs);
      for (uint32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(nodes[i].scored_first, 200 * part);
        EXPECT_EQ(with.logits_count(nodes[i]), part == 2 ? 99u : 200u);
      }
    }
    EXPECT_EQ(with.logits_count(with.nodes[first + 9]), 2u);
    EXPECT_EQ(with.nodes[first + 9].operation, Operation::kLogits);
    EXPECT_EQ(with.nodes[first + 9].kernel, without.nodes[first].kernel);
  }
}

// They would overwrite the logits that the persistent kernel computes before them.
TEST(StepPlan, one_token_that_is_scored_has_no_persistent_layers) {
  const Family llama = families()[0];
  const Limits limits = limits_of(llama.config, false);
  StepShape shape = decode(1, 256);
  const DeviceTraits hopper = devices()[2].traits;
  EXPECT_TRUE(plan_step(llama.config, llama.weights, limits, hopper, shape).has_persistent_layers);
  shape.scored_count = 1;
  EXPECT_FALSE(plan_step(llama.config, llama.weights, limits, hopper, shape).has_persistent_layers);
}

// Attention of a draft reads the keys of the tokens before it in the same step.
TEST(StepPlan, keys_and_values_of_drafts_are_stored_before_attention) {
  const Family llama = families()[0];
  const Limits limits = limits_of(llama.config, false);
  for (const Device& device : devices()) {
    StepShape shape = decode(16, 256);
    const auto count_stores = [&] {
      uint32_t stores = 0;
      for (const Node& node :
           plan_step(llama.config, llama.weights, limits, device.traits, shape).nodes) {
        stores += node.operation == Operation::kRotateAndStore;
        if (node.operation == Operation::kAttention && shape.has_drafts) {
          EXPECT_EQ(node.input, Form::kPages) << device.name;
        }
      }
      return stores;
    };
    EXPECT_EQ(count_stores(), device.traits.is_host ? llama.config.layer_count : 0) << device.name;
    shape.has_drafts = true;
    EXPECT_EQ(count_stores(), llama.config.layer_count) << device.name;
  }
}

TEST(StepPlan, pages_of_long_prompts_are_converted_to_f16_where_the_kernel_reads_them_by_copies) {
  const Family llama = families()[0];
  Limits limits = limits_of(llama.config, false);
  const auto heads = [&](const DeviceTraits& device, kernels::LongRows rows) {
    return choose_expanded_heads(limits, device, rows);
  };
  const DeviceTraits hopper = devices()[2].traits;
  EXPECT_EQ(heads(hopper, {1, 512, 8}), 0u) << "f16 pages";
  limits.kv_type = kernels::KvFormat::kQ8_0;
  for (const Device& device : devices())
    EXPECT_EQ(heads(device.traits, {1, 512, 8}) != 0, device.traits.has_warpgroup_code);
  EXPECT_EQ(heads(hopper, {2, 511, 8}), 0u);
  limits.head_length = 256;
  EXPECT_EQ(heads(hopper, {1, 512, 8}), 0u) << "of heads that no kernel with WGMMA has";

  StepShape shape{512, 1, 1, 2, 512, 512};
  for (const uint32_t expanded : {0u, llama.config.kv_head_count}) {
    shape.expanded_heads = expanded;
    for (const Node& node : plan_step(llama.config, llama.weights, limits, hopper, shape).nodes)
      if (node.operation == Operation::kAttention) {
        EXPECT_EQ(node.kernel, expanded != 0 ? Kernel::kAttentionPrefillExpanded
                                             : Kernel::kAttentionPrefillWarpgroup);
      }
  }
}

TEST(StepPlan, persistent_layers_follow_the_option_and_the_device) {
  const Family llama = families()[0], qwen2 = families()[1];
  const DeviceTraits hopper = devices()[2].traits;
  const auto has = [&](const Family& family, PersistentLayers option, DeviceTraits device) {
    Limits limits = limits_of(family.config, false);
    limits.persistent_layers = option;
    return plan_step(family.config, family.weights, limits, device, decode(1, 256))
        .has_persistent_layers;
  };
  EXPECT_TRUE(has(llama, PersistentLayers::kAuto, hopper));
  EXPECT_FALSE(has(llama, PersistentLayers::kOff, hopper));
  EXPECT_FALSE(has(qwen2, PersistentLayers::kAuto, hopper)) << "an embedding below 4096";
  DeviceTraits shared = hopper;
  shared.has_resident_grid = false;
  EXPECT_FALSE(has(llama, PersistentLayers::kOn, shared));
  EXPECT_FALSE(has(llama, PersistentLayers::kOn, devices()[1].traits));
}

}  // namespace
}  // namespace wcuda::ops
