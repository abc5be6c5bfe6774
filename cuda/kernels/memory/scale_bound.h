// scale_bound: the largest scale_bound (kernels/shared/scale_factor.h) of a matrix's superblocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace wcuda::kernels {

// Queues *bound = the largest of `count` superblocks of Q4_K, as in a file, aligned to 2 bytes.
cudaError_t scale_bound(const uint8_t* blocks, uint64_t count, float* bound, cudaStream_t stream);

}  // namespace wcuda::kernels
