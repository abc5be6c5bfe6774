// Chooses the attention kernels of a step and lays out their scratch memory.
#include "llm/ops/cuda/attention.h"

#include <algorithm>

#include "kernels/attention/attention_decode_group.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/attention_prefill.h"
#include "kernels/shared/arena.h"

namespace wcuda::ops {
namespace {

constexpr kernels::KvFormat kFormats[] = {kernels::KvFormat::kF16, kernels::KvFormat::kQ8_0,
                                          kernels::KvFormat::kFp8E4m3, kernels::KvFormat::kInt10};

// Sizes of the plan's arrays, in elements.
struct Sizes {
  uint32_t max_blocks;
  uint32_t max_tiles;
  uint32_t head_tiles;
  uint32_t fixed_span_pages;
  uint64_t counters;
  uint64_t partial_floats;  // of all parts
  uint64_t shared_heads;    // rows, splits and query heads of shared prefixes; 0: none
  uint64_t own_heads;       // rows and query heads of steps with shared prefixes
  uint64_t prefill_partials;
  uint32_t prefill_counters;
  uint64_t expanded_bytes;  // of pages in f16
};

Sizes sizes_of(const Limits& limits, const kernels::Launch& launch) {
  const auto sm_count = static_cast<uint32_t>(launch.sm_count);
  const bool has_warpgroup = kernels::attention_prefill_has_warpgroup(limits.head_length, launch);
  Sizes sizes{};
  sizes.max_blocks = kernels::decode_blocks_max(sm_count);
  sizes.max_tiles = kernels::prefill_tiles_max(limits.max_batch_tokens, limits.max_batch_rows);
  sizes.head_tiles = kernels::decode_head_tiles(limits.head_count, limits.kv_head_count);
  if (has_warpgroup)
    sizes.expanded_bytes =
        expanded_pages_max(limits) * kernels::expanded_page_bytes(limits.head_length);
  const uint64_t floats =
      kernels::decode_partial_floats(limits.head_count, limits.kv_head_count, limits.head_length);
  if (!limits.batch_invariant) {
    sizes.counters = sizes.max_blocks;
    sizes.partial_floats = 2 * uint64_t{sizes.max_blocks} * floats;
    if (has_warpgroup) {
      sizes.shared_heads = uint64_t{kernels::kSharedPartialRows} * limits.head_count;
      sizes.own_heads = uint64_t{std::min(limits.max_batch_rows, kernels::kDecodeSharedRowsMax)} *
                        limits.head_count;
      sizes.prefill_partials = kernels::prefill_partials_count(limits.head_length, sm_count);
      sizes.prefill_counters = kernels::prefill_counter_count(sm_count);
    }
    return sizes;
  }
  const uint32_t pages = (limits.max_sequence_tokens + kPageTokens - 1) / kPageTokens;
  sizes.fixed_span_pages = kernels::fixed_span_pages(pages);
  const uint64_t rows = uint64_t{limits.max_batch_rows} * sizes.head_tiles;
  sizes.counters = rows;
  sizes.partial_floats =
      rows * ((pages + sizes.fixed_span_pages - 1) / sizes.fixed_span_pages) * floats;
  return sizes;
}

kernels::AttentionPlan place(const Limits& limits, const Sizes& sizes, Arena* arena) {
  kernels::AttentionPlan plan;
  plan.max_rows = limits.max_batch_rows;
  plan.max_blocks = sizes.max_blocks;
  plan.max_tiles = sizes.max_tiles;
  plan.fixed_span_pages = sizes.fixed_span_pages;
  plan.partial_floats =
      kernels::decode_partial_floats(limits.head_count, limits.kv_head_count, limits.head_length);
  plan.head_tiles = sizes.head_tiles;
  plan.group_heads = limits.head_count / limits.kv_head_count;
  plan.group_tiles = sizes.head_tiles / limits.kv_head_count;
  plan.tile_count = arena->take<uint32_t>(1);
  plan.row_spans = arena->take<uint32_t>(limits.max_batch_rows + 1);
  plan.row_tiles = arena->take<uint32_t>(limits.max_batch_rows + 1);
  plan.starts = arena->take<kernels::DecodeStart>(sizes.max_blocks);
  plan.tiles = arena->take<kernels::PrefillTile>(sizes.max_tiles);
  plan.counters = arena->take<uint32_t>(sizes.counters);
  plan.partials = arena->take<float>(sizes.partial_floats);
  plan.shared_tile_count = arena->take<uint32_t>(1);
  plan.shared_tiles = arena->take<kernels::SharedTile>(kernels::kSharedPartialRows);
  plan.shared_queries = arena->take<uint16_t>(sizes.own_heads * limits.head_length);
  plan.shared_results = arena->take<uint16_t>(sizes.shared_heads * limits.head_length);
  plan.shared_lse = arena->take<float>(sizes.shared_heads);
  plan.own_results = arena->take<float>(sizes.own_heads * limits.head_length);
  plan.own_lse = arena->take<float>(sizes.own_heads);
  if (sizes.prefill_partials != 0) {
    plan.prefill_partials = arena->take<float4>(sizes.prefill_partials);
    plan.prefill_counters = arena->take<uint32_t>(sizes.prefill_counters);
  }
  if (sizes.expanded_bytes != 0) {
    plan.row_pages = arena->take<uint32_t>(limits.max_batch_rows + 1);
    plan.expanded = arena->take<uint8_t>(sizes.expanded_bytes);
    plan.expanded_bytes = sizes.expanded_bytes;
  }
  return plan;
}

kernels::HeadRope head_rope(const RopeKvArgs& args) {
  kernels::HeadRope rope;
  rope.query_norm = args.query_norm;
  rope.key_norm = args.key_norm;
  rope.epsilon = args.epsilon;
  rope.has_adjacent_pairs = args.rope.pairing == RopePairing::kAdjacent;
  rope.rope_dimensions = args.rope.dimension_count;
  rope.rope_frequencies = args.rope.frequencies;
  rope.rope_magnitude = args.rope.magnitude;
  return rope;
}

}  // namespace

uint64_t CudaAttention::scratch_bytes(const Limits& limits, const kernels::Launch& launch) {
  Arena arena;
  place(limits, sizes_of(limits, launch), &arena);
  return arena.bytes();
}

cudaError_t CudaAttention::prepare(const Limits& limits, void* scratch,
                                   const kernels::Launch& launch) {
  if (limits.kv_head_count == 0 || limits.head_count % limits.kv_head_count != 0)
    return cudaErrorInvalidValue;
  const Sizes sizes = sizes_of(limits, launch);
  Arena arena(scratch);
  memory_ = place(limits, sizes, &arena);
  for (const kernels::KvFormat format : kFormats) {
    cudaError_t status = kernels::attention_decode_prepare(format, limits.head_length, launch);
    if (status != cudaSuccess) return status;
    status = kernels::attention_prefill_prepare(format, limits.head_length);
    if (status != cudaSuccess) return status;
  }
  return kernels::attention_plan_clear(memory_, static_cast<uint32_t>(sizes.counters),
                                       sizes.prefill_counters, launch.stream);
}

kernels::AttentionPlan CudaAttention::plan_of(const Batch& batch, const KvPool& pool,
                                              const kernels::Launch& launch) const {
  kernels::AttentionPlan plan = memory_;
  plan.max_blocks = kernels::decode_block_count(pool.format, pool.head_length, launch);
  if (plan.fixed_span_pages == 0 && batch.max_row_tokens == 1) {
    const kernels::DecodeGrid grid = kernels::choose_decode_grid(
        pool.head_length, launch.compute_capability, static_cast<uint32_t>(launch.sm_count),
        batch.row_count * plan.head_tiles, batch.max_positions, batch.has_persistent_layers);
    plan.has_groups = grid.has_groups;
    plan.cluster_blocks = grid.cluster_blocks;
    if (grid.has_groups) plan.max_blocks = grid.blocks;
  }
  if (batch.has_shared_prefix && !plan.has_groups)
    plan.shared_splits = kernels::shared_splits_max(
        batch.row_count, pool.head_count, plan.group_heads, static_cast<uint32_t>(launch.sm_count));
  if (plan.expanded != nullptr) plan.expanded_heads = batch.expanded_heads;
  if (!kernels::may_divide_keys(batch.max_positions, batch.token_count))
    plan.prefill_partials = nullptr;
  return plan;
}

kernels::AttentionPlanArgs CudaAttention::plan_args(const Batch& batch, const KvPool& pool,
                                                    uint32_t window,
                                                    const kernels::Launch& launch) const {
  return {batch, plan_of(batch, pool, launch), window,
          kernels::decode_group_sizes(launch.compute_capability, batch.has_persistent_layers)};
}

Kernel CudaAttention::decode_kernel(const Batch& batch, const KvPool& pool,
                                    const kernels::Launch& launch) const {
  const kernels::AttentionPlan plan = plan_of(batch, pool, launch);
  if (!plan.has_groups) return Kernel::kAttentionDecode;
  return plan.cluster_blocks != 0 ? Kernel::kAttentionDecodeCluster : Kernel::kAttentionDecodeGroup;
}

cudaError_t CudaAttention::plan(const Batch& batch, const KvPool& pool, uint32_t window,
                                const kernels::Launch& launch) const {
  return kernels::attention_plan(plan_args(batch, pool, window, launch), launch);
}

cudaError_t CudaAttention::start(const Batch& batch, const KvPool& pool, uint32_t window,
                                 const kernels::StepStart& inputs,
                                 const kernels::Launch& launch) const {
  // This is the first kernel of a step: the previous step may still read what it overwrites.
  kernels::Launch first = launch;
  first.is_dependent = false;
  return kernels::attention_plan_start(plan_args(batch, pool, window, launch), inputs, first);
}

cudaError_t CudaAttention::rope_kv(const RopeKvArgs& args, const kernels::Launch& launch) const {
  kernels::RopeKvArgs call;
  call.step = *args.batch;
  call.pages = args.pool;
  call.layer = args.layer;
  call.head_count = args.head_count;
  call.query = args.query;
  call.key = args.key;
  call.value = args.value;
  call.rope = head_rope(args);
  return kernels::rope_kv(call, launch);
}

kernels::AttentionKernelArgs CudaAttention::kernel_args(const AttentionArgs& args,
                                                        const kernels::Launch& launch,
                                                        const kernels::HalfOperand& operand) const {
  kernels::AttentionKernelArgs call;
  call.operand = operand;
  call.step = *args.batch;
  call.plan = plan_of(*args.batch, args.pool, launch);
  call.pages = args.pool;
  call.layer = args.layer;
  call.head_count = call.item_heads = args.head_count;
  call.scale = args.scale;
  call.window = args.window;
  call.softcap = args.softcap;
  call.sinks = args.sinks;
  call.query = args.query;
  call.out = args.out;
  if (args.batch->has_drafts)
    call.stored_tiles =
        args.batch->max_row_tokens == 1 ? 1 : kernels::AttentionKernelArgs::kAllTiles;
  if (args.rope_kv != nullptr) {
    call.key = args.rope_kv->key;
    call.value = args.rope_kv->value;
    call.rope = head_rope(*args.rope_kv);
  }
  return call;
}

cudaError_t CudaAttention::prefill(const AttentionArgs& args, const kernels::Launch& launch,
                                   const kernels::HalfOperand& operand) const {
  const kernels::AttentionKernelArgs call = kernel_args(args, launch, operand);
  return call.plan.expanded_heads != 0 ? kernels::attention_prefill_expanded(call, launch)
                                       : kernels::attention_prefill(call, launch);
}

cudaError_t CudaAttention::shared(const AttentionArgs& args, const kernels::Launch& launch) const {
  return kernels::attention_shared(kernel_args(args, launch, {}), launch);
}

cudaError_t CudaAttention::decode(const AttentionArgs& args, const kernels::Launch& launch,
                                  const kernels::HalfOperand& operand) const {
  kernels::AttentionKernelArgs call = kernel_args(args, launch, operand);
  if (call.plan.shared_splits != 0) call.out = call.plan.own_results;
  return kernels::attention_decode(call, launch);
}

cudaError_t CudaAttention::join(const AttentionArgs& args, const kernels::Launch& launch,
                                const kernels::HalfOperand& operand) const {
  return kernels::attention_join(kernel_args(args, launch, operand), launch);
}

}  // namespace wcuda::ops
