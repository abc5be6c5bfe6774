// Linear layers for 1 to 8 tokens: one launch reads every weight once, at the speed of memory.
#pragma once

#include "kernels/linear/linear.h"

namespace wcuda::kernels {

constexpr uint32_t kLinearVectorColumnsMax = 8;

bool has_linear_vector(uint32_t type);

// Scratch that linear_vector needs for these arguments; 0 for most. Grows with columns and rows.
uint64_t linear_vector_scratch_bytes(const LinearArgs& args, const Launch& launch);

// columns is 1 … 8, cols a multiple of 32 (of 4 for F32, F16 and BF16 alone); x and norm are
// 16-byte aligned, x not written by this call. cudaErrorInvalidValue for arguments outside of the
// contract or too little scratch. The bits of a result depend on shapes, types, sm_count and
// columns (1, 2, up to 4, up to 8), not on what runs beside.
cudaError_t linear_vector(const LinearArgs& args, const Launch& launch);

// What a bench may vary. 0: chosen by shape.
struct VectorTuning {
  uint32_t cluster_size = 0;  // CTAs that share a strip
  uint32_t stages = 0;        // of a warp's ring
  uint32_t groups = 0;        // of warps along the strips
  uint32_t residency = 0;     // 1: no other such kernel on the SM, 2: one
  uint32_t early_stages = 0;  // filled before the wait for the kernel ahead
};
cudaError_t linear_vector(const LinearArgs& args, const Launch& launch, const VectorTuning& tuning);

}  // namespace wcuda::kernels
