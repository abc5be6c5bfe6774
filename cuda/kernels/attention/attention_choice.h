// Which attention kernels serve the rows of a step, and how their work is divided into blocks: pure
// functions of shapes and device properties, over the rows of attention_table.h. Those that are
// marked WCUDA_HOST_DEVICE are called on the device, where the lengths of the rows are known.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention_table.h"
#include "kernels/shared/host_device.h"
#include "kernels/shared/rounding.h"
#include "kernels/shared/tile_sizes.h"

namespace wcuda::kernels {

constexpr uint32_t kDecodeGroupMax = 8;    // query heads of one key-value head that a block serves
constexpr uint32_t kDecodeDraftsMax = 15;  // drafts of a sequence in a step
constexpr uint32_t kPrefillTileTokens = 128;
constexpr uint32_t kPrefillWarpgroupHeadMax = 128;
constexpr uint32_t kDecodeSharedHeadsMax = 128;                // query heads of a key-value head
constexpr uint32_t kDecodeSharedRowsMax = 512;                 // of a step with shared prefixes
constexpr uint32_t kSharedPartialRows = kDecodeSharedRowsMax;  // rows times splits, at most

// Blocks of prefill attention may divide the keys of an item between them in steps that reach past
// kWholeKeysMax positions, at least half of it before the step's own tokens. In others that gains
// less than the code for it takes: 0.5 to 1.5 us of a layer of any prompt (one H200, 2026-11-29,
// 2026-11-29-h200/prefill_parts.txt).
constexpr uint32_t kWholeKeysMax = 1024;
constexpr bool may_divide_keys(uint32_t max_positions, uint32_t token_count) {
  return max_positions > kWholeKeysMax && max_positions >= token_count + kWholeKeysMax / 2;
}

// Returns the first row for the compute capability, else the last one. Rows are ordered by
// architecture, the newest first.
template <class Row, size_t kCount>
constexpr const Row& find_row_for(const Row (&rows)[kCount], int32_t compute_capability) {
  for (const Row& row : rows)
    if (compute_capability >= row.compute_capability) return row;
  return rows[kCount - 1];
}

// Returns the number of tiles of at most kDecodeGroupMax query heads, over all key-value heads.
constexpr uint32_t decode_head_tiles(uint32_t head_count, uint32_t kv_head_count) {
  return kv_head_count * divide_up(head_count / kv_head_count, kDecodeGroupMax);
}

// Returns the blocks of attention_decode per SM.
constexpr uint32_t decode_sm_blocks(uint32_t head_length) {
  for (const DecodeBlocks& row : kDecodeBlocks)
    if (head_length <= row.head_length) return row.sm_blocks;
  return 1;
}

// Returns whether an SM has the shared memory for kernels compiled for one head length: 164 KiB.
// The others take the 99 KiB that a block can have on every device.
constexpr bool decode_has_exact(uint32_t head_length, int32_t compute_capability) {
  return (head_length == 64 || head_length == 128 || head_length == 256) &&
         compute_capability != 86 && compute_capability != 89 && compute_capability < 120;
}

// Returns whether decode can use groups. They need clusters, more shared memory than compute
// capability 12.0 has, and a head length for which a kernel is compiled.
constexpr bool decode_has_groups(uint32_t head_length, int32_t compute_capability) {
  return compute_capability >= 90 && decode_has_exact(head_length, compute_capability);
}

// Returns the sizes of groups; `is_persistent` if attention stands between persistent_layers.
constexpr const DecodeGroupSizes& decode_group_sizes(int32_t compute_capability,
                                                     bool is_persistent) {
  return is_persistent ? find_row_for(kPersistentGroupSizes, compute_capability)
                       : find_row_for(kDecodeGroupSizes, compute_capability);
}

// The blocks of a step whose rows have one token each. Without groups each block takes an equal run
// of the list of spans (attention_plan.h), and `blocks` is 0.
struct DecodeGrid {
  bool has_groups = false;
  uint32_t cluster_blocks = 0;  // of a group; 0: groups are no clusters
  uint32_t blocks = 0;          // at most
};

// Uses groups if there is at least one SM for each row and head tile (`groups`), and clusters if
// there are SMs for all their blocks.
inline DecodeGrid choose_decode_grid(uint32_t head_length, int32_t compute_capability,
                                     uint32_t sm_count, uint32_t groups, uint32_t max_positions,
                                     bool is_persistent) {
  if (!decode_has_groups(head_length, compute_capability) || groups > sm_count) return {};
  const DecodeGroupSizes& sizes = decode_group_sizes(compute_capability, is_persistent);
  if (max_positions > sizes.lone_positions() && max_positions <= sizes.cluster_positions &&
      groups * sizes.cluster_blocks <= sm_count)
    return {true, sizes.cluster_blocks, groups * sizes.cluster_blocks};
  const uint32_t row_blocks =
      std::max(1u, divide_up(max_positions, sizes.group_spans * kPagePositions));
  return {true, 0, std::min(2 * sm_count, groups * row_blocks)};
}

// Returns the number of blocks of a group that has `spans` spans. Without clusters, each block has
// at most `block_spans`.
WCUDA_HOST_DEVICE inline uint32_t group_blocks_of(const DecodeGroupSizes& sizes,
                                                  uint32_t cluster_blocks, uint32_t spans,
                                                  uint32_t block_spans) {
  if (cluster_blocks == 0) return (spans + block_spans - 1) / block_spans;
  if (spans <= sizes.lone_spans) return spans == 0 ? 0 : 1;
  const uint32_t blocks = (spans + sizes.cluster_spans - 1) / sizes.cluster_spans;
  return blocks < cluster_blocks ? blocks : cluster_blocks;
}

// Returns the spans per decode block for rows of equal length, if each block can take whole heads
// or each head whole blocks without making a block more than 1 / kUnevenShare larger; otherwise 0.
WCUDA_HOST_DEVICE inline uint32_t whole_head_spans(uint32_t span_count, uint32_t blocks,
                                                   uint32_t row_spans) {
  const uint32_t even = (span_count + blocks - 1) / blocks;
  uint32_t block_spans = (even + row_spans - 1) / row_spans * row_spans;
  if (even < row_spans) {
    const uint32_t head_blocks = row_spans / even;
    block_spans = (row_spans + head_blocks - 1) / head_blocks;
    if (block_spans * head_blocks != row_spans) return 0;
  }
  return block_spans * kUnevenShare <= even * (kUnevenShare + 1) ? block_spans : 0;
}

// Returns the binary logarithm of the warps of a team, of 1 << warp_bits warps of a block that has
// `spans_left` spans left, which begin with those of `heads_left` heads of `spans` spans each. As
// many teams as possible get a whole head each. More than kDecodeGroupMax / 2 query heads of a
// key-value head need the shared memory of two warps.
WCUDA_HOST_DEVICE inline uint32_t team_warp_bits(uint32_t warp_bits, uint32_t group_heads,
                                                 uint32_t heads_left, uint32_t spans,
                                                 uint32_t spans_left) {
  const uint32_t least = group_heads <= kDecodeGroupMax / 2 ? 0 : 1;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (uint32_t whole = 2; warp_bits > least && whole <= heads_left && whole * spans <= spans_left;
       whole *= 2)
    --warp_bits;
  return warp_bits;
}

// Returns whether attention_decode_group triggers the next kernel at its start.
inline bool decode_triggers_early(uint32_t head_count, uint32_t head_length,
                                  int32_t compute_capability, uint32_t sm_count) {
  return head_count * head_length / quant::kMTileRows <
         sm_count / find_row_for(kDecodeGroupStart, compute_capability).early_share;
}

// Returns the shared memory that a block of attention_decode_group requests at least, of a launch
// without clusters and of at most one block per SM.
inline uint32_t decode_lone_bytes(uint32_t head_length, int32_t compute_capability) {
  const DecodeGroupStart& start = find_row_for(kDecodeGroupStart, compute_capability);
  return head_length == start.lone_head_length ? start.lone_bytes : 0;
}

// Returns the pages of a span with batch invariance.
inline uint32_t fixed_span_pages(uint32_t pages_max) {
  return std::max(kFixedSpanPagesMin, divide_up(pages_max, kFixedSpansMax));
}

// Returns the most splits of shared pages in a step of so many rows: those with which all blocks
// of attention_shared end soonest, if each SM has one at a time and all rows share the same pages.
inline uint32_t shared_splits_max(uint32_t row_count, uint32_t kv_head_count, uint32_t group_heads,
                                  uint32_t sm_count) {
  const uint32_t most = std::min(kSharedSplitsMax, kSharedPartialRows / row_count);
  const uint32_t items = divide_up(row_count, kPrefillTileTokens / group_heads) * kv_head_count;
  const auto rounds = [&](uint32_t splits) { return divide_up(items * splits, sm_count); };
  uint32_t best = 1;
  for (uint32_t splits = 2; splits <= most; ++splits)
    if (rounds(splits) * best < rounds(best) * splits) best = splits;
  return best;
}

// Returns the splits of a row with `pages` shared pages.
struct SharedSplits {
  uint32_t positions;  // of a split, a multiple of 128
  uint32_t count;
};
WCUDA_HOST_DEVICE inline SharedSplits shared_splits(uint32_t pages, uint32_t splits_max) {
  if (pages == 0 || splits_max == 0) return {0, 0};
  const uint32_t end = pages * kPagePositions;
  const uint32_t positions = ((end + splits_max - 1) / splits_max + 127) / 128 * 128;
  return {positions, (end + positions - 1) / positions};
}

// Returns whether code for sm_90a can serve the head length. Another check at run time finds out
// whether the program has that code.
constexpr bool prefill_has_warpgroup(uint32_t head_length, int32_t compute_capability) {
  return compute_capability == 90 && head_length <= kPrefillWarpgroupHeadMax &&
         head_length % 8 == 0;
}

// The rows of more than one token of a step.
struct LongRows {
  uint32_t row_count = 0, token_count = 0;
  uint32_t page_count = 0;  // up to the last position of each, added
};

// Returns the bytes of a page's keys and values of one head in f16.
constexpr uint64_t expanded_page_bytes(uint32_t head_length) {
  return uint64_t{2} * kPagePositions * head_length * sizeof(uint16_t);
}

// Returns the pages of one key-value head whose keys and values a step may convert to f16 at a
// time. 0: none, because they are f16 or because the kernels that read them are not used.
inline uint64_t expanded_pages_max(KvFormat format, uint32_t head_length, uint32_t kv_head_count,
                                   uint32_t sequence_tokens_max, uint32_t batch_tokens_max) {
  if (format == KvFormat::kF16 || !prefill_has_warpgroup(head_length, 90)) return 0;
  // The last page of each row may not be full.
  const uint64_t pages =
      divide_up(std::max(sequence_tokens_max, batch_tokens_max), kPagePositions) +
      batch_tokens_max / kExpandedRowTokensMin;
  return std::min(pages * kv_head_count, kExpandedBytesMax / expanded_page_bytes(head_length));
}

// Returns the number of key-value heads whose pages a step converts at a time; 0: its kernels read
// them as they are. `pages_max` is what expanded_pages_max returns.
inline uint32_t choose_expanded_heads(const LongRows& rows, uint32_t head_length,
                                      uint32_t head_count, uint32_t kv_head_count,
                                      uint64_t pages_max) {
  const uint64_t tokens_min =
      head_length > 64 ? kExpandedRowTokensMin : kExpandedShortHeadTokensMin;
  if (rows.row_count == 0 || rows.token_count < rows.row_count * tokens_min) return 0;
  uint32_t heads = kv_head_count;
  while (heads > 1 && uint64_t{rows.page_count} * heads > pages_max) heads = divide_up(heads, 2);
  if (uint64_t{rows.page_count} * heads > pages_max) return 0;
  const uint32_t items =
      rows.token_count / kPrefillTileTokens * heads * (head_count / kv_head_count);
  return heads == kv_head_count || items >= kExpandedGroupItemsMin ? heads : 0;
}

}  // namespace wcuda::kernels
