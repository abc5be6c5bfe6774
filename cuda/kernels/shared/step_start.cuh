// Device code of two kernels that start a step: scattering a segment of inputs, beginning a row.
// Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

// Returns the header of a segment: row count, row bytes, offset.
__device__ inline uint4 input_segment(const InputScatterArgs& args, uint32_t segment) {
  return __ldcg(reinterpret_cast<const uint4*>(args.block) + segment);
}
__device__ inline uint32_t input_row_words(const uint4& segment) {
  return (segment.y / 4 + 3) / 4 * 4;
}

// Copies every `stride`-th word of a segment to its target, from `first` on.
__device__ inline void scatter_segment(const InputScatterArgs& args, uint32_t s, uint32_t first,
                                       uint32_t stride) {
  const uint4 segment = input_segment(args, s);
  const uint32_t row_count = segment.x, row_words = segment.y / 4;
  const uint32_t source_words = input_row_words(segment);
  const auto* const source = reinterpret_cast<const uint32_t*>(args.block + segment.z);
  for (uint32_t i = first; i < row_count * row_words; i += stride) {
    const uint32_t row = i / row_words, word = i % row_words;
    auto* const target =
        reinterpret_cast<uint32_t*>(args.targets[s] + row * args.target_strides[s]);
    target[word] = __ldcg(source + row * source_words + word);
  }
}

__device__ inline bool is_row_skipped(const BeginStepArgs& args, const StepRow& row) {
  return row.token_count == 0 ||
         (row.depends_on != kNoDependency && args.previous_statuses != nullptr &&
          args.previous_statuses[row.depends_on] != kRowOk);
}
__device__ inline bool is_row_history_written(const BeginStepArgs& args, const StepRow& row) {
  return (row.flags & kRowFeedSampled) == 0 && !is_row_skipped(args, row);
}
__device__ inline int32_t* row_history(const BeginStepArgs& args, const StepRow& row) {
  return args.history + uint64_t{row.sequence_slot} * args.history_stride + row.first_position;
}

// Sets the status of row `index`, and its token if that is fed back. One thread per row.
__device__ inline void begin_row(const BeginStepArgs& args, const StepRow& row, uint32_t index) {
  const bool is_skipped = is_row_skipped(args, row);
  args.statuses[index] = is_skipped ? kRowSkipped : kRowOk;
  int32_t fed_token = -1;
  if ((row.flags & kRowFeedSampled) != 0 && row.token_count != 0) {
    if (!is_skipped) fed_token = *row_history(args, row);
    args.tokens[row.first_token] = is_skipped ? 0 : fed_token;
  }
  args.fed_tokens[index] = fed_token;
}

}  // namespace wcuda::kernels
