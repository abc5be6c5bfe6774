// continue_drafts: places the rows of a step that continue drafts of the previous step. How many of
// these are accepted is known only on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

// All in device memory.
struct ContinueDraftsArgs {
  uint8_t* block = nullptr;  // the inputs of the step, which it changes
  uint32_t rows = 0;         // these three are indices of segments of the block
  uint32_t positions = 0;
  uint32_t sample_rows = 0;
  // Of the previous step: its rows, their statuses, and its tokens, with the drafts.
  const StepRow* previous_rows = nullptr;
  const int32_t* previous_statuses = nullptr;
  const int32_t* previous_tokens = nullptr;
  const int32_t* history = nullptr;  // (slots, history_stride) with the tokens that it drew
  uint32_t history_stride = 0;
};

// Adds the number of accepted drafts before each row to the positions of the row, of its token and
// of the token that it draws. Must run between the two steps, before anything reads the block.
// `row_count`: rows of the step. Bytes moved: 32 a row, and 12 a draft before it.
cudaError_t continue_drafts(const ContinueDraftsArgs& args, uint32_t row_count,
                            const Launch& launch);

// Does the same for the sampling parameters of late rows. `rows` (row_count) are those of the step,
// which has begun.
cudaError_t place_late_samples(const StepRow* rows, SampleRow* samples, uint32_t row_count,
                               const Launch& launch);

}  // namespace wcuda::kernels
