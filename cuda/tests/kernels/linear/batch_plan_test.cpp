// How linear_batch cuts layers of 9 to 64 tokens, by shape: without a GPU.
#include "kernels/linear/batch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/linear/linear_table.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBatchQ4KBytes = 2304, kBatchF32Bytes = 16384;

LinearBatchParams batch_layer(uint32_t k_tiles, const std::vector<uint32_t>& rows,
                              Epilogue epilogue = Epilogue::kStore) {
  LinearBatchParams params = {};
  params.token_tiles = 1;
  params.k_tile_count = k_tiles;
  params.epilogue = epilogue;
  params.matrix_count = static_cast<uint32_t>(rows.size());
  std::copy(rows.begin(), rows.end(), params.rows);
  return params;
}

// An H200 on which clusters of each size find places on all SMs.
BatchDevice batch_device(uint32_t tile_tokens) {
  return {132, [tile_tokens](uint32_t rows, uint32_t cluster) {
            return 132 * batch_blocks(rows, tile_tokens) / cluster;
          }};
}

struct ExpectedTiles {
  uint32_t tile_tokens;
  BatchTiles tiles;
};

void expect_tiles(const char* name, const LinearBatchParams& params,
                  const std::vector<ExpectedTiles>& expected) {
  for (const ExpectedTiles& e : expected) {
    SCOPED_TRACE(std::string(name) + ", tokens: " + std::to_string(e.tile_tokens));
    const BatchTiles tiles =
        plan_batch(params, e.tile_tokens, kBatchQ4KBytes, 0, batch_device(e.tile_tokens));
    EXPECT_EQ(tiles.rows, e.tiles.rows);
    EXPECT_EQ(tiles.count, e.tiles.count);
    EXPECT_EQ(tiles.cluster, e.tiles.cluster);
  }
}

TEST(BatchPlan, layers_of_8b_split_k_where_rows_are_few) {
  expect_tiles("query, key, value", batch_layer(16, {4096, 1024, 1024}),
               {{16, {64, 96, 4}}, {32, {64, 96, 4}}, {64, {256, 24, 4}}});
  expect_tiles("attention output", batch_layer(16, {4096}, Epilogue::kAdd),
               {{16, {64, 64, 8}}, {32, {64, 64, 8}}, {64, {128, 32, 4}}});
  expect_tiles("gate and up", batch_layer(16, {14336, 14336}, Epilogue::kSiluGate),
               {{16, {128, 224, 1}}, {32, {128, 224, 1}}, {64, {256, 112, 1}}});
  expect_tiles("down", batch_layer(56, {4096}, Epilogue::kAdd),
               {{16, {64, 64, 8}}, {32, {64, 64, 8}}, {64, {256, 16, 8}}});
}

TEST(BatchPlan, clusters_that_find_no_place_are_not_chosen) {
  const LinearBatchParams down = batch_layer(56, {4096}, Epilogue::kAdd);
  BatchDevice device = batch_device(16);
  const auto everywhere = device.resident_clusters;
  device.resident_clusters = [&](uint32_t rows, uint32_t cluster) {
    return cluster > 4 ? 1 : everywhere(rows, cluster);
  };
  EXPECT_LE(plan_batch(down, 16, kBatchQ4KBytes, 0, device).cluster, 4u);
}

TEST(BatchPlan, given_partitions_of_k_are_the_blocks_of_a_tile) {
  for (const uint32_t partitions : {1u, 3u, 8u})
    for (const uint32_t tile_tokens : {16u, 32u, 64u})
      EXPECT_EQ(plan_batch(batch_layer(56, {4096}), tile_tokens, kBatchQ4KBytes, partitions,
                           batch_device(tile_tokens))
                    .cluster,
                partitions);
}

TEST(BatchPlan, every_tile_covers_the_rows_and_has_stages) {
  for (const uint32_t bytes : {288u * 2, kBatchQ4KBytes, kBatchF32Bytes})
    for (const uint32_t tile_tokens : {16u, 32u, 64u})
      for (const uint32_t rows : {1u, 65u, 1111u, 128256u})
        for (const uint32_t k_tiles : {1u, 3u, 56u}) {
          const BatchTiles tiles = plan_batch(batch_layer(k_tiles, {rows}), tile_tokens, bytes, 0,
                                              batch_device(tile_tokens));
          EXPECT_GE(tiles.rows * tiles.count, rows);
          EXPECT_LE(tiles.rows, batch_rows_max(tile_tokens));
          EXPECT_GE(tiles.cluster, 1u);
          EXPECT_LE(tiles.cluster, std::min(k_tiles, kBatchClusterMax));
          EXPECT_GE(
              batch_weight_stages(tiles.rows, bytes, k_tiles, tile_tokens, batch_shared_bytes(1)),
              1u);
        }
}

TEST(BatchPlan, tokens_take_the_smallest_tile_that_holds_them) {
  EXPECT_EQ(batch_tile_tokens(9), 16u);
  EXPECT_EQ(batch_tile_tokens(17), 32u);
  EXPECT_EQ(batch_tile_tokens(33), 64u);
  EXPECT_EQ(batch_tile_tokens(200), 64u);
}

TEST(LinearTable, rows_are_those_of_the_architecture_and_of_the_next_number_of_tokens) {
  EXPECT_EQ(&find_costs(kVectorCosts, 90, 1), &kVectorCosts[0]);
  EXPECT_EQ(&find_costs(kVectorCosts, 120, 3), &kVectorCosts[2]) << "not measured: as on 9.0";
  EXPECT_EQ(&find_costs(kVectorCosts, 89, 8), &kVectorCosts[7]);
  EXPECT_EQ(&find_costs(kVectorCosts, 80, 2), &kVectorCosts[5]);
  for (const VectorCosts& costs : kVectorCosts)
    EXPECT_TRUE(costs.compute_capability >= 90 || costs.split_from == 0) << "there are no clusters";
}

}  // namespace
}  // namespace wcuda::kernels
