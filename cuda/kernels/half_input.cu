// half_input: h[c] = 2^s(c) * x[c], or 2^s(c) * rms_norm(x[c]) * norm, as f16.
//
// One block a column; x is read twice, the second time mostly from L1. Bytes moved: 4 cols read and
// 2 depth written a column.
#include "kernels/dependent_launch.h"
#include "kernels/half_input.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kInputThreads = 512;
constexpr uint32_t kInputWarps = kInputThreads / 32;
constexpr int32_t kTopExponent = 14;

struct Statistics {
  float square_sum;
  float max;
};

__device__ inline Statistics warp_statistics(Statistics value) {
#pragma unroll
  for (int32_t distance = 16; distance > 0; distance /= 2) {
    value.square_sum += __shfl_xor_sync(~0u, value.square_sum, distance);
    value.max = fmaxf(value.max, __shfl_xor_sync(~0u, value.max, distance));
  }
  return value;
}

// Of the whole block, to every thread; the order of the sum is fixed.
__device__ inline Statistics block_statistics(Statistics value) {
  __shared__ Statistics parts[kInputWarps];
  value = warp_statistics(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32;
  value = lane < kInputWarps ? parts[lane] : Statistics{0.0f, 0.0f};
  return warp_statistics(value);
}

// s of the largest magnitude: 0 where that is 0 or not finite.
__device__ inline int32_t scale_exponent(float max) {
  const auto exponent = static_cast<int32_t>(float_bits(max) >> 23 & 255);
  if (max == 0.0f || exponent == 255) return 0;
  return min(kTopExponent + 127 - exponent, 126);
}
__device__ inline float power_of_two(int32_t exponent) {
  return bits_float(static_cast<uint32_t>(exponent + 127) << 23);
}

__global__ void __launch_bounds__(kInputThreads) half_input_kernel(const HalfInputArgs args) {
  const uint32_t column = blockIdx.x;
  const bool is_plain = args.order == InputOrder::kPlain;
  dependent_trigger();
  dependent_wait();
  const bool is_column = column < args.columns;
  const uint32_t x_row = is_column && args.x_rows != nullptr ? args.x_rows[column] : column;
  const float* const x = args.x + uint64_t{x_row} * args.cols;
  float rms_inverse = 1.0f, scale = 0.0f;
  if (is_column) {
    Statistics part = {0.0f, 0.0f};
    for (uint32_t k = threadIdx.x; k < args.cols; k += kInputThreads) {
      const float value = x[k];
      part.square_sum = fmaf(value, value, part.square_sum);
      part.max = fmaxf(part.max, fabsf(args.norm != nullptr ? value * args.norm[k] : value));
    }
    const Statistics all = block_statistics(part);
    if (args.norm != nullptr)
      rms_inverse = 1.0f / sqrtf(all.square_sum / static_cast<float>(args.cols) + args.epsilon);
    const int32_t exponent = scale_exponent(all.max * rms_inverse);
    scale = power_of_two(exponent);
    if (threadIdx.x == 0) args.scales[column] = power_of_two(-exponent);
  }

  for (uint32_t piece = threadIdx.x; piece < args.depth / 8; piece += kInputThreads) {
    uint32_t words[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t place = piece * 8 + i;
      const uint32_t k = place / 32 * 32 + input_of_place(args.order, place % 32);
      float value = 0.0f;
      if (is_column && k < args.cols) {
        value = x[k] * rms_inverse;
        if (args.norm != nullptr) value *= args.norm[k];
      }
      words[i / 2] |= uint32_t{float_to_half(value * scale)} << (i % 2 * 16);
    }
    const uint64_t index = is_plain ? uint64_t{column} * (args.depth / 8) + piece
                                    : uint64_t{piece} * args.tile_columns + column;
    reinterpret_cast<uint4*>(args.h)[index] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace

cudaError_t half_input(const HalfInputArgs& args, const Launch& launch) {
  if (args.columns == 0) return cudaSuccess;
  const bool is_plain = args.order == InputOrder::kPlain;
  const uint32_t blocks = is_plain ? args.columns : args.tile_columns;
  if (args.depth < args.cols || args.depth % (is_plain ? 8 : 32) != 0 || blocks < args.columns)
    return cudaErrorInvalidValue;
  return launch_kernel(launch, dim3(blocks), dim3(kInputThreads), 0, 0, half_input_kernel, args);
}

}  // namespace wcuda::kernels
