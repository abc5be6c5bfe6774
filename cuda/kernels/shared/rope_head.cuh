// One head of q, k or v in shared memory: RMS norm, rope, and rounding to a row of the key-value
// pages. One warp per head. Multiplications and additions are intrinsics where a compiler could
// fuse them, so that every kernel computes the same bits. Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/shared/int10_row.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/numeric.h"
#include "kernels/shared/rope_head.h"

namespace wcuda::kernels {

__device__ __forceinline__ float head_sum(float value) {
#pragma unroll
  for (uint32_t step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}
__device__ __forceinline__ float head_max(float value) {
#pragma unroll
  for (uint32_t step = 16; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// Returns cos and sin of position * frequency, within 4e-7. The angle is reduced to one turn in
// double precision, so that the error does not grow with the position.
__device__ __forceinline__ float2 rope_cos_sin(uint32_t position, float frequency,
                                               float magnitude) {
  constexpr double kInversePi = 0.318309886183790671538;
  const double half_turns = __dmul_rn(
      __dmul_rn(static_cast<double>(position), static_cast<double>(frequency)), kInversePi);
  const double whole = 2.0 * rint(half_turns * 0.5);
  float sine, cosine;
  sincospif(static_cast<float>(half_turns - whole), &sine, &cosine);
  return make_float2(cosine * magnitude, sine * magnitude);
}

// Scales a head to an RMS of 1 and by `gain`. kValues * 32 is at least n.
template <uint32_t kValues>
__device__ __forceinline__ void norm_head(float* head, uint32_t n, const float* gain, float epsilon,
                                          uint32_t lane) {
  float squares = 0.0f;
#pragma unroll
  for (uint32_t j = 0; j < kValues; ++j) {
    const uint32_t i = lane + 32 * j;
    if (i < n) squares = __fmaf_rn(head[i], head[i], squares);
  }
  const float factor = 1.0f / sqrtf(head_sum(squares) / static_cast<float>(n) + epsilon);
#pragma unroll
  for (uint32_t j = 0; j < kValues; ++j) {
    const uint32_t i = lane + 32 * j;
    if (i < n) head[i] = __fmul_rn(__fmul_rn(head[i], factor), gain[i]);
  }
  __syncwarp();
}

// Rotates the pairs of a head; rotate(j) returns cos and sin of pair lane + 32 * j.
template <uint32_t kValues, class Rotate>
__device__ __forceinline__ void rope_head(float* head, const HeadRope& args, const Rotate& rotate,
                                          uint32_t lane) {
  const uint32_t half = args.rope_dimensions / 2;
#pragma unroll
  for (uint32_t j = 0; j < (kValues + 1) / 2; ++j) {
    const uint32_t pair = lane + 32 * j;
    if (pair >= half) continue;
    float& first = head[args.has_adjacent_pairs ? 2 * pair : pair];
    float& second = head[args.has_adjacent_pairs ? 2 * pair + 1 : half + pair];
    const float2 cs = rotate(j);
    const float a = first, b = second;
    first = __fmaf_rn(a, cs.x, -__fmul_rn(b, cs.y));
    second = __fmaf_rn(a, cs.y, __fmul_rn(b, cs.x));
  }
  __syncwarp();
}

// Multiplies each 64 elements of a head by a Hadamard matrix. kValues * 32 is at least n.
template <uint32_t kValues>
__device__ __forceinline__ void hadamard_head(float* head, uint32_t n, uint32_t lane) {
  static_assert(kInt10Block == 64);
#pragma unroll
  for (uint32_t j = 0; j < kValues; j += 2) {
    if (32 * j >= n) continue;
    float values[2] = {head[lane + 32 * j], head[lane + 32 * j + 32]};
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2)
#pragma unroll
      for (float& value : values) {
        const float other = __shfl_xor_sync(~0u, value, step);
        value = (lane & step) != 0 ? __fsub_rn(other, value) : __fadd_rn(value, other);
      }
    head[lane + 32 * j] = __fmul_rn(__fadd_rn(values[0], values[1]), 0.125f);
    head[lane + 32 * j + 32] = __fmul_rn(__fsub_rn(values[0], values[1]), 0.125f);
  }
  __syncwarp();
}

// Writes an f16 scale and 32 codes; each lane holds one value of the block.
__device__ __forceinline__ void write_q8_0_block(float value, uint8_t* block, uint32_t lane) {
  const bool is_finite = __all_sync(~0u, isfinite(value));
  const float largest = head_max(fabsf(value));
  const uint16_t bits = is_finite ? float_to_half(largest / 127.0f) : uint16_t{0x7e00};
  const float scale = half_to_float(bits);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  const float code = is_finite ? rintf(value * inverse) : 0.0f;
  if (lane == 0) *reinterpret_cast<uint16_t*>(block) = bits;
  block[2 + lane] = static_cast<uint8_t>(static_cast<int8_t>(fminf(127.0f, fmaxf(-127.0f, code))));
}

__device__ __forceinline__ void write_int10_row(const float* head, uint32_t n, uint32_t slot,
                                                uint8_t* row, uint32_t lane) {
  const Int10Row at(n, slot % 2 == 1);
  for (uint32_t i = 0; i < n; i += kInt10Block) {
    const float values[2] = {head[i + lane], head[i + lane + 32]};
    const bool is_finite = __all_sync(~0u, isfinite(values[0]) && isfinite(values[1]));
    const float largest = head_max(fmaxf(fabsf(values[0]), fabsf(values[1])));
    const uint16_t bits = is_finite ? float_to_half(largest / kInt10CodeMax) : uint16_t{0x7e00};
    const float scale = half_to_float(bits);
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    uint32_t high = 0;
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const float code = is_finite ? rintf(values[j] * inverse) : 0.0f;
      const float most = kInt10CodeMax;
      const auto stored = static_cast<uint32_t>(
          static_cast<int32_t>(fminf(most, fmaxf(-most, code))) + kInt10Offset);
      row[at.low + i + lane + 32 * j] = static_cast<uint8_t>(stored);
      high |= stored >> 8 << 4 * j;
    }
    high |= __shfl_xor_sync(~0u, high, 16) << 2;
    if (lane < 16) row[at.high + i / 4 + lane] = static_cast<uint8_t>(high);
    if (lane == 0) *reinterpret_cast<uint16_t*>(row + at.scales + i / 32) = bits;
  }
}

// Writes the same bits as write_kv_row on the host.
__device__ __forceinline__ void write_row(KvFormat format, const float* head, uint32_t n,
                                          uint32_t slot, uint8_t* row, uint32_t lane) {
  if (format == KvFormat::kQ8_0) {
    for (uint32_t i = 0; i < n; i += 32) write_q8_0_block(head[i + lane], row + i / 32 * 34, lane);
  } else if (format == KvFormat::kInt10) {
    write_int10_row(head, n, slot, row, lane);
  } else if (format == KvFormat::kFp8E4m3) {
    for (uint32_t i = lane; i < n; i += 32) row[i] = float_to_e4m3(head[i]);
  } else {
    for (uint32_t i = lane; i < n; i += 32)
      reinterpret_cast<uint16_t*>(row)[i] = float_to_half(head[i]);
  }
}

}  // namespace wcuda::kernels
