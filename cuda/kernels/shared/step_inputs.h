// Inputs of a step: its rows, which host and device share, and on the device the block that carries
// all inputs, and row statuses. Three families of kernels use them: those that start a step,
// attention_plan, which may do so in the same launch, and sampling, which reads and writes row
// statuses.
#pragma once

#include <cstdint>

#include "kernels/shared/host_device.h"

namespace wcuda::kernels {

// ---- inputs ----

constexpr uint32_t kInputSegmentsMax = 13;

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
constexpr int32_t kRowHeld = 1;  // the host's: kernels do not know which rows are held
constexpr int32_t kRowEmptyMask = 2;
constexpr int32_t kRowNotFinite = 3;
constexpr int32_t kRowSkipped = 4;

// Flags of a row, those of wcuda_row.
constexpr uint32_t kRowFeedSampled = 1;  // its one token is history[slot][first_position]
constexpr uint32_t kRowSample = 2;
constexpr uint32_t kRowLogitsLast = 4;  // of its last token returned
constexpr uint32_t kRowLogitsAll = 8;
constexpr uint32_t kRowSampleLate = 16;  // with kRowSample: not until the caller says how
constexpr uint32_t kRowHiddenLast = 64;  // at most one of these three
constexpr uint32_t kRowHiddenFirst = 128;
constexpr uint32_t kRowHiddenSum = 256;
constexpr uint32_t kRowHidden = kRowHiddenLast | kRowHiddenFirst | kRowHiddenSum;
constexpr uint32_t kRowTokenLogprobs = 512;  // of its own tokens
// The engine's: a row of a draft head that reads features of a sequence of its target.
constexpr uint32_t kRowFeatures = 1024;
// The engine's: the bits from here on are StepRow::drafts_before().
constexpr uint32_t kRowDraftsBeforeShift = 16;

// One row of a step, on the host and on the device: consecutive tokens of one sequence.
// token_count 0: a row that pads the batch and does nothing.
struct StepRow {
  uint32_t first_token = 0;  // index into the step's tokens
  uint32_t token_count = 0;
  uint32_t first_position = 0;
  uint32_t sequence_slot = 0;
  uint32_t flags = 0;
  uint32_t depends_on = kNoDependency;  // row of the previous step that it continues
  uint32_t logits_first = 0;            // of its rows among those of the step's logits
  // Leading pages that it shares with the rows of its group, which no row of the step writes, an
  // even number (a block of keys is two pages), and in the first of them how many rows these are:
  // consecutive ones of one token. Only if the step's plan has shared prefixes.
  uint16_t shared_pages = 0;
  uint16_t shared_rows = 0;

  // Rows of logits that are returned: of its last tokens.
  constexpr uint32_t logits_returned() const {
    return (flags & kRowLogitsAll) != 0 ? token_count : (flags & kRowLogitsLast) != 0 ? 1 : 0;
  }
  // Of a fed row: drafts behind row depends_on of the previous step that may be accepted. While the
  // host does not know how many are, first_position is that of the first draft. The device adds
  // their number before the step begins.
  WCUDA_HOST_DEVICE constexpr uint32_t drafts_before() const {
    return flags >> kRowDraftsBeforeShift;
  }
  constexpr uint32_t hidden_states_returned() const { return (flags & kRowHidden) != 0 ? 1 : 0; }
  // And rows of logits that are computed, the last to sample from.
  constexpr uint32_t logits_count() const {
    const uint32_t returned = logits_returned();
    return returned == 0 && (flags & kRowSample) != 0 ? 1 : returned;
  }
};
static_assert(sizeof(StepRow) == 32);

constexpr uint32_t kNoMask = UINT32_MAX;

// How the token after a row is drawn, in the words of wcuda_sampling; 0 switches a filter or
// penalty off. What is no parameter is set when the step is written.
struct SampleRow {
  uint32_t is_sampled;  // 0: nothing is drawn
  uint32_t logits_row;
  uint32_t sequence_slot;
  uint32_t position;  // of the token to draw
  uint64_t seed;
  float temperature;  // 0: greedy
  uint32_t top_k;
  float top_p;
  float min_p;
  float typical_p;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  uint32_t penalty_last_n;
  uint32_t penalty_from;
  uint32_t top_logprobs;  // at most SampleArgs.top_stride
  uint32_t bias_first;    // index into bias_tokens and bias_values
  uint32_t bias_count;
  uint32_t mask_row;  // index into masks, or kNoMask
  // Log probabilities are of the logits before bias, mask and penalties. Where these change logits,
  // another kernel than sample computes them, with so many alternatives; top_logprobs is 0 then.
  uint16_t has_raw_logprobs;
  uint16_t omits_logprob;  // the log probability is 0; top_logprobs and has_raw_logprobs are 0
  uint32_t raw_top_logprobs;
};
static_assert(sizeof(SampleRow) == 88);

// A token whose log probability a row returns.
struct ScoredToken {
  int32_t token;
  uint32_t row;  // of the step
  uint32_t top;  // alternatives
};
static_assert(sizeof(ScoredToken) == 12);

struct BeginStepArgs {
  uint32_t row_count = 0;
  uint32_t history_stride = 0;                 // tokens per slot
  const StepRow* rows = nullptr;               // (row_count)
  const int32_t* previous_statuses = nullptr;  // of the previous step; null: no row depends on it
  int32_t* statuses = nullptr;                 // (row_count)
  int32_t* tokens = nullptr;                   // (tokens of the step)
  int32_t* fed_tokens = nullptr;               // (row_count)
  int32_t* history = nullptr;                  // (slots, history_stride)
};

// The start of a step: which inputs of the block go to which arrays, and how its rows begin.
// Operations and kernels take the same struct. `begin.rows` and `begin.tokens` are targets of
// `inputs` too.
struct StepStart {
  InputScatterArgs inputs;
  // Indices of segments of the block.
  uint32_t tokens = 0;
  uint32_t rows = 0;
  uint32_t page_tables = 0;
  BeginStepArgs begin;
};

}  // namespace wcuda::kernels
