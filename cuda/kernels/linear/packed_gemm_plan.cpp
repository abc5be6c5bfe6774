#include "kernels/linear/packed_gemm_plan.h"

#include <algorithm>

#include "kernels/linear/packed_gemm_params.h"

namespace wcuda::kernels {
namespace {

// Tenths of a microsecond, by the tokens of a tile: an iteration, the outputs of a tile, and for a
// tile that several runs compute, its join and each partial. One H200, 2026-11-22, Q4_K, the layers
// of 8B at 128 to 2,048 tokens (docs/lab/2026-11-22-packed-gemm.md); the choice is within 4 % of
// the best of those tried.
struct GemmCosts {
  uint32_t columns, iteration, finish, join, part;
};
constexpr GemmCosts kCosts[2] = {{128, 16, 25, 20, 15}, {256, 29, 40, 80, 15}};

constexpr uint32_t ceil_div(uint32_t value, uint32_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Returns whether all runs have the same number of iterations, and end where a tile ends or is cut
// evenly.
bool is_even(uint32_t iterations, uint32_t k_tiles, uint32_t runs) {
  const uint32_t each = iterations / runs;
  return iterations % runs == 0 && (each % k_tiles == 0 || k_tiles % each == 0);
}

// Of the busiest run.
uint64_t cost_of(const GemmCosts& costs, uint32_t iterations, uint32_t k_tiles, uint32_t runs) {
  const uint32_t most = ceil_div(iterations, runs);
  const bool has_even = is_even(iterations, k_tiles, runs);
  const uint32_t tiles = ceil_div(most, k_tiles) + (has_even ? 0 : 1);
  const uint64_t cost = uint64_t{most} * costs.iteration + uint64_t{tiles} * costs.finish;
  if (has_even && most % k_tiles == 0) return cost;
  if (has_even) return cost + costs.join + uint64_t{k_tiles / most} * costs.part;
  // Runs drift apart, and what they read lies in L2 less often.
  const uint32_t partials = ceil_div(k_tiles - 1, most) + 1;
  return cost + cost / 32 + costs.join + uint64_t{partials} * costs.part;
}

// The stages of tiles of plan->columns tokens; returns the CTAs of a multiprocessor, 0 where two
// stages do not fit.
uint32_t choose_stages(uint32_t k_tile_bytes, GemmPlan* plan) {
  const uint32_t weight_bytes = kGemmWarps * k_tile_bytes / gemm_parts(k_tile_bytes);
  for (uint32_t ctas = gemm_ctas(plan->columns); ctas > 0; --ctas) {
    plan->shared_bytes = gemm_shared_bytes(ctas);
    const uint32_t room =
        plan->shared_bytes - kGemmAlignment - kGemmBarrierBytes - gemm_output_bytes(plan->columns);
    // Weights come from further away, but a stage of them lasts longer.
    for (const uint32_t tokens : {4u, 3u, 2u}) {
      const uint32_t stages = (room - tokens * gemm_stage_bytes(plan->columns)) / weight_bytes;
      plan->token_stages = tokens;
      plan->weight_stages = std::min(stages, kGemmStagesMax);
      if (stages >= (tokens == 4 ? 3 : 2)) return ctas;
    }
  }
  return 0;
}

// The most CTAs for a tile of 64 tokens whose clusters are all resident when `places` CTAs are: a
// cluster lies within one group of multiprocessors, and these differ in size, so that about a
// seventh of the places may be left. A second turn of clusters costs more than a larger one gains:
// attention output of 8B takes 16.2, 15.3 and 21.2 us with 4, 6 and 8 (H200).
uint32_t cluster_of(uint32_t tiles, uint32_t k_tiles, uint32_t places) {
  uint32_t cluster = std::min(kGemmClusterMax, k_tiles);
  while (cluster > 1 && places / cluster * 6 / 7 < tiles) --cluster;
  return cluster;
}

}  // namespace

uint32_t gemm_splits(uint32_t row_tiles, uint32_t k_tiles, uint32_t sm_count) {
  // So many that pairs of tiles fill the device.
  return std::max(std::min({sm_count / 2 / ceil_div(row_tiles, 2), k_tiles, kGemmClusterMax}), 1u);
}

GemmPlan plan_gemm(const GemmLayer& layer) {
  GemmPlan plan, best;
  for (uint32_t m = 0; m < layer.matrix_count; ++m) {
    plan.first_tile[m] = plan.row_tiles;
    plan.row_tiles += ceil_div(layer.rows[m], layer.is_gate ? kGemmRows / 2 : kGemmRows);
  }
  if (plan.row_tiles == 0) return best;
  const uint32_t splits = gemm_splits(plan.row_tiles, layer.k_tiles, layer.sm_count);
  if (layer.tokens <= kGemmColumns[0]) {
    plan.columns = kGemmColumns[0];
    const uint32_t places = layer.sm_count * choose_stages(layer.k_tile_bytes, &plan);
    plan.iteration_count = plan.row_tiles * layer.k_tiles;
    plan.k_cluster =
        layer.is_batch_invariant ? splits : cluster_of(plan.row_tiles, layer.k_tiles, places);
    plan.runs = places == 0 ? 0 : plan.row_tiles * plan.k_cluster;
    return plan;
  }

  uint64_t best_cost = UINT64_MAX;
  const auto consider = [&](uint64_t cost) {
    if (cost >= best_cost) return;
    best_cost = cost;
    best = plan;
  };
  const uint32_t runs_max = std::max(layer.sm_count / 2, 1u);
  for (const GemmCosts& costs : kCosts) {
    plan.columns = costs.columns;
    if (choose_stages(layer.k_tile_bytes, &plan) == 0) continue;
    const uint32_t tiles = ceil_div(plan.row_tiles, 2) * ceil_div(layer.tokens, costs.columns);
    const uint32_t iterations = plan.iteration_count = tiles * layer.k_tiles;
    if (layer.is_batch_invariant) {
      const bool is_apart = tiles * splits <= runs_max;
      plan.runs = is_apart ? tiles * splits : std::min(tiles, runs_max);
      plan.granule = is_apart ? 1 : layer.k_tiles;
      plan.splits = is_apart ? 1 : splits;
      consider(is_apart ? cost_of(costs, iterations, layer.k_tiles, plan.runs)
                        : uint64_t{ceil_div(tiles, plan.runs)} *
                              (layer.k_tiles * costs.iteration + costs.finish +
                               (splits - 1) * costs.part));
      continue;
    }
    const uint32_t most = std::min(runs_max, iterations);
    for (plan.runs = most; plan.runs > 0; --plan.runs)
      if (plan.runs == most || is_even(iterations, layer.k_tiles, plan.runs))
        consider(cost_of(costs, iterations, layer.k_tiles, plan.runs));
  }
  return best;
}

}  // namespace wcuda::kernels
