// Launch parameters of linear_vector: K-splits, clusters, warps, stages and shared memory. Pure
// functions of shapes and device properties, without CUDA calls.
#pragma once

#include "kernels/linear/vector_params.h"

namespace wcuda::kernels {

// Properties of the engines of a launch; if the two differ, the larger value.
struct VectorEngine {
  uint32_t tokens = 1;        // T: 1, 2, 4 or 8
  uint32_t stage_inputs = 0;  // of a stage of a warp's ring
  uint32_t stage_bytes = 0;
  uint32_t static_bytes = 0;   // static shared memory
  uint32_t scratch_bytes = 0;  // per warp
  // x of stage_inputs inputs in shared memory.
  uint32_t x_codes_bytes = 0;
  uint32_t x_scales_bytes = 0;
};

struct VectorDevice {
  uint32_t sm_count = 0;
  uint32_t block_shared_bytes = 0;  // at most
  uint32_t sm_shared_bytes = 0;
  uint32_t reserved_shared_bytes = 0;  // of a block, by the system
  int32_t compute_capability = 0;

  bool has_clusters() const { return compute_capability >= 90; }  // and bulk copies
};

// Limits of the shared memory of a CTA. In a step, kernels that add to their output alternate with
// other kernels. One CTA of each kind fits on an SM, but two CTAs of the other kind do not. A
// kernel that needs more takes more than half of the SM, so that no SM gets two of its CTAs and
// thus twice the work (8B Q4_K, H200: 502 steps/s with room for two of any kind, 668 with one).
struct SharedLimits {
  uint32_t most, alone, of_other, of_add;
};
SharedLimits shared_limits(const VectorEngine& engine, const VectorDevice& device);

// Returns the number of CTAs of a cluster that divide the inputs of an M-tile, from params.cols and
// params.m_tiles.
uint32_t choose_k_splits(const VectorParams& params, const VectorEngine& engine,
                         const VectorDevice& device, const VectorTuning& tuning);

struct VectorPlan {
  uint32_t clusters = 0;
  uint32_t threads = 0;
  uint32_t shared_bytes = 0;
  uint64_t partials_bytes = 0;  // scratch for K-splits without clusters; 0: none
};

// Reads the arguments, the matrices, m_tiles and m_tile_bytes of `params` and sets all other
// members. `clusters_max` clusters of k_splits CTAs can run at once; 0 means unknown.
VectorPlan plan_vector(VectorParams* params, const VectorEngine& engine, const VectorDevice& device,
                       const VectorTuning& tuning, uint32_t k_splits, uint32_t clusters_max);

}  // namespace wcuda::kernels
