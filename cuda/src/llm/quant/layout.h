// How a weight matrix lies in memory.
#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace wcuda::quant {

// weight_layout chooses, model/load applies, the tensor carries its tag.
enum class Layout : uint32_t {
  kRows = 0,    // as in the file: one row of blocks after the other
  kHost16 = 1,  // layout_host.h: packed tiles of 16 rows, for one vector lane a row
  kGpu16 = 2,  // kernels/shared/packed_tile.h: packed tiles of 16 rows, in the order of tensor-core
               // operands
};

// The layout in which a device wants a matrix of this type and shape, and the bytes it takes there.
struct LayoutChoice {
  Layout layout;
  uint64_t bytes;
};
Result<LayoutChoice> weight_layout(bool is_host, uint32_t type, uint32_t rows, uint32_t cols);
// The host's for inner loops with vectors (ops/host/kernels.h), or without.
Result<LayoutChoice> host_weight_layout(bool has_vectors, uint32_t type, uint32_t rows,
                                        uint32_t cols);

// WCUDA_OUT_OF_RANGE unless a matrix of `rows` rows has row_count of them from first_row on.
Status check_rows(uint32_t rows, uint32_t first_row, uint32_t row_count);

}  // namespace wcuda::quant
