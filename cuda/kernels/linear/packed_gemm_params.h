// What the kernel of packed_gemm and its plan agree on.
#pragma once

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/shared/packed_tile.h"

namespace wcuda::kernels {

constexpr uint32_t kGemmWarps = 8;                              // consumers: two warpgroups
constexpr uint32_t kGemmGroupRows = 64;                         // of a warpgroup
constexpr uint32_t kGemmRows = kGemmWarps * quant::kMTileRows;  // of a tile
constexpr uint32_t kGemmThreads = kGemmWarps * 32 + 128;
constexpr uint32_t kGemmCluster = 2;
constexpr uint32_t kGemmPartsMax = 8;
constexpr uint32_t kGemmStagesMax = 8;
// 227 KB a multiprocessor, less what tables of codebooks take.
constexpr uint32_t kGemmSharedBytes = 219 * 1024;
constexpr uint32_t kGemmAlignment = 1024;  // of the swizzle
// Barriers: of weights one for each consumer warp and stage, of tokens two for each stage.
constexpr uint32_t kGemmTokenBarriers = kGemmWarps * kGemmStagesMax * 8;
constexpr uint32_t kGemmBarrierBytes = 1024;
static_assert(kGemmTokenBarriers + 2 * kGemmStagesMax * 8 <= kGemmBarrierBytes);
// A stage of tokens: whole groups of 32 inputs, 32 KB.
constexpr uint32_t kGemmTokenStageBytes = 32 * 1024;
WCUDA_HD constexpr uint32_t gemm_stage_groups(uint32_t columns) {
  return kGemmTokenStageBytes / (columns * 64);
}
// Stages that a K-tile of weights comes in: of large types (F32, F16, BF16) a packed tile of 64
// inputs each, so that more stages fit.
WCUDA_HD constexpr uint32_t gemm_parts(uint32_t k_tile_bytes) {
  return k_tile_bytes >= 8192 ? 4 : 1;
}
// Where tile `tile` of `count` lies, rows by rows, if every cluster computes about `run` tiles one
// after the other: tile j of each run before tile j + 1 of any.
WCUDA_HD constexpr uint32_t gemm_tile_place(uint32_t count, uint32_t run, uint32_t tile) {
  const uint32_t runs = (count + run - 1) / run, j = tile % run;
  const uint32_t of_last = count - (runs - 1) * run;  // tiles of the last run
  return j * (runs - 1) + (j < of_last ? j : of_last) + tile / run;
}
// Outputs of a warpgroup on their way: 32 tokens by 64 rows; the lanes of a store lie in different
// banks.
constexpr uint32_t kGemmOutputTokens = 32;
constexpr uint32_t kGemmOutputStride = kGemmGroupRows + 4;
struct GemmOutputs {
  float sums[kGemmOutputTokens * kGemmOutputStride];
  float scales[256];  // of the tokens
  uint32_t is_last;   // to finish a tile
  uint32_t padding[3];
};
constexpr uint32_t kGemmOutputBytes = 2 * sizeof(GemmOutputs);
static_assert(sizeof(GemmOutputs) % 16 == 0);

struct PackedGemmParams {
  uint32_t tokens;
  uint32_t column_tiles;
  uint32_t packed_tile_count;  // of an M-tile
  uint32_t k_tile_count;
  uint32_t iteration_count;
  uint32_t tile_count;   // pairs of tiles
  uint32_t run_tiles;    // of a cluster, about
  uint32_t tile_pieces;  // of K; a cluster begins and ends with any of them
  uint32_t parts;        // of K that are summed apart
  uint32_t token_stages;
  uint32_t weight_stages;
  uint32_t weight_stage_bytes;  // of all warps
  uint32_t matrix_count;
  Epilogue epilogue;
  const uint16_t* h;    // (column_tiles, k_tile_count * 4, kN, 64)
  const float* scales;  // (tokens)
  const uint8_t* packed_tiles[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax];
  float* outputs[kLinearMatricesMax];
  uint32_t rows[kLinearMatricesMax];
  uint32_t first_tile[kLinearMatricesMax];  // of rows; gate and up have the same
  uint32_t second_matrix;                   // the first of the second type
  float* partials;     // (CTAs, 2, warpgroups, kN / 8, 128, 4): unfinished sums
  uint32_t* counters;  // (CTAs, warpgroups): zeros, and zeros afterwards
};

}  // namespace wcuda::kernels
