// The scale factor of a matrix: a power of two by which f16 products multiply weights of Q4_K, so
// that scales times 2^24 are f16 numbers (HalfTile in kernels/linear/half_tile.cuh).
#pragma once

#include "kernels/shared/numeric.h"
#include "kernels/shared/tensor_type.h"

namespace wcuda::kernels {

// Weights are multiplied by scale factor / kScaleFactorDivisor.
constexpr float kScaleFactorDivisor = 4096.0f;

WCUDA_HD constexpr bool has_scale_factor(uint32_t type) { return type == TensorType::kQ4_K; }

// Returns a number that 1 / factor must exceed for a superblock: then d * factor is less than 1/4
// and dmin * factor less than 1,024, and no product with a code of 6 bits overflows. 0 where it is
// not finite: such a superblock has no finite weights.
WCUDA_HD inline float scale_bound(uint16_t d, uint16_t d_min) {
  const float of_d = half_to_float(d & 0x7fff) * 4.0f;
  const float of_min = half_to_float(d_min & 0x7fff) / 1024.0f;
  const float bound = of_d > of_min ? of_d : of_min;
  return bound < bits_float(0x7f800000u) ? bound : 0.0f;
}

// Returns the factor for the largest bound of a matrix's superblocks: at most 2^10, so that any
// other d remains a normal f16 number.
inline float scale_factor(float bound) {
  const int32_t exponent = static_cast<int32_t>(float_bits(bound) >> 23) - 127;
  return bits_float(static_cast<uint32_t>(126 - (exponent < -11 ? -11 : exponent)) << 23);
}

}  // namespace wcuda::kernels
