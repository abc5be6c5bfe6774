// What the kernels of linear_vector are launched with, and how they lay out shared memory.
#pragma once

#include "kernels/linear/linear_vector.h"
#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

constexpr uint32_t kVectorWarpsMax = 16;
constexpr uint32_t kVectorCopyStages = 2;  // without bulk copies

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
  EvenShares units;  // strips or pairs of strips, over the clusters
};

// What the launch of a chain reads first is in front.
struct VectorParams {
  VectorSection sections[2];
  // The warps of a CTA: warp w is number w % ways along the inputs and number w / ways, digit w of
  // `groups`, along the strips.
  uint64_t groups;
  uint32_t ways, group_count;
  EvenShares slices;         // chunks of a strip, over the CTAs of a cluster
  EvenShares way_chunks[2];  // of a slice of base and of base + 1 chunks, over the ways
  uint32_t cluster_size;     // CTAs that share a strip along the inputs
  // Of a warp's ring: all, and those filled before the wait for the kernel ahead.
  uint32_t stages, early_stages;
  // Places in shared memory.
  uint32_t ring_offset, barriers_offset, x_scales_offset, slots_offset, squares_offset,
      scratch_offset, totals_offset;
  uint32_t window;                           // strips between two barriers
  uint32_t slot_stride;                      // slots of a float of a strip
  uint32_t zero;                             // 0, but the compiler does not know
  uint32_t part_begins[kLinearMatricesMax];  // first strip of each part; ~0: none
  uint32_t cols;
  Epilogue epilogue;
  uint32_t columns;
  const float* x;
  const float* norm;
  float epsilon, mean_factor;  // 1 / cols
  const uint32_t* x_rows;
  VectorPart parts[kLinearMatricesMax];
  uint32_t owned_max;   // strips of a cluster that one of its CTAs finishes
  uint32_t strips_max;  // of a cluster
  uint32_t strips[2];   // of a section
  // Without clusters: (clusters, cluster_size, strips_max * 16 * T + T) and a counter each.
  float* partials;
  uint32_t* tickets;
};

}  // namespace wcuda::kernels
