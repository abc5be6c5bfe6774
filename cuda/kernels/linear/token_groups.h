// Groups of consecutive tokens, each with matrices of its own, as experts have.
#pragma once

#include <algorithm>
#include <cstdint>

namespace wcuda::kernels {

constexpr uint32_t kTokenGroupsMax = 1024;

struct TokenGroups {
  uint32_t count = 0;
  // (count + 1) device memory, ascending from 0: group g has tokens begins[g] … begins[g + 1] - 1,
  // perhaps none. Tokens from begins[count] on belong to no group.
  const uint32_t* begins = nullptr;
};

// A tile of tokens, all of one group.
struct TokenTile {
  uint32_t group;
  uint32_t first;  // token
  uint32_t count;  // of tokens; 0: the tile is not used
  uint32_t padding;
};

// Returns the most tiles of tile_tokens tokens that groups with `tokens` tokens in all can have.
inline uint32_t token_tiles_max(uint32_t tokens, uint32_t groups, uint32_t tile_tokens) {
  // Each group with tokens may have a tile that is filled in part.
  const uint64_t padding = uint64_t{std::min(tokens, groups)} * (tile_tokens - 1);
  return static_cast<uint32_t>((tokens + padding) / tile_tokens);
}

}  // namespace wcuda::kernels
