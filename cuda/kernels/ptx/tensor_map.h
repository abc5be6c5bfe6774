// Tensor maps: the copy engine of compute capability 9.0 copies a box of a matrix to shared memory,
// with the swizzle that WGMMA reads (wgmma.cuh).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace wcuda::kernels {

constexpr uint32_t kBoxElements = 64;  // of a row of a box: 128 bytes, the width of the swizzle

// Describes a matrix of f16 in device memory, aligned to 16 bytes like its rows, and boxes of
// kBoxElements by `box_rows`. Rows and elements past the end are read as 0.
cudaError_t make_tensor_map(const void* data, uint64_t rows, uint32_t row_elements,
                            uint32_t box_rows, CUtensorMap* map);

}  // namespace wcuda::kernels
