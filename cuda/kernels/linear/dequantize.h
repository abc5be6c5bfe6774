// dequantize: weights from packed tiles to rows of plain numbers, for products that read each
// weight many times.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

enum class ElementType : uint32_t { kF32, kF16, kBf16 };

// out (row_count, cols) = rows first_row … first_row + row_count - 1 of the matrix, the values of
// quant::unpack_row rounded to nearest, ties to even. Out of range: cudaErrorInvalidValue. Where
// rows of `out` are whole multiples of 16 bytes and `out` is aligned to 16, the fast path.
// With launch.is_dependent the weights are read before the kernels ahead have ended.
cudaError_t dequantize(const Matrix& matrix, uint32_t first_row, uint32_t row_count,
                       ElementType out_type, void* out, const Launch& launch);

}  // namespace wcuda::kernels
