#include "llm/engine/step_shape.h"

#include <algorithm>
#include <iterator>

#include "kernels/attention/attention_choice.h"

namespace wcuda::engine {

namespace {

uint32_t row_bucket(uint32_t rows, const Limits& limits) {
  const auto* const bucket = std::lower_bound(std::begin(kRowBuckets), std::end(kRowBuckets), rows);
  return std::min(bucket == std::end(kRowBuckets) ? rows : *bucket, limits.max_batch_rows);
}

// Multiples that linear layers compute in about the same time as fewer tokens.
uint32_t token_bucket(uint32_t tokens) {
  if (tokens <= 8) return tokens;
  return tokens <= 64 ? align_up(tokens, 8) : align_up(tokens, 32);
}

}  // namespace

ops::StepShape launched_shape(ops::StepShape shape, const Limits& limits,
                              bool has_persistent_layers) {
  if (!may_be_graph(shape)) return shape;
  shape.row_count = row_bucket(shape.row_count, limits);
  if (shape.max_row_tokens == 1) {
    shape.min_row_tokens = 0;
    shape.token_count = shape.row_count;
    if (shape.logits_count > 0)
      shape.logits_count = std::min(shape.row_count, limits.max_logits_rows);
    size_t bucket = 0;
    while (!has_position_bucket(shape.row_count, has_persistent_layers, bucket) ||
           kPositionBuckets[bucket] < shape.max_positions)
      ++bucket;
    shape.max_positions = std::min(kPositionBuckets[bucket], limits.max_sequence_tokens);
    return shape;
  }
  shape.token_count = std::min(token_bucket(shape.token_count), limits.max_batch_tokens);
  if (shape.logits_count > 0)
    shape.logits_count = std::min(
        shape.logits_count <= shape.row_count ? shape.row_count : token_bucket(shape.logits_count),
        limits.max_logits_rows);
  // Of rows that have tokens: whether any has one alone.
  shape.min_row_tokens = std::min(shape.min_row_tokens, 2u);
  shape.max_row_tokens = shape.token_count;
  shape.max_positions =
      std::min(shape.max_positions <= kernels::kWholeKeysMax ? kernels::kWholeKeysMax : UINT32_MAX,
               limits.max_sequence_tokens);
  return shape;
}

std::vector<ops::StepShape> warm_up_shapes(const Limits& limits, bool has_persistent_layers) {
  std::vector<ops::StepShape> shapes;
  for (const uint32_t bucket : kRowBuckets) {
    ops::StepShape shape;
    shape.row_count = shape.token_count = std::min(bucket, limits.max_batch_rows);
    shape.max_row_tokens = 1;
    shape.logits_count = std::min(shape.row_count, limits.max_logits_rows);
    for (size_t i = 0; i < std::size(kPositionBuckets); ++i) {
      if (!has_position_bucket(shape.row_count, has_persistent_layers, i)) continue;
      shape.max_positions = std::min(kPositionBuckets[i], limits.max_sequence_tokens);
      shapes.push_back(shape);
      if (kPositionBuckets[i] >= limits.max_sequence_tokens) break;
    }
    if (bucket >= limits.max_batch_rows) break;
  }
  return shapes;
}

}  // namespace wcuda::engine
