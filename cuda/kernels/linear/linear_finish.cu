// linear_finish: out[c][r] = epilogue(scales[c] * sums[c][r] + bias[r]).
//
// A thread makes kElements consecutive rows of one column. Bytes moved: 4 a sum (8 with a gate), 4
// an output (8 when it is added to).
#include "kernels/linear/linear_activation.cuh"
#include "kernels/linear/linear_finish.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kFinishThreads = 256;
constexpr uint32_t kElements = 4;

__device__ inline float finished(const LinearFinishArgs& args, const float* sums, float scale,
                                 uint32_t row, float previous) {
  float value = scale * sums[row];
  if (args.bias != nullptr) value += args.bias[row];
  if (args.epilogue == Epilogue::kStore) return value;
  if (args.epilogue == Epilogue::kAdd) return previous + value;
  float up = scale * sums[args.up_offset + row];
  if (args.up_bias != nullptr) up += args.up_bias[row];
  return gated(args.epilogue, value, up);
}

__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const LinearFinishArgs args) {
  const uint32_t column = blockIdx.y;
  const uint32_t first = (blockIdx.x * kFinishThreads + threadIdx.x) * kElements;
  dependent_wait();
  if (first >= args.rows) return;
  const float* const sums = args.sums + uint64_t{column} * args.sums_stride;
  float* const output = args.output + uint64_t{column} * args.output_stride;
  const float scale = args.scales[column];
  const bool is_add = args.epilogue == Epilogue::kAdd;
  if (first + kElements <= args.rows && args.output_stride % kElements == 0 &&
      reinterpret_cast<uintptr_t>(output) % 16 == 0) {
    const float4 old = is_add ? *reinterpret_cast<const float4*>(output + first) : float4{};
    *reinterpret_cast<float4*>(output + first) = make_float4(
        finished(args, sums, scale, first, old.x), finished(args, sums, scale, first + 1, old.y),
        finished(args, sums, scale, first + 2, old.z),
        finished(args, sums, scale, first + 3, old.w));
    return;
  }
  for (uint32_t row = first; row < args.rows && row < first + kElements; ++row)
    output[row] = finished(args, sums, scale, row, is_add ? output[row] : 0.0f);
}

}  // namespace

cudaError_t linear_finish(const LinearFinishArgs& args, const Launch& launch) {
  if (args.tokens == 0 || args.rows == 0) return cudaSuccess;
  constexpr uint32_t kBlockRows = kFinishThreads * kElements;
  const dim3 grid((args.rows + kBlockRows - 1) / kBlockRows, args.tokens);
  return launch_kernel(launch, grid, dim3(kFinishThreads), 0, 0, finish_kernel, args);
}

}  // namespace wcuda::kernels
