// How decode attention divides the rows of a step into blocks, by shape: without a GPU.
#include "kernels/attention/attention_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace wcuda::kernels {
namespace {

constexpr uint32_t kSms = 132;  // of an H200

DecodeGrid grid_of_8b(uint32_t rows, uint32_t positions, int32_t compute_capability = 90,
                      bool is_persistent = false) {
  return choose_decode_grid(128, compute_capability, kSms, rows * decode_head_tiles(32, 8),
                            positions, is_persistent);
}

TEST(AttentionChoice, few_rows_have_lone_blocks_then_clusters_then_larger_groups) {
  struct Case {
    uint32_t rows, positions, cluster, blocks;
  };
  const std::vector<Case> cases = {
      {1, 1, 0, 8},       {1, 256, 0, 8},    {1, 257, 8, 64},
      {2, 8192, 8, 128},  {3, 8192, 0, 264}, {1, 8193, 0, 136},
      {1, 16384, 0, 256}, {16, 256, 0, 128}, {16, 4000, 0, 264},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.positions << " positions");
    const DecodeGrid grid = grid_of_8b(c.rows, c.positions);
    EXPECT_TRUE(grid.has_groups);
    EXPECT_EQ(grid.cluster_blocks, c.cluster);
    EXPECT_EQ(grid.blocks, c.blocks);
  }
}

TEST(AttentionChoice, between_persistent_layers_clusters_end_earlier_and_groups_are_smaller) {
  const DecodeGrid clusters = grid_of_8b(1, 2048, 90, true);
  EXPECT_EQ(clusters.cluster_blocks, 8);
  EXPECT_EQ(clusters.blocks, 64);
  for (const auto& [positions, blocks] :
       std::vector<std::pair<uint32_t, uint32_t>>{{2049, 72}, {4096, 128}, {16384, 264}}) {
    const DecodeGrid groups = grid_of_8b(1, positions, 90, true);
    EXPECT_TRUE(groups.has_groups);
    EXPECT_EQ(groups.cluster_blocks, 0) << positions;
    EXPECT_EQ(groups.blocks, blocks) << positions;
  }
}

TEST(AttentionChoice, blocks_may_divide_keys_that_lie_long_before_the_tokens) {
  EXPECT_TRUE(may_divide_keys(1025, 513));
  EXPECT_FALSE(may_divide_keys(1025, 514));
  EXPECT_FALSE(may_divide_keys(1024, 2));
  EXPECT_TRUE(may_divide_keys(4096, 576));
  EXPECT_FALSE(may_divide_keys(2048, 2048));
}

TEST(AttentionChoice, groups_need_an_sm_each_clusters_and_a_compiled_head_length) {
  EXPECT_FALSE(grid_of_8b(17, 4096).has_groups);
  EXPECT_FALSE(grid_of_8b(1, 4096, 80).has_groups);
  EXPECT_FALSE(grid_of_8b(1, 4096, 120).has_groups);
  EXPECT_TRUE(grid_of_8b(1, 4096, 100).has_groups);
  EXPECT_TRUE(choose_decode_grid(64, 90, kSms, 8, 512, false).has_groups);
  EXPECT_FALSE(choose_decode_grid(96, 90, kSms, 8, 512, false).has_groups);
}

TEST(AttentionChoice, a_group_has_as_many_blocks_as_its_row_needs) {
  const DecodeGroupSizes& sizes = find_row_for(kDecodeGroupSizes, 90);
  const std::vector<uint32_t> spans = {0, 1, 4, 5, 7, 15, 16, 128};
  std::vector<uint32_t> clusters, others;
  for (const uint32_t count : spans) {
    clusters.push_back(group_blocks_of(sizes, 8, count, 8));
    others.push_back(group_blocks_of(sizes, 0, count, 8));
  }
  EXPECT_EQ(clusters, (std::vector<uint32_t>{0, 1, 1, 3, 4, 8, 8, 8}));
  EXPECT_EQ(others, (std::vector<uint32_t>{0, 1, 1, 1, 1, 2, 2, 16}));
}

TEST(AttentionChoice, blocks_take_whole_heads_where_that_costs_a_sixteenth_at_most) {
  // 1,024 heads of 3 spans on 264 blocks: 11.6 spans each, so 4 heads of 3.
  EXPECT_EQ(whole_head_spans(3072, 264, 3), 12u);
  // 32 heads of 16 spans: 1.9 each, so 8 blocks a head.
  EXPECT_EQ(whole_head_spans(512, 264, 16), 2u);
  // 136 heads of 3 spans: 1.5 each. One block a head would have 3 spans instead of 2.
  EXPECT_EQ(whole_head_spans(408, 264, 3), 0u);
  // 256 heads of 17 spans on 264 blocks: 17 instead of 16.5 is less than a sixteenth more.
  EXPECT_EQ(whole_head_spans(4352, 264, 17), 17u);
  // 200 heads of 5 spans on 264 blocks: 4 spans a block, but 5 is no multiple.
  EXPECT_EQ(whole_head_spans(1000, 264, 5), 0u);
}

TEST(AttentionChoice, teams_of_warps_get_a_whole_head_each) {
  constexpr uint32_t kFourWarps = 2;
  EXPECT_EQ(team_warp_bits(kFourWarps, 4, 8, 3, 12), 0u);  // four heads left of the run
  EXPECT_EQ(team_warp_bits(kFourWarps, 4, 8, 3, 11), 1u);  // only three of them whole
  EXPECT_EQ(team_warp_bits(kFourWarps, 4, 8, 3, 5), 2u);   // one
  EXPECT_EQ(team_warp_bits(kFourWarps, 4, 2, 3, 12), 1u);  // the row has two heads left
  EXPECT_EQ(team_warp_bits(kFourWarps, 4, 1, 3, 12), 2u);
  EXPECT_EQ(team_warp_bits(kFourWarps, 5, 8, 3, 12), 1u);  // the memory of two warps
}

TEST(AttentionChoice, instances_by_head_length_format_and_device) {
  EXPECT_EQ(decode_sm_blocks(64), 2u);
  EXPECT_EQ(decode_sm_blocks(128), 2u);
  EXPECT_EQ(decode_sm_blocks(129), 1u);
  EXPECT_EQ(decode_sm_blocks(256), 1u);
  EXPECT_TRUE(decode_has_exact(128, 80));
  for (const int32_t capability : {86, 89, 120}) EXPECT_FALSE(decode_has_exact(128, capability));
  EXPECT_FALSE(decode_has_exact(80, 90));
}

TEST(AttentionChoice, starts_next_to_a_small_matrix_product_only) {
  EXPECT_FALSE(decode_triggers_early(32, 128, 90, kSms));  // 8B: 256 M-tiles
  EXPECT_FALSE(decode_triggers_early(32, 64, 90, kSms));   // 1B: 128
  EXPECT_TRUE(decode_triggers_early(9, 64, 90, kSms));     // 135M: 36
  EXPECT_EQ(decode_lone_bytes(64, 90), 114u * 1024);
  EXPECT_EQ(decode_lone_bytes(128, 90), 0u);
}

TEST(AttentionChoice, spans_of_fixed_length_and_splits_of_shared_pages) {
  EXPECT_EQ(fixed_span_pages(1), 8u);
  EXPECT_EQ(fixed_span_pages(128), 8u);
  EXPECT_EQ(fixed_span_pages(129), 9u);
  EXPECT_EQ(fixed_span_pages(512), 32u);
  // 8B: 32 rows a tile, 8 key-value heads.
  const uint32_t rows[] = {17, 32, 33, 48, 64, 85, 96, 128, 200, 256, 512};
  const uint32_t splits[] = {16, 16, 8, 8, 8, 5, 5, 4, 2, 2, 1};
  for (size_t i = 0; i < std::size(rows); ++i)
    EXPECT_EQ(shared_splits_max(rows[i], 8, 4, 132), splits[i]) << rows[i];
  EXPECT_EQ(shared_splits_max(32, 32, 1, 132), 4u) << "heads of their own fill the SMs earlier";
  EXPECT_EQ(shared_splits_max(32, 8, 4, 1), 1u);
  EXPECT_EQ(shared_splits(64, 8).positions, 512u);
  EXPECT_EQ(shared_splits(64, 8).count, 8u);
  EXPECT_EQ(shared_splits(9, 8).positions, 128u);
  EXPECT_EQ(shared_splits(9, 8).count, 5u);
  EXPECT_EQ(shared_splits(0, 8).count, 0u);
}

TEST(AttentionChoice, pages_of_long_rows_are_converted_for_as_many_heads_as_fit) {
  // 8B in steps of up to 8,192 tokens: 32 full last pages of rows, which have 256 tokens or more.
  const uint64_t most = expanded_pages_max(KvFormat::kQ8_0, 128, 8, 8192, 8192);
  EXPECT_EQ(most, (128u + 32) * 8);
  EXPECT_EQ(expanded_pages_max(KvFormat::kQ8_0, 128, 8, 131072, 8192), 4096u);  // 128 MiB
  EXPECT_EQ(expanded_pages_max(KvFormat::kF16, 128, 8, 8192, 8192), 0u);
  EXPECT_EQ(expanded_pages_max(KvFormat::kFp8E4m3, 256, 8, 8192, 8192), 0u);

  EXPECT_EQ(choose_expanded_heads({1, 512, 8}, 128, 32, 8, most), 8u);
  EXPECT_EQ(choose_expanded_heads({32, 8192, 160}, 128, 32, 8, most), 8u);
  EXPECT_EQ(choose_expanded_heads({4, 1023, 20}, 128, 32, 8, most), 0u);  // too few tokens a row
  EXPECT_EQ(choose_expanded_heads({0, 0, 0}, 128, 32, 8, most), 0u);
  EXPECT_EQ(choose_expanded_heads({2, 1023, 20}, 64, 32, 8, most), 0u);
  EXPECT_EQ(choose_expanded_heads({2, 1024, 20}, 64, 32, 8, most), 8u);
  EXPECT_EQ(choose_expanded_heads({1, 2048, 512}, 128, 32, 8, 4096), 8u);
  EXPECT_EQ(choose_expanded_heads({1, 2048, 513}, 128, 32, 8, 4096), 4u);
  EXPECT_EQ(choose_expanded_heads({1, 2048, 2048}, 128, 32, 8, 4096), 2u);
  EXPECT_EQ(choose_expanded_heads({1, 4096, 4096}, 128, 32, 8, 4096), 1u);
  EXPECT_EQ(choose_expanded_heads({1, 4096, 4097}, 128, 32, 8, 4096), 0u);
  EXPECT_EQ(choose_expanded_heads({1, 2048, 2000}, 128, 12, 3, 4096), 2u);
  EXPECT_EQ(choose_expanded_heads({1, 2048, 8}, 128, 32, 8, 0), 0u);
  // Two heads at a time: too few items of 128 tokens and a head for the SMs.
  EXPECT_EQ(choose_expanded_heads({1, 2047, 2048}, 128, 32, 8, 4096), 0u);
}

TEST(AttentionChoice, devices_use_the_row_of_the_highest_capability_not_above_their_own) {
  struct Row {
    int32_t compute_capability, value;
  };
  constexpr Row kRows[] = {{100, 3}, {90, 2}, {80, 1}};
  EXPECT_EQ(find_row_for(kRows, 103).value, 3);
  EXPECT_EQ(find_row_for(kRows, 90).value, 2);
  EXPECT_EQ(find_row_for(kRows, 89).value, 1);
  EXPECT_EQ(find_row_for(kRows, 75).value, 1);
}

}  // namespace
}  // namespace wcuda::kernels
