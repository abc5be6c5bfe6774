#include "kernels/linear/packed_gemm_plan.h"

#include <algorithm>

#include "kernels/linear/packed_gemm_params.h"

namespace wcuda::kernels {
namespace {

// Tenths of a microsecond, by the tokens of a tile: an iteration, the outputs of a tile, and for a
// tile that several clusters compute, its join and each partial. One H200, 2026-11-22, Q4_K, the
// layers of 8B at 128 to 2,048 tokens (docs/lab/2026-11-22-packed-gemm.md); the choice is within 4
// % of the best of those tried.
struct GemmCosts {
  uint32_t iteration, finish, join, part;
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

// Of the busiest cluster.
uint64_t cost_of(const GemmCosts& costs, uint32_t iterations, uint32_t k_tiles, uint32_t clusters) {
  const uint32_t most = ceil_div(iterations, clusters);
  const bool has_even = is_even(iterations, k_tiles, clusters);
  const uint32_t tiles = ceil_div(most, k_tiles) + (has_even ? 0 : 1);
  const uint64_t cost = uint64_t{most} * costs.iteration + uint64_t{tiles} * costs.finish;
  if (has_even && most % k_tiles == 0) return cost;
  if (has_even) return cost + costs.join + uint64_t{k_tiles / most} * costs.part;
  // Clusters drift apart, and what they read lies in L2 less often.
  const uint32_t partials = ceil_div(k_tiles - 1, most) + 1;
  return cost + cost / 32 + costs.join + uint64_t{partials} * costs.part;
}

}  // namespace

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
  // Weights come from further away, but a stage of them lasts longer.
  for (const uint32_t tokens : {4u, 3u, 2u}) {
    plan.token_stages = tokens;
    plan.weight_stages = stages(tokens);
    if (plan.weight_stages >= (tokens == 4 ? 3 : 2)) break;
  }
  if (plan.weight_stages < 2 || plan.row_tiles == 0) return plan;

  uint64_t best = UINT64_MAX;
  const uint32_t clusters_max = std::max(layer.sm_count / kGemmCluster, 1u);
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t columns = kGemmColumns[i];
    const uint32_t tiles = ceil_div(plan.row_tiles, kGemmCluster) * ceil_div(layer.tokens, columns);
    const uint32_t iterations = tiles * layer.k_tiles;
    const uint32_t most = std::min(clusters_max, iterations);
    for (uint32_t clusters = most; clusters > 0; --clusters) {
      if (clusters != most && !is_even(iterations, layer.k_tiles, clusters)) continue;
      const uint64_t cost = cost_of(kCosts[i], iterations, layer.k_tiles, clusters);
      if (cost >= best) continue;
      best = cost;
      plan.columns = columns;
      plan.iteration_count = iterations;
      plan.clusters = clusters;
    }
  }
  return plan;
}

}  // namespace wcuda::kernels
