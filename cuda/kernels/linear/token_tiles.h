// token_tiles: divides groups of tokens into tiles on the device, which alone knows their sizes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear/token_groups.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

struct TokenTilesArgs {
  TokenGroups groups;  // 1 to kTokenGroupsMax
  uint32_t tokens = 0;
  uint32_t tile_tokens = 0;
  // (token_tiles_max()) The tiles of a group follow each other in the order of the groups; those
  // that are not used come last.
  TokenTile* tiles = nullptr;
  // (tokens) The place of a token among those of all tiles, or kNoPlace (half_input.h).
  uint32_t* places = nullptr;
};

// Fills `tiles` and `places`. If begins are not ascending, which tokens a tile has is not
// specified, but it has none past the end.
cudaError_t token_tiles(const TokenTilesArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
