// What the kernels of linear_vector are launched with, and how they lay out shared memory.
#pragma once

#include "kernels/linear_vector.h"

namespace wcuda::kernels {

#ifndef WCUDA_VECTOR_WARPS
#define WCUDA_VECTOR_WARPS 8
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

struct VectorParams {
  const float* x;
  const uint32_t* x_rows;
  const float* norm;
  float epsilon;
  uint32_t columns;
  uint32_t cols;
  Epilogue epilogue;
  uint32_t part_count;
  VectorPart parts[kLinearMatricesMax];
  // Section 0 holds parts 0 … part_split - 1, all of one type; section 1 the others.
  uint32_t part_split;
  uint32_t strips[2];    // of a section
  uint32_t clusters[2];  // that work on it
  uint32_t strip_bytes[2];
  uint32_t cluster_size;
  uint32_t strips_max;  // of a cluster
  uint32_t stages;      // of a warp's ring
  // Places in shared memory.
  uint32_t x_scales_offset, ring_offset, barriers_offset, slots_offset, sums_offset;
  // Without clusters: (clusters, cluster_size, strips_max * 16 * T + T) and a counter each.
  float* partials;
  uint32_t* tickets;
};

}  // namespace wcuda::kernels
