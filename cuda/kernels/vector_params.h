// What the kernels of linear_vector are launched with, and how they lay out shared memory.
#pragma once

#include "kernels/linear_vector.h"
#include "kernels/numeric.h"

namespace wcuda::kernels {

#ifndef WCUDA_VECTOR_WARPS
#define WCUDA_VECTOR_WARPS 16
#endif
constexpr uint32_t kVectorWarps = WCUDA_VECTOR_WARPS;
constexpr uint32_t kVectorThreads = kVectorWarps * 32;
constexpr uint32_t kVectorCopyStages = 3;  // without bulk copies

struct VectorPart {
  const uint8_t* records;
  const float* bias;
  float* output;
  uint32_t rows;
  uint32_t strips;
};

// `count` things shared out evenly: share i has base or base + 1 of them.
struct EvenShares {
  uint32_t base, rest;
  WCUDA_HD uint32_t begin(uint32_t share) const {
    return share * base + (share < rest ? share : rest);
  }
};
inline EvenShares share_out(uint32_t count, uint32_t shares) {
  return {count / shares, count % shares};
}

// Matrices of one type, and the clusters that work on them.
struct VectorSection {
  uint32_t clusters;
  uint32_t strip_bytes;
  EvenShares units;   // strips or pairs of strips, over the clusters
  EvenShares chunks;  // of a strip, in stages, over the CTAs of a cluster
  // x / chunks for x * chunks below 2^32 is the high word of x * this; of a share of base and of
  // base + 1 chunks.
  uint32_t reciprocals[2];
};

// What the launch of a chain reads first is in front.
struct VectorParams {
  VectorSection sections[2];
  uint32_t cluster_size;  // CTAs that share a strip along the inputs
  // CTAs that share out the strips of a cluster; slots that one keeps of each of them.
  uint32_t slot_ranks, slots_of_rank;
  uint32_t part_split;  // section 0 holds parts 0 … part_split - 1, section 1 the others
  uint32_t stages;      // of a warp's ring
  // Places in shared memory.
  uint32_t ring_offset, barriers_offset, x_scales_offset, slots_offset, squares_offset;
  Epilogue epilogue;
  uint32_t columns;
  VectorPart parts[kLinearMatricesMax];
  const float* norm;
  const float* x;
  const uint32_t* x_rows;
  uint32_t cols;
  float epsilon;
  uint32_t strips_max;  // of a cluster
  uint32_t strips[2];   // of a section
  // Without clusters: (clusters, cluster_size, strips_max * 16 * T + T) and a counter each.
  float* partials;
  uint32_t* tickets;
};

}  // namespace wcuda::kernels
