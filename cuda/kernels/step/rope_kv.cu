// rope_kv: x[h] = rope(x[h] * gain / rms(x[h])) for the heads of q and k, with int10 multiplied by
// a Hadamard matrix; k and v are rounded to the format of the KV cache and written to their page.
//
// A block has kBlockWarps warps and processes some heads of one token; a warp takes one head at a
// time. Sines and cosines need only positions. In a step of up to kEarlyTokensMax tokens, all of
// whose blocks can start at once, they are computed before the dependent wait; in a larger step,
// while the heads are loaded. Bytes moved: q read and written once, k and v read once, their rows
// written once.
#include <algorithm>

#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/rope_head.cuh"
#include "kernels/shared/rounding.h"
#include "kernels/step/rope_kv.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockWarps = 8;
constexpr uint32_t kBlockThreads = kBlockWarps * 32;
constexpr uint32_t kLaneValues = kRopeHeadLengthMax / 32;
constexpr uint32_t kAhead = 2;  // heads that a warp loads in advance
// Up to this many tokens, a token's heads are spread over blocks, for latency. With more tokens,
// one block rotates all heads of a token and computes sines and cosines only once.
constexpr uint32_t kSpreadTokensMax = 64;
// Up to this many tokens, all blocks can be resident at once, on an H200.
constexpr uint32_t kEarlyTokensMax = 512;

struct RopeKvParams {
  RopeKvArgs args;
  uint32_t block_heads;
};

struct Shared {
  float2 rotations[kRopeHeadLengthMax / 2];  // cosines and sines
  float heads[kBlockWarps][kRopeHeadLengthMax];
};

__global__ void __launch_bounds__(kBlockThreads) rope_kv_kernel(const RopeKvParams params) {
  __shared__ Shared shared;
  const RopeKvArgs& args = params.args;
  const uint32_t token = blockIdx.x;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t n = args.pages.head_length;
  const uint32_t kv_heads = args.pages.head_count;
  dependent_trigger();

  const uint32_t row = __ldcg(args.step.token_rows + token);
  if (row == kDeadToken || row >= args.step.row_count) {
    // One block still waits, because kernels that wait for this one assume that earlier ones ended.
    if (token == 0 && blockIdx.y == 0) dependent_wait();
    return;
  }
  const uint32_t position = __ldcg(args.step.positions + token);
  const uint32_t page = __ldcg(args.step.page_tables + uint64_t{row} * args.step.page_table_stride +
                               position / kPagePositions);
  const auto find_rotations = [&] {
    for (uint32_t i = threadIdx.x; i < args.rope.rope_dimensions / 2; i += kBlockThreads)
      shared.rotations[i] =
          rope_cos_sin(position, args.rope.rope_frequencies[i], args.rope.rope_magnitude);
  };
  const bool is_early = gridDim.x <= kEarlyTokensMax;
  if (is_early) find_rotations();
  dependent_wait();

  float* const head = shared.heads[warp];
  const uint32_t heads = args.head_count + 2 * kv_heads;
  const uint32_t head_end = min((blockIdx.y + 1) * params.block_heads, heads);
  const auto source_of = [&](uint32_t h) -> const float* {
    if (h < args.head_count) return args.query + (uint64_t{token} * args.head_count + h) * n;
    const bool is_value = h >= args.head_count + kv_heads;
    const uint32_t kv_head = h - args.head_count - (is_value ? kv_heads : 0);
    return (is_value ? args.value : args.key) + (uint64_t{token} * kv_heads + kv_head) * n;
  };
  // The next heads are loaded while one is processed.
  float next[kAhead][kLaneValues];
  const auto load = [&](uint32_t h, float(&values)[kLaneValues]) {
    if (h >= head_end) return;
    const float* source = source_of(h);
#pragma unroll
    for (uint32_t j = 0; j < kLaneValues; ++j)
      if (lane + 32 * j < n) values[j] = __ldcg(source + lane + 32 * j);
  };
  const uint32_t first_head = blockIdx.y * params.block_heads + warp;
#pragma unroll
  for (uint32_t a = 0; a < kAhead; ++a) load(first_head + a * kBlockWarps, next[a]);
  if (!is_early) find_rotations();
  __syncthreads();

  const auto rotate_one = [&](uint32_t h, float(&values)[kLaneValues]) {
    const bool is_query = h < args.head_count;
    const bool is_value = h >= args.head_count + kv_heads;
    const uint32_t kv_head = is_query ? 0 : h - args.head_count - (is_value ? kv_heads : 0);
#pragma unroll
    for (uint32_t j = 0; j < kLaneValues; ++j)
      if (lane + 32 * j < n) head[lane + 32 * j] = values[j];
    load(h + kAhead * kBlockWarps, values);
    __syncwarp();
    const float* gain = is_query ? args.rope.query_norm : is_value ? nullptr : args.rope.key_norm;
    if (gain != nullptr) norm_head<kLaneValues>(head, n, gain, args.rope.epsilon, lane);
    if (!is_value)
      rope_head<kLaneValues>(
          head, args.rope, [&](uint32_t j) { return shared.rotations[lane + 32 * j]; }, lane);
    if (!is_value && args.pages.format == KvFormat::kInt10)
      hadamard_head<kLaneValues>(head, n, lane);
    if (is_query) {
      float* const target = args.query + (uint64_t{token} * args.head_count + h) * n;
      for (uint32_t i = lane; i < n; i += 32) target[i] = head[i];
    } else {
      const uint64_t plane =
          (uint64_t{args.layer} * args.pages.page_count + page) * 2 + (is_value ? 1 : 0);
      const uint64_t kv_row =
          (plane * kv_heads + kv_head) * kPagePositions + position % kPagePositions;
      write_row(args.pages.format, head, n, position,
                args.pages.data + kv_row * args.pages.row_bytes, lane);
    }
    __syncwarp();
  };
  for (uint32_t h = first_head; h < head_end; h += kAhead * kBlockWarps) {
#pragma unroll
    for (uint32_t a = 0; a < kAhead; ++a)
      if (h + a * kBlockWarps < head_end) rotate_one(h + a * kBlockWarps, next[a]);
  }
}

// Of rope_kv_rows_kernel: heads that a group of lanes loads at once, and tokens of a block, at
// most.
constexpr uint32_t kHeadsAtOnce = 3;
constexpr uint32_t kBlockTokensMax = 4;

struct RopeKvRowsParams {
  RopeKvArgs args;
  uint32_t block_tokens;
};

// Computes the same for many tokens of common models: heads of 4 * kLanes values, all of them
// rotated, no norms, f16 pages. kLanes lanes hold a head. A block processes all heads of one token
// or, if they are few, of up to kTokens.
template <uint32_t kLanes, uint32_t kTokens>
__global__ void __launch_bounds__(kBlockThreads, 5)
    rope_kv_rows_kernel(const RopeKvRowsParams params) {
  constexpr uint32_t n = 4 * kLanes, kGroups = kBlockThreads / kLanes;
  struct Place {
    uint32_t position, page;
    bool is_dead;
  };
  __shared__ __align__(16) float2 rotations[kTokens][n / 2];
  __shared__ Place shared_places[kTokens];
  const RopeKvArgs& args = params.args;
  const uint32_t tokens = kTokens == 1 ? 1 : params.block_tokens;
  const uint32_t first_token = blockIdx.x * tokens;
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t kv_heads = args.pages.head_count;
  const uint32_t heads = args.head_count + 2 * kv_heads;
  dependent_trigger();
  const auto find_place = [&](uint32_t token) {
    const uint32_t row =
        token < args.step.token_count ? __ldcg(args.step.token_rows + token) : kDeadToken;
    Place place = {0, 0, row == kDeadToken || row >= args.step.row_count};
    if (place.is_dead) return place;
    place.position = __ldcg(args.step.positions + token);
    place.page = __ldcg(args.step.page_tables + uint64_t{row} * args.step.page_table_stride +
                        place.position / kPagePositions);
    return place;
  };
  Place only = {};
  if (kTokens == 1) only = find_place(first_token);
  bool is_dead = only.is_dead;
  if (kTokens > 1) {
    if (threadIdx.x < tokens) shared_places[threadIdx.x] = find_place(first_token + threadIdx.x);
    is_dead = __syncthreads_and(threadIdx.x >= tokens || shared_places[threadIdx.x].is_dead);
  }
  if (is_dead) {
    if (blockIdx.x == 0) dependent_wait();
    return;
  }
  const auto place_of = [&](uint32_t t) -> const Place& {
    return kTokens == 1 ? only : shared_places[t];
  };
  const auto find_rotations = [&] {
    for (uint32_t i = threadIdx.x; i < tokens * (n / 2); i += kBlockThreads)
      rotations[i / (n / 2)][i % (n / 2)] =
          rope_cos_sin(place_of(i / (n / 2)).position, args.rope.rope_frequencies[i % (n / 2)],
                       args.rope.rope_magnitude);
  };
  const bool is_early = args.step.token_count <= kEarlyTokensMax;
  if (is_early) find_rotations();
  dependent_wait();

  const auto kv_head_of = [&](uint32_t h) {
    const uint32_t index = h - args.head_count;
    return index < kv_heads ? index : index - kv_heads;
  };
  // `at` counts the heads of all tokens of the block.
  const uint32_t all_heads = tokens * heads;
  const auto token_of = [&](uint32_t at) {
    uint32_t t = 0;
#pragma unroll
    for (uint32_t i = 1; i < kTokens; ++i) t += at >= i * heads ? 1 : 0;
    return t;
  };
  const auto load = [&](uint32_t at) {
    const uint32_t t = token_of(at), h = at - t * heads;
    if (at >= all_heads || place_of(t).is_dead) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const uint64_t token = first_token + t;
    const float* source;
    if (h < args.head_count)
      source = args.query + (token * args.head_count + h) * n;
    else
      source = (h < args.head_count + kv_heads ? args.key : args.value) +
               (token * kv_heads + kv_head_of(h)) * n;
    return __ldcg(reinterpret_cast<const float4*>(source) + lane);
  };
  const auto rotate = [&](const float2* turns, float4& x) {
    if (args.rope.has_adjacent_pairs) {
      const float4 cs = reinterpret_cast<const float4*>(turns)[lane];
      x = make_float4(
          __fmaf_rn(x.x, cs.x, -__fmul_rn(x.y, cs.y)), __fmaf_rn(x.x, cs.y, __fmul_rn(x.y, cs.x)),
          __fmaf_rn(x.z, cs.z, -__fmul_rn(x.w, cs.w)), __fmaf_rn(x.z, cs.w, __fmul_rn(x.w, cs.z)));
      return;
    }
    constexpr uint32_t kHalf = kLanes / 2;
    const bool is_second = lane >= kHalf;
    const float own[4] = {x.x, x.y, x.z, x.w};
    float rotated[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(~0u, own[i], kHalf);
      const float2 cs = turns[lane % kHalf * 4 + i];
      rotated[i] = is_second ? __fmaf_rn(other, cs.y, __fmul_rn(own[i], cs.x))
                             : __fmaf_rn(own[i], cs.x, -__fmul_rn(other, cs.y));
    }
    x = make_float4(rotated[0], rotated[1], rotated[2], rotated[3]);
  };
  const auto store = [&](uint64_t token, uint32_t h, const Place& place, const float4& x) {
    if (h < args.head_count) {
      float* const target = args.query + (token * args.head_count + h) * n;
      reinterpret_cast<float4*>(target)[lane] = x;
      return;
    }
    const bool is_value = h >= args.head_count + kv_heads;
    const uint64_t plane =
        (uint64_t{args.layer} * args.pages.page_count + place.page) * 2 + (is_value ? 1 : 0);
    const uint64_t kv_row =
        (plane * kv_heads + kv_head_of(h)) * kPagePositions + place.position % kPagePositions;
    const auto pair = [](float low, float high) {
      return uint32_t{float_to_half(low)} | uint32_t{float_to_half(high)} << 16;
    };
    reinterpret_cast<uint2*>(args.pages.data + kv_row * args.pages.row_bytes)[lane] =
        make_uint2(pair(x.x, x.y), pair(x.z, x.w));
  };

  // All lanes of a warp run the same number of iterations; past the last head they load nothing.
  const uint32_t first = threadIdx.x / kLanes;
  const uint32_t end = (all_heads + kGroups - 1) / kGroups * kGroups;
  float4 next[kHeadsAtOnce];
#pragma unroll
  for (uint32_t i = 0; i < kHeadsAtOnce; ++i) next[i] = load(first + i * kGroups);
  if (!is_early) find_rotations();
  __syncthreads();
  for (uint32_t begin = first; begin < end; begin += kHeadsAtOnce * kGroups) {
    float4 values[kHeadsAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kHeadsAtOnce; ++i) {
      values[i] = next[i];
      next[i] = load(begin + (kHeadsAtOnce + i) * kGroups);
    }
#pragma unroll
    for (uint32_t i = 0; i < kHeadsAtOnce; ++i) {
      const uint32_t at = begin + i * kGroups;
      const uint32_t t = token_of(at), h = at - t * heads;
      const float4 unrotated = values[i];
      rotate(rotations[t], values[i]);
      if (at < all_heads && !place_of(t).is_dead)
        store(first_token + t, h, place_of(t),
              h < args.head_count + kv_heads ? values[i] : unrotated);
    }
  }
}

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

bool has_rows(const RopeKvArgs& args) {
  const uint32_t n = args.pages.head_length;
  return args.step.token_count > kSpreadTokensMax && (n == 64 || n == 128) &&
         args.rope.rope_dimensions == n && args.rope.query_norm == nullptr &&
         args.rope.key_norm == nullptr && args.pages.format == KvFormat::kF16 &&
         args.pages.row_bytes == 2 * n && is_aligned(args.query) && is_aligned(args.key) &&
         is_aligned(args.value);
}

}  // namespace

cudaError_t rope_kv(const RopeKvArgs& args, const Launch& launch) {
  if (args.pages.head_length > kRopeHeadLengthMax || args.pages.head_length == 0 ||
      args.rope.rope_dimensions > args.pages.head_length || args.rope.rope_dimensions % 2 != 0)
    return cudaErrorInvalidValue;
  if (args.step.token_count == 0) return cudaSuccess;
  const uint32_t heads = args.head_count + 2 * args.pages.head_count;
  if (has_rows(args)) {
    const bool is_short = args.pages.head_length == 64;
    RopeKvRowsParams params{args, 1};
    // As many tokens as a block loads the heads of at once.
    if (is_short && args.step.token_count > kEarlyTokensMax)
      params.block_tokens =
          std::clamp(kHeadsAtOnce * (kBlockThreads / 16) / heads, 1u, kBlockTokensMax);
    const auto kernel = params.block_tokens > 1 ? rope_kv_rows_kernel<16, kBlockTokensMax>
                        : is_short              ? rope_kv_rows_kernel<16, 1>
                                                : rope_kv_rows_kernel<32, 1>;
    return launch_kernel(launch, dim3(divide_up(args.step.token_count, params.block_tokens)),
                         dim3(kBlockThreads), 0, 0, kernel, params);
  }
  RopeKvParams params{args, heads};
  if (args.step.token_count <= kSpreadTokensMax) params.block_heads = kBlockWarps;
  const dim3 grid(args.step.token_count, (heads + params.block_heads - 1) / params.block_heads);
  return launch_kernel(launch, grid, dim3(kBlockThreads), 0, 0, rope_kv_kernel, params);
}

}  // namespace wcuda::kernels
