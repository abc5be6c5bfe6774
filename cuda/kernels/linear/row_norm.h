// row_norm_max: result = max(result, largest sqrt(sum over k of values[r][k]^2) of the rows r).
#pragma once

#include <cstdint>

#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// values (rows, cols). `result` must not be negative. Bytes moved: the values, once.
cudaError_t row_norm_max(const float* values, uint32_t rows, uint32_t cols, float* result,
                         const Launch& launch);

}  // namespace wcuda::kernels
