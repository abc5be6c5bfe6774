// linear_finish: from the sums of a product to the outputs of a linear layer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// value(c, r) = scales[c] * sums[c][r] + bias[r], then the epilogue.
struct LinearFinishArgs {
  uint32_t tokens = 0;
  uint32_t rows = 0;
  const float* sums = nullptr;  // (tokens, sums_stride)
  uint32_t sums_stride = 0;
  uint32_t up_offset = 0;          // gate epilogues: sums of up follow those of gate by this many
  const float* scales = nullptr;   // (tokens)
  const float* bias = nullptr;     // (rows); may be null
  const float* up_bias = nullptr;  // (rows); may be null
  float* output = nullptr;         // (tokens, output_stride)
  uint32_t output_stride = 0;
  Epilogue epilogue = Epilogue::kStore;
};

cudaError_t linear_finish(const LinearFinishArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
