// The work items of prefill attention with WGMMA, and which blocks of the grid compute them. Only
// for .cu files.
#pragma once

#include "kernels/attention/attention_prefill.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/prefill_partitions.h"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/shared/warp_prefix.cuh"

namespace wcuda::kernels {

constexpr uint32_t kPrefillThreads = 384;    // of a block
constexpr uint32_t kPrefillBlockKeys = 128;  // of a block of keys

#if WCUDA_HAS_WARPGROUPS

// A work item. For prefill, it is one tile of tokens and one query head. For leading pages that
// rows share, it is one split of them, one tile of rows, and all query heads of a key-value head;
// token_count then counts pairs of a row and a query head.
struct PrefillItem {
  uint32_t row, head, kv_head;
  uint32_t heads = 1;                   // query heads from `head` on
  uint32_t heads_reciprocal = 1 << 16;  // of `heads`, times 2^16, rounded up
  uint32_t split = 0;
  uint32_t first_token, token_count, first_position;
  uint32_t first_key, end;          // positions that any of its tokens sees
  uint32_t block_begin, block_end;  // of 128 keys
  uint32_t stored_from;             // the step stores keys from this position on
  // Blocks of the grid that compute parts of the item, in the order of its keys: the first one, and
  // how many.
  uint32_t first_part = 0, part_count = 1;

  PrefillItem() = default;
  __device__ PrefillItem(const AttentionKernelArgs& args, uint32_t index) {
    if (args.is_shared) {
      const AttentionPlan& plan = args.plan;
      const uint32_t tile_items = args.pages.head_count * plan.shared_splits;
      const SharedTile* const tiles = plan.shared_tiles + index / tile_items;
      const SharedTile tile{__ldcg(&tiles->row), __ldcg(&tiles->row_count), __ldcg(&tiles->pages)};
      const SharedSplits splits = shared_splits(tile.pages, plan.shared_splits);
      row = tile.row;
      kv_head = index % tile_items / plan.shared_splits;
      split = index % plan.shared_splits;
      heads = plan.group_heads;
      heads_reciprocal = ((1 << 16) + heads - 1) / heads;
      head = kv_head * heads;
      first_token = __ldcg(&args.step.rows[row].first_token);
      token_count = tile.row_count * heads;
      first_position = UINT32_MAX / 2;  // sees all keys
      first_key = split * splits.positions;
      end = min(first_key + splits.positions, tile.pages * kPagePositions);
      block_begin = first_key / kPrefillBlockKeys;
      block_end =
          split < splits.count ? (end + kPrefillBlockKeys - 1) / kPrefillBlockKeys : block_begin;
      stored_from = UINT32_MAX;  // the step writes no shared page
      return;
    }
    const PrefillTile* const tiles = args.plan.tiles + index / args.item_heads;
    const PrefillTile tile{__ldcg(&tiles->row), __ldcg(&tiles->first_token)};
    const StepRow* const rows = args.step.rows + tile.row;
    const struct {
      uint32_t first_token, token_count, first_position;
    } step_row{__ldcg(&rows->first_token), __ldcg(&rows->token_count),
               __ldcg(&rows->first_position)};
    row = tile.row;
    kv_head = index % args.item_heads / (args.item_heads / args.pages.head_count);
    head = args.first_head + index % args.item_heads;
    first_token = step_row.first_token + tile.first_token;
    token_count = min(step_row.token_count - tile.first_token, kPrefillTileTokens);
    first_position = step_row.first_position + tile.first_token;
    first_key = first_visible(first_position, args.window);
    end = first_position + token_count;
    block_begin = first_key / kPrefillBlockKeys;
    block_end = (end + kPrefillBlockKeys - 1) / kPrefillBlockKeys;
    stored_from = args.row_pages != nullptr ? 0 : step_row.first_position;
  }
  // Whether the step stores keys of a block. These may be read only after the dependent wait.
  __device__ bool is_stored(uint32_t block) const {
    return (block + 1) * kPrefillBlockKeys > stored_from;
  }
  __device__ bool is_empty() const { return block_begin == block_end; }
  // Returns the index of the (token, query head) pair of a row of the tile.
  __device__ uint64_t place(const AttentionKernelArgs& args, uint32_t tile_row) const {
    const uint32_t token = tile_row * heads_reciprocal >> 16;
    return uint64_t{first_token + token} * args.head_count + head + tile_row - token * heads;
  }
  // Returns the number of a page of the row. Only f16 pages may be expanded ones.
  template <bool kIsF16>
  __device__ uint32_t page_at(const AttentionKernelArgs& args, uint32_t index) const {
    if (kIsF16 && args.row_pages != nullptr) return __ldcg(args.row_pages + row) + index;
    return __ldcg(args.step.page_tables + uint64_t{row} * args.step.page_table_stride + index);
  }
  // Rows of a block that may be read.
  __device__ RowRange valid(uint32_t block) const {
    const uint32_t first = block * kPrefillBlockKeys;
    return {first_key > first ? first_key - first : 0, min(end - first, kPrefillBlockKeys)};
  }
};

// Fills `partitions` and returns whether the blocks take equal partitions. Called by all threads.
__device__ __forceinline__ bool choose_partitions(const AttentionKernelArgs& args,
                                                  uint32_t tile_count,
                                                  PrefillPartitions* partitions) {
  if (tile_count == 0 || tile_count > kPartitionTilesMax) return false;
  const uint32_t item_cost = prefill_item_cost(tile_count);
  if (threadIdx.x < 32) {
    uint32_t count = 0;
    if (threadIdx.x < tile_count) {
      const PrefillItem item(args, threadIdx.x * args.item_heads);
      count = item_cost + item.block_end - item.block_begin;
    }
    partitions->before[threadIdx.x + 1] = warp_prefix(count, threadIdx.x);
    if (threadIdx.x == 0) partitions->before[0] = partitions->most = 0;
  }
  __syncthreads();
  for (uint32_t block = threadIdx.x; block < gridDim.x; block += kPrefillThreads)
    atomicMax(&partitions->most,
              partitions->whole_work(tile_count, args.item_heads, gridDim.x, block));
  __syncthreads();
  const uint32_t total = partitions->before[tile_count] * args.item_heads;
  const uint32_t count = partition_count(total, tile_count, item_cost, args.item_heads, gridDim.x);
  if (!gains_by_partitions(partitions->most, total, count, gridDim.x)) return false;
  if (threadIdx.x == 0) {
    partitions->item_cost = item_cost;
    partitions->total = total;
    partitions->count = count;
  }
  __syncthreads();
  return true;
}

// The items of this block that are not empty, or its parts of items, in order.
template <bool kHasPartitions>
class PrefillItems {
 public:
  // `partitions` is null if the block takes whole items.
  __device__ PrefillItems(const AttentionKernelArgs& args, uint32_t count,
                          const PrefillPartitions* partitions)
      : args_(args), count_(count), partitions_(partitions) {
    if (kHasPartitions && partitions != nullptr) next_ = partitions->begin(blockIdx.x);
  }

  // Writes the next item; returns whether there is one. Only items of shared pages can be empty.
  // Others are not tested, because the test would wait until their fields are loaded.
  __device__ bool next(PrefillItem* item) {
    if (kHasPartitions && partitions_ != nullptr) return next_part(item);
    while (next_ * gridDim.x < count_) {
      const uint32_t index = prefill_round_item(next_++, blockIdx.x, gridDim.x);
      if (index >= count_) continue;
      *item = PrefillItem(args_, index);
      if (!args_.is_shared || !item->is_empty()) return true;
    }
    return false;
  }

 private:
  __device__ bool next_part(PrefillItem* item) {
    PrefillPart part;
    if (!partitions_->next_part(args_.item_heads, blockIdx.x, &next_, &part)) return false;
    *item = PrefillItem(args_, part.item);
    item->first_part = partitions_->partition_of(part.first_place);
    item->part_count = partitions_->partition_of(part.last_place) + 1 - item->first_part;
    item->block_end = item->block_begin + part.end;
    item->block_begin += part.begin;
    return true;
  }

  const AttentionKernelArgs& args_;
  const uint32_t count_;
  const PrefillPartitions* const partitions_;
  uint32_t next_ = 0;  // round, or place within the work of all items
};

#endif  // WCUDA_HAS_WARPGROUPS

}  // namespace wcuda::kernels
