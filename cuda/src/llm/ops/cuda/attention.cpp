// Which attention kernels run for a step, and their scratch memory.
#include "llm/ops/cuda/attention.h"

#include <algorithm>
#include <cstddef>

#include "kernels/attention/attention_decode_group.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/attention_prefill.h"
#include "kernels/shared/arena.h"

namespace wcuda::ops {
namespace {

static_assert(sizeof(BatchRow) == sizeof(kernels::StepRow));
static_assert(offsetof(BatchRow, first_token) == offsetof(kernels::StepRow, first_token));
static_assert(offsetof(BatchRow, token_count) == offsetof(kernels::StepRow, token_count));
static_assert(offsetof(BatchRow, first_position) == offsetof(kernels::StepRow, first_position));
static_assert(kPageTokens == kernels::kPagePositions);
static_assert(static_cast<uint32_t>(KvType::kF16) ==
              static_cast<uint32_t>(kernels::KvFormat::kF16));
static_assert(static_cast<uint32_t>(KvType::kQ8_0) ==
              static_cast<uint32_t>(kernels::KvFormat::kQ8_0));
static_assert(static_cast<uint32_t>(KvType::kFp8E4m3) ==
              static_cast<uint32_t>(kernels::KvFormat::kFp8E4m3));

constexpr kernels::KvFormat kFormats[] = {kernels::KvFormat::kF16, kernels::KvFormat::kQ8_0,
                                          kernels::KvFormat::kFp8E4m3};

// With batch_invariant a sum is cut at fixed positions: into at most this many parts, for they take
// memory, and of at least so many pages, for cutting costs time.
constexpr uint32_t kFixedPartsMax = 16;
constexpr uint32_t kFixedUnitPagesMin = 8;

// Sizes of the plan's arrays, in elements.
struct Sizes {
  uint32_t max_blocks;
  uint32_t max_tiles;
  uint32_t head_tiles;
  uint32_t fixed_unit_pages;
  uint64_t counters;
  uint64_t part_floats;  // of all parts
};

Sizes sizes_of(const Limits& limits, uint32_t sm_count) {
  Sizes sizes{};
  sizes.max_blocks = kernels::decode_blocks_max(sm_count);
  sizes.max_tiles = kernels::prefill_tiles_max(limits.max_batch_tokens, limits.max_batch_rows);
  sizes.head_tiles = kernels::decode_head_tiles(limits.head_count, limits.kv_head_count);
  const uint64_t floats =
      kernels::decode_part_floats(limits.head_count, limits.kv_head_count, limits.head_length);
  if (!limits.batch_invariant) {
    sizes.counters = sizes.max_blocks;
    sizes.part_floats = 2 * uint64_t{sizes.max_blocks} * floats;
    return sizes;
  }
  const uint32_t pages = (limits.max_sequence_tokens + kPageTokens - 1) / kPageTokens;
  sizes.fixed_unit_pages =
      std::max(kFixedUnitPagesMin, (pages + kFixedPartsMax - 1) / kFixedPartsMax);
  const uint64_t rows = uint64_t{limits.max_batch_rows} * sizes.head_tiles;
  sizes.counters = rows;
  sizes.part_floats =
      rows * ((pages + sizes.fixed_unit_pages - 1) / sizes.fixed_unit_pages) * floats;
  return sizes;
}

kernels::AttentionPlan place(const Limits& limits, const Sizes& sizes, Arena* arena) {
  kernels::AttentionPlan plan;
  plan.max_rows = limits.max_batch_rows;
  plan.max_blocks = sizes.max_blocks;
  plan.max_tiles = sizes.max_tiles;
  plan.fixed_unit_pages = sizes.fixed_unit_pages;
  plan.part_floats =
      kernels::decode_part_floats(limits.head_count, limits.kv_head_count, limits.head_length);
  plan.head_tiles = sizes.head_tiles;
  plan.group_heads = limits.head_count / limits.kv_head_count;
  plan.group_tiles = sizes.head_tiles / limits.kv_head_count;
  plan.tile_count = arena->take<uint32_t>(1);
  plan.row_units = arena->take<uint32_t>(limits.max_batch_rows + 1);
  plan.row_tiles = arena->take<uint32_t>(limits.max_batch_rows + 1);
  plan.starts = arena->take<kernels::DecodeStart>(sizes.max_blocks);
  plan.tiles = arena->take<kernels::PrefillTile>(sizes.max_tiles);
  plan.counters = arena->take<uint32_t>(sizes.counters);
  plan.parts = arena->take<float>(sizes.part_floats);
  return plan;
}

kernels::StepRows step_rows(const Batch& batch) {
  kernels::StepRows step;
  step.token_count = batch.token_count;
  step.row_count = batch.row_count;
  step.page_table_stride = batch.page_table_stride;
  step.positions = batch.positions;
  step.token_rows = batch.token_rows;
  step.rows = reinterpret_cast<const kernels::StepRow*>(batch.rows);
  step.page_tables = batch.page_tables;
  return step;
}

kernels::KvPages kv_pages(const KvPool& pool) {
  kernels::KvPages pages;
  pages.data = pool.data;
  pages.format = static_cast<kernels::KvFormat>(pool.type);
  pages.page_count = pool.page_count;
  pages.head_count = pool.head_count;
  pages.head_length = pool.head_length;
  pages.row_bytes = pool.row_bytes;
  return pages;
}

// Has the plan's step take groups of blocks, where that is better than one line of units for all:
// where each row and head tile gets a multiprocessor at least.
void choose_groups(const Batch& batch, const KvPool& pool, const kernels::Launch& launch,
                   kernels::AttentionPlan* plan) {
  plan->has_groups = false;
  plan->cluster_blocks = 0;
  const auto sm_count = static_cast<uint32_t>(launch.sm_count);
  const uint32_t groups = batch.row_count * plan->head_tiles;
  if (!kernels::decode_has_groups(pool.head_length, launch) || plan->fixed_unit_pages != 0 ||
      batch.max_row_tokens != 1 || groups > sm_count)
    return;
  plan->has_groups = true;
  if (batch.max_positions > kLonePositionsMax && batch.max_positions <= kClusterPositionsMax &&
      groups * kernels::kDecodeClusterBlocks <= sm_count) {
    plan->cluster_blocks = kernels::kDecodeClusterBlocks;
    plan->max_blocks = groups * kernels::kDecodeClusterBlocks;
    return;
  }
  constexpr uint32_t kShare = kernels::kDecodeGroupUnits * kPageTokens;
  plan->max_blocks =
      std::min(2 * sm_count, groups * std::max(1u, (batch.max_positions + kShare - 1) / kShare));
}

}  // namespace

uint64_t CudaAttention::scratch_bytes(const Limits& limits, uint32_t sm_count) {
  Arena arena;
  place(limits, sizes_of(limits, sm_count), &arena);
  return arena.bytes();
}

cudaError_t CudaAttention::prepare(const Limits& limits, void* scratch,
                                   const kernels::Launch& launch) {
  if (limits.kv_head_count == 0 || limits.head_count % limits.kv_head_count != 0)
    return cudaErrorInvalidValue;
  const Sizes sizes = sizes_of(limits, static_cast<uint32_t>(launch.sm_count));
  Arena arena(scratch);
  plan_ = place(limits, sizes, &arena);
  for (const kernels::KvFormat format : kFormats) {
    cudaError_t status = kernels::attention_decode_prepare(format, limits.head_length, launch);
    if (status != cudaSuccess) return status;
    status = kernels::attention_prefill_prepare(format, limits.head_length);
    if (status != cudaSuccess) return status;
  }
  return kernels::attention_plan_clear(plan_, static_cast<uint32_t>(sizes.counters), launch.stream);
}

cudaError_t CudaAttention::begin_step(const Batch& batch, const KvPool& pool, uint32_t window,
                                      const kernels::Launch& launch) {
  plan_.max_blocks = kernels::decode_block_count(static_cast<kernels::KvFormat>(pool.type),
                                                 pool.head_length, launch);
  choose_groups(batch, pool, launch, &plan_);
  step_window_ = window;
  const kernels::AttentionPlanArgs args{step_rows(batch), plan_, window};
  if (batch.start == nullptr) return kernels::attention_plan(args, launch);
  // First of its step: what it overwrites, the step before may still read.
  kernels::Launch first = launch;
  first.is_dependent = false;
  return kernels::attention_plan_start(args, *batch.start, first);
}

kernels::RopeKvArgs CudaAttention::rope_args(const AttentionInputArgs& args) const {
  kernels::RopeKvArgs call;
  call.step = step_rows(*args.batch);
  call.pages = kv_pages(args.pool);
  call.layer = args.layer;
  call.head_count = args.head_count;
  call.query = args.query_out;
  call.turn.query_norm = args.query_norm;
  call.turn.key_norm = args.key_norm;
  call.turn.epsilon = args.epsilon;
  call.turn.has_adjacent_pairs = args.rope.pairing == RopePairing::kAdjacent;
  call.turn.rope_dimensions = args.rope.dimension_count;
  call.turn.rope_frequencies = args.rope.frequencies;
  call.turn.rope_magnitude = args.rope.magnitude;
  return call;
}

bool CudaAttention::leaves_rope(const AttentionInputArgs& args) {
  return args.batch->max_row_tokens == 1 && args.rope.dimension_count % 2 == 0 &&
         args.rope.dimension_count <= args.pool.head_length;
}

cudaError_t CudaAttention::rope_kv(const AttentionInputArgs& args, const float* key,
                                   const float* value, const kernels::Launch& launch) {
  left_ = rope_args(args);
  left_.key = key;
  left_.value = value;
  is_left_ = leaves_rope(args);
  return is_left_ ? cudaSuccess : kernels::rope_kv(left_, launch);
}

cudaError_t CudaAttention::rope_joined_kv(const AttentionInputArgs& args, const float* joined,
                                          const kernels::Launch& launch) {
  kernels::RopeKvArgs call = rope_args(args);
  call.joined = joined;
  return kernels::rope_kv(call, launch);
}

kernels::AttentionKernelArgs CudaAttention::kernel_args(const AttentionArgs& args) const {
  kernels::AttentionKernelArgs call;
  call.step = step_rows(*args.batch);
  call.plan = plan_;
  call.pages = kv_pages(args.pool);
  call.layer = args.layer;
  call.head_count = args.head_count;
  call.scale = args.scale;
  call.window = args.window;
  call.query = args.query;
  call.out = args.out;
  return call;
}

bool CudaAttention::has_half(const AttentionArgs& args, const kernels::Launch& launch) {
  return args.batch->min_row_tokens > 1 &&
         kernels::attention_prefill_has_warpgroup(args.pool.head_length, launch);
}

// No row has one token: attention_decode has nothing to do.
cudaError_t CudaAttention::attention_half(const AttentionArgs& args,
                                          const kernels::Launch& launch) {
  if (step_window_ != 0 && args.window != step_window_) return cudaErrorInvalidValue;
  kernels::AttentionKernelArgs call = kernel_args(args);
  call.out_half = reinterpret_cast<uint16_t*>(args.out);
  return kernels::attention_prefill(call, launch);
}

cudaError_t CudaAttention::attention(const AttentionArgs& args, const kernels::Launch& launch,
                                     const AttentionOptions& options) {
  if (step_window_ != 0 && args.window != step_window_) return cudaErrorInvalidValue;
  kernels::AttentionKernelArgs call = kernel_args(args);
  call.softcap = options.softcap;
  call.sinks = options.sinks;
  call.triggers_early = options.triggers_early;
  if (is_left_) {
    is_left_ = false;
    if (left_.layer != args.layer || left_.query != args.query) return cudaErrorInvalidValue;
    call.key = left_.key;
    call.value = left_.value;
    call.turn = left_.turn;
  }
  if (args.batch->max_row_tokens != 1) {
    const cudaError_t status = kernels::attention_prefill(call, launch);
    if (status != cudaSuccess) return status;
  }
  return kernels::attention_decode(call, launch);
}

}  // namespace wcuda::ops
