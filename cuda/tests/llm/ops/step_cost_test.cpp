#include "llm/ops/step_cost.h"

#include <gtest/gtest.h>

namespace wcuda::ops {
namespace {

// One layer of 32 inputs, 2 heads of 8 over 1, 64 hidden, 100 tokens in the vocabulary.
struct Tiny {
  model::Config config;
  model::Weights weights;
  Limits limits{};
  CostShape cost;
  DeviceTraits traits;

  Tiny() {
    config.layer_count = 1;
    config.embedding_length = 32;
    config.feed_forward_length = 64;
    config.head_count = 2;
    config.kv_head_count = 1;
    config.head_length = config.rope_dimension_count = 8;
    config.vocabulary_size = 100;
    const auto matrix = [](uint32_t rows, uint32_t cols, uint64_t bytes) {
      model::Weight weight;
      weight.rows = rows;
      weight.cols = cols;
      weight.bytes = bytes;
      return weight;
    };
    model::LayerWeights w;
    w.query = matrix(16, 32, 1000);
    w.key = w.value = matrix(8, 32, 500);
    w.attention_output = matrix(32, 16, 2000);
    w.gate = w.up = matrix(64, 32, 4000);
    w.down = matrix(32, 64, 3000);
    weights.layers.push_back(w);
    weights.output = weights.token_embedding = matrix(100, 32, 6400);
    limits.embedding_length = 32;
    limits.max_batch_tokens = limits.max_batch_rows = limits.max_logits_rows = 16;
    cost.kv_row_bytes = 16;
  }

  // Of the only node of this operation.
  NodeCost of(Operation operation, const StepShape& shape) const {
    const StepPlan plan = plan_step(config, weights, limits, traits, shape);
    for (const Node& node : plan.nodes)
      if (node.operation == operation) return node_cost(config, weights, plan, node, cost);
    ADD_FAILURE() << operation_name(operation);
    return {};
  }
};

TEST(StepCost, of_linear_layers_is_weights_once_and_activations_of_each_token) {
  const Tiny tiny;
  const StepShape shape{3, 1, 1, 3, 3, 3};

  const NodeCost products = tiny.of(Operation::kQueryKeyValue, shape);
  const NodeCost gate = tiny.of(Operation::kGateUp, shape);
  const NodeCost down = tiny.of(Operation::kDown, shape);
  const NodeCost logits = tiny.of(Operation::kLogits, shape);

  EXPECT_EQ(products.bytes, 2000u + 3 * 4 * (32 + 16 + 8 + 8));
  EXPECT_EQ(products.flops, 2u * 3 * 32 * (16 + 8 + 8));
  EXPECT_EQ(gate.bytes, 8000u + 3 * 4 * (32 + 64));
  EXPECT_EQ(gate.flops, 2u * 3 * 32 * 128);
  EXPECT_EQ(down.bytes, 3000u + 3 * 4 * (64 + 2 * 32)) << "the residual is read and written";
  EXPECT_EQ(logits.bytes, 6400u + 4 * (32 + 100));
  EXPECT_EQ(logits.flops, 2u * 32 * 100);
}

TEST(StepCost, of_the_start_is_the_arrays_of_the_step) {
  Tiny tiny;
  tiny.cost.row_count = 2;
  tiny.cost.row_tokens = 3;
  tiny.cost.context_positions = 62;
  const StepShape prefill{6, 2, 1, 3, 3, 65}, decode{2, 2, 1, 1, 1, 65};

  EXPECT_EQ(tiny.of(Operation::kRotaryTable, prefill).bytes, 6u * (4 + 4 * 8))
      << "a position, 4 cosines and 4 sines";
  tiny.traits.is_host = false;
  EXPECT_EQ(tiny.of(Operation::kScatterInputs, prefill).bytes,
            2u * (2 * 32 + 6 * 12 + 2 * 2 * 4 + 4))
      << "two pages a row";
  EXPECT_EQ(tiny.of(Operation::kBeginRows, prefill).bytes, 2u * 32 + 6 * 8 + 2 * 8);
  EXPECT_EQ(tiny.of(Operation::kPlanAttention, prefill).bytes, 2u * 32);

  tiny.cost.row_tokens = 1;
  EXPECT_EQ(tiny.of(Operation::kStartStep, decode).bytes,
            2u * (2 * 32 + 2 * 12 + 2 * 4 + 4) + (2 * 32 + 2 * 8 + 2 * 8) + 2 * 32)
      << "all three, one page a row";
}

TEST(StepCost, of_attention_is_the_pages_that_rows_see) {
  Tiny tiny;
  tiny.cost.row_count = 2;
  tiny.cost.row_tokens = 1;
  tiny.cost.context_positions = 9;
  const StepShape decode{2, 2, 2, 1, 1, 10};
  const NodeCost all = tiny.of(Operation::kAttention, decode);
  EXPECT_EQ(all.bytes, 2u * 10 * 2 * 16 + 2 * 16 * 8);
  EXPECT_EQ(all.flops, 4u * 2 * 10 * 16);

  tiny.config.sliding_window = 4;
  EXPECT_EQ(tiny.of(Operation::kAttention, decode).flops, 4u * 2 * 4 * 16);

  tiny.config.sliding_window = 0;
  tiny.cost.row_count = 1;
  tiny.cost.row_tokens = 3;
  const StepShape prefill{3, 1, 1, 3, 3, 12};
  EXPECT_EQ(tiny.of(Operation::kAttention, prefill).flops, 4u * (10 + 11 + 12) * 16);
}

TEST(StepCost, rates_are_found_by_name_and_bound_the_larger_part) {
  const DeviceRates* const h200 = find_device_rates("h200");
  ASSERT_NE(h200, nullptr);
  EXPECT_EQ(find_device_rates("H20"), nullptr);
  EXPECT_DOUBLE_EQ(roofline_seconds({4530, 1}, *h200), 1e-9);
  EXPECT_DOUBLE_EQ(roofline_seconds({1, 790000}, *h200), 1e-9);
  EXPECT_EQ(roofline_seconds({1000, 1000}, DeviceRates{}), 0.0) << "nothing is known";
}

}  // namespace
}  // namespace wcuda::ops
