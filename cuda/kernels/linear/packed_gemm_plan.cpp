#include "kernels/linear/packed_gemm_plan.h"

#include <algorithm>

#include "kernels/linear/packed_gemm_params.h"

namespace wcuda::kernels {
namespace {

// Costs in tenths of a microsecond, for each size of tiles: of an iteration, of the outputs of a
// tile and, if several clusters compute a tile, of adding its partial sums (fixed, and for each).
// Measured on one H200, 2026-11-22, Q4_K, with the layers of 8B at 128 to 2,048 tokens
// (docs/lab/2026-11-22-packed-gemm.md). The choice is within 4 % of the best of those tried.
struct GemmCosts {
  uint32_t iteration, finish, join, partial;
};
constexpr GemmCosts kCosts[2] = {{16, 25, 20, 15}, {29, 40, 80, 15}};

constexpr uint32_t ceil_div(uint32_t value, uint32_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Returns whether all clusters have the same number of iterations, and end where a tile ends or is
// cut evenly.
bool is_even(uint32_t iterations, uint32_t k_tiles, uint32_t clusters) {
  const uint32_t each = iterations / clusters;
  return iterations % clusters == 0 && (each % k_tiles == 0 || k_tiles % each == 0);
}

// Returns the cost of the busiest cluster.
uint64_t cost_of(const GemmCosts& costs, uint32_t iterations, uint32_t k_tiles, uint32_t clusters) {
  const uint32_t most = ceil_div(iterations, clusters);
  const bool has_even = is_even(iterations, k_tiles, clusters);
  const uint32_t tiles = ceil_div(most, k_tiles) + (has_even ? 0 : 1);
  const uint64_t cost = uint64_t{most} * costs.iteration + uint64_t{tiles} * costs.finish;
  if (has_even && most % k_tiles == 0) return cost;
  if (has_even) return cost + costs.join + uint64_t{k_tiles / most} * costs.partial;
  // In an uneven division, clusters drift apart, and their reads hit L2 less often.
  const uint32_t partials = ceil_div(k_tiles - 1, most) + 1;
  return cost + cost / 32 + costs.join + uint64_t{partials} * costs.partial;
}

}  // namespace

uint32_t invariant_partitions(uint32_t rows, uint32_t k_tiles, uint32_t sm_count) {
  // There are so many partitions that each has at most six K-tiles, and that one partition of all
  // tiles is the work of 1.5 K-tiles per SM, but no more than fit on three quarters of the SMs with
  // blocks of 256 rows. Chosen by the times of the layers of 8B at 1 to 2,048 tokens (one H200,
  // 2026-11-23, 2026-11-23-h200/invariant.txt).
  const uint32_t row_tiles = std::max(ceil_div(rows, kGemmRows), 1u);
  const uint32_t places = sm_count * 3 / 4 / ceil_div(row_tiles, 2);
  const uint32_t part_tiles = std::max(sm_count * 3 / 2, 1u);
  const uint32_t wanted =
      std::max(ceil_div(k_tiles, 6), (row_tiles * k_tiles + part_tiles / 2) / part_tiles);
  return std::max(std::min({wanted, places, k_tiles, kGemmPartitionsMax}), 1u);
}

GemmPlan plan_gemm(const GemmLayer& layer) {
  GemmPlan plan;
  const uint32_t tile_rows = layer.is_gate ? kGemmRows / 2 : kGemmRows;
  for (uint32_t m = 0; m < layer.matrix_count; ++m) {
    plan.first_tile[m] = plan.row_tiles;
    plan.row_tiles += ceil_div(layer.rows[m], tile_rows);
  }
  const uint32_t weight_bytes = kGemmWarps * layer.k_tile_bytes / gemm_parts(layer.k_tile_bytes);
  const uint32_t room = kGemmSharedBytes - kGemmAlignment - kGemmBarrierBytes - kGemmOutputBytes;
  const auto stages = [&](uint32_t tokens) {
    const uint32_t used = tokens * kGemmTokenStageBytes;
    return std::min((room - used) / weight_bytes, kGemmStagesMax);
  };
  // Prefers stages of activations: weights have a higher latency, but a stage of them lasts longer.
  for (const uint32_t tokens : {4u, 3u, 2u}) {
    plan.token_stages = tokens;
    plan.weight_stages = stages(tokens);
    if (plan.weight_stages >= (tokens == 4 ? 3 : 2)) break;
  }
  if (plan.weight_stages < 2 || plan.row_tiles == 0) return plan;

  uint64_t best = UINT64_MAX;
  const auto consider = [&](uint64_t cost, const GemmPlan& other) {
    if (cost >= best) return;
    best = cost;
    plan = other;
  };
  const uint32_t clusters_max = std::max(layer.sm_count / kGemmCluster, 1u);
  for (uint32_t i = 0; i < 2; ++i) {
    GemmPlan other = plan;
    other.tile_tokens = kGemmTileTokens[i];
    const uint32_t tiles =
        ceil_div(plan.row_tiles, kGemmCluster) * ceil_div(layer.tokens, other.tile_tokens);
    const uint32_t iterations = other.iteration_count = tiles * layer.k_tiles;
    if (layer.partitions != 0) {
      // Clusters compute runs of partitions if the memory holds the partial sums of all, else of
      // tiles.
      other.partitions = layer.partitions;
      other.tile_pieces = tiles * layer.partitions <= layer.sm_count ? layer.partitions : 1;
      const uint32_t pieces = tiles * other.tile_pieces, most = ceil_div(pieces, clusters_max);
      other.clusters = ceil_div(pieces, most);
      const uint64_t products =
          uint64_t{most} * ceil_div(layer.k_tiles, other.tile_pieces) * kCosts[i].iteration;
      const uint64_t join =
          other.tile_pieces == 1
              ? most * kCosts[i].finish + most * (layer.partitions - 1) * kCosts[i].partial
              : kCosts[i].finish + kCosts[i].join + (most + layer.partitions) * kCosts[i].partial;
      consider(products + join, other);
      continue;
    }
    other.tile_pieces = layer.k_tiles;
    const uint32_t most = std::min(clusters_max, iterations);
    for (other.clusters = most; other.clusters > 0; --other.clusters)
      if (other.clusters == most || is_even(iterations, layer.k_tiles, other.clusters))
        consider(cost_of(kCosts[i], iterations, layer.k_tiles, other.clusters), other);
  }
  return plan;
}

}  // namespace wcuda::kernels
