// Which parts of prefill attention the blocks of the grid compute: pure functions, called on the
// device.
#pragma once

#include <cstdint>

#include "kernels/shared/host_device.h"

namespace wcuda::kernels {

// Equal partitions of the work are for steps of at most so many tiles and rounds of whole items.
// Work is counted in blocks of 128 keys; what an item takes apart from its keys (queries, the first
// scores, results) counts as kItemCost of them. The items of a single tile have equal keys, and
// are cut into equal numbers of parts; then kItemCost does not count. A partition has at least
// kPartitionKeysMin blocks of keys more than an item's cost. Partitions must shorten the longest
// work of a block of the grid by more than kPartitionGainMin, which is what joining costs, and by
// more than this share (1 / kPartitionGainShare): blocks that take whole items read the same keys
// at the same time, those that take partitions do not.
constexpr uint32_t kPartitionTilesMax = 32;
constexpr uint32_t kPartitionRoundsMax = 2;
constexpr uint32_t kItemCost = 4;
constexpr uint32_t kPartitionKeysMin = 4, kPartitionGainMin = 3;
constexpr uint32_t kPartitionGainShare = 16;
constexpr uint32_t kItemBlocks = 4;  // launched for each possible item, if there are few

// What an item counts apart from its keys.
WCUDA_HOST_DEVICE inline uint32_t prefill_item_cost(uint32_t tile_count) {
  return tile_count == 1 ? 0 : kItemCost;
}

// Returns the item that block `block` of `blocks` has in a round, if blocks take whole items. The
// items of a row are listed longest first, so every other round runs in reverse to balance the
// blocks.
WCUDA_HOST_DEVICE inline uint32_t prefill_round_item(uint32_t round, uint32_t block,
                                                     uint32_t blocks) {
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

// Returns the number of partitions: a multiple of the items if they are of one tile. item_cost is
// prefill_item_cost(tile_count).
WCUDA_HOST_DEVICE inline uint32_t partition_count(uint32_t total, uint32_t tile_count,
                                                  uint32_t item_cost, uint32_t heads,
                                                  uint32_t blocks) {
  const uint32_t whole = tile_count == 1 ? heads : 1;
  const uint32_t wanted = total / (item_cost + kPartitionKeysMin);
  const uint32_t each = (wanted < blocks ? wanted : blocks) / whole;
  return whole * (each > 1 ? each : 1);
}

// `most`: the longest work of a block that takes whole items.
WCUDA_HOST_DEVICE inline bool gains_by_partitions(uint32_t most, uint32_t total, uint32_t count,
                                                  uint32_t blocks) {
  const uint32_t share = most / kPartitionGainShare;
  const uint32_t gain = share > kPartitionGainMin ? share : kPartitionGainMin;
  return count <= blocks && most > (total + count - 1) / count + gain;
}

// A part of an item.
struct PrefillPart {
  uint32_t item;                     // tile * heads + head
  uint32_t begin, end;               // of the item's blocks of keys
  uint32_t first_place, last_place;  // of all keys of the item
};

// How the work of prefill items is distributed over the blocks of the grid. An item's work is
// item_cost, then its blocks of keys; partitions may end anywhere.
struct PrefillPartitions {
  uint32_t item_cost;
  uint32_t before[kPartitionTilesMax + 1];  // work of a head in the tiles before each tile
  uint32_t most;                            // of any block of the grid, if each takes whole items
  uint32_t total;                           // of all items
  uint32_t count;                           // of partitions
  uint32_t is_last[2];  // of each consumer warpgroup: whether it finishes an item

  WCUDA_HOST_DEVICE uint32_t begin(uint32_t partition) const {
    return static_cast<uint32_t>(uint64_t{total} * (partition < count ? partition : count) / count);
  }
  // Returns the partition that has a place.
  WCUDA_HOST_DEVICE uint32_t partition_of(uint32_t place) const {
    return static_cast<uint32_t>(((place + uint64_t{1}) * count - 1) / total);
  }
  // Returns the work of a block that takes whole items.
  WCUDA_HOST_DEVICE uint32_t whole_work(uint32_t tile_count, uint32_t heads, uint32_t blocks,
                                        uint32_t block) const {
    uint32_t work = 0;
    for (uint32_t round = 0; round * blocks < tile_count * heads; ++round) {
      const uint32_t index = prefill_round_item(round, block, blocks), tile = index / heads;
      if (index < tile_count * heads) work += before[tile + 1] - before[tile];
    }
    return work;
  }
  // Writes the next part of a partition from `*place` on, which is begin(partition) at first, and
  // moves `*place` to its end. Returns false if there is none.
  WCUDA_HOST_DEVICE bool next_part(uint32_t heads, uint32_t partition, uint32_t* place,
                                   PrefillPart* part) const {
    const uint32_t end = begin(partition + 1);
    uint32_t tile = 0;
    while (*place < end) {
      while (*place >= before[tile + 1] * heads) ++tile;
      const uint32_t work = before[tile + 1] - before[tile];
      const uint32_t head = (*place - before[tile] * heads) / work;
      const uint32_t item_begin = before[tile] * heads + head * work;
      const uint32_t item_end = item_begin + work, keys_begin = item_begin + item_cost;
      const uint32_t part_begin = *place > keys_begin ? *place : keys_begin;
      *place = end < item_end ? end : item_end;
      if (part_begin >= *place) continue;  // none of its keys
      part->item = tile * heads + head;
      part->begin = part_begin - keys_begin;
      part->end = *place - keys_begin;
      part->first_place = keys_begin;
      part->last_place = item_end - 1;
      return true;
    }
    return false;
  }
};

}  // namespace wcuda::kernels
