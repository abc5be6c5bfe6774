// What the kernels of linear_vector are launched with, and how they lay out shared memory.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

constexpr uint32_t kVectorWarpsMax = 16;
constexpr uint32_t kVectorStagesMax = 6;   // of a warp's ring
constexpr uint32_t kVectorCopyStages = 2;  // without bulk copies

// What a bench may vary. 0: chosen by shape.
struct VectorTuning {
  uint32_t cluster_size = 0;  // CTAs that partition an M-tile
  uint32_t stages = 0;        // of a warp's ring
  uint32_t m_warps = 0;       // of warps along the M-tiles
  uint32_t residency = 0;     // 1: no other such kernel on the SM, 2: one
  uint32_t early_stages = 0;  // filled before the wait for the kernel ahead
};

struct VectorMatrix {
  const uint8_t* packed_tiles;
  const float* bias;
  float* output;
  uint32_t rows;
  uint32_t m_tiles;
};

// `count` things divided evenly: partition i has base or base + 1 of them.
struct EvenPartition {
  uint32_t base, rest;
  WCUDA_HD uint32_t begin(uint32_t partition) const {
    return partition * base + (partition < rest ? partition : rest);
  }
};
inline EvenPartition partition_evenly(uint32_t count, uint32_t partitions) {
  return {count / partitions, count % partitions};
}

// Matrices of one type, and the clusters that work on them.
struct VectorProblem {
  uint32_t clusters;
  uint32_t m_tile_bytes;
  EvenPartition items;  // M-tiles or pairs of M-tiles, over the clusters
};

// What a launch reads first is in front.
struct VectorParams {
  VectorProblem problems[2];
  // The warps of a CTA: warp w is number w % k_warps along the inputs and number w / k_warps, digit
  // w of `m_warp_of`, along the M-tiles.
  uint64_t m_warp_of;
  uint32_t k_warps, m_warp_count;
  EvenPartition k_splits;         // K-tiles of an M-tile, over the CTAs of a cluster
  EvenPartition k_warp_tiles[2];  // of a K-split of base and of base + 1 K-tiles, over the K-warps
  uint32_t cluster_size;          // CTAs that partition an M-tile along the inputs
  // Of a warp's ring: all, and those filled before the wait for the kernel ahead.
  uint32_t stages, early_stages;
  // Places in shared memory.
  uint32_t ring_offset, barriers_offset, x_scales_offset, accumulators_offset, squares_offset,
      scratch_offset, totals_offset;
  uint32_t batch;                              // M-tiles between two barriers
  uint32_t accumulator_stride;                 // accumulators of a float of an M-tile
  uint32_t zero;                               // 0, but the compiler does not know
  uint32_t matrix_begins[kLinearMatricesMax];  // first M-tile of each part; ~0: none
  uint32_t cols;
  Epilogue epilogue;
  uint32_t tokens;
  const float* x;
  const float* norm;
  float epsilon, mean_factor;  // 1 / cols
  const uint32_t* x_rows;
  VectorMatrix matrices[kLinearMatricesMax];
  uint32_t owned_max;    // M-tiles of a cluster that one of its CTAs finishes
  uint32_t m_tiles_max;  // of a cluster
  uint32_t m_tiles[2];   // of a problem
  // Without clusters: (clusters, cluster_size, m_tiles_max * 16 * T + T) and a counter each.
  float* partials;
  uint32_t* tickets;
};

}  // namespace wcuda::kernels
