// A weight matrix in device memory.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

struct Matrix {
  const uint8_t* records = nullptr;
  uint32_t type = 0;  // ggml type id
  uint32_t rows = 0;  // outputs
  uint32_t cols = 0;  // inputs
};

}  // namespace wcuda::kernels
