// A weight on the device, and the properties of an architecture that operations use.
#pragma once

#include <cstdint>

#include "llm/quant/layout.h"

namespace wcuda::model {

using quant::Layout;

// A matrix of `rows` outputs by `cols` inputs, resident on the device; absent if data is null.
struct Weight {
  const void* data = nullptr;
  uint64_t bytes = 0;
  uint32_t type = 0;  // ggml type id
  Layout layout = Layout::kRows;
  uint32_t rows = 0;
  uint32_t cols = 0;
  float scale_factor = 1.0f;  // on a device, of a type that has one: kernels/shared/scale_factor.h
};

// f32 values on the device (norm gains, biases, rope frequencies); null if absent.
using Vector = const float*;

enum class RopePairing : uint32_t {
  kAdjacent,  // (0, 1), (2, 3), …: llama
  kHalves,    // (i, i + n/2): qwen, neox
};

enum class Activation : uint32_t { kSilu, kGeluTanh };

}  // namespace wcuda::model
