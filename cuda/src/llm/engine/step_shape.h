// The shape that a step's kernels are launched for. Pure.
#pragma once

#include "llm/engine/limits.h"
#include "llm/ops/step_plan.h"

namespace wcuda::engine {

// Rows of captured graphs. Powers of two would waste up to half of a step; each bucket costs
// capture time and graph memory.
constexpr uint32_t kRowBuckets[] = {1,  2,  4,   8,   16,  24,  32,  48,
                                    64, 96, 128, 160, 192, 256, 384, 512};
// Steps of at most so many rows have graphs of their own by how far the longest row reaches, for
// attention takes other kernels then.
constexpr uint32_t kPositionRowsMax = 16;
constexpr uint32_t kPositionBuckets[] = {ops::kLonePositionsMax, ops::kClusterPositionsMax,
                                         UINT32_MAX};

// On a device a step whose rows have one token each is captured, by buckets: its counts and
// positions rounded up. Other steps stay as they are.
ops::StepShape launched_shape(ops::StepShape shape, const Limits& limits);

}  // namespace wcuda::engine
