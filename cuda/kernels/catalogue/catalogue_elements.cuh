// Launches the element-wise kernels of the catalogue: one thread per element. Only for .cu files.
#pragma once

#include "kernels/catalogue/catalogue_launch.h"
#include "kernels/shared/point_ops.h"

namespace wcuda::kernels {

// Calls launch(T(), grid), where T is the type of the elements. Blocks have kElementThreads
// threads; a grid of at most kElementBlocksMax blocks strides over more elements.
constexpr uint32_t kElementThreads = 256;
constexpr int64_t kElementBlocksMax = 8192;
template <class Launch>
cudaError_t launch_elements(Dtype type, int64_t count, const Launch& launch) {
  if (count == 0) return cudaSuccess;
  const int64_t blocks = (count + kElementThreads - 1) / kElementThreads;
  const auto grid = static_cast<uint32_t>(blocks < kElementBlocksMax ? blocks : kElementBlocksMax);
  if (type == Dtype::kF32)
    launch(float(), grid);
  else if (type == Dtype::kF16)
    launch(Half(), grid);
  else
    launch(Bf16(), grid);
  return cudaPeekAtLastError();
}

}  // namespace wcuda::kernels
