// Divides the matrices of one launch of linear_batch into tiles. Pure functions of shapes and
// device properties, without CUDA calls.
#pragma once

#include <functional>

#include "kernels/linear/batch_params.h"

namespace wcuda::kernels {

struct BatchTiles {
  uint32_t rows = 0;     // of a tile
  uint32_t count = 0;    // of tiles of rows
  uint32_t cluster = 0;  // blocks per tile
};

struct BatchDevice {
  uint32_t sm_count = 0;
  // Returns how many clusters of so many blocks can run at once, if tiles have so many rows.
  std::function<uint32_t(uint32_t rows, uint32_t cluster)> resident_clusters;
};

constexpr uint32_t kBatchWeightStagesMin = 2;

// Returns the tokens per tile: the smallest size that holds all tokens, but at most 64.
constexpr uint32_t batch_tile_tokens(uint32_t tokens) {
  return tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64;
}

// Returns how many of `k_tiles` K-tiles fit into a block's shared memory next to the activations.
uint32_t batch_weight_stages(uint32_t rows, uint32_t k_tile_bytes, uint32_t k_tiles,
                             uint32_t tile_tokens, uint32_t shared_bytes);

// Chooses the rows of a tile and the blocks per tile (`partitions`, unless 0) that take the least
// time by kBatchCosts. Reads the shapes of `params`.
BatchTiles plan_batch(const LinearBatchParams& params, uint32_t tile_tokens, uint32_t k_tile_bytes,
                      uint32_t partitions, const BatchDevice& device);

}  // namespace wcuda::kernels
