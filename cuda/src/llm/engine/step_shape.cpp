#include "llm/engine/step_shape.h"

#include <algorithm>
#include <iterator>

namespace wcuda::engine {

ops::StepShape launched_shape(ops::StepShape shape, const Limits& limits) {
  if (shape.max_row_tokens != 1) return shape;
  shape.min_row_tokens = 0;  // that of rows that fill up a bucket
  const auto* const bucket =
      std::lower_bound(std::begin(kRowBuckets), std::end(kRowBuckets), shape.row_count);
  if (bucket != std::end(kRowBuckets)) shape.row_count = std::min(*bucket, limits.max_batch_rows);
  shape.token_count = shape.row_count;
  if (shape.logits_count > 0)
    shape.logits_count = std::min(shape.row_count, limits.max_logits_rows);
  const auto* const positions =
      shape.row_count <= kPositionRowsMax
          ? std::lower_bound(std::begin(kPositionBuckets), std::end(kPositionBuckets),
                             shape.max_positions)
          : std::prev(std::end(kPositionBuckets));
  shape.max_positions = std::min(*positions, limits.max_sequence_tokens);
  return shape;
}

}  // namespace wcuda::engine
