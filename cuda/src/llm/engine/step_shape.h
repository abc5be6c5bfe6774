// The shape for which the kernels of a step are launched. Pure.
#pragma once

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
                                         kernels::kDecodeGroupSizes[0].cluster_positions,
                                         UINT32_MAX};

// Returns the shape for which a step is launched. If each row has one token, the step becomes a
// graph on a device, so its counts and positions are rounded up to buckets. Others do not change.
ops::StepShape launched_shape(ops::StepShape shape, const Limits& limits);

}  // namespace wcuda::engine
