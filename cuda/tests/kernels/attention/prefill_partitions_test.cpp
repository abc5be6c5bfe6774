// Which parts of prefill attention the blocks of a grid compute: without a GPU.
#include "kernels/attention/prefill_partitions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace wcuda::kernels {
namespace {

// Partitions of items of `keys` blocks of keys, one entry for each tile.
PrefillPartitions partitions_of(const std::vector<uint32_t>& keys, uint32_t heads,
                                uint32_t blocks) {
  const auto tiles = static_cast<uint32_t>(keys.size());
  PrefillPartitions partitions{};
  partitions.item_cost = prefill_item_cost(tiles);
  for (uint32_t tile = 0; tile < tiles; ++tile)
    partitions.before[tile + 1] = partitions.before[tile] + partitions.item_cost + keys[tile];
  partitions.total = partitions.before[tiles] * heads;
  partitions.count = partition_count(partitions.total, tiles, partitions.item_cost, heads, blocks);
  for (uint32_t block = 0; block < blocks; ++block)
    partitions.most = std::max(partitions.most, partitions.whole_work(tiles, heads, blocks, block));
  return partitions;
}

std::vector<PrefillPart> parts_of(const PrefillPartitions& partitions, uint32_t heads,
                                  uint32_t block) {
  std::vector<PrefillPart> parts;
  uint32_t place = partitions.begin(block);
  for (PrefillPart part; partitions.next_part(heads, block, &place, &part);) parts.push_back(part);
  return parts;
}

TEST(PrefillPartitions, cover_all_keys_once_and_name_the_blocks_that_have_an_item) {
  std::mt19937 random(1);
  const auto one_of = [&](const std::vector<uint32_t>& values) {
    return values[random() % values.size()];
  };
  uint32_t divided = 0;
  for (uint32_t run = 0; run < 2'000; ++run) {
    std::vector<uint32_t> keys(one_of({1, 1, 2, 3, 5, 8, 20, 32}));
    const uint32_t longest = one_of({2, 9, 40, 70});
    for (uint32_t& count : keys) count = random() % longest + 1;
    const uint32_t heads = one_of({1, 2, 3, 8, 9, 14, 16, 32});
    const uint32_t blocks = one_of({1, 2, 5, 20, 21, 66, 132});
    const PrefillPartitions partitions = partitions_of(keys, heads, blocks);
    if (partitions.count > blocks) continue;

    std::vector<bool> seen(keys.size() * heads * longest);  // items and their keys
    size_t seen_count = 0;
    std::map<uint32_t, std::vector<PrefillPart>> of_item;  // in the order of blocks
    std::map<uint32_t, std::vector<uint32_t>> blocks_of_item;
    std::set<uint32_t> places;  // of partial results
    for (uint32_t block = 0; block < blocks; ++block)
      for (const PrefillPart& part : parts_of(partitions, heads, block)) {
        ASSERT_LT(part.begin, part.end);
        for (uint32_t key = part.begin; key < part.end; ++key) {
          ASSERT_FALSE(seen.at(part.item * longest + key)) << "item " << part.item;
          seen[part.item * longest + key] = true;
          ++seen_count;
        }
        of_item[part.item].push_back(part);
        blocks_of_item[part.item].push_back(block);
        const uint32_t first = partitions.partition_of(part.first_place);
        if (partitions.partition_of(part.last_place) == first) continue;
        // As join_parts places them: each block has two places.
        const uint32_t index = block * 2 + (block == first ? 1 : 0);
        ASSERT_TRUE(places.insert(index).second) << "block " << block;
      }

    ASSERT_EQ(seen_count, std::accumulate(keys.begin(), keys.end(), 0u) * heads);
    std::set<uint32_t> counters;  // of divided items
    for (const auto& [item, parts] : of_item) {
      for (size_t i = 0; i < parts.size(); ++i) {
        ASSERT_EQ(partitions.partition_of(parts[i].first_place) + i, blocks_of_item[item][i]);
        ASSERT_EQ(partitions.partition_of(parts[i].last_place), blocks_of_item[item].back());
        ASSERT_EQ(parts[i].begin, i == 0 ? 0 : parts[i - 1].end);
      }
      ASSERT_EQ(parts.back().end, keys[item / heads]);
      if (parts.size() == 1) continue;
      ++divided;
      ASSERT_TRUE(counters.insert(blocks_of_item[item][0]).second) << "item " << item;
    }
  }
  EXPECT_GT(divided, 1'000u);
}

TEST(PrefillPartitions, of_one_tile_are_equal_parts_of_its_items) {
  const PrefillPartitions partitions = partitions_of({64}, 32, 132);
  EXPECT_EQ(partitions.count, 128u);
  for (uint32_t block = 0; block < 132; ++block) {
    const auto parts = parts_of(partitions, 32, block);
    ASSERT_EQ(parts.size(), block < 128 ? 1u : 0u);
    if (block >= 128) continue;
    EXPECT_EQ(parts[0].item, block / 4);
    EXPECT_EQ(parts[0].begin, block % 4 * 16);
    EXPECT_EQ(parts[0].end, block % 4 * 16 + 16);
  }
}

// As measured on an H200 (docs/lab/2026-11-24-prefill-attention.md, "What a part costs").
TEST(PrefillPartitions, gain_where_the_longest_work_becomes_shorter_by_more_than_joining_costs) {
  const auto gains = [](const std::vector<uint32_t>& keys, uint32_t heads) {
    const PrefillPartitions partitions = partitions_of(keys, heads, 132);
    return gains_by_partitions(partitions.most, partitions.total, partitions.count, 132);
  };
  EXPECT_TRUE(gains({16}, 32));                       // 128 tokens to 2,048
  EXPECT_FALSE(gains({8, 7, 6, 5, 4, 3, 2, 1}, 16));  // a prompt of 1,024
  EXPECT_TRUE(gains({32, 32, 31, 30, 29}, 32));       // 576 to 4,096
  EXPECT_TRUE(gains({22, 22, 21, 20, 19, 18}, 32));   // 704 to 2,816
  EXPECT_FALSE(gains({16, 15, 14, 13}, 32));          // 512 to 2,048
  EXPECT_TRUE(gains({32, 31, 30, 29}, 9));            // 512 to 4,096
}

}  // namespace
}  // namespace wcuda::kernels
