// attention_plan: computes prefix sums of the spans and tiles of the rows, then the start of each
// decode block and the list of prefill tiles by binary search. One block. Bytes moved: 16 per row,
// 64 per decode block, 8 per tile.
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/find_row.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/step_start.cuh"
#include "kernels/shared/warp_prefix.cuh"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 512;
constexpr uint32_t kWarps = kBlockThreads / 32;
static_assert(kBlockThreads == kDecodeGroupRowsMax);
constexpr uint32_t kScatterBlocks = 2;  // per segment

// Returns the sum of the values of the threads up to this one; `total` receives the sum of all.
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

// Spans of a row per head; 0 unless it is a decode row.
__device__ inline uint32_t row_span_count(const StepRow& row, uint32_t window, uint32_t span_pages,
                                          bool has_shared) {
  if (row.token_count != 1) return 0;
  const uint32_t position = row.first_position;
  if (has_shared) return position / kPagePositions - row.shared_pages + 1;
  const uint32_t span_positions = span_pages * kPagePositions;
  return position / span_positions - first_visible(position, window) / span_positions + 1;
}

__device__ inline uint32_t row_tile_count(const StepRow& row) {
  return row.token_count > 1 ? (row.token_count + kPrefillTileTokens - 1) / kPrefillTileTokens : 0;
}

// Pages of a row that attention_expand converts, if the step converts any.
__device__ inline uint32_t row_page_count(const StepRow& row) {
  const uint32_t end = row.first_position + row.token_count;
  return row.token_count > 1 ? (end + kPagePositions - 1) / kPagePositions : 0;
}

// Returns the least spans per block with which the groups of all rows have at most `slots` blocks
// per head, but no less than `least`. Called by all threads.
__device__ inline uint32_t find_block_spans(const uint32_t* row_spans, uint32_t row_count,
                                            uint32_t least, uint32_t slots, uint32_t* sums) {
  const uint32_t r = threadIdx.x;
  const uint32_t spans = r < row_count ? row_spans[r + 1] - row_spans[r] : 0;
  uint32_t low = max(least, (row_spans[row_count] + slots - 1) / slots);
  uint32_t high = max(low, row_spans[row_count]);
  for (uint32_t block_spans = low; low != high; block_spans = (low + high) / 2) {
    uint32_t blocks;
    block_prefix((spans + block_spans - 1) / block_spans, sums, &blocks);
    if (blocks <= slots)
      high = block_spans;
    else
      low = block_spans + 1;
  }
  return low;
}

// Finds the work of block `b` in a step with groups; returns false if there is none. `before[r]` is
// the number of blocks per head in rows before r.
__device__ inline bool find_group(const AttentionPlanArgs& args, const uint32_t* before,
                                  uint32_t block_spans, uint32_t b, DecodeStart* start) {
  const AttentionPlan& plan = args.plan;
  const uint32_t row_count = args.step.row_count;
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
  const uint32_t spans = plan.row_spans[start->row + 1] - plan.row_spans[start->row];
  const uint32_t blocks = group_blocks_of(args.sizes, plan.cluster_blocks, spans, block_spans);
  if (rank >= blocks) return false;
  start->group_blocks = blocks;
  start->group_first = b - rank;
  const uint32_t begin = plan.row_spans[start->row] * plan.head_tiles + start->head * spans;
  start->begin = begin + rank * spans / blocks;
  start->end = begin + (rank + 1) * spans / blocks;
  return true;
}

__device__ inline void make_plan(const AttentionPlanArgs& args) {
  __shared__ uint32_t span_sums[kWarps], tile_sums[kWarps];
  __shared__ uint32_t longest;                                // most spans of a row
  __shared__ uint32_t group_blocks[kDecodeGroupRowsMax + 1];  // per head in earlier rows
  const AttentionPlan& plan = args.plan;
  const uint32_t row_count = args.step.row_count;
  const uint32_t span_pages = plan.fixed_span_pages == 0 ? 1 : plan.fixed_span_pages;
  if (threadIdx.x == 0) longest = 0;

  uint32_t spans = 0, tiles = 0, pages = 0, decode_rows = 0;
  for (uint32_t first = 0; first < row_count; first += kBlockThreads) {
    const uint32_t r = first + threadIdx.x;
    const StepRow row = r < row_count ? args.step.rows[r] : StepRow{};
    uint32_t span_total, tile_total;
    const uint32_t row_spans =
        row_span_count(row, args.window, span_pages, plan.shared_splits != 0);
    const uint32_t span_end = block_prefix(row_spans, span_sums, &span_total);
    const uint32_t tile_end = block_prefix(row_tile_count(row), tile_sums, &tile_total);
    if (r < row_count) {
      plan.row_spans[r + 1] = spans + span_end;
      plan.row_tiles[r + 1] = tiles + tile_end;
    }
    if (plan.expanded_heads != 0) {
      uint32_t page_total;
      const uint32_t page_end = block_prefix(row_page_count(row), tile_sums, &page_total);
      if (r < row_count) plan.row_pages[r + 1] = pages + page_end;
      pages += page_total;
    }
    spans += span_total;
    tiles += tile_total;
    decode_rows += static_cast<uint32_t>(__syncthreads_count(row_spans != 0));
    atomicMax(&longest, row_spans);
  }
  if (plan.shared_splits != 0) {
    const uint32_t r = threadIdx.x;
    const StepRow row = r < row_count ? args.step.rows[r] : StepRow{};
    const uint32_t tile_rows = kPrefillTileTokens / plan.group_heads;
    const uint32_t count = (row.shared_rows + tile_rows - 1) / tile_rows;
    uint32_t total;
    const uint32_t end = block_prefix(count, span_sums, &total);
    for (uint32_t i = 0; i < count; ++i)
      plan.shared_tiles[end - count + i] = {
          r + i * tile_rows, min(tile_rows, row.shared_rows - i * tile_rows), row.shared_pages};
    if (r == 0) *plan.shared_tile_count = total;
  }
  const uint32_t span_count = spans * plan.head_tiles;
  uint32_t blocks = min(plan.max_blocks, span_count);
  if (threadIdx.x == 0) {
    plan.row_spans[0] = 0;
    plan.row_tiles[0] = 0;
    if (plan.expanded_heads != 0) plan.row_pages[0] = 0;
    *plan.tile_count = tiles;
  }
  __syncthreads();  // the prefix sums in global memory are read below

  uint32_t block_spans = blocks == 0 ? 0 : span_count / blocks;
  uint32_t rest = span_count - block_spans * blocks;
  if (blocks != 0 && plan.fixed_span_pages == 0 && longest * decode_rows == spans) {
    const uint32_t whole = whole_head_spans(span_count, blocks, longest);
    if (whole != 0) {
      block_spans = whole;
      blocks = (span_count + block_spans - 1) / block_spans;
      rest = 0;
    }
  }
  if (plan.has_groups && plan.cluster_blocks == 0) {
    block_spans = find_block_spans(plan.row_spans, row_count, args.sizes.group_spans,
                                   plan.max_blocks / plan.head_tiles, span_sums);
    const uint32_t r = threadIdx.x;
    const uint32_t row_spans = r < row_count ? plan.row_spans[r + 1] - plan.row_spans[r] : 0;
    uint32_t total;
    const uint32_t end =
        block_prefix(group_blocks_of(args.sizes, 0, row_spans, block_spans), span_sums, &total);
    if (r == 0) group_blocks[0] = 0;
    group_blocks[r + 1] = end;
    __syncthreads();
  }
  for (uint32_t b = threadIdx.x; b < plan.max_blocks; b += kBlockThreads) {
    DecodeStart start{};
    bool has_spans = b < blocks;
    if (plan.has_groups) {
      has_spans = find_group(args, group_blocks, block_spans, b, &start);
    } else if (has_spans) {
      start.block_spans = block_spans;
      start.larger_count = rest;
      start.begin = b * block_spans + min(b, rest);
      start.end = min(start.begin + block_spans + (b < rest ? 1 : 0), span_count);
      start.row = find_row(plan.row_spans, row_count, start.begin / plan.head_tiles);
    }
    if (has_spans) {
      start.spans_before = plan.row_spans[start.row];
      start.spans_to_end = plan.row_spans[start.row + 1];
      start.token = args.step.rows[start.row].first_token;
      start.position = args.step.rows[start.row].first_position;
      const uint32_t count = start.spans_to_end - start.spans_before;
      const uint32_t within = start.begin - start.spans_before * plan.head_tiles;
      if (!plan.has_groups) start.head = within / count;
      const uint32_t last = start.position / kPagePositions;
      const uint32_t first =
          (start.position / (span_pages * kPagePositions) + 1 - count + within % count) *
          span_pages;
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

// Neither kernel triggers early, so the next kernel starts when this one has ended. Data that the
// next kernel reads before its wait, it reads past the L1 cache.
__global__ void __launch_bounds__(kBlockThreads)
    attention_plan_kernel(const AttentionPlanArgs args) {
  dependent_wait();
  make_plan(args);
  __threadfence();
}

// Copies the step's tokens to their target. Tokens that are fed back come from the histories.
__device__ inline void start_rows(const StepStart& start) {
  const BeginStepArgs& begin = start.begin;
  const InputScatterArgs& inputs = start.inputs;
  const uint4 token_segment = input_segment(inputs, start.tokens);
  const uint4 row_segment = input_segment(inputs, start.rows);
  const auto* const tokens = reinterpret_cast<const int32_t*>(inputs.block + token_segment.z);
  const auto* const rows = reinterpret_cast<const StepRow*>(inputs.block + row_segment.z);
  for (uint32_t i = threadIdx.x; i < token_segment.x * token_segment.y / 4; i += kBlockThreads)
    begin.tokens[i] = tokens[i];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < begin.row_count; i += kBlockThreads) {
    const StepRow row = rows[i];
    begin_row(begin, row, i);
    if (is_row_history_written(begin, row)) *row_history(begin, row) = tokens[row.first_token];
  }
}

// Block 0 plans, block 1 begins the rows, each other block scatters a range of one segment.
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
         ((!args.plan.has_groups && args.plan.shared_splits == 0) ||
          args.step.row_count <= kDecodeGroupRowsMax);
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
                                 uint32_t prefill_counter_count, cudaStream_t stream) {
  cudaError_t status =
      cudaMemsetAsync(plan.counters, 0, uint64_t{counter_count} * sizeof(uint32_t), stream);
  if (status != cudaSuccess) return status;
  if (plan.prefill_counters != nullptr)
    status = cudaMemsetAsync(plan.prefill_counters, 0,
                             uint64_t{prefill_counter_count} * sizeof(uint32_t), stream);
  if (status != cudaSuccess) return status;
  return cudaMemsetAsync(plan.starts, 0, uint64_t{plan.max_blocks} * sizeof(DecodeStart), stream);
}

}  // namespace wcuda::kernels
