// Measured constants of the launch heuristics of attention. attention_choice.h has the functions
// that use them.
//
// Every row was measured on one H200 (compute capability 9.0) with the heads of 8B (128 elements,
// 32 of queries, 8 of keys and values) and f16 keys and values, unless it says otherwise. No other
// architecture was measured: each uses the row of the highest compute capability that is not above
// its own. Documents named here are in docs/lab.
#pragma once

#include <cstdint>

#include "kernels/shared/kv_pages.h"

namespace wcuda::kernels {

// attention_decode: blocks per SM. The kernels are compiled for these numbers, the same for every
// architecture. 2026-11-21: 64 KiB of loads in flight per SM saturate the memory. 2026-11-28, with
// tiles of 32 positions of q8_0: two blocks and 72 KiB for 64 rows of 1,024 positions 42.5 us,
// three and 52 KiB 52.3.
struct DecodeBlocks {
  uint32_t head_length;  // at most
  uint32_t sm_blocks;
};
constexpr DecodeBlocks kDecodeBlocks[] = {{128, 2}, {256, 1}};

// attention_decode_group: sizes of the group of blocks that serves a row and head tile. A span is a
// page of a row.
struct DecodeGroupSizes {
  int32_t compute_capability;
  uint32_t lone_spans;         // rows of at most so many spans have one block
  uint32_t cluster_spans;      // in a cluster, each block has at least so many
  uint32_t cluster_blocks;     // of a cluster
  uint32_t cluster_positions;  // steps whose rows are longer have no clusters
  uint32_t group_spans;        // without clusters, each block has at least so many

  constexpr uint32_t lone_positions() const { return lone_spans * kPagePositions; }
};
constexpr uint32_t kDecodeClusterBlocksMax = 8;
// 2026-11-21, decode-attention.md. Clusters of 16 blocks: 512 positions take 10.1 us, with clusters
// of 8 4.8. At 16,384 positions, 8B makes 423 tokens per second with clusters and 435 without.
// Without clusters, 8 rows of 4,096 positions take 37 us. 2026-11-24, the same document: with
// group_spans 4, 4 rows of 300 and 1,024 positions take 7.0 and 9.9 us, with 8 5.7 and 11.1.
constexpr DecodeGroupSizes kDecodeGroupSizes[] = {{90, 4, 2, kDecodeClusterBlocksMax, 8192, 8}};
// Between persistent_layers, which leave the SMs one by one, so that a cluster starts late.
// 2026-11-24, the same document, tokens per second of 8B: after 4,096 and 8,000 positions 543 and
// 478 as above, 570 and 526 so; after 1,200 620 with clusters, 598 without; after 400 643 with
// lone_spans 4, 610 with 8.
constexpr DecodeGroupSizes kPersistentGroupSizes[] = {{90, 4, 2, kDecodeClusterBlocksMax, 2048, 4}};

// attention_decode_group: when the next kernel may start, and which blocks must have an SM alone.
struct DecodeGroupStart {
  int32_t compute_capability;
  // The next kernel starts early if the matrix product before has fewer M-tiles than this share of
  // the SMs (1 / early_share). 2026-11-21, position 0: 8B makes 626 tokens per second with an early
  // start and 636 with a late one, 135M 2,722 and 2,651.
  uint32_t early_share;
  // Heads of this length: if there is at most one block per SM, it requests so much shared memory
  // that it cannot start next to that matrix product. 2026-11-21, 1B at position 0: 2,294
  // tokens per second if blocks start next to the product, 2,336 if they start after it.
  uint32_t lone_head_length;
  uint32_t lone_bytes;
};
constexpr DecodeGroupStart kDecodeGroupStart[] = {{90, 2, 64, 114 * 1024}};

// attention_decode, rows of equal length: blocks take whole heads, or heads whole blocks, if no
// block then has more than 1 / kUnevenShare more spans, because fewer partial results are added.
// 2026-11-21; the share was not varied.
constexpr uint32_t kUnevenShare = 16;

// With batch invariance, a row is cut into spans at fixed positions: into at most kFixedSpansMax,
// because partial results take memory, each of at least kFixedSpanPagesMin pages, because cutting
// takes time. Not measured.
constexpr uint32_t kFixedSpansMax = 16;
constexpr uint32_t kFixedSpanPagesMin = 8;

// attention_shared: splits of shared pages, so that 32 and 64 rows of 8B fill 128 SMs. 2026-11-29,
// shared-prefixes.md: with 4,096 shared positions, 32 rows take 27.8 us with 16 splits and 31.0
// with 8, 48 rows 49.4 with 10 (160 blocks) and 40.9 with 8.
constexpr uint32_t kSharedSplitsMax = 16;

// attention_expand: rows of more than one token have at least so many on average, and the pages
// that are converted at a time take at most so many bytes in f16: 32,768 positions of 8B and 70B.
// 2026-11-25, prefill-attention.md: 256 tokens after 8,192 positions in q8_0 take 91 us, 130 if the
// kernel that reads the pages converts them. Fewer tokens were not measured, nor heads of at most
// 64 elements, of which a block of 128 keys has half as much to convert.
constexpr uint32_t kExpandedRowTokensMin = 256, kExpandedShortHeadTokensMin = 512;
constexpr uint64_t kExpandedBytesMax = uint64_t{128} << 20;
// Where heads are converted in groups, each group has at least so many items of 128 tokens and a
// query head, as 2,048 tokens after 129,024 positions of 8B have, so that it fills the SMs.
constexpr uint32_t kExpandedGroupItemsMin = 128;

}  // namespace wcuda::kernels
