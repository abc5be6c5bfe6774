// row_norm_max: a warp sums the squares of a row. The maximum does not depend on the order of the
// atomic operations.
#include "kernels/linear/row_norm.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockWarps = 8;

__global__ void __launch_bounds__(kBlockWarps * 32)
    row_norm_max_kernel(const float* values, uint32_t rows, uint32_t cols, float* result) {
  dependent_trigger();
  dependent_wait();
  const uint32_t row = blockIdx.x * kBlockWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0.0f;
  for (uint32_t k = lane; k < cols; k += 32) {
    const float value = values[uint64_t{row} * cols + k];
    sum = fmaf(value, value, sum);
  }
#pragma unroll
  for (uint32_t distance = 16; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(~0u, sum, distance);
  // Numbers that are not negative have the order of their bits.
  if (lane == 0) atomicMax(reinterpret_cast<int32_t*>(result), __float_as_int(sqrtf(sum)));
}

}  // namespace

cudaError_t row_norm_max(const float* values, uint32_t rows, uint32_t cols, float* result,
                         const Launch& launch) {
  if (rows == 0) return cudaSuccess;
  return launch_kernel(launch, dim3(divide_up(rows, kBlockWarps)), dim3(kBlockWarps * 32), 0, 0,
                       row_norm_max_kernel, values, rows, cols, result);
}

}  // namespace wcuda::kernels
