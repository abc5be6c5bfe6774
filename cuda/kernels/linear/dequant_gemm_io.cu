// dequant_gemm_input: h[c] = 2^s(c) * v[c] as f16; v = x, rms_norm(x) * norm, or activation(gate) *
// up.
//
// A block a column, which it holds in registers, 8 values a turn and thread; but what comes of a
// gate is written on the way. Bytes moved a column: 4 cols read and 2 written.
#include "kernels/linear/dequant_gemm_io.h"
#include "kernels/linear/linear_activation.cuh"
#include "kernels/linear/token_statistics.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/numeric.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kThreadsMax = 512;
constexpr uint32_t kTurnsMax = 8;
static_assert(kThreadsMax * kTurnsMax * 8 == kDequantGemmInputsMax);
constexpr int32_t kLowExponent = -4, kHighExponent = 14, kChosenExponent = -2;
// 2^s and 2^-s are normal numbers; what is added to stays finite.
constexpr int32_t kScaleMax = 126, kResidualScaleMax = 60;

__device__ inline int32_t scale_exponent(const DequantGemmInputArgs& args, float max) {
  const auto field = static_cast<int32_t>(float_bits(max) >> 23 & 255);
  const int32_t exponent = field - 127;
  if (max == 0.0f || field == 255) return 0;
  if (args.rule == ScaleRule::kRarely && exponent >= kLowExponent && exponent <= kHighExponent)
    return 0;
  return min(kChosenExponent - exponent, args.residual_rows != 0 ? kResidualScaleMax : kScaleMax);
}

__device__ inline uint32_t half_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ inline void unpack_halves(const uint4& from, float (&to)[8]) {
  const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    to[2 * i] = half_to_float(static_cast<uint16_t>(words[i] & 0xffff));
    to[2 * i + 1] = half_to_float(static_cast<uint16_t>(words[i] >> 16));
  }
}

__device__ inline void load8(const float* from, float (&to)[8]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

__device__ inline void store8(const float (&values)[8], float scale, uint4* to) {
  uint32_t words[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
    words[i] = half_pair(values[2 * i] * scale, values[2 * i + 1] * scale);
  *to = make_uint4(words[0], words[1], words[2], words[3]);
}

// Ends a column: the sums that its products will be added to.
__device__ inline void scale_residual(const DequantGemmInputArgs& args, uint32_t column,
                                      int32_t exponent) {
  if (threadIdx.x == 0) args.scales[column] = power_of_two(-exponent);
  if (args.residual == nullptr || exponent == 0) return;
  float* const residual = args.residual + uint64_t{column} * args.residual_rows;
  for (uint32_t r = threadIdx.x; r < args.residual_rows; r += blockDim.x)
    residual[r] *= power_of_two(exponent);
}

template <uint32_t kTurns>
__global__ void __launch_bounds__(kThreadsMax) gemm_input_kernel(const DequantGemmInputArgs args) {
  const uint32_t column = blockIdx.x, pieces = args.cols / 8;
  const bool has_norm = args.norm != nullptr;
  dependent_trigger();
  dependent_wait();

  const uint32_t row = args.x_rows != nullptr ? args.x_rows[column] : column;
  const float* const x = args.x + uint64_t{row} * args.cols;
  float values[kTurns][8] = {};
#pragma unroll
  for (uint32_t t = 0; t < kTurns; ++t) {
    const uint32_t piece = t * blockDim.x + threadIdx.x;
    if (piece < pieces) load8(x + piece * 8, values[t]);
  }
  Statistics all = {0.0f, 0.0f};
#pragma unroll
  for (uint32_t t = 0; t < kTurns; ++t) {
    const uint32_t piece = t * blockDim.x + threadIdx.x;
    if (has_norm && piece < pieces) {
      float gains[8];
      load8(args.norm + piece * 8, gains);
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        all.square_sum = fmaf(values[t][i], values[t][i], all.square_sum);
        values[t][i] *= gains[i];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) all.max = fmaxf(all.max, fabsf(values[t][i]));
  }
  all = block_statistics<kThreadsMax / 32, false>(all);
  const float rms_inverse =
      has_norm ? 1.0f / sqrtf(all.square_sum / static_cast<float>(args.cols) + args.epsilon) : 1.0f;
  const int32_t exponent = scale_exponent(args, all.max * rms_inverse);
#pragma unroll
  for (uint32_t t = 0; t < kTurns; ++t) {
    const uint32_t piece = t * blockDim.x + threadIdx.x;
    if (piece >= pieces) continue;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) values[t][i] *= rms_inverse;
    store8(values[t], power_of_two(exponent),
           reinterpret_cast<uint4*>(args.h) + uint64_t{column} * pieces + piece);
  }
  scale_residual(args, column, exponent);
}

// Two pieces of a column, side by side: h = scale * activation(gate) * up; returns the largest
// magnitude of what is scaled.
template <bool kIsSilu>
__device__ inline float make_hidden(const DequantGemmInputArgs& args, uint32_t column,
                                    float sum_scale, float scale) {
  constexpr uint32_t kSideBySide = 2;
  const uint32_t pieces = args.cols / 8;
  const auto* const gate =
      reinterpret_cast<const uint4*>(args.gate) + uint64_t{column} * 2 * pieces;
  auto* const h = reinterpret_cast<uint4*>(args.h) + uint64_t{column} * pieces;
  float max = 0.0f;
  for (uint32_t first = threadIdx.x; first < pieces; first += kSideBySide * blockDim.x) {
    uint4 gates[kSideBySide], ups[kSideBySide];
#pragma unroll
    for (uint32_t p = 0; p < kSideBySide; ++p) {
      const uint32_t piece = first + p * blockDim.x;
      if (piece >= pieces) continue;
      gates[p] = gate[piece];
      ups[p] = gate[pieces + piece];
    }
#pragma unroll
    for (uint32_t p = 0; p < kSideBySide; ++p) {
      const uint32_t piece = first + p * blockDim.x;
      if (piece >= pieces) continue;
      float g[8], u[8];
      unpack_halves(gates[p], g);
      unpack_halves(ups[p], u);
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        g[i] *= sum_scale;
        u[i] *= sum_scale;
        if (args.gate_bias != nullptr) g[i] += args.gate_bias[piece * 8 + i];
        if (args.up_bias != nullptr) u[i] += args.up_bias[piece * 8 + i];
        g[i] = activation_fast(kIsSilu, g[i]) * u[i];
        max = fmaxf(max, fabsf(g[i]));
      }
      store8(g, scale, h + piece);
    }
  }
  return max;
}

// Written as if s were 0, and once more where it is not.
template <bool kIsSilu>
__global__ void __launch_bounds__(kThreadsMax) wide_hidden_kernel(const DequantGemmInputArgs args) {
  const uint32_t column = blockIdx.x;
  dependent_trigger();
  dependent_wait();
  const float sum_scale = args.gate_scales[column];
  const float max = make_hidden<kIsSilu>(args, column, sum_scale, 1.0f);
  const int32_t exponent =
      scale_exponent(args, block_statistics<kThreadsMax / 32, false>({0.0f, max}).max);
  if (exponent != 0) make_hidden<kIsSilu>(args, column, sum_scale, power_of_two(exponent));
  scale_residual(args, column, exponent);
}

constexpr uint32_t kFinishThreads = 256;
constexpr uint32_t kFinishBlocks = 8;  // a multiprocessor

__global__ void __launch_bounds__(kFinishThreads)
    wide_finish_kernel(const DequantGemmFinishArgs args) {
  dependent_trigger();
  dependent_wait();
  for (uint32_t c = blockIdx.x; c < args.tokens; c += gridDim.x) {
    const float scale = args.scales != nullptr ? args.scales[c] : 1.0f;
    if (scale == 1.0f && args.bias == nullptr) continue;
    float* const y = args.y + c * args.stride;
    for (uint32_t r = threadIdx.x; r < args.rows; r += kFinishThreads)
      y[r] = args.bias != nullptr ? scale * y[r] + args.bias[r] : scale * y[r];
  }
}

cudaError_t launch_input(const DequantGemmInputArgs& args, const Launch& launch) {
  const uint32_t pieces = args.cols / 8;
  const auto start = [&](auto* kernel, uint32_t turns) {
    const uint32_t threads = ((pieces + turns - 1) / turns + 31) / 32 * 32;
    return launch_kernel(launch, dim3(args.tokens), dim3(threads), 0, 0, kernel, args);
  };
  if (args.gate != nullptr) {
    const uint32_t turns = (pieces + 2 * kThreadsMax - 1) / (2 * kThreadsMax) * 2;
    return args.activation == Epilogue::kSiluGate ? start(wide_hidden_kernel<true>, turns)
                                                  : start(wide_hidden_kernel<false>, turns);
  }
  if (pieces <= 256) return start(gemm_input_kernel<1>, 1);
  if (pieces <= 2 * kThreadsMax) return start(gemm_input_kernel<2>, 2);
  if (pieces <= 4 * kThreadsMax) return start(gemm_input_kernel<4>, 4);
  return start(gemm_input_kernel<8>, 8);
}

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

cudaError_t dequant_gemm_input(const DequantGemmInputArgs& args, const Launch& launch) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.cols == 0 || args.cols % 8 != 0 || args.cols > kDequantGemmInputsMax ||
      !is_aligned(args.x) || !is_aligned(args.norm) || !is_aligned(args.gate) ||
      !is_aligned(args.h))
    return cudaErrorInvalidValue;
  return launch_input(args, launch);
}

cudaError_t dequant_gemm_finish(const DequantGemmFinishArgs& args, const Launch& launch) {
  if (args.tokens == 0 || args.rows == 0) return cudaSuccess;
  const uint32_t blocks = min(args.tokens, kFinishBlocks * static_cast<uint32_t>(launch.sm_count));
  return launch_kernel(launch, dim3(blocks), dim3(kFinishThreads), 0, 0, wide_finish_kernel, args);
}

}  // namespace wcuda::kernels
