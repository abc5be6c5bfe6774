// Inputs and row statuses of a step on the device. Three families of kernels use them: those that
// start a step, attention_plan, which may do so in the same launch, and sampling, which reads and
// writes row statuses.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

// ---- inputs ----

constexpr uint32_t kInputSegmentsMax = 12;

// Header of the block of inputs. All rows of a segment have the same length.
struct InputHeader {
  struct Segment {
    uint32_t row_count;
    uint32_t row_bytes;  // a multiple of 4; the stride of rows is align_up(row_bytes, 16)
    uint32_t offset;     // of the first row from the start of the block; a multiple of 16
    uint32_t reserved;
  };
  Segment segments[kInputSegmentsMax];
};

// All in device memory, aligned to 16. target_strides: bytes between rows, multiples of 4.
struct InputScatterArgs {
  const uint8_t* block = nullptr;
  uint32_t segment_count = 0;
  uint8_t* targets[kInputSegmentsMax] = {};
  uint64_t target_strides[kInputSegmentsMax] = {};
};

// ---- rows ----

constexpr uint32_t kNoDependency = UINT32_MAX;

// Values of a row's status, those of wcuda_row_result.status.
constexpr int32_t kRowOk = 0;
constexpr int32_t kRowEmptyMask = 2;
constexpr int32_t kRowNotFinite = 3;
constexpr int32_t kRowSkipped = 4;

constexpr uint32_t kStepRowFeedSampled = 1;  // its one token is history[slot][first_position]

// One row of a step; token_count 0: a row that pads the batch and does nothing.
struct BeginRow {
  uint32_t first_token;  // index into tokens
  uint32_t token_count;
  uint32_t first_position;
  uint32_t sequence_slot;
  uint32_t flags;
  uint32_t depends_on;  // row of the previous step that it continues, or kNoDependency
};
static_assert(sizeof(BeginRow) == 24);

struct BeginStepArgs {
  uint32_t row_count = 0;
  uint32_t history_stride = 0;                 // tokens per slot
  const BeginRow* rows = nullptr;              // (row_count)
  const int32_t* previous_statuses = nullptr;  // of the previous step; null: no row depends on it
  int32_t* statuses = nullptr;                 // (row_count)
  int32_t* tokens = nullptr;                   // (tokens of the step)
  int32_t* fed_tokens = nullptr;               // (row_count)
  int32_t* history = nullptr;                  // (slots, history_stride)
};

// Arguments of attention_plan_start (kernels/attention/attention_plan.h), which starts a step whose
// rows have one token each: input_scatter, begin_step and attention_plan in one launch.
// `begin.rows` and `begin.tokens` are targets of input_scatter too.
struct StepStart {
  InputScatterArgs inputs;
  // Indices of segments of the block.
  uint32_t tokens = 0;
  uint32_t begin_rows = 0;
  uint32_t rows = 0;  // StepRow, for attention
  uint32_t page_tables = 0;
  BeginStepArgs begin;
};

}  // namespace wcuda::kernels
