// attention_plan: assigns the work of the attention kernels to blocks. It runs once per step, on
// the device, because the host does not know the lengths of the rows.
//
// Decode (rows of one token): the visible positions of a row are cut into spans. A span is one
// page; if results must not depend on the rest of the batch, it is a fixed number of pages counted
// from position 0. The spans of all rows and key-value heads form one list:
//
//   row 0, head 0      | row 0, head 1      | row 1, head 0  | …
//   s0 s1 s2 s3 s4     | s0 s1 s2 s3 s4     | s0 s1          | …
//   |- block 0 --|- block 1 --|- block 2 --|- block 3 ----|
//
// Each block takes an equal run of this list. If several blocks share a (row, head), each writes a
// partial result, and the last block to finish adds these in order. In steps of few rows, each row
// and head instead has its own group of blocks, as many as the row's length needs.
//
// Prefill (rows of more tokens): tiles of kPrefillTileTokens tokens; a row's longest tile is first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_choice.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

constexpr uint32_t kDecodeGroupRowsMax = 512;

struct PrefillTile {
  uint32_t row;
  uint32_t first_token;  // within the row
};

// Rows of a group whose leading pages are read once for all of them, as many as have
// kPrefillTileTokens queries of a key-value head.
struct SharedTile {
  uint32_t row, row_count;
  uint32_t pages;
};

// Where a block of the decode kernel begins: one word for each lane of half a warp. Each block has
// `block_spans` spans, and the first `larger_count` blocks one more.
constexpr uint32_t kStartPages = 4;
struct alignas(64) DecodeStart {
  uint32_t begin, end;    // its spans; equal: none
  uint32_t row;           // of its first span
  uint32_t spans_before;  // spans per head in earlier rows
  uint32_t spans_to_end;  // the same, including this row
  uint32_t token;         // of that row
  uint32_t position;      // of that token
  uint32_t block_spans;
  uint32_t larger_count;
  uint32_t head;  // of its first span
  // In a step with groups: the number of blocks in this group (0: the block is idle) and the first.
  uint32_t group_blocks;
  uint32_t group_first;
  uint32_t pages[kStartPages];  // of the row, from the block's first span on
};

// Pointers into scratch memory, and the sizes that it was allocated for.
struct AttentionPlan {
  uint32_t* tile_count = nullptr;  // prefill
  uint32_t* row_spans = nullptr;   // (max_rows + 1) spans per head in earlier rows
  uint32_t* row_tiles = nullptr;   // (max_rows + 1) tiles in earlier rows
  DecodeStart* starts = nullptr;   // (max_blocks)
  PrefillTile* tiles = nullptr;    // (max_tiles)
  uint32_t* counters = nullptr;    // zero between launches
  float* partials = nullptr;       // of partial_floats each
  uint32_t partial_floats = 0;
  uint32_t max_rows = 0;
  uint32_t max_blocks = 0;
  uint32_t max_tiles = 0;
  // Pages per span, if each span has its own partial result. 0: a span is a page, and a block
  // writes one partial result for all its spans of a head.
  uint32_t fixed_span_pages = 0;
  uint32_t group_heads = 0;  // query heads of a key-value head
  uint32_t group_tiles = 0;  // tiles of kDecodeGroupMax of them
  uint32_t head_tiles = 0;   // key-value heads times group_tiles
  bool has_groups = false;   // in this step
  // Shared prefixes of this step, whose pages are cut into splits, which have a partial result for
  // each row and head; 0 splits: none.
  uint32_t shared_splits = 0;  // at most, of a row
  uint32_t* shared_tile_count = nullptr;
  SharedTile* shared_tiles = nullptr;  // (kSharedPartialRows)
  // (rows, query heads): queries in f16, times scale * log2(e); (rows, query heads, shared_splits):
  // halved results in f16, as the values are, and their log-sum-exp: the running maximum plus the
  // base-2 logarithm of the denominator; (rows, query heads): the same for a row's own pages, with
  // results in f32
  uint16_t* shared_queries = nullptr;
  uint16_t* shared_results = nullptr;
  float* shared_lse = nullptr;
  float* own_results = nullptr;
  float* own_lse = nullptr;
  uint32_t cluster_blocks = 0;  // of a group; 0: groups are no clusters
  // Prefill items that are divided between blocks: partial results (blocks, 2, warpgroups, vectors,
  // threads), and counters (blocks, warpgroups), which are zero between launches. May be null:
  // then each block takes whole items.
  float4* prefill_partials = nullptr;
  uint32_t* prefill_counters = nullptr;
  // Pages of rows of more than one token that attention_expand converts to f16, of expanded_heads
  // key-value heads at a time; 0: none in this step.
  uint32_t expanded_heads = 0;
  uint32_t* row_pages = nullptr;  // (max_rows + 1) pages of such rows before each row
  uint8_t* expanded = nullptr;    // (pages, 2, heads, 64, head_length) f16
  uint64_t expanded_bytes = 0;
};

// Returns the first position that a token at `position` attends to.
WCUDA_HOST_DEVICE inline uint32_t first_visible(uint32_t position, uint32_t window) {
  return window != 0 && position >= window ? position - window + 1 : 0;
}

struct AttentionPlanArgs {
  StepRows step;
  AttentionPlan plan;
  uint32_t window = 0;  // the widest of all layers; 0 if a layer has no window
  DecodeGroupSizes sizes = kDecodeGroupSizes[0];  // those of the device and the step
};

// Later kernels start only when this kernel has ended. Therefore they may read the plan and the
// arrays of the step before their dependent wait.
cudaError_t attention_plan(const AttentionPlanArgs& args, const Launch& launch);
// Does the same and everything else at the start of a step in one kernel, because the second kernel
// of a graph starts no earlier than 4 us after the first, however short that is.
cudaError_t attention_plan_start(const AttentionPlanArgs& args, const StepStart& start,
                                 const Launch& launch);

// Zeroes counters and starts, before the first step.
cudaError_t attention_plan_clear(const AttentionPlan& plan, uint32_t counter_count,
                                 uint32_t prefill_counter_count, cudaStream_t stream);

}  // namespace wcuda::kernels
