// half_input: h[c] = 2^s(c) * x[c], or 2^s(c) * rms_norm(x[c]) * norm, as f16.
//
// One block a column. Bytes moved: 4 cols read and 2 depth written a column.
#include "kernels/dependent_launch.h"
#include "kernels/half_input.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kInputThreads = 512;
constexpr uint32_t kWideThreads = 1024;
// Of 4 inputs, that a thread keeps in registers.
constexpr uint32_t kQuarters = 4;
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
template <uint32_t kThreads>
__device__ inline Statistics block_statistics(Statistics value) {
  constexpr uint32_t kWarps = kThreads / 32;
  __shared__ Statistics parts[kWarps];
  value = warp_statistics(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32;
  value = lane < kWarps ? parts[lane] : Statistics{0.0f, 0.0f};
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

// Piece of 8 inputs (of the group of 32), and word of the piece, where the first two inputs of
// quarter `quarter` (4 inputs) of the group go; the other two go to the same word of the next
// piece.
struct QuarterPlace {
  uint32_t piece;
  uint32_t word;
};
__device__ inline QuarterPlace place_of_quarter(InputOrder order, uint32_t quarter) {
  switch (order) {
    case InputOrder::kEight:
      return {quarter % 2 * 2, quarter / 2};
    case InputOrder::kSplit:
      return {quarter / 4 * 2, quarter % 4};
    default:  // kNested
      return {quarter / 2 % 2 * 2, quarter / 4 * 2 + quarter % 2};
  }
}

__device__ inline uint32_t half_pair(float low, float high) {
  return uint32_t{float_to_half(low)} | uint32_t{float_to_half(high)} << 16;
}

// Four inputs from `k` on of a column, already scaled.
__device__ inline void store_quarter(const HalfInputArgs& args, uint32_t column, uint32_t k,
                                     const float4& h) {
  const uint32_t first = half_pair(h.x, h.y), second = half_pair(h.z, h.w);
  if (args.order == InputOrder::kPlain) {
    *reinterpret_cast<uint2*>(args.h + uint64_t{column} * args.depth + k) =
        make_uint2(first, second);
    return;
  }
  const QuarterPlace place = place_of_quarter(args.order, k / 4 % 8);
  auto* const words = reinterpret_cast<uint32_t*>(args.h);
  const uint64_t piece = uint64_t{k / 32 * 4 + place.piece} * args.tile_columns + column;
  words[piece * 4 + place.word] = first;
  words[(piece + args.tile_columns) * 4 + place.word] = second;
}

// A column's inputs stay in registers: at most kQuarters quarters a thread. x and norm are aligned
// to 16 bytes and cols is a multiple of 4.
template <uint32_t kThreads>
__global__ void __launch_bounds__(kThreads) half_input_kernel(const HalfInputArgs args) {
  const uint32_t column = blockIdx.x;
  const bool is_column = column < args.columns, has_norm = args.norm != nullptr;
  dependent_trigger();
  float4 norm[kQuarters] = {}, x[kQuarters] = {};
  const auto* const norms = reinterpret_cast<const float4*>(args.norm);
#pragma unroll
  for (uint32_t i = 0; i < kQuarters; ++i) {
    const uint32_t at = i * kThreads + threadIdx.x;
    if (has_norm && at < args.cols / 4) norm[i] = norms[at];
  }
  dependent_wait();
  float scale = 0.0f, rms_inverse = 1.0f;
  if (is_column) {
    const uint32_t x_row = args.x_rows != nullptr ? args.x_rows[column] : column;
    const auto* const values =
        reinterpret_cast<const float4*>(args.x + uint64_t{x_row} * args.cols);
#pragma unroll
    for (uint32_t i = 0; i < kQuarters; ++i) {
      const uint32_t at = i * kThreads + threadIdx.x;
      if (at < args.cols / 4) x[i] = values[at];
    }
    Statistics part = {0.0f, 0.0f};
#pragma unroll
    for (uint32_t i = 0; i < kQuarters; ++i) {
      const float4 v = x[i];
      part.square_sum = fmaf(v.x, v.x, part.square_sum);
      part.square_sum = fmaf(v.y, v.y, part.square_sum);
      part.square_sum = fmaf(v.z, v.z, part.square_sum);
      part.square_sum = fmaf(v.w, v.w, part.square_sum);
      const float4 g = has_norm ? norm[i] : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
      part.max = fmaxf(fmaxf(part.max, fmaxf(fabsf(v.x * g.x), fabsf(v.y * g.y))),
                       fmaxf(fabsf(v.z * g.z), fabsf(v.w * g.w)));
    }
    const Statistics all = block_statistics<kThreads>(part);
    if (has_norm)
      rms_inverse = 1.0f / sqrtf(all.square_sum / static_cast<float>(args.cols) + args.epsilon);
    const int32_t exponent = scale_exponent(all.max * rms_inverse);
    scale = power_of_two(exponent);
    if (threadIdx.x == 0) args.scales[column] = power_of_two(-exponent);
  }
#pragma unroll
  for (uint32_t i = 0; i < kQuarters; ++i) {
    const uint32_t k = (i * kThreads + threadIdx.x) * 4;
    if (k >= args.depth) break;
    const float4 g = has_norm ? norm[i] : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    const float4 v = x[i];
    store_quarter(args, column, k,
                  make_float4(v.x * rms_inverse * g.x * scale, v.y * rms_inverse * g.y * scale,
                              v.z * rms_inverse * g.z * scale, v.w * rms_inverse * g.w * scale));
  }
}

// Any number of inputs at any address: x is read twice.
__global__ void __launch_bounds__(kInputThreads) half_input_any_kernel(const HalfInputArgs args) {
  const uint32_t column = blockIdx.x;
  const bool is_plain = args.order == InputOrder::kPlain, is_column = column < args.columns;
  dependent_trigger();
  dependent_wait();
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
    const Statistics all = block_statistics<kInputThreads>(part);
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

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

cudaError_t half_input(const HalfInputArgs& args, const Launch& launch) {
  if (args.columns == 0) return cudaSuccess;
  const bool is_plain = args.order == InputOrder::kPlain;
  const uint32_t blocks = is_plain ? args.columns : args.tile_columns;
  if (args.depth < args.cols || args.depth % (is_plain ? 8 : 32) != 0 || blocks < args.columns)
    return cudaErrorInvalidValue;
  if (args.cols % 4 == 0 && args.depth <= kWideThreads * kQuarters * 4 && is_aligned(args.x) &&
      is_aligned(args.norm)) {
    if (args.depth <= kInputThreads * kQuarters * 4)
      return launch_kernel(launch, dim3(blocks), dim3(kInputThreads), 0, 0,
                           half_input_kernel<kInputThreads>, args);
    return launch_kernel(launch, dim3(blocks), dim3(kWideThreads), 0, 0,
                         half_input_kernel<kWideThreads>, args);
  }
  return launch_kernel(launch, dim3(blocks), dim3(kInputThreads), 0, 0, half_input_any_kernel,
                       args);
}

}  // namespace wcuda::kernels
