// Divides the matrices of a launch into tiles and iterations (packed_gemm_kernel.cuh). Pure.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

struct GemmLayer {
  uint32_t tokens = 0;
  uint32_t k_tiles = 0;       // of 256 inputs
  uint32_t rows[3] = {};      // of each matrix
  uint32_t matrix_count = 0;  // gate and up count as one
  bool is_gate = false;
  // Whether pairs of tiles may be short: with one matrix, or gate and up.
  bool may_have_short_pairs = false;
  uint32_t k_tile_bytes = 0;  // of 16 rows; if there are two types, the larger
  uint32_t sm_count = 0;
  // Groups of tokens, each with matrices of its own; 0: all tokens have the same.
  uint32_t groups = 0;
  // Partitions of K, summed separately and then added in order; 0: the fastest choice.
  uint32_t partitions = 0;
};

struct GemmPlan {
  uint32_t tile_tokens = 0;
  uint32_t token_tiles = 0;  // with groups, the most that they can have
  uint32_t row_tiles = 0;
  uint32_t first_tile[3] = {};  // of rows, of each matrix
  uint32_t iteration_count = 0;
  uint32_t full_pairs = UINT32_MAX;          // pairs of tiles by rows before those that are short
  uint32_t clusters = 0;                     // of two CTAs; 0: no kernel supports the layer
  uint32_t tile_pieces = 0, partitions = 1;  // as PackedGemmParams
  uint32_t token_stages = 0;
  uint32_t weight_stages = 0;
};

// Tokens per tile, for which there are kernels.
constexpr uint32_t kGemmTileTokens[2] = {128, 256};

// Returns the partitions of K of a layer whose sums must not depend on the number of tokens.
uint32_t invariant_partitions(uint32_t rows, uint32_t k_tiles, uint32_t sm_count);

GemmPlan plan_gemm(const GemmLayer& layer);

}  // namespace wcuda::kernels
