// Parameters of the linear_vector kernels and their layout of shared memory.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

constexpr uint32_t kVectorWarpsMax = 16;
constexpr uint32_t kVectorStagesMax = 6;   // of a warp's ring
constexpr uint32_t kVectorCopyStages = 2;  // without bulk copies

// Tuning parameters that a bench may set; for 0 the plan chooses by shape.
struct VectorTuning {
  uint32_t cluster_size = 0;  // CTAs that partition an M-tile
  uint32_t stages = 0;        // of a warp's ring
  uint32_t m_warps = 0;       // of warps along the M-tiles
  uint32_t residency = 0;     // 1: a CTA has the SM alone, 2: it leaves room for another
  uint32_t early_stages = 0;  // filled before the dependent wait
};

struct VectorMatrix {
  const uint8_t* packed_tiles;
  const float* bias;
  float* output;
  uint32_t rows;
  uint32_t m_tiles;
};

// An even division of `count` items: partition i has base or base + 1 of them.
struct EvenPartition {
  uint32_t base, rest;
  WCUDA_HD uint32_t begin(uint32_t partition) const {
    return partition * base + (partition < rest ? partition : rest);
  }
};
inline EvenPartition partition_evenly(uint32_t count, uint32_t partitions) {
  return {count / partitions, count % partitions};
}

// The matrices of one type, and the clusters that process them.
struct VectorProblem {
  uint32_t clusters;
  uint32_t m_tile_bytes;
  EvenPartition items;  // M-tiles or pairs of M-tiles, over the clusters
};

// Members are ordered by first use.
struct VectorParams {
  VectorProblem problems[2];
  // Warp w of a CTA is K-warp w % k_warps and M-warp w / k_warps, which is also digit w (4 bits) of
  // m_warp_of.
  uint64_t m_warp_of;
  uint32_t k_warps, m_warp_count;
  EvenPartition k_splits;         // K-tiles of an M-tile, over the CTAs of a cluster
  EvenPartition k_warp_tiles[2];  // of a K-split of base and of base + 1 K-tiles, over the K-warps
  uint32_t cluster_size;          // CTAs that partition an M-tile along the inputs
  // Stages of a warp's ring, and how many of them are filled before the dependent wait.
  uint32_t stages, early_stages;
  // Offsets in shared memory.
  uint32_t ring_offset, barriers_offset, x_scales_offset, accumulators_offset, squares_offset,
      scratch_offset, totals_offset;
  uint32_t batch;                              // M-tiles between two epilogues
  uint32_t accumulator_stride;                 // floats between the accumulators of two outputs
  uint32_t zero;                               // a 0 that the compiler cannot see
  uint32_t matrix_begins[kLinearMatricesMax];  // first M-tile of each matrix; ~0: none
  uint32_t cols;
  Epilogue epilogue;
  uint32_t tokens;
  const float* x;
  const float* norm;
  float epsilon, mean_factor;  // 1 / cols
  const uint32_t* x_rows;
  VectorMatrix matrices[kLinearMatricesMax];
  uint32_t owned_max;    // most M-tiles that one CTA of a cluster finishes
  uint32_t m_tiles_max;  // most M-tiles of a cluster
  uint32_t m_tiles[2];   // of each problem
  // Without clusters: (clusters, cluster_size, m_tiles_max * 16 * T + T), and a counter per
  // cluster.
  float* partials;
  uint32_t* tickets;
};

}  // namespace wcuda::kernels
