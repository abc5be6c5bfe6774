// Linear layers for 1 to 8 tokens: one launch reads every weight once, at the speed of memory.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/linear/vector_params.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

constexpr uint32_t kLinearVectorTokensMax = 8;

bool has_linear_vector(uint32_t type);

// Returns the bytes of scratch that linear_vector needs: mostly 0. They grow with tokens and rows.
uint64_t linear_vector_scratch_bytes(const LinearArgs& args, const Launch& launch);

// tokens is 1 … 8, and cols a multiple of 32 (of 4 if all types are F32, F16 or BF16). x and norm
// are aligned to 16 bytes, and outputs do not overlap x. Returns cudaErrorInvalidValue for
// arguments that violate this and for too little scratch. The bits of a result depend on shapes,
// types, sm_count and tokens (1, 2, up to 4, up to 8), not on other work on the device.
cudaError_t linear_vector(const LinearArgs& args, const Launch& launch);

cudaError_t linear_vector(const LinearArgs& args, const Launch& launch, const VectorTuning& tuning);

}  // namespace wcuda::kernels
