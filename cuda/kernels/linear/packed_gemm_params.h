// What the kernel of packed_gemm and its plan agree on.
#pragma once

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/linear/token_groups.h"
#include "kernels/shared/input_order.h"
#include "kernels/shared/packed_tile.h"

namespace wcuda::kernels {

constexpr uint32_t kGemmWarps = 8;                              // consumers: two warpgroups
constexpr uint32_t kGemmGroupRows = 64;                         // per warpgroup
constexpr uint32_t kGemmRows = kGemmWarps * quant::kMTileRows;  // per tile
constexpr uint32_t kGemmThreads = kGemmWarps * 32 + 128;
constexpr uint32_t kGemmCluster = 2;
constexpr uint32_t kGemmPartitionsMax = 8;
constexpr uint32_t kGemmShortTokens = 256;  // of tiles that may be short
// Tokens per tile of a grouped launch. A tile of at most kGroupedFewTokens has narrower MMAs.
constexpr uint32_t kGroupedTokens = 128, kGroupedFewTokens = 32;
constexpr uint32_t kGemmStagesMax = 8;
// Shared memory of a CTA. An SM has 227 KB, of which 8 KB are left for codebook tables.
constexpr uint32_t kGemmSharedBytes = 219 * 1024;
constexpr uint32_t kGemmAlignment = 1024;  // required by the swizzle
// Barriers: for weights, one per consumer warp and stage; for activations, two per stage.
constexpr uint32_t kGemmTokenBarriers = kGemmWarps * kGemmStagesMax * 8;
constexpr uint32_t kGemmBarrierBytes = 1024;
static_assert(kGemmTokenBarriers + 2 * kGemmStagesMax * 8 <= kGemmBarrierBytes);
// A stage of activations is 32 KB: a number of whole groups of 32 inputs of all tokens of a tile.
constexpr uint32_t kGemmTokenStageBytes = 32 * 1024;
WCUDA_HD constexpr uint32_t gemm_stage_groups(uint32_t tile_tokens) {
  return kGemmTokenStageBytes / (tile_tokens * 64);
}
// Stages of weights per K-tile. For large types (F32, F16, BF16) a stage is one packed tile of 64
// inputs, so that more stages fit.
WCUDA_HD constexpr uint32_t gemm_parts(uint32_t k_tile_bytes) {
  return k_tile_bytes >= 8192 ? 4 : 1;
}
// Returns the place of tile `tile` of `count` in the matrix, counted row by row. Each cluster
// computes a run of about `run` consecutive tiles; the first tiles of all runs are neighbours in
// the matrix, then the second tiles, and so on.
WCUDA_HD constexpr uint32_t gemm_tile_place(uint32_t count, uint32_t run, uint32_t tile) {
  const uint32_t runs = (count + run - 1) / run, j = tile % run;
  const uint32_t of_last = count - (runs - 1) * run;  // tiles of the last run
  return j * (runs - 1) + (j < of_last ? j : of_last) + tile / run;
}
// Sums of a warpgroup that wait in shared memory for their output: 32 tokens by 64 rows. The
// padding of a row lets the lanes of a store access different banks.
constexpr uint32_t kGemmOutputTokens = 32;
constexpr uint32_t kGemmOutputStride = kGemmGroupRows + 4;
struct GemmOutputs {
  float sums[kGemmOutputTokens * kGemmOutputStride];
  float scales[256];      // of the tokens
  int8_t exponents[256];  // of the scales of the f16 outputs
  uint32_t is_last;       // 1 if this CTA is the last to finish the tile
  uint32_t padding[3];
};
constexpr uint32_t kGemmOutputBytes = 2 * sizeof(GemmOutputs);
static_assert(sizeof(GemmOutputs) % 16 == 0);

// The f16 activations that gate and up write for the next product, as half_input would.
struct GemmOperand {
  HalfOperand out;  // without `h` gate and up write f32
  // Largest L2 norm of a row of gate, of up. With the norm of a token's input they bound its
  // outputs, so that the scale is known before all outputs are.
  float gate_norm = 0.0f, up_norm = 0.0f;
};

struct PackedGemmParams {
  uint32_t tokens;
  uint32_t token_tiles;
  uint32_t packed_tile_count;  // per M-tile
  uint32_t k_tile_count;
  uint32_t k_groups;  // of 32 inputs; the last K-tile may have fewer than 8
  uint32_t iteration_count;
  uint32_t tile_count;   // of pairs of tiles
  uint32_t full_pairs;   // of rows; the pairs after them are short
  uint32_t run_tiles;    // per cluster, rounded up
  uint32_t tile_pieces;  // pieces of K; the run of a cluster begins and ends between two of them
  uint32_t partitions;   // of K, summed separately
  uint32_t token_stages;
  uint32_t weight_stages;
  uint32_t weight_stage_bytes;  // for all warps
  uint32_t matrix_count;
  Epilogue epilogue;
  bool writes_in_bulk;  // kStore or kAdd, and rows of outputs are whole 16 bytes
  const uint16_t* h;    // (token_tiles, k_tile_count * 4, kN, 64)
  const float* scales;  // (tokens)
  const uint8_t* packed_tiles[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax];
  float* outputs[kLinearMatricesMax];
  uint32_t rows[kLinearMatricesMax];
  float scale_factors[kLinearMatricesMax];
  uint32_t first_tile[kLinearMatricesMax];  // of the rows of each matrix; a tile has gate and up
  uint32_t second_matrix;                   // the first matrix of the second type
  GemmOperand operand;
  const float* norms;  // (tokens) of the input; if there is an operand
  float* partials;     // (CTAs, 2, warpgroups, kN / 8, 128, 4) partial sums
  uint32_t* counters;  // (CTAs, warpgroups); zero before and after each launch
  // Of a grouped launch, else null: (token_tiles) the tokens of each tile. Tiles without any come
  // last.
  const TokenTile* groups;
  uint32_t row_pairs;  // pairs of tiles of rows, for each tile of tokens
};

}  // namespace wcuda::kernels
