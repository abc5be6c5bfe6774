// How packed_gemm cuts layers, by shape: without a GPU.
#include "kernels/linear/packed_gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/linear/packed_gemm_params.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kQ4KBytes = 2304, kQ6KBytes = 3360, kF16Bytes = 8192, kF32Bytes = 16384;

GemmLayer layer_of(uint32_t tokens, uint32_t cols, std::vector<uint32_t> rows, bool is_gate = false,
                   uint32_t k_tile_bytes = kQ4KBytes) {
  GemmLayer layer;
  layer.tokens = tokens;
  layer.k_tiles = (cols + 255) / 256;
  std::copy(rows.begin(), rows.end(), layer.rows);
  layer.matrix_count = static_cast<uint32_t>(rows.size());
  layer.is_gate = is_gate;
  layer.k_tile_bytes = k_tile_bytes;
  layer.sm_count = 132;
  return layer;
}

struct Expected {
  uint32_t tokens, tile_tokens, clusters;
};

void expect_plans(const char* name, GemmLayer layer, const std::vector<Expected>& expected) {
  for (const Expected& e : expected) {
    SCOPED_TRACE(std::string(name) + ", tokens: " + std::to_string(e.tokens));
    layer.tokens = e.tokens;
    const GemmPlan plan = plan_gemm(layer);
    EXPECT_EQ(plan.tile_tokens, e.tile_tokens);
    EXPECT_EQ(plan.clusters, e.clusters);
  }
}

// Within 4 % of the best of those measured.
TEST(PackedGemmPlan, layers_of_8b_are_cut_at_the_ends_of_tiles) {
  expect_plans("query, key, value", layer_of(0, 4096, {4096, 1024, 1024}),
               {{128, 128, 48}, {256, 128, 48}, {512, 256, 48}});
  expect_plans("attention output", layer_of(0, 4096, {4096}),
               {{128, 128, 64}, {256, 128, 64}, {512, 128, 64}});
  expect_plans("gate and up", layer_of(0, 4096, {14336}, true),
               {{128, 128, 56}, {256, 256, 56}, {512, 256, 66}, {2048, 256, 64}});
  expect_plans("down", layer_of(0, 14336, {4096}), {{128, 128, 64}, {2048, 256, 64}});
}

TEST(PackedGemmPlan, every_layer_fits) {
  for (const uint32_t bytes : {288u * 2, kQ4KBytes, kQ6KBytes, kF16Bytes, kF32Bytes})
    for (const uint32_t tokens : {1u, 65u, 200u, 1000u, 4096u})
      for (const uint32_t rows : {1u, 49u, 128u, 1111u, 128256u})
        for (const uint32_t cols : {1u, 256u, 576u, 14336u})
          for (const uint32_t sm_count : {2u, 7u, 132u}) {
            GemmLayer layer = layer_of(tokens, cols, {rows, 16}, false, bytes);
            layer.sm_count = sm_count;
            const GemmPlan plan = plan_gemm(layer);
            ASSERT_TRUE(plan.tile_tokens == kGemmTileTokens[0] ||
                        plan.tile_tokens == kGemmTileTokens[1]);
            const uint32_t token_tiles = (tokens + plan.tile_tokens - 1) / plan.tile_tokens;
            ASSERT_EQ(plan.iteration_count, (plan.row_tiles + 1) / 2 * token_tiles * layer.k_tiles);
            ASSERT_GE(plan.clusters, 1u);
            ASSERT_LE(plan.clusters, std::min(sm_count / 2, plan.iteration_count));
            ASSERT_EQ(plan.first_tile[1], (rows + kGemmRows - 1) / kGemmRows);
            ASSERT_GE(plan.weight_stages, 2u);
            ASSERT_GE(plan.token_stages, 2u);
            ASSERT_LE(plan.weight_stages, kGemmStagesMax);
            ASSERT_LE(kGemmAlignment + kGemmBarrierBytes + kGemmOutputBytes +
                          plan.token_stages * kGemmTokenStageBytes +
                          plan.weight_stages * kGemmWarps * bytes / gemm_parts(bytes),
                      kGemmSharedBytes);
          }
}

// All clusters have the same number of whole tiles, whichever of them turn out to have tokens.
TEST(PackedGemmPlan, groups_have_whole_tiles_in_equal_runs) {
  for (const uint32_t tokens : {1u, 64u, 512u, 5000u, 32768u})
    for (const uint32_t groups : {1u, 8u, 128u, 1024u})
      for (const uint32_t sm_count : {2u, 7u, 132u}) {
        GemmLayer layer = layer_of(tokens, 2048, {768}, true);
        layer.groups = groups;
        layer.sm_count = sm_count;
        const GemmPlan plan = plan_gemm(layer);
        ASSERT_EQ(plan.tile_tokens, kGroupedTokens);
        ASSERT_EQ(plan.row_tiles, 12u);
        // Even if all groups but one have one token.
        const uint32_t others = std::min(groups - 1, tokens - 1);
        ASSERT_GE(plan.token_tiles,
                  others + (tokens - others + kGroupedTokens - 1) / kGroupedTokens);
        ASSERT_LE(plan.token_tiles, tokens / kGroupedTokens + std::min(groups, tokens));
        const uint32_t tiles = plan.iteration_count / layer.k_tiles;
        ASSERT_EQ(plan.iteration_count, tiles * layer.k_tiles);
        ASSERT_EQ(tiles % plan.clusters, 0u);
        ASSERT_GE(tiles, 6 * plan.token_tiles);
        ASSERT_LT(tiles, 6 * plan.token_tiles + plan.clusters);
        ASSERT_LE(plan.clusters, std::max(sm_count / 2, 1u));
        ASSERT_EQ(plan.tile_pieces, 1u);
        ASSERT_EQ(plan.partitions, 1u);
        // A cluster's tiles are in ascending order, so that those without tokens come last.
        const uint32_t run = tiles / plan.clusters;
        for (uint32_t j = 0; j < run; ++j)
          ASSERT_EQ(gemm_tile_place(tiles, run, (plan.clusters - 1) * run + j),
                    j * plan.clusters + plan.clusters - 1);
      }
}

// A cluster's run of tiles ends with a short one where whole ones would leave other clusters idle.
TEST(PackedGemmPlan, short_pairs_of_tiles_fill_the_last_round) {
  struct Expected {
    uint32_t tokens, cols, rows;
    bool is_gate;
    uint32_t clusters, full_pairs, short_pairs;
  };
  for (const Expected& e :
       {Expected{256, 4096, 14336, true, 64, 64, 64}, Expected{512, 4096, 14336, true, 64, 64, 64},
        Expected{768, 4096, 4096, false, 66, 0, 22}, Expected{700, 576, 3000, false, 48, 0, 16},
        Expected{300, 512, 3000, true, 64, 0, 32}, Expected{1100, 256, 4096, true, 65, 13, 26}}) {
    SCOPED_TRACE(std::to_string(e.tokens) + " tokens, " + std::to_string(e.rows) + " rows");
    GemmLayer layer = layer_of(e.tokens, e.cols, {e.rows}, e.is_gate);
    layer.may_have_short_pairs = true;
    const GemmPlan plan = plan_gemm(layer);
    EXPECT_EQ(plan.clusters, e.clusters);
    EXPECT_EQ(plan.full_pairs, e.full_pairs);
    const uint32_t token_tiles = (e.tokens + plan.tile_tokens - 1) / plan.tile_tokens;
    EXPECT_EQ(plan.iteration_count / layer.k_tiles, (e.full_pairs + e.short_pairs) * token_tiles);
    // Full pairs have four times the rows of a warpgroup, short ones three times.
    const uint32_t blocks = (e.rows + (e.is_gate ? 31 : 63)) / (e.is_gate ? 32 : 64);
    EXPECT_GE(4 * e.full_pairs + 3 * e.short_pairs, blocks);
    EXPECT_LT(4 * e.full_pairs + 3 * (e.short_pairs - 1), blocks);
  }
}

TEST(PackedGemmPlan, any_layer_with_short_pairs_is_covered) {
  for (const uint32_t tokens : {1u, 129u, 300u, 512u, 700u, 1100u, 4096u})
    for (uint32_t rows = 40; rows < 6000; rows += 77)
      for (const uint32_t sm_count : {4u, 50u, 132u}) {
        GemmLayer layer = layer_of(tokens, 1024, {rows});
        layer.may_have_short_pairs = true;
        layer.sm_count = sm_count;
        const GemmPlan plan = plan_gemm(layer);
        ASSERT_LE(plan.clusters, sm_count / 2);
        if (plan.full_pairs == UINT32_MAX) continue;
        const uint32_t token_tiles = (tokens + plan.tile_tokens - 1) / plan.tile_tokens;
        const uint32_t pairs = plan.iteration_count / layer.k_tiles / token_tiles;
        ASSERT_EQ(plan.iteration_count, pairs * token_tiles * layer.k_tiles);
        ASSERT_GE(4 * plan.full_pairs + 3 * (pairs - plan.full_pairs), (rows + 63) / 64);
        // Each cluster with the longest run of tiles has a short pair.
        const uint32_t tiles = pairs * token_tiles,
                       run = (tiles + plan.clusters - 1) / plan.clusters;
        uint32_t most = 0;
        for (uint32_t c = 0; c < plan.clusters; ++c) {
          uint32_t blocks = 0;
          for (uint32_t t = tiles * c / plan.clusters; t < tiles * (c + 1) / plan.clusters; ++t)
            blocks += gemm_tile_place(tiles, run, t) / token_tiles < plan.full_pairs ? 4 : 3;
          most = std::max(most, blocks);
        }
        ASSERT_LT(most, 4 * run) << rows << " " << tokens;
      }
}

TEST(PackedGemmPlan, batch_invariance_cuts_the_layers_of_8b_as_measured) {
  EXPECT_EQ(invariant_partitions(4096 + 2 * 1024, 16, 132), 4u);
  EXPECT_EQ(invariant_partitions(4096, 16, 132), 3u);
  EXPECT_EQ(invariant_partitions(2 * 14336, 16, 132), 1u);
  EXPECT_EQ(invariant_partitions(4096, 56, 132), 6u);
  EXPECT_EQ(invariant_partitions(128256, 16, 132), 1u);
  EXPECT_EQ(invariant_partitions(0, 1, 1), 1u);
}

// The order of a sum is that of its partitions, wherever they are computed.
TEST(PackedGemmPlan, partitions_of_k_are_kept_for_any_number_of_tokens) {
  for (const uint32_t rows : {49u, 4096u, 6144u, 128256u})
    for (const uint32_t cols : {256u, 4096u, 14336u})
      for (const uint32_t tokens : {1u, 65u, 200u, 1000u, 4096u}) {
        GemmLayer layer = layer_of(tokens, cols, {rows});
        layer.partitions = invariant_partitions(rows, layer.k_tiles, 132);
        ASSERT_GE(layer.partitions, 1u);
        ASSERT_LE(layer.partitions, layer.k_tiles);
        const GemmPlan plan = plan_gemm(layer);
        const uint32_t tiles = plan.iteration_count / layer.k_tiles;
        ASSERT_EQ(plan.partitions, layer.partitions);
        // Partials and counters have this much room; a cluster alone uses its own again.
        ASSERT_TRUE(plan.tile_pieces == 1 ||
                    (plan.tile_pieces == plan.partitions && tiles * plan.partitions <= 132))
            << rows << " " << cols << " " << tokens;
        ASSERT_LE(plan.clusters, std::min(66u, tiles * plan.tile_pieces));
      }
}

TEST(PackedGemmPlan, clusters_work_on_neighbouring_tiles) {
  for (const uint32_t run : {1u, 2u, 7u, 14u})
    for (const uint32_t count : {1u, 2u, 13u, 66u, 224u, 924u}) {
      std::vector<uint32_t> tile_at(count, count);
      for (uint32_t tile = 0; tile < count; ++tile) {
        const uint32_t place = gemm_tile_place(count, run, tile);
        ASSERT_LT(place, count);
        ASSERT_EQ(tile_at[place], count) << "twice";
        tile_at[place] = tile;
        if (tile % run == 0) {
          EXPECT_EQ(place, tile / run);
        }
      }
    }
}

TEST(PackedGemmPlan, a_gate_counts_its_two_matrices_as_one) {
  EXPECT_EQ(plan_gemm(layer_of(128, 4096, {130}, true)).row_tiles, 3u);
  EXPECT_EQ(plan_gemm(layer_of(128, 4096, {130}, false)).row_tiles, 2u);
}

}  // namespace
}  // namespace wcuda::kernels
