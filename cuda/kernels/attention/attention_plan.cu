// attention_plan: prefix sums of the units and tiles of the rows; then the first row of each block
// and the list of tiles, by search. One block. Bytes moved: 16 a row, 64 a decode block, 8 a tile.
#include "kernels/attention/attention_plan.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/step_start.cuh"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 512;
constexpr uint32_t kWarps = kBlockThreads / 32;
static_assert(kBlockThreads == kDecodeGroupRowsMax);
constexpr uint32_t kScatterBlocks = 2;  // blocks a segment

__device__ inline uint32_t warp_prefix(uint32_t value, uint32_t lane) {
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

// Sum of the values of the threads up to this one; `total` that of all.
__device__ inline uint32_t block_prefix(uint32_t value, uint32_t* sums, uint32_t* total) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t prefix = warp_prefix(value, lane);
  if (lane == 31) sums[warp] = prefix;
  __syncthreads();
  uint32_t before = 0;
  *total = 0;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    const uint32_t sum = sums[w];
    if (w < warp) before += sum;
    *total += sum;
  }
  __syncthreads();
  return before + prefix;
}

// Units that one head of a decode row has.
__device__ inline uint32_t row_unit_count(const StepRow& row, uint32_t window,
                                          uint32_t unit_pages) {
  if (row.token_count != 1) return 0;
  const uint32_t position = row.first_position;
  const uint32_t unit_positions = unit_pages * kPagePositions;
  return position / unit_positions - first_visible(position, window) / unit_positions + 1;
}

__device__ inline uint32_t row_tile_count(const StepRow& row) {
  return row.token_count > 1 ? (row.token_count + kPrefillTileTokens - 1) / kPrefillTileTokens : 0;
}

// The last row of `count` whose prefix is at most `value`: rows of nothing are passed over.
__device__ inline uint32_t find_row(const uint32_t* prefix, uint32_t count, uint32_t value) {
  uint32_t low = 0, high = count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (prefix[middle] <= value)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// Units of each decode block. Where all rows have as many, whole heads a block, or whole blocks a
// head, spare most of the merging and are worth a sixteenth more work.
__device__ inline uint32_t whole_share(uint32_t unit_count, uint32_t blocks, uint32_t row_units) {
  const uint32_t even = (unit_count + blocks - 1) / blocks;
  uint32_t block_units = (even + row_units - 1) / row_units * row_units;
  if (even < row_units) {
    const uint32_t head_blocks = row_units / even;
    block_units = (row_units + head_blocks - 1) / head_blocks;
    if (block_units * head_blocks != row_units) return 0;
  }
  return block_units * 16 <= even * 17 ? block_units : 0;
}

// The least units a block with which the groups of all rows have at most `slots` blocks a head.
// All threads come here.
__device__ inline uint32_t find_block_units(const uint32_t* row_units, uint32_t row_count,
                                            uint32_t slots, uint32_t* sums) {
  const uint32_t r = threadIdx.x;
  const uint32_t units = r < row_count ? row_units[r + 1] - row_units[r] : 0;
  uint32_t low = max(kDecodeGroupUnits, (row_units[row_count] + slots - 1) / slots);
  uint32_t high = max(low, row_units[row_count]);
  for (uint32_t block_units = low; low != high; block_units = (low + high) / 2) {
    uint32_t blocks;
    block_prefix((units + block_units - 1) / block_units, sums, &blocks);
    if (blocks <= slots)
      high = block_units;
    else
      low = block_units + 1;
  }
  return low;
}

// Blocks of a group with `units`.
__device__ inline uint32_t group_blocks_of(const AttentionPlan& plan, uint32_t units,
                                           uint32_t block_units) {
  if (plan.cluster_blocks == 0) return (units + block_units - 1) / block_units;
  if (units <= kDecodeLoneUnits) return units == 0 ? 0 : 1;
  return min(plan.cluster_blocks, (units + kDecodeClusterUnits - 1) / kDecodeClusterUnits);
}

// What block `b` of a step with groups does; false for nothing. `before` counts blocks of a head in
// the rows before.
__device__ inline bool find_group(const AttentionPlan& plan, const uint32_t* before,
                                  uint32_t row_count, uint32_t block_units, uint32_t b,
                                  DecodeStart* start) {
  uint32_t rank;
  if (plan.cluster_blocks != 0) {
    const uint32_t cluster = b / plan.cluster_blocks;
    start->row = cluster / plan.head_tiles;
    start->head = cluster % plan.head_tiles;
    rank = b % plan.cluster_blocks;
    if (start->row >= row_count) return false;
  } else {
    if (b >= before[row_count] * plan.head_tiles) return false;
    start->row = find_row(before, row_count, b / plan.head_tiles);
    const uint32_t within = b - before[start->row] * plan.head_tiles;
    const uint32_t blocks = before[start->row + 1] - before[start->row];
    start->head = within / blocks;
    rank = within % blocks;
  }
  const uint32_t units = plan.row_units[start->row + 1] - plan.row_units[start->row];
  const uint32_t blocks = group_blocks_of(plan, units, block_units);
  if (rank >= blocks) return false;
  start->group_blocks = blocks;
  start->group_first = b - rank;
  const uint32_t begin = plan.row_units[start->row] * plan.head_tiles + start->head * units;
  start->begin = begin + rank * units / blocks;
  start->end = begin + (rank + 1) * units / blocks;
  return true;
}

__device__ inline void make_plan(const AttentionPlanArgs& args) {
  __shared__ uint32_t unit_sums[kWarps], tile_sums[kWarps];
  __shared__ uint32_t longest;                                // units of a row
  __shared__ uint32_t group_blocks[kDecodeGroupRowsMax + 1];  // of a head in the rows before
  const AttentionPlan& plan = args.plan;
  const uint32_t row_count = args.step.row_count;
  const uint32_t unit_pages = plan.fixed_unit_pages == 0 ? 1 : plan.fixed_unit_pages;
  if (threadIdx.x == 0) longest = 0;

  uint32_t units = 0, tiles = 0, decode_rows = 0;
  for (uint32_t first = 0; first < row_count; first += kBlockThreads) {
    const uint32_t r = first + threadIdx.x;
    const StepRow row = r < row_count ? args.step.rows[r] : StepRow{0, 0, 0, 0};
    uint32_t unit_total, tile_total;
    const uint32_t row_units = row_unit_count(row, args.window, unit_pages);
    const uint32_t unit_end = block_prefix(row_units, unit_sums, &unit_total);
    const uint32_t tile_end = block_prefix(row_tile_count(row), tile_sums, &tile_total);
    if (r < row_count) {
      plan.row_units[r + 1] = units + unit_end;
      plan.row_tiles[r + 1] = tiles + tile_end;
    }
    units += unit_total;
    tiles += tile_total;
    decode_rows += static_cast<uint32_t>(__syncthreads_count(row_units != 0));
    atomicMax(&longest, row_units);
  }
  const uint32_t unit_count = units * plan.head_tiles;
  uint32_t blocks = min(plan.max_blocks, unit_count);
  if (threadIdx.x == 0) {
    plan.row_units[0] = 0;
    plan.row_tiles[0] = 0;
    *plan.tile_count = tiles;
  }
  __syncthreads();  // what this block wrote it now reads

  uint32_t block_units = blocks == 0 ? 0 : unit_count / blocks;
  uint32_t rest = unit_count - block_units * blocks;
  if (blocks != 0 && plan.fixed_unit_pages == 0 && longest * decode_rows == units) {
    const uint32_t whole = whole_share(unit_count, blocks, longest);
    if (whole != 0) {
      block_units = whole;
      blocks = (unit_count + block_units - 1) / block_units;
      rest = 0;
    }
  }
  if (plan.has_groups && plan.cluster_blocks == 0) {
    block_units =
        find_block_units(plan.row_units, row_count, plan.max_blocks / plan.head_tiles, unit_sums);
    const uint32_t r = threadIdx.x;
    const uint32_t row_units = r < row_count ? plan.row_units[r + 1] - plan.row_units[r] : 0;
    uint32_t total;
    const uint32_t end =
        block_prefix(group_blocks_of(plan, row_units, block_units), unit_sums, &total);
    if (r == 0) group_blocks[0] = 0;
    group_blocks[r + 1] = end;
    __syncthreads();
  }
  for (uint32_t b = threadIdx.x; b < plan.max_blocks; b += kBlockThreads) {
    DecodeStart start{};
    bool has_units = b < blocks;
    if (plan.has_groups) {
      has_units = find_group(plan, group_blocks, row_count, block_units, b, &start);
    } else if (has_units) {
      start.block_units = block_units;
      start.larger_count = rest;
      start.begin = b * block_units + min(b, rest);
      start.end = min(start.begin + block_units + (b < rest ? 1 : 0), unit_count);
      start.row = find_row(plan.row_units, row_count, start.begin / plan.head_tiles);
    }
    if (has_units) {
      start.units_before = plan.row_units[start.row];
      start.units_to_end = plan.row_units[start.row + 1];
      start.token = args.step.rows[start.row].first_token;
      start.position = args.step.rows[start.row].first_position;
      const uint32_t count = start.units_to_end - start.units_before;
      const uint32_t within = start.begin - start.units_before * plan.head_tiles;
      if (!plan.has_groups) start.head = within / count;
      const uint32_t last = start.position / kPagePositions;
      const uint32_t first =
          (start.position / (unit_pages * kPagePositions) + 1 - count + within % count) *
          unit_pages;
      const uint32_t* table =
          args.step.page_tables + uint64_t{start.row} * args.step.page_table_stride;
#pragma unroll
      for (uint32_t i = 0; i < kStartPages; ++i) start.pages[i] = table[min(first + i, last)];
    }
    plan.starts[b] = start;
  }
  for (uint32_t t = threadIdx.x; t < min(tiles, plan.max_tiles); t += kBlockThreads) {
    const uint32_t row = find_row(plan.row_tiles, row_count, t);
    const uint32_t last = plan.row_tiles[row + 1] - 1;
    plan.tiles[t] = {row, (last - t) * kPrefillTileTokens};
  }
}

// No early trigger in either: the next kernel starts when this one has ended. Its reads before its
// wait pass by the first-level cache.
__global__ void __launch_bounds__(kBlockThreads)
    attention_plan_kernel(const AttentionPlanArgs args) {
  dependent_wait();
  make_plan(args);
  __threadfence();
}

// Tokens into their target, fed ones from the histories.
__device__ inline void start_rows(const StepStart& start) {
  const BeginStepArgs& begin = start.begin;
  const InputScatterArgs& inputs = start.inputs;
  const uint4 token_segment = input_segment(inputs, start.tokens);
  const uint4 row_segment = input_segment(inputs, start.begin_rows);
  const auto* const tokens = reinterpret_cast<const int32_t*>(inputs.block + token_segment.z);
  const auto* const rows = reinterpret_cast<const BeginRow*>(inputs.block + row_segment.z);
  for (uint32_t i = threadIdx.x; i < token_segment.x * token_segment.y / 4; i += kBlockThreads)
    begin.tokens[i] = tokens[i];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < begin.row_count; i += kBlockThreads) {
    const BeginRow row = rows[i];
    begin_row(begin, row, i);
    if (is_row_history_written(begin, row)) *row_history(begin, row) = tokens[row.first_token];
  }
}

// Block 0 plans, block 1 begins the rows, the others deal out a part of a segment each.
__global__ void __launch_bounds__(kBlockThreads)
    attention_plan_start_kernel(const AttentionPlanArgs args, const StepStart start) {
  dependent_wait();
  const InputScatterArgs& inputs = start.inputs;
  if (blockIdx.x == 0) {
    AttentionPlanArgs here = args;
    const uint4 rows = input_segment(inputs, start.rows);
    const uint4 tables = input_segment(inputs, start.page_tables);
    here.step.rows = reinterpret_cast<const StepRow*>(inputs.block + rows.z);
    here.step.page_tables = reinterpret_cast<const uint32_t*>(inputs.block + tables.z);
    here.step.page_table_stride = input_row_words(tables);
    make_plan(here);
  } else if (blockIdx.x == 1) {
    start_rows(start);
  } else {
    const uint32_t segment = (blockIdx.x - 2) / kScatterBlocks;
    if (segment != start.tokens)
      scatter_segment(inputs, segment,
                      (blockIdx.x - 2) % kScatterBlocks * kBlockThreads + threadIdx.x,
                      kScatterBlocks * kBlockThreads);
  }
  __threadfence();
}

bool has_room(const AttentionPlanArgs& args) {
  return args.step.row_count <= args.plan.max_rows &&
         (!args.plan.has_groups || args.step.row_count <= kDecodeGroupRowsMax);
}

}  // namespace

cudaError_t attention_plan(const AttentionPlanArgs& args, const Launch& launch) {
  if (args.step.row_count == 0) return cudaSuccess;
  if (!has_room(args)) return cudaErrorInvalidValue;
  return launch_kernel(launch, dim3(1), dim3(kBlockThreads), 0, 0, attention_plan_kernel, args);
}

cudaError_t attention_plan_start(const AttentionPlanArgs& args, const StepStart& start,
                                 const Launch& launch) {
  if (args.step.row_count == 0 || !has_room(args) || start.begin.row_count != args.step.row_count)
    return cudaErrorInvalidValue;
  return launch_kernel(launch, dim3(2 + start.inputs.segment_count * kScatterBlocks),
                       dim3(kBlockThreads), 0, 0, attention_plan_start_kernel, args, start);
}

cudaError_t attention_plan_clear(const AttentionPlan& plan, uint32_t counter_count,
                                 cudaStream_t stream) {
  const cudaError_t status =
      cudaMemsetAsync(plan.counters, 0, uint64_t{counter_count} * sizeof(uint32_t), stream);
  if (status != cudaSuccess) return status;
  return cudaMemsetAsync(plan.starts, 0, uint64_t{plan.max_blocks} * sizeof(DecodeStart), stream);
}

}  // namespace wcuda::kernels
