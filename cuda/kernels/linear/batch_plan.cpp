// Launch heuristics of linear_batch over the rows of linear_table.h.
#include "kernels/linear/batch_plan.h"

#include <algorithm>

#include "kernels/linear/linear_table.h"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

constexpr int32_t kCapability = 90;  // the only one that the kernel is compiled for

uint32_t tile_count(const LinearBatchParams& params, uint32_t rows) {
  if (is_gate(params.epilogue)) return divide_up(params.rows[0], rows / 2);
  uint32_t tiles = 0;
  for (uint32_t m = 0; m < params.matrix_count; ++m) tiles += divide_up(params.rows[m], rows);
  return tiles;
}

bool fits(uint32_t rows, uint32_t k_tile_bytes, uint32_t tile_tokens) {
  return batch_weight_stages(rows, k_tile_bytes, kBatchWeightStagesMin, tile_tokens,
                             batch_shared_bytes(1)) >= kBatchWeightStagesMin;
}

}  // namespace

uint32_t batch_weight_stages(uint32_t rows, uint32_t k_tile_bytes, uint32_t k_tiles,
                             uint32_t tile_tokens, uint32_t shared_bytes) {
  const uint32_t others = kBatchAlignment + kBatchBarrierBytes +
                          batch_token_stages(tile_tokens) * batch_stage_bytes(tile_tokens);
  const uint32_t stages = (shared_bytes - others) / (rows / quant::kMTileRows * k_tile_bytes);
  return std::min({stages, k_tiles, kBatchStagesMax});
}

BatchTiles plan_batch(const LinearBatchParams& params, uint32_t tile_tokens, uint32_t k_tile_bytes,
                      uint32_t partitions, const BatchDevice& device) {
  const BatchCosts& costs = find_costs(kBatchCosts, kCapability, tile_tokens);
  const uint32_t cluster_min = std::max(partitions, 1u);
  const uint32_t cluster_max =
      partitions != 0 ? partitions : std::min(params.k_tile_count, kBatchClusterMax);
  BatchTiles best;
  uint64_t best_cost = UINT64_MAX;
  for (uint32_t rows = batch_rows_max(tile_tokens); rows >= 64; rows /= 2) {
    if (rows > 64 && !fits(rows, k_tile_bytes, tile_tokens)) continue;
    const uint32_t tiles = tile_count(params, rows) * params.token_tiles;
    for (uint32_t cluster = cluster_min; cluster <= cluster_max; ++cluster) {
      const uint32_t resident = device.resident_clusters(rows, cluster);
      const uint32_t waves = divide_up(tiles, resident);
      // Blocks of the busiest SM in one wave.
      const uint32_t blocks = divide_up(divide_up(tiles, waves) * cluster, device.sm_count);
      const uint32_t k_tiles = divide_up(params.k_tile_count, cluster);
      const uint32_t mmas = blocks * (rows / quant::kMTileRows) * k_tiles;
      const uint32_t merge = cluster > 1 ? rows * tile_tokens / 1024 : 0;
      const uint64_t cost = uint64_t{waves} * (costs.wave + mmas + costs.k_tile * k_tiles + merge);
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = {rows, tiles / params.token_tiles, cluster};
    }
  }
  return best;
}

}  // namespace wcuda::kernels
