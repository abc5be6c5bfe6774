#include "kernels/linear/packed_gemm_plan.h"

#include <algorithm>

#include "kernels/linear/linear_table.h"
#include "kernels/linear/packed_gemm_params.h"
#include "kernels/linear/token_groups.h"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

constexpr int32_t kCapability = 90;  // the only one that the kernel is compiled for

// Returns whether all clusters have the same number of iterations, and end where a tile ends or is
// cut evenly.
bool is_even(uint32_t iterations, uint32_t k_tiles, uint32_t clusters) {
  const uint32_t each = iterations / clusters;
  return iterations % clusters == 0 && (each % k_tiles == 0 || k_tiles % each == 0);
}

// Returns the cost of the busiest cluster.
uint64_t cost_of(const GemmCosts& costs, uint32_t iterations, uint32_t k_tiles, uint32_t clusters) {
  const uint32_t most = divide_up(iterations, clusters);
  const bool has_even = is_even(iterations, k_tiles, clusters);
  const uint32_t tiles = divide_up(most, k_tiles) + (has_even ? 0 : 1);
  const uint64_t cost = uint64_t{most} * costs.iteration + uint64_t{tiles} * costs.finish;
  if (has_even && most % k_tiles == 0) return cost;
  if (has_even) return cost + costs.join + uint64_t{k_tiles / most} * costs.partial;
  // In an uneven division, clusters drift apart, and their reads hit L2 less often.
  const uint32_t partials = divide_up(k_tiles - 1, most) + 1;
  return cost + cost / 32 + costs.join + uint64_t{partials} * costs.partial;
}

// A division into pairs of tiles. Those after the first full_pairs are short.
struct ShortPairs {
  uint32_t full_pairs, pairs, clusters;
};

// Divides row_blocks, the rows of a warpgroup each, so that a cluster has at most `run` pairs of
// tiles, of which the last `short_pairs` are short. Returns no clusters if there are too few.
ShortPairs divide_with_short_pairs(uint32_t row_blocks, uint32_t token_tiles, uint32_t run,
                                   uint32_t short_pairs, uint32_t clusters_max) {
  ShortPairs division;
  division.clusters = divide_up(row_blocks * token_tiles, 4 * run - short_pairs);
  for (; division.clusters <= clusters_max; ++division.clusters) {
    division.full_pairs =
        std::min((run - short_pairs) * division.clusters / token_tiles, row_blocks / 4);
    division.pairs = division.full_pairs + divide_up(row_blocks - division.full_pairs * 4, 3);
    // The kernel places the first tiles of so many clusters, then their second ones, and so on.
    const uint32_t tiles = division.pairs * token_tiles, runs = divide_up(tiles, run);
    if (runs <= division.clusters &&
        division.full_pairs * token_tiles <= (run - short_pairs) * runs)
      return division;
  }
  return {};
}

// Calls consider(cost, plan) for divisions with one to three short pairs of tiles per cluster.
template <class Consider>
void consider_short_pairs(const GemmLayer& layer, const GemmCosts& costs, GemmPlan plan,
                          const Consider& consider) {
  const uint32_t block_rows = layer.is_gate ? kGemmGroupRows / 2 : kGemmGroupRows;
  const uint32_t row_blocks = divide_up(layer.rows[0], block_rows);
  const uint32_t token_tiles = divide_up(layer.tokens, plan.tile_tokens);
  const uint32_t clusters_max = std::max(layer.sm_count / kGemmCluster, 1u);
  const uint32_t least = divide_up(row_blocks * token_tiles, clusters_max);
  for (uint32_t short_pairs = 1; short_pairs <= 3; ++short_pairs) {
    const uint32_t run = std::max(short_pairs, divide_up(least + short_pairs, 4));
    if (run > kGemmShortRunMax) continue;
    const ShortPairs division =
        divide_with_short_pairs(row_blocks, token_tiles, run, short_pairs, clusters_max);
    if (division.clusters == 0) continue;
    plan.full_pairs = division.full_pairs;
    plan.clusters = division.clusters;
    plan.iteration_count = division.pairs * token_tiles * layer.k_tiles;
    plan.tile_pieces = 1;
    const uint32_t products =
        (run - short_pairs) * costs.iteration + short_pairs * costs.short_iteration;
    consider(uint64_t{products} * layer.k_tiles + uint64_t{run} * costs.finish, plan);
  }
}

// Each cluster computes whole tiles, every so many of them, because how many have tokens is known
// only on the device. Those without come last, so that all clusters have as many of them, or one
// more.
GemmPlan plan_groups(const GemmLayer& layer, GemmPlan plan) {
  plan.tile_tokens = kGroupedTokens;
  plan.token_tiles = token_tiles_max(layer.tokens, layer.groups, plan.tile_tokens);
  const uint32_t tiles = divide_up(plan.row_tiles, kGemmCluster) * plan.token_tiles;
  plan.clusters = std::min(std::max(layer.sm_count / kGemmCluster, 1u), tiles);
  plan.iteration_count = round_up(tiles, plan.clusters) * layer.k_tiles;
  plan.tile_pieces = 1;
  return plan;
}

}  // namespace

uint32_t invariant_partitions(uint32_t rows, uint32_t k_tiles, uint32_t sm_count) {
  // There are so many partitions that each has at most six K-tiles, and that one partition of all
  // tiles is the work of 1.5 K-tiles per SM, but no more than fit on three quarters of the SMs with
  // blocks of 256 rows. Chosen by the times of the layers of 8B at 1 to 2,048 tokens (one H200,
  // 2026-11-23, 2026-11-23-h200/invariant.txt).
  const uint32_t row_tiles = std::max(divide_up(rows, kGemmRows), 1u);
  const uint32_t places = sm_count * 3 / 4 / divide_up(row_tiles, 2);
  const uint32_t part_tiles = std::max(sm_count * 3 / 2, 1u);
  const uint32_t wanted =
      std::max(divide_up(k_tiles, 6), (row_tiles * k_tiles + part_tiles / 2) / part_tiles);
  return std::max(std::min({wanted, places, k_tiles, kGemmPartitionsMax}), 1u);
}

GemmPlan plan_gemm(const GemmLayer& layer) {
  GemmPlan plan;
  const uint32_t tile_rows = layer.is_gate ? kGemmRows / 2 : kGemmRows;
  for (uint32_t m = 0; m < layer.matrix_count; ++m) {
    plan.first_tile[m] = plan.row_tiles;
    plan.row_tiles += divide_up(layer.rows[m], tile_rows);
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

  if (layer.groups != 0) return plan_groups(layer, plan);

  const GemmPlan start = plan;
  uint64_t best = UINT64_MAX;
  const auto consider = [&](uint64_t cost, const GemmPlan& other) {
    if (cost >= best) return;
    best = cost;
    plan = other;
  };
  const uint32_t clusters_max = std::max(layer.sm_count / kGemmCluster, 1u);
  for (const uint32_t tile_tokens : kGemmTileTokens) {
    const GemmCosts& costs = find_costs(kGemmCosts, kCapability, tile_tokens);
    GemmPlan other = start;
    other.tile_tokens = tile_tokens;
    other.token_tiles = divide_up(layer.tokens, tile_tokens);
    const uint32_t tiles = divide_up(plan.row_tiles, kGemmCluster) * other.token_tiles;
    const uint32_t iterations = other.iteration_count = tiles * layer.k_tiles;
    if (layer.partitions != 0) {
      // Clusters compute runs of partitions if the memory holds the partial sums of all, else of
      // tiles.
      other.partitions = layer.partitions;
      other.tile_pieces = tiles * layer.partitions <= layer.sm_count ? layer.partitions : 1;
      const uint32_t pieces = tiles * other.tile_pieces, most = divide_up(pieces, clusters_max);
      other.clusters = divide_up(pieces, most);
      const uint64_t products =
          uint64_t{most} * divide_up(layer.k_tiles, other.tile_pieces) * costs.iteration;
      const uint64_t join =
          other.tile_pieces == 1
              ? most * costs.finish + most * (layer.partitions - 1) * costs.partial
              : costs.finish + costs.join + (most + layer.partitions) * costs.partial;
      consider(products + join, other);
      continue;
    }
    other.tile_pieces = layer.k_tiles;
    const uint32_t most = std::min(clusters_max, iterations);
    for (other.clusters = most; other.clusters > 0; --other.clusters)
      if (other.clusters == most || is_even(iterations, layer.k_tiles, other.clusters))
        consider(cost_of(costs, iterations, layer.k_tiles, other.clusters), other);
    if (layer.may_have_short_pairs && tile_tokens == kGemmShortTokens)
      consider_short_pairs(layer, costs, other, consider);
  }
  return plan;
}

}  // namespace wcuda::kernels
