// token_tiles: every block computes the first tile of each group, by a prefix sum in shared memory,
// then some of the tiles and places, each by a binary search. Bytes moved: 4 per
// group and block, 4 per token and 16 per tile.
#include "kernels/linear/half_input.h"
#include "kernels/linear/token_tiles.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kThreads = kTokenGroupsMax;  // one for each group
constexpr uint32_t kBlockTokens = 2 * kThreads;

// Returns the index of the last of `count` ascending values that is at most `value`. The first is.
__device__ inline uint32_t last_at_most(const uint32_t* values, uint32_t count, uint32_t value) {
  uint32_t low = 0;
  while (count > 1) {
    const uint32_t half = count / 2;
    if (values[low + half] <= value) low += half;
    count -= half;
  }
  return low;
}

__global__ void __launch_bounds__(kThreads)
    token_tiles_kernel(const TokenTilesArgs args, uint32_t tiles_max) {
  __shared__ uint32_t begins[kThreads], ends[kThreads], first_tiles[kThreads], warp_sums[32];
  const uint32_t groups = args.groups.count, group = threadIdx.x, lane = threadIdx.x % 32;
  dependent_trigger();
  dependent_wait();
  uint32_t begin = args.tokens, end = args.tokens;
  if (group < groups) {
    begin = min(args.groups.begins[group], args.tokens);
    end = max(begin, min(args.groups.begins[group + 1], args.tokens));
  }
  begins[group] = begin;
  ends[group] = end;

  const uint32_t own = (end - begin + args.tile_tokens - 1) / args.tile_tokens;
  uint32_t sum = own;  // of this warp's groups up to this one, then of all groups before it
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  for (uint32_t warp = 0; warp < threadIdx.x / 32; ++warp) sum += warp_sums[warp];
  first_tiles[group] = sum - own;
  __syncthreads();
  const uint32_t tiles =
      first_tiles[groups - 1] +
      (ends[groups - 1] - begins[groups - 1] + args.tile_tokens - 1) / args.tile_tokens;

  for (uint32_t tile = blockIdx.x * kThreads + threadIdx.x; tile < tiles_max;
       tile += gridDim.x * kThreads) {
    TokenTile result = {};
    if (tile < tiles) {
      // Of groups that begin with the same tile, only the last has tokens.
      result.group = last_at_most(first_tiles, groups, tile);
      result.first = begins[result.group] + (tile - first_tiles[result.group]) * args.tile_tokens;
      if (result.first < ends[result.group])
        result.count = min(ends[result.group] - result.first, args.tile_tokens);
    }
    args.tiles[tile] = result;
  }
  for (uint32_t token = blockIdx.x * kThreads + threadIdx.x; token < args.tokens;
       token += gridDim.x * kThreads) {
    const uint32_t own_group = last_at_most(begins, groups, token);
    const uint32_t offset = token - begins[own_group];
    const uint32_t place = first_tiles[own_group] * args.tile_tokens + offset;
    const bool is_in = token >= begins[own_group] && token < ends[own_group] &&
                       place < tiles_max * args.tile_tokens;
    args.places[token] = is_in ? place : kNoPlace;
  }
}

}  // namespace

cudaError_t token_tiles(const TokenTilesArgs& args, const Launch& launch) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.groups.count == 0 || args.groups.count > kTokenGroupsMax || args.tile_tokens == 0 ||
      args.groups.begins == nullptr)
    return cudaErrorInvalidValue;
  return launch_kernel(launch, dim3(divide_up(args.tokens, kBlockTokens)), dim3(kThreads), 0, 0,
                       token_tiles_kernel, args,
                       token_tiles_max(args.tokens, args.groups.count, args.tile_tokens));
}

}  // namespace wcuda::kernels
