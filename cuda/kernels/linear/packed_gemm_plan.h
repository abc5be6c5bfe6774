// Divides the matrices of a launch into tiles and iterations (packed_gemm_kernel.cuh). Pure.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

struct GemmLayer {
  uint32_t tokens = 0;
  uint32_t k_tiles = 0;       // of 256 inputs
  uint32_t rows[3] = {};      // of each matrix
  uint32_t matrix_count = 0;  // a gate's two are one
  bool is_gate = false;
  uint32_t k_tile_bytes = 0;  // of 16 rows; of two types the larger
  uint32_t sm_count = 0;
  uint32_t parts = 0;  // of K that are summed apart, then added in order; 0: as is fastest
};

struct GemmPlan {
  uint32_t columns = 0;  // tokens of a tile
  uint32_t row_tiles = 0;
  uint32_t first_tile[3] = {};  // of rows, of each matrix
  uint32_t iteration_count = 0;
  uint32_t clusters = 0;                // of two CTAs; 0: no kernel takes the layer
  uint32_t tile_pieces = 0, parts = 1;  // as PackedGemmParams
  uint32_t token_stages = 0;
  uint32_t weight_stages = 0;
};

// Tokens of the tiles that there are kernels for.
constexpr uint32_t kGemmColumns[2] = {128, 256};

// The parts of K of a layer whose sums must not depend on the number of tokens.
uint32_t invariant_parts(uint32_t rows, uint32_t k_tiles, uint32_t sm_count);

GemmPlan plan_gemm(const GemmLayer& layer);

}  // namespace wcuda::kernels
