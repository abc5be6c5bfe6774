// The loop of core/gemm/host_tile.h. The file that includes it defines WCUDA_TILE_LANES (floats
// of a vector) and WCUDA_TILE_ROWS; a tile is two vectors wide. All sums stay in registers.
#pragma once

#include "core/gemm/host_tile.h"

namespace wcuda::compute {
namespace {

constexpr int64_t kLanes = WCUDA_TILE_LANES;
constexpr int64_t kRows = WCUDA_TILE_ROWS;
constexpr int64_t kVectors = 2;
constexpr int64_t kCols = kLanes * kVectors;
typedef float Vector __attribute__((vector_size(4 * WCUDA_TILE_LANES), may_alias));

void multiply(const float* a, const float* b, int64_t depth, float* sum, int64_t stride) {
  Vector sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; ++v)
      sums[r][v] = *reinterpret_cast<const Vector*>(sum + r * stride + v * kLanes);
  for (int64_t d = 0; d < depth; ++d) {
    const Vector y0 = *reinterpret_cast<const Vector*>(b + d * kCols);
    const Vector y1 = *reinterpret_cast<const Vector*>(b + d * kCols + kLanes);
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRows; ++r) {
      const float x = a[d * kRows + r];
      sums[r][0] += x * y0;
      sums[r][1] += x * y1;
    }
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; ++v)
      *reinterpret_cast<Vector*>(sum + r * stride + v * kLanes) = sums[r][v];
}

}  // namespace
}  // namespace wcuda::compute
