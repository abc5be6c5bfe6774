// How a weight matrix lies in memory.
#pragma once

#include <cstdint>

namespace wcuda::quant {

// `ops` chooses (ops::weight_layout), model/load applies, the tensor carries its tag.
enum class Layout : uint32_t {
  kRows = 0,    // as in the file: one row of blocks after the other
  kHost16 = 1,  // layout_host.h: packed tiles of 16 rows, for one vector lane a row
  kGpu16 = 2,  // kernels/shared/packed_tile.h: packed tiles of 16 rows, in the order of tensor-core
               // operands
};

}  // namespace wcuda::quant
