// The shape for which the kernels of a step are launched. Pure.
#pragma once

#include <iterator>
#include <vector>

#include "kernels/attention/attention_table.h"
#include "llm/engine/limits.h"
#include "llm/ops/step_plan.h"

namespace wcuda::engine {

// Rows of captured graphs. Powers of two would waste up to half of a step; each bucket costs
// capture time and graph memory.
constexpr uint32_t kRowBuckets[] = {1,  2,  4,   8,   16,  24,  32,  48,
                                    64, 96, 128, 160, 192, 256, 384, 512};
// Steps of at most this many rows have separate graphs for short and long rows, because attention
// uses different kernels for them.
constexpr uint32_t kPositionRowsMax = 16;
constexpr uint32_t kPositionBuckets[] = {kernels::kDecodeGroupSizes[0].lone_positions(),
                                         kernels::kPersistentGroupSizes[0].cluster_positions,
                                         kernels::kDecodeGroupSizes[0].cluster_positions,
                                         UINT32_MAX};
static_assert(kPositionBuckets[0] == kernels::kPersistentGroupSizes[0].lone_positions());

// Returns whether steps of so many rows have graphs of their own up to kPositionBuckets[index].
// has_persistent_layers is the engine's; only its steps of one row have them.
constexpr bool has_position_bucket(uint32_t row_count, bool has_persistent_layers, size_t index) {
  return index == std::size(kPositionBuckets) - 1 ||
         (row_count <= kPositionRowsMax &&
          (index != 1 || (row_count == 1 && has_persistent_layers)));
}

// Steps with longer rows may become graphs up to this many tokens. Longer steps compute for longer
// than it takes to launch their kernels.
constexpr uint32_t kGraphTokensMax = 512;
// Most graphs of steps with longer rows, which have many classes: about 1 MiB each for 32 layers.
// One that so many steps of this kind have not used may be replaced. Capturing it again takes 1.4
// to 1.9 ms, and a graph saves up to 0.4 ms of a step.
constexpr uint32_t kLongRowGraphsMax = 64;
constexpr uint64_t kIdleGraphSteps = 1024;

// Steps that return log probabilities of own tokens would have one more class for each number of
// them.
inline bool may_be_graph(const ops::StepShape& shape) {
  return shape.scored_count == 0 &&
         (shape.max_row_tokens == 1 || shape.token_count <= kGraphTokensMax);
}

// Returns the shape for which a step is launched. If the step may become a graph on a device, its
// counts and positions are rounded up to buckets; others do not change. Rows that fill up a bucket
// have no tokens, and tokens that do belong to no row.
ops::StepShape launched_shape(ops::StepShape shape, const Limits& limits,
                              bool has_persistent_layers);

// Returns the classes of steps, whose rows have one token each, that warm-up captures. It makes a
// graph of each for both parities of tickets, with filters of sampling and without.
std::vector<ops::StepShape> warm_up_shapes(const Limits& limits, bool has_persistent_layers);
constexpr uint32_t kGraphsOfWarmUpShape = 4;

}  // namespace wcuda::engine
