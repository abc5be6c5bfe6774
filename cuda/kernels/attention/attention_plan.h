// attention_plan: which block of the attention kernels works on what, computed once a step on the
// device, because the host does not know the lengths of the rows.
//
// Decode (rows of one token): the positions that a row sees are cut into units, of one page or,
// when results may not depend on the rest of the batch, of a fixed number of pages counted from
// position 0. The units of all rows and key-value heads lie in one line (row, head, unit), of which
// each block takes an equal run. A (row, head) that several blocks share is finished by the last of
// them to end, which adds the parts in their order. In steps of few rows each row and head has a
// group of blocks of its own instead, in number by the row's length. Prefill (rows of more tokens):
// a list of tiles of kPrefillTileTokens tokens, longest first within a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_choice.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

constexpr uint32_t kPrefillTileTokens = 128;
// In groups that are clusters a row of at most so many units is left to one block, and one of more
// to at most so many blocks that each has this share; in others each block has that share at least.
constexpr uint32_t kDecodeLoneUnits = 4;
constexpr uint32_t kDecodeClusterUnits = 2;
constexpr uint32_t kDecodeGroupUnits = 8;
constexpr uint32_t kDecodeGroupRowsMax = 512;

struct PrefillTile {
  uint32_t row;
  uint32_t first_token;  // within the row
};

// Where a block of the decode kernel begins: one word for each lane of half a warp, which gets all
// with one load. Each block has `block_units` units of the line, the first `larger_count` one more.
constexpr uint32_t kStartPages = 4;
struct alignas(64) DecodeStart {
  uint32_t begin, end;    // its units; equal: none
  uint32_t row;           // of its first unit
  uint32_t units_before;  // units of a head in the rows before that one
  uint32_t units_to_end;  // and up to its end
  uint32_t token;         // of that row
  uint32_t position;      // of that token
  uint32_t block_units;
  uint32_t larger_count;
  uint32_t head;  // of its first unit
  // In a step with groups: the blocks of this one, 0 for a block that has nothing to do, and the
  // first of them.
  uint32_t group_blocks;
  uint32_t group_first;
  uint32_t pages[kStartPages];  // those of the row from its first unit on
};

// Pointers into scratch memory, and the sizes that it was made for.
struct AttentionPlan {
  uint32_t* tile_count = nullptr;  // prefill
  uint32_t* row_units = nullptr;   // (max_rows + 1) units of a head in the rows before
  uint32_t* row_tiles = nullptr;   // (max_rows + 1) tiles in the rows before
  DecodeStart* starts = nullptr;   // (max_blocks)
  PrefillTile* tiles = nullptr;    // (max_tiles)
  uint32_t* counters = nullptr;    // zero between launches
  float* parts = nullptr;          // unfinished sums of part_floats each
  uint32_t part_floats = 0;
  uint32_t max_rows = 0;
  uint32_t max_blocks = 0;
  uint32_t max_tiles = 0;
  // 0: a unit is a page and a part the units of a block. Else the pages of a unit, each of which
  // is a part.
  uint32_t fixed_unit_pages = 0;
  uint32_t group_heads = 0;     // query heads of a key-value head
  uint32_t group_tiles = 0;     // and their tiles
  uint32_t head_tiles = 0;      // key-value heads times those
  bool has_groups = false;      // in this step
  uint32_t cluster_blocks = 0;  // of a group; 0: groups are no clusters
};

// First position that a token at `position` attends to.
inline
#if defined(__CUDACC__)
    __host__ __device__
#endif
        uint32_t
        first_visible(uint32_t position, uint32_t window) {
  return window != 0 && position >= window ? position - window + 1 : 0;
}

struct AttentionPlanArgs {
  StepRows step;
  AttentionPlan plan;
  uint32_t window = 0;  // of the layers; 0 where any layer sees everything
};

// The kernels after it may begin early only once it has ended, so they may read the plan and the
// step's arrays before they wait.
cudaError_t attention_plan(const AttentionPlanArgs& args, const Launch& launch);
// The same with all that is done at the start of a step: the first kernel of a graph begins at once
// and the second not before 4 us have passed, whatever the first does. It waits for what is ahead.
cudaError_t attention_plan_start(const AttentionPlanArgs& args, const StepStart& start,
                                 const Launch& launch);

// Sets what must be zero before the first step.
cudaError_t attention_plan_clear(const AttentionPlan& plan, uint32_t counter_count,
                                 cudaStream_t stream);

}  // namespace wcuda::kernels
