// What the kernel of linear_batch and its plan agree on.
#pragma once

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/shared/packed_tile.h"

namespace wcuda::kernels {

constexpr uint32_t kBatchStagesMax = 8;
constexpr uint32_t kBatchClusterMax = 8;
// Maximum rows of a tile. With more than 32 tokens, a block of 256 rows uses all registers of an
// SM. With fewer tokens, blocks are smaller, so that several fit (batch_blocks).
WCUDA_HD constexpr uint32_t batch_rows_max(uint32_t tile_tokens) {
  return tile_tokens > 32 ? 256 : 128;
}
// Blocks per SM. With at most 32 tokens the sums need few registers, so blocks of the next kernel
// fit on the SM too, and load their first weights while this kernel ends.
WCUDA_HD constexpr uint32_t batch_blocks(uint32_t rows, uint32_t tile_tokens) {
  return tile_tokens > 32 ? 1 : rows > 64 ? 2 : 4;
}
// Shared memory of a block. An SM has 227 KB, of which 8 KB are left for codebook tables.
WCUDA_HD constexpr uint32_t batch_shared_bytes(uint32_t blocks) {
  return (blocks == 1 ? 219 : blocks == 2 ? 110 : 55) * 1024;
}
// Alignment of the data within shared memory; up to so many bytes are lost.
constexpr uint32_t kBatchAlignment = 1024;
// Barriers: for weights, one per consumer warp and stage; for activations, two per stage.
constexpr uint32_t kBatchWarpsMax = 16;
constexpr uint32_t kBatchTokenBarriers = kBatchWarpsMax * kBatchStagesMax * 8;
constexpr uint32_t kBatchBarrierBytes = 2048;
static_assert(kBatchTokenBarriers + kBatchStagesMax * 16 <= kBatchBarrierBytes);
// Floats between the sums of two tokens, so that the lanes of a store access different banks.
constexpr uint32_t kBatchPadding = 4;
WCUDA_HD constexpr uint32_t batch_threads(uint32_t rows) { return rows / 64 * 128 + 32; }

// Thread count for __launch_bounds__. With at most 32 tokens it is larger than the block, so that
// the compiler uses at most 80 registers per thread.
WCUDA_HD constexpr uint32_t batch_bound(uint32_t tile_tokens) {
  return tile_tokens > 32 ? batch_threads(batch_rows_max(tile_tokens)) : 384;
}

// A stage of activations is half a K-tile, or a whole one with at most 16 tokens.
WCUDA_HD constexpr uint32_t batch_stage_halves(uint32_t tile_tokens) {
  return tile_tokens <= 16 ? 2 : 1;
}
WCUDA_HD constexpr uint32_t batch_stage_bytes(uint32_t tile_tokens) {
  return batch_stage_halves(tile_tokens) * quant::kHalfKTileInputs * tile_tokens * 2;
}
// Stages of activations: one in use, the others in flight.
WCUDA_HD constexpr uint32_t batch_token_stages(uint32_t tile_tokens) {
  return tile_tokens == 64 ? 4 : 3;
}

struct LinearBatchParams {
  uint32_t tokens;
  uint32_t token_tiles;
  uint32_t packed_tile_count;  // of an M-tile
  uint32_t k_tile_count;
  // Of each block of a cluster; the last entry is k_tile_count.
  uint32_t first_k_tile[kBatchClusterMax + 1];
  uint32_t cluster;             // blocks per tile
  uint32_t tile_rows;           // 64, 128 or 256
  uint32_t weight_stage_count;  // each stage is one K-tile
  uint32_t matrix_count;
  Epilogue epilogue;
  const uint16_t* h;    // (token_tiles, k_tile_count * 4, kTokens, 64)
  const float* scales;  // (tokens)
  const uint8_t* packed_tiles[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax];
  float* outputs[kLinearMatricesMax];
  uint32_t rows[kLinearMatricesMax];
  float scale_factors[kLinearMatricesMax];
  uint32_t first_tile[kLinearMatricesMax];  // of each matrix; a tile has rows of gate and up
  uint32_t second_tile;                     // the first tile of the second type
};

}  // namespace wcuda::kernels
