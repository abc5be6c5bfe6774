// A weight matrix in device memory.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

struct Matrix {
  const uint8_t* packed_tiles = nullptr;
  uint32_t type = 0;          // a TensorType, or one that no kernel takes
  uint32_t rows = 0;          // outputs
  uint32_t cols = 0;          // inputs
  float scale_factor = 1.0f;  // scale_factor.h; only types that have one use it
};

}  // namespace wcuda::kernels
