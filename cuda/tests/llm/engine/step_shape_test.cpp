// The shapes that steps are launched for.
#include "llm/engine/step_shape.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace wcuda::engine {
namespace {

Limits test_limits() {
  Limits limits;
  limits.max_batch_tokens = 2048;
  limits.max_batch_rows = 200;
  limits.max_logits_rows = 200;
  limits.max_sequence_tokens = 4096;
  return limits;
}

ops::StepShape shape_of(uint32_t tokens, uint32_t rows, uint32_t logits, uint32_t shortest,
                        uint32_t longest) {
  ops::StepShape shape;
  shape.token_count = tokens;
  shape.row_count = rows;
  shape.logits_count = logits;
  shape.min_row_tokens = shortest;
  shape.max_row_tokens = longest;
  shape.max_positions = 700;
  return shape;
}

// A step fits what it is launched for, whatever it has, and so does every step of the same class.
TEST(LaunchedShape, has_room_for_the_step_and_keeps_the_limits) {
  const Limits limits = test_limits();
  for (uint32_t rows = 1; rows <= limits.max_batch_rows; ++rows)
    for (const uint32_t longest : {1u, 2u, 7u, 33u, 100u, 500u}) {
      const uint32_t tokens = rows - 1 + longest;
      for (const uint32_t logits : {0u, 1u, rows, std::min(tokens, limits.max_logits_rows)}) {
        const ops::StepShape own = shape_of(tokens, rows, logits, rows == 1 ? longest : 1, longest);
        const ops::StepShape launched = launched_shape(own, limits, false);
        EXPECT_GE(launched.token_count, own.token_count);
        EXPECT_GE(launched.row_count, own.row_count);
        EXPECT_GE(launched.logits_count, own.logits_count);
        EXPECT_GE(launched.max_row_tokens, own.max_row_tokens);
        EXPECT_GE(launched.max_positions, own.max_positions);
        EXPECT_LE(launched.min_row_tokens, own.min_row_tokens);
        EXPECT_LE(launched.token_count, limits.max_batch_tokens);
        EXPECT_LE(launched.row_count, limits.max_batch_rows);
        EXPECT_LE(launched.logits_count, limits.max_logits_rows);
        EXPECT_EQ(launched.logits_count == 0, logits == 0);
        EXPECT_EQ(launched.max_row_tokens == 1, longest == 1);
        EXPECT_EQ(may_be_graph(launched), may_be_graph(own));
        const ops::StepShape again = launched_shape(launched, limits, false);
        if (longest == 1) continue;
        EXPECT_EQ(again.token_count, launched.token_count);
        EXPECT_EQ(again.row_count, launched.row_count);
        EXPECT_EQ(again.logits_count, launched.logits_count);
      }
    }
}

TEST(LaunchedShape, separates_ranges_of_positions_for_which_attention_has_other_kernels) {
  Limits limits = test_limits();
  limits.max_sequence_tokens = 10000;
  const auto positions_of = [&](uint32_t rows, uint32_t positions,
                                bool has_persistent_layers = true) {
    ops::StepShape shape = shape_of(rows, rows, rows, 1, 1);
    shape.max_positions = positions;
    return launched_shape(shape, limits, has_persistent_layers).max_positions;
  };
  EXPECT_EQ(positions_of(1, 256), 256);
  EXPECT_EQ(positions_of(1, 257), 2048);
  EXPECT_EQ(positions_of(1, 257, false), 8192);
  EXPECT_EQ(positions_of(1, 2049), 8192);
  EXPECT_EQ(positions_of(1, 8193), 10000);
  EXPECT_EQ(positions_of(2, 257), 8192);
  EXPECT_EQ(positions_of(16, 256), 256);
  EXPECT_EQ(positions_of(24, 256), 10000);
}

// warm_up() captures the graphs of these classes before any step says how short its rows are.
TEST(LaunchedShape, of_rows_of_one_token_does_not_depend_on_the_shortest) {
  for (const uint32_t shortest : {0u, 1u})
    EXPECT_EQ(launched_shape(shape_of(3, 3, 3, shortest, 1), test_limits(), false).min_row_tokens,
              0u);
}

TEST(LaunchedShape, has_no_more_logits_than_rows_where_each_row_has_at_most_one) {
  Limits limits = test_limits();
  limits.max_batch_rows = 100;
  const auto logits_of = [&](uint32_t logits) {
    return launched_shape(shape_of(300, 100, logits, 3, 3), limits, false).logits_count;
  };
  EXPECT_EQ(logits_of(1), 100u);
  EXPECT_EQ(logits_of(100), 100u);
  EXPECT_EQ(logits_of(101), 128u);
}

TEST(LaunchedShape, of_a_step_that_scores_own_tokens_is_its_own) {
  for (const uint32_t longest : {1u, 100u}) {
    ops::StepShape shape = shape_of(longest, 1, 1, longest, longest);
    EXPECT_TRUE(may_be_graph(shape));
    shape.scored_count = 1;
    EXPECT_FALSE(may_be_graph(shape));
    const ops::StepShape launched = launched_shape(shape, test_limits(), false);
    EXPECT_EQ(launched.token_count, longest);
    EXPECT_EQ(launched.max_positions, 700u);
  }
}

TEST(LaunchedShape, of_prompts_is_one_class_for_32_lengths_or_fewer) {
  const Limits limits = test_limits();
  const auto launched = [&](uint32_t tokens) {
    return launched_shape(shape_of(tokens, 1, 1, tokens, tokens), limits, false);
  };
  EXPECT_EQ(launched(5).token_count, 5u);
  EXPECT_EQ(launched(9).token_count, 16u);
  EXPECT_EQ(launched(64).token_count, 64u);
  EXPECT_EQ(launched(65).token_count, 96u);
  EXPECT_EQ(launched(512).token_count, 512u);
  EXPECT_EQ(launched(65).row_count, 1u);
  EXPECT_EQ(launched(65).logits_count, 1u);
  EXPECT_EQ(launched(513).token_count, 513u);
  EXPECT_EQ(launched(513).max_positions, 700u);
}

// Attention divides keys between blocks in steps that reach further.
TEST(LaunchedShape, separates_prompts_up_to_1024_positions_from_others) {
  Limits limits = test_limits();
  const auto launched = [&](uint32_t positions) {
    ops::StepShape shape = shape_of(65, 1, 1, 65, 65);
    shape.max_positions = positions;
    return launched_shape(shape, limits, false).max_positions;
  };
  EXPECT_EQ(launched(65), 1024u);
  EXPECT_EQ(launched(1024), 1024u);
  EXPECT_EQ(launched(1025), limits.max_sequence_tokens);
  limits.max_sequence_tokens = 800;
  EXPECT_EQ(launched(65), 800u);
}

// Rows of one token need a kernel of their own, which prompts alone do not.
TEST(LaunchedShape, separates_prompts_alone_from_mixed_steps) {
  const Limits limits = test_limits();
  EXPECT_EQ(launched_shape(shape_of(60, 3, 3, 20, 20), limits, false).min_row_tokens, 2u);
  EXPECT_EQ(launched_shape(shape_of(60, 3, 3, 1, 40), limits, false).min_row_tokens, 1u);
  EXPECT_EQ(launched_shape(shape_of(60, 3, 3, 20, 20), limits, false).row_count, 4u);
}

// Warm-up captures the class of every step of one token a row.
TEST(WarmUpShapes, have_the_class_of_each_decode_step_once) {
  const Limits limits = test_limits();
  for (const bool has_persistent_layers : {false, true}) {
    const std::vector<ops::StepShape> shapes = warm_up_shapes(limits, has_persistent_layers);
    std::set<std::pair<uint32_t, uint32_t>> classes;
    for (const ops::StepShape& shape : shapes)
      EXPECT_TRUE(classes.emplace(shape.row_count, shape.max_positions).second);
    for (uint32_t rows = 1; rows <= limits.max_batch_rows; ++rows)
      for (uint32_t positions = 1; positions <= limits.max_sequence_tokens; positions += 37) {
        ops::StepShape own = shape_of(rows, rows, rows, 1, 1);
        own.max_positions = positions;
        const ops::StepShape launched = launched_shape(own, limits, has_persistent_layers);
        ASSERT_EQ(classes.count({launched.row_count, launched.max_positions}), 1u)
            << rows << " rows, " << positions << " positions";
        // All rows of its class have logits, or none.
        own.logits_count = 1;
        EXPECT_EQ(launched_shape(own, limits, has_persistent_layers).logits_count,
                  launched.logits_count);
        own.logits_count = 0;
        EXPECT_EQ(launched_shape(own, limits, has_persistent_layers).logits_count, 0u);
      }
  }
}

}  // namespace
}  // namespace wcuda::engine
