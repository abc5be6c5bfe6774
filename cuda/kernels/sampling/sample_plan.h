// How the launcher of sample divides rows of logits among blocks and warps, and which kernel it
// uses: pure functions of shapes and device properties.
//
//   sample_kernel          one cluster per row: 1 to 16 blocks of 16 warps
//   sample_stream_kernel   clusters of 8 blocks, each for many rows
//
//   row   | segment | segment | …   consecutive tokens, one segment for each warp of the cluster
//
// Measured constants: gpu_sampling_bench on one H200 (compute capability 9.0), normally distributed
// logits, dependent launches. Times are minima in microseconds. The results files are in
// bench/results. No other architecture was measured.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/shared/rounding.h"

namespace wcuda::kernels::sample_plan {

// ---- sizes on which the kernels and the plan agree; the kernels use or assert each ----

constexpr uint32_t kBlockThreads = 512;
constexpr uint32_t kWarps = kBlockThreads / 32;
constexpr uint32_t kBlocksMax = 16;      // of a row
constexpr uint32_t kStreamBlocks = 8;    // of a cluster. Not measured with other numbers.
constexpr uint32_t kStreamRowsMax = 64;  // of a cluster

// Besides its logits, a block of sample_kernel has kSharedBytes of shared memory and, with filters,
// the histograms or, without filters, the window of penalties.
constexpr uint32_t kSharedBytes = 2944;
constexpr uint32_t kHistogramBytes = 32 * 1024, kAccumulatorBytes = 16 * 1024;
// What a block of sample_stream_kernel has besides its logits.
constexpr uint32_t kStreamSharedBytes = 25984;
// A block of sample_stream_kernel ranks lists in the memory that held the logits.
constexpr uint32_t kStreamRankBytes = 48 * 1024;
constexpr uint32_t kStreamScratchBytes = 36868;  // device memory of a row

// ---- measured constants ----

// sample_kernel: 16 blocks per row in steps of at most kFewRowsMax rows, otherwise 8, but 16 above
// kManyRowVocabularyMax tokens.
//
// 2026-11-21, 2026-11-21-h200/gpu_sampling_bench.txt, vocabulary of 128,256, with 16 and with 8
// blocks:
//
//            greedy        temperature   top-p 0.9     all filters
//    1 row    2.9,   6.7    7.5,   9.9    23.1, 26.7   46.7, 49.0
//    8 rows   4.3,   8.4   12.2,  15.3    31.4, 28.8   63.4, 52.8
//   64 rows  18.3,  25.1   52.2,  43.7   217,  178     288,  160
//
// 32 rows: 2026-11-23-h200/sampling_stream.txt (greedy 10.8 and 15.8, temperature 29.1 and 27.1,
// top-p 132 and 110). 9 to 31 rows were not measured. 4 blocks and 1 were slower for few rows in
// earlier versions (docs/lab/2026-11-21-sampling.md).
constexpr uint32_t kFewRowsMax = 8;
constexpr uint32_t kFewRowBlocks = 16, kManyRowBlocks = 8;
// Not measured. Two blocks of 8 with filters fit on an SM up to a vocabulary of 159,744. At 151,936
// tokens, 64 rows take with 16 and with 8 blocks: greedy 34.5 and 24.6, temperature 56.4 and 47.3,
// top-p 250 and 221 (2026-11-23-h200/sampling_stream.txt).
constexpr uint32_t kManyRowVocabularyMax = 160 * 1024;

// sample_stream_kernel serves steps of at least so many rows.
//
// 2026-11-23, 2026-11-23-h200/sampling_warps.txt and docs/lab/2026-11-23-sampling-of-many-rows.md,
// vocabulary of 128,256, sample_kernel with 8 blocks and sample_stream_kernel:
//
//             greedy       temperature   penalty      top-k 40     top-p 0.9    min-p 0.05
//   32 rows   15.5, 12.5   26.8,  25.2   20.7, 20.6   42.4, 32.8   108, 43.8    34.9,  29.2
//   256 rows  100,  50.6   158,  106     127,  97.4   242,  135    431, 195     201,  127
//
// sample_kernel with 16 blocks is faster for 32 greedy rows (10.6) and slower in all other measured
// settings (temperature 28.9). 9 to 31 rows were not measured.
constexpr uint32_t kStreamRowsMin = 32;
// Not measured: sample_stream_kernel was measured with a vocabulary of 128,256 only, and an earlier
// version of it with 151,936. For vocabularies of this size and larger, the scratch memory of a row
// is smaller than its logits, and a list can be ranked in the memory that held the logits.
constexpr uint32_t kStreamVocabularyMin = 40 * 1024;
static_assert(kStreamScratchBytes < kStreamVocabularyMin * sizeof(float));

// Rows of logits in the shared memory of a block: one whose weights are summed, others that are
// loading. Not measured with other numbers.
constexpr uint32_t kStreamSlotsMin = 2, kStreamSlotsMax = 3;

// A warp of sample_stream_kernel reads its segment in parts of so many float4. 2026-11-23,
// 2026-11-23-h200/sampling_warps.txt, 256 rows: parts of 128 greedy 50.6, temperature 106; of 64
// 52.0 and 109.
constexpr uint32_t kPartFloat4s = 128;
// A segment is extended to whole parts if that adds at most 1 / kExtensionShare of it: 20 of 1,004
// tokens with a vocabulary of 128,256. Not measured.
constexpr uint32_t kExtensionShare = 32;

// ---- sample_kernel ----

// Returns the most shared memory of a block, by compute capability (CUDA programming guide, table
// of technical specifications).
constexpr uint32_t shared_bytes_max(int32_t compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87:
      return 163 * 1024;
    case 90:
    case 100:
    case 103:
      return 227 * 1024;
    default:
      return 99 * 1024;
  }
}

// Returns the blocks per row: 1 on devices without clusters.
constexpr uint32_t blocks_per_row(uint32_t row_count, uint32_t vocabulary,
                                  int32_t compute_capability) {
  if (compute_capability < 90) return 1;
  if (compute_capability != 90) return kManyRowBlocks;  // clusters of 16 are not portable
  return row_count <= kFewRowsMax || vocabulary > kManyRowVocabularyMax ? kFewRowBlocks
                                                                        : kManyRowBlocks;
}

// Returns the tokens per warp of `blocks` blocks, a multiple of 4.
constexpr uint32_t even_segment(uint32_t vocabulary, uint32_t blocks) {
  return round_up(divide_up(vocabulary, blocks * kWarps), 4);
}

struct Shape {
  uint32_t blocks = 0;        // per row
  uint32_t segment = 0;       // tokens per warp
  uint32_t shared_bytes = 0;  // per block
  bool is_shared = false;     // the logits are in shared memory
};

constexpr Shape shape_for(uint32_t vocabulary, bool has_filters, uint32_t blocks,
                          int32_t compute_capability) {
  Shape shape;
  shape.blocks = blocks;
  shape.segment = even_segment(vocabulary, blocks);
  const uint64_t base = kSharedBytes + (has_filters ? kHistogramBytes : kAccumulatorBytes);
  const uint64_t values = uint64_t{kWarps} * shape.segment * sizeof(float);
  shape.is_shared = base + values <= shared_bytes_max(compute_capability);
  shape.shared_bytes = static_cast<uint32_t>(shape.is_shared ? base + values : base);
  return shape;
}

// ---- sample_stream_kernel ----

// Returns the tokens per warp, a multiple of 4.
constexpr uint32_t stream_segment(uint32_t vocabulary) {
  const uint32_t segment = even_segment(vocabulary, kStreamBlocks);
  const uint32_t whole = round_up(segment, 4 * kPartFloat4s);
  return whole - segment <= segment / kExtensionShare ? whole : segment;
}

// Returns the shared memory of one row's logits in a block.
constexpr uint32_t stream_slot_bytes(uint32_t vocabulary) {
  return kWarps * stream_segment(vocabulary) * static_cast<uint32_t>(sizeof(float));
}

// A lane has a bit for each of its logits of a row. Rows of more than 64 a lane do not fit.
static_assert(kStreamSlotsMin * kWarps * 32 * 64 * sizeof(float) > shared_bytes_max(90));

// Returns how many rows of logits a block holds; 0: sample_kernel serves the step. The bulk copies
// of the kernel need rows that are aligned to 16 bytes.
constexpr uint32_t stream_slots(uint32_t row_count, uint32_t vocabulary,
                                int32_t compute_capability) {
  if (compute_capability != 90 || row_count < kStreamRowsMin || vocabulary % 4 != 0 ||
      vocabulary < kStreamVocabularyMin)
    return 0;
  const uint32_t slots =
      (shared_bytes_max(compute_capability) - kStreamSharedBytes) / stream_slot_bytes(vocabulary);
  return slots < kStreamSlotsMin ? 0 : std::min(slots, kStreamSlotsMax);
}

constexpr uint32_t stream_shared_bytes(uint32_t vocabulary, uint32_t slots) {
  return kStreamSharedBytes + slots * stream_slot_bytes(vocabulary);
}

// Returns the clusters of a launch: those that the device can run at once, if each then has at most
// kStreamRowsMax rows.
constexpr uint32_t stream_clusters(uint32_t row_count, uint32_t resident_clusters) {
  return std::max(std::min(row_count, resident_clusters), divide_up(row_count, kStreamRowsMax));
}

// ---- both ----

// Returns the scratch memory of steps of at most `max_rows` rows, with filters or without.
constexpr uint64_t scratch_bytes(uint32_t max_rows, uint32_t vocabulary,
                                 int32_t compute_capability) {
  if (stream_slots(max_rows, vocabulary, compute_capability) != 0)
    return uint64_t{max_rows} * kStreamScratchBytes;
  const uint32_t blocks = blocks_per_row(UINT32_MAX, vocabulary, compute_capability);
  const bool fits = shape_for(vocabulary, true, blocks, compute_capability).is_shared;
  return fits ? 0 : uint64_t{max_rows} * vocabulary * sizeof(float);
}

}  // namespace wcuda::kernels::sample_plan
