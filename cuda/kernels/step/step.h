// What a step does around its forward pass, on device arrays: rows begin (fed tokens are resolved,
// tokens enter the histories), pages and histories are copied. The host's version is
// engine/host_runner.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ptx/launch.h"
#include "kernels/step/ingest.h"

namespace wcuda::kernels {

constexpr uint32_t kNoDependency = UINT32_MAX;

// Values of a row's status, those of wcuda_row_result.status.
constexpr int32_t kRowOk = 0;
constexpr int32_t kRowEmptyMask = 2;
constexpr int32_t kRowNotFinite = 3;
constexpr int32_t kRowSkipped = 4;

constexpr uint32_t kStepRowFeedSampled = 1;  // its one token is history[slot][first_position]

// One row of a step; token_count 0: a row that fills the batch up and does nothing.
struct BeginRow {
  uint32_t first_token;  // index into tokens
  uint32_t token_count;
  uint32_t first_position;
  uint32_t sequence_slot;
  uint32_t flags;
  uint32_t depends_on;  // row of the step before that it continues, or kNoDependency
};
static_assert(sizeof(BeginRow) == 24);

struct BeginStepArgs {
  uint32_t row_count = 0;
  uint32_t history_stride = 0;                 // tokens a slot
  const BeginRow* rows = nullptr;              // (row_count)
  const int32_t* previous_statuses = nullptr;  // of the step before; null: no row depends on it
  int32_t* statuses = nullptr;                 // (row_count)
  int32_t* tokens = nullptr;                   // (tokens of the step)
  int32_t* fed_tokens = nullptr;               // (row_count)
  int32_t* history = nullptr;                  // (slots, history_stride)
};

// statuses[i] = kRowOk, or kRowSkipped where the row it depends on did not end well and for rows of
// 0 tokens. A fed row's token comes from the history into tokens and fed_tokens (-1 for all other
// rows); a skipped fed row gets token 0. Tokens of rows that are not skipped enter the history at
// first_position. No two rows may be of one slot.
cudaError_t begin_step(const BeginStepArgs& args, const Launch& launch);

// The start of a step whose rows have one token each, all in one launch with the plan of attention
// (kernels/attention/attention_plan.h): ingest() and begin_step(). `begin.rows` and `begin.tokens`
// are targets of the ingest too.
struct StepStart {
  IngestArgs ingest;
  // Segments of the block.
  uint32_t tokens = 0;
  uint32_t begin_rows = 0;
  uint32_t rows = 0;  // of attention
  uint32_t page_tables = 0;
  BeginStepArgs begin;
};

// Where pages lie: ops/ops.h, KvPool. Data and `plane_bytes` are multiples of 16.
struct PagePool {
  uint8_t* data = nullptr;
  uint32_t layer_count = 0;
  uint32_t page_count = 0;
  uint64_t plane_bytes = 0;  // keys of one page in one layer; values have as many
};

// Page `to` = page `from`, in all layers.
cudaError_t copy_page(const PagePool& pool, uint32_t from, uint32_t to, const Launch& launch);
// Page `to` becomes all ones, which is NaN in every KV type.
cudaError_t poison_page(const PagePool& pool, uint32_t to, const Launch& launch);
// history[to][0 … count - 1] = history[from][0 … count - 1].
cudaError_t copy_history(int32_t* history, uint32_t history_stride, uint32_t from, uint32_t to,
                         uint32_t count, const Launch& launch);

}  // namespace wcuda::kernels
