// attention_prefill: out[t] = sum over p <= position(t) of w[p] * v[p], w = softmax(scale *
// q[t]·k).
//
// A block takes a tile of the plan (128 tokens of one row) and one query head. Each of its warps
// takes 32 of the tokens (16 if heads are longer than 128) and keeps their sums in registers. The
// pages pass through shared memory; the next page is loaded while the current one is used. Softmax
// is online in f32; queries and numerators enter the MMAs as f16. A token's result depends only on
// its own query, position and pages: pages that are masked for it change no bit. Keys and values
// past the end of the row are never read: they and their numerators are 0.
//
// Work: 4 * length FLOP per token, head and visible position. Bytes moved: queries and results
// once, keys and values once per tile, mostly from L2.
#include "kernels/attention/attention_instance.cuh"
#include "kernels/attention/attention_prefill.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {
namespace {

// 16-token tiles per warp. At length 256 the sums of two tiles do not fit into registers.
template <int kLength>
constexpr int kWarpTiles = kLength <= 128 ? 2 : 1;
template <int kLength>
constexpr int kWarps = kPrefillTileTokens / (16 * kWarpTiles<kLength>);
template <int kLength>
constexpr int kBlockThreads = kWarps<kLength> * 32;
// Blocks per SM that registers and shared memory allow.
template <int kLength>
constexpr int kSmBlocks = kLength <= 128 ? 2 : 1;

constexpr int kKeys = kPagePositions;

// Shared memory: queries, then keys and values of two pages as f16 tiles. For other formats the
// second page is in the format of the KV cache.
template <int kLength>
struct SharedLayout {
  static constexpr uint32_t kQueryBytes = kPrefillTileTokens * kLength * 2;
  static constexpr uint32_t kTileBytes = kKeys * kLength * 2;  // of keys, and again of values
};

template <int kLength, KvFormat kFormat>
uint32_t shared_bytes(uint32_t row_bytes) {
  const uint32_t tiles = 2 * SharedLayout<kLength>::kTileBytes;
  const uint32_t second = kFormat == KvFormat::kF16 ? tiles : 2 * kKeys * row_bytes;
  return SharedLayout<kLength>::kQueryBytes + tiles + second;
}

// Loads the queries of the tile as f16, scaled; tokens and elements that do not exist become 0.
template <int kLength>
__device__ __forceinline__ void load_queries(const AttentionKernelArgs& args, uint8_t* tile,
                                             uint32_t first_token, uint32_t token_count,
                                             uint32_t head) {
  constexpr int kChunks = kLength / 8;
  const uint32_t n = args.pages.head_length;
  const float factor = args.scale * kLog2E;
  const bool is_aligned = n % 8 == 0;
#pragma unroll 4
  for (uint32_t index = threadIdx.x; index < kPrefillTileTokens * kChunks;
       index += kBlockThreads<kLength>) {
    const uint32_t row = index / kChunks;
    const uint32_t chunk = index % kChunks;
    float values[8] = {};
    if (row < token_count && chunk * 8 < n) {
      const float* source =
          args.query + (uint64_t{first_token + row} * args.head_count + head) * n + chunk * 8;
      if (is_aligned) {
        const float4 a = __ldcg(reinterpret_cast<const float4*>(source));
        const float4 b = __ldcg(reinterpret_cast<const float4*>(source) + 1);
        values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
        values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
      } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i)
          if (chunk * 8 + i < n) values[i] = __ldcg(source + i);
      }
    }
    uint4 halves;
    halves.x = pack_halves(values[0] * factor, values[1] * factor);
    halves.y = pack_halves(values[2] * factor, values[3] * factor);
    halves.z = pack_halves(values[4] * factor, values[5] * factor);
    halves.w = pack_halves(values[6] * factor, values[7] * factor);
    *reinterpret_cast<uint4*>(tile + tile_offset<kLength * 2>(row, chunk)) = halves;
  }
}

// Starts the copy of a page's keys and values, as tiles (f16) or unchanged.
template <int kLength, KvFormat kFormat>
__device__ __forceinline__ void copy_page(const AttentionKernelArgs& args, uint32_t page,
                                          uint32_t kv_head, RowRange valid, uint32_t target) {
  const uint8_t* keys = page_rows(args.pages, args.layer, page, kv_head, false);
  const uint8_t* values = page_rows(args.pages, args.layer, page, kv_head, true);
  constexpr int kThreads = kBlockThreads<kLength>;
  if constexpr (kFormat == KvFormat::kF16) {
    const uint32_t row_bytes = args.pages.row_bytes;
    copy_rows<kLength * 2, kKeys, kThreads>(target, keys, row_bytes, valid, threadIdx.x);
    copy_rows<kLength * 2, kKeys, kThreads>(target + SharedLayout<kLength>::kTileBytes, values,
                                            row_bytes, valid, threadIdx.x);
  } else {
    const uint32_t row_bytes = args.pages.row_bytes;
    copy_raw_rows<kKeys, kThreads>(target, keys, row_bytes, valid, threadIdx.x);
    copy_raw_rows<kKeys, kThreads>(target + kKeys * row_bytes, values, row_bytes, valid,
                                   threadIdx.x);
  }
}

// A warp's sums: lane 4g + t holds rows g and g + 8 of each 16 tokens, elements 2t and 2t + 1 of
// each 8.
template <int kLength>
struct WarpSums {
  static constexpr int kTiles = kWarpTiles<kLength>;
  float running_max[kTiles][2];
  float denominator[kTiles][2];  // over this lane's keys
  float values[kTiles][kLength / 8][4];
};

struct TileRows {
  uint32_t first_position;  // of this warp's first token
  uint32_t window;
  float softcap;
};

// Computes the scores of the page's keys for a warp's tokens.
template <int kLength>
__device__ __forceinline__ void score_keys(uint32_t queries, uint32_t keys, uint32_t warp_row,
                                           uint32_t lane,
                                           float (&scores)[kWarpTiles<kLength>][kKeys / 8][4]) {
  constexpr int kTiles = kWarpTiles<kLength>;
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[m][i][j] = 0.0f;
  const uint32_t query_row = warp_row + lane % 16;
  const uint32_t key_row = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kLength / 16; ++k) {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
      load_tiles(a[m], queries + tile_offset<kLength * 2>(query_row + m * 16, 2 * k + lane / 16));
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      uint32_t b[4];
      load_tiles(b, keys + tile_offset<kLength * 2>(key_row + i * 16, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        mma_f16(scores[m][2 * i], a[m], b[0], b[1]);
        mma_f16(scores[m][2 * i + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Turns scores into numerators, and rescales the sums to the new running max.
template <int kLength>
__device__ __forceinline__ void softmax_scores(const TileRows& rows, uint32_t first_key,
                                               bool is_masked, uint32_t lane,
                                               float (&scores)[kWarpTiles<kLength>][kKeys / 8][4],
                                               WarpSums<kLength>* sums) {
#pragma unroll
  for (int m = 0; m < kWarpTiles<kLength>; ++m) {
    if (rows.softcap != 0.0f) {
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) scores[m][i][j] = cap_score(scores[m][i][j], rows.softcap);
    }
    if (is_masked) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t position = rows.first_position + m * 16 + lane / 4 + j / 2 * 8;
        const uint32_t first = first_visible(position, rows.window);
#pragma unroll
        for (int i = 0; i < kKeys / 8; ++i) {
          const uint32_t key = first_key + i * 8 + lane % 4 * 2 + j % 2;
          if (key > position || key < first) scores[m][i][j] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float running_max = sums->running_max[m][r];
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
        running_max = fmaxf(running_max, fmaxf(scores[m][i][2 * r], scores[m][i][2 * r + 1]));
      running_max = quad_max(running_max);
      // All of a token's keys so far may be masked.
      const float base = running_max == -INFINITY ? 0.0f : running_max;
      const float factor = exp2_fast(sums->running_max[m][r] - base);
      sums->running_max[m][r] = running_max;
      float denominator = 0.0f;
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
        for (int j = 2 * r; j < 2 * r + 2; ++j) {
          scores[m][i][j] = exp2_fast(scores[m][i][j] - base);
          denominator += scores[m][i][j];
        }
      sums->denominator[m][r] = sums->denominator[m][r] * factor + denominator;
#pragma unroll
      for (int i = 0; i < kLength / 8; ++i) {
        sums->values[m][i][2 * r] *= factor;
        sums->values[m][i][2 * r + 1] *= factor;
      }
    }
  }
}

template <int kLength>
__device__ __forceinline__ void add_values(uint32_t values, uint32_t lane,
                                           const float (&scores)[kWarpTiles<kLength>][kKeys / 8][4],
                                           WarpSums<kLength>* sums) {
  constexpr int kTiles = kWarpTiles<kLength>;
  const uint32_t row = lane % 16;
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* pair = &scores[m][2 * k + j / 2][j % 2 * 2];
        a[m][j] = pack_halves(pair[0], pair[1]);
      }
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i) {
      uint32_t b[4];
      load_tiles_transposed(b, values + tile_offset<kLength * 2>(row + k * 16, 2 * i + lane / 16));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        mma_f16(sums->values[m][2 * i], a[m], b[0], b[1]);
        mma_f16(sums->values[m][2 * i + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <int kLength>
__device__ __forceinline__ void write_results(const AttentionKernelArgs& args, uint32_t first_token,
                                              uint32_t token_count, uint32_t warp_row,
                                              uint32_t head, uint32_t lane,
                                              const WarpSums<kLength>& sums) {
  const uint32_t n = args.pages.head_length;
  const float sink = args.sinks == nullptr ? -INFINITY : args.sinks[head] * kLog2E;
#pragma unroll
  for (int m = 0; m < kWarpTiles<kLength>; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float denominator = quad_sum(sums.denominator[m][r]);
      const uint32_t row = warp_row + m * 16 + lane / 4 + r * 8;
      if (row >= token_count) continue;
      const float running_max = fmaxf(sums.running_max[m][r], sink);
      const float factor = exp2_fast(sums.running_max[m][r] - running_max);
      const float inverse = factor / (denominator * factor + exp2_fast(sink - running_max));
      float* const out = args.out + (uint64_t{first_token + row} * args.head_count + head) * n;
#pragma unroll
      for (int i = 0; i < kLength / 8; ++i) {
        const uint32_t element = i * 8 + lane % 4 * 2;
        const float a = sums.values[m][i][2 * r] * inverse;
        const float b = sums.values[m][i][2 * r + 1] * inverse;
        if (n % 2 == 0) {
          if (element < n) *reinterpret_cast<float2*>(out + element) = make_float2(a, b);
        } else {
          if (element < n) out[element] = a;
          if (element + 1 < n) out[element + 1] = b;
        }
      }
    }
}

template <int kLength, KvFormat kFormat>
__global__ void __launch_bounds__(kBlockThreads<kLength>, kSmBlocks<kLength>)
    attention_prefill_kernel(const AttentionKernelArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr bool kIsHalf = kFormat == KvFormat::kF16;
  constexpr uint32_t kTileBytes = SharedLayout<kLength>::kTileBytes;
  dependent_trigger();
  dependent_wait();
  if (blockIdx.y >= *args.plan.tile_count) return;

  const PrefillTile tile = args.plan.tiles[blockIdx.y];
  const StepRow row = args.step.rows[tile.row];
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp_row = threadIdx.x / 32 * (16 * kWarpTiles<kLength>);
  const uint32_t head = blockIdx.x;
  const uint32_t kv_head = head / (args.head_count / args.pages.head_count);
  const uint32_t first_token = row.first_token + tile.first_token;
  const uint32_t token_count = min(row.token_count - tile.first_token, kPrefillTileTokens);
  const uint32_t first_position = row.first_position + tile.first_token;
  const uint32_t end = first_position + token_count;  // of the positions that the tile sees
  const uint32_t* page_table =
      args.step.page_tables + uint64_t{tile.row} * args.step.page_table_stride;
  const uint32_t page_begin = first_visible(first_position, args.window) / kKeys;
  const uint32_t page_end = (end + kKeys - 1) / kKeys;
  const auto valid_of = [&](uint32_t page) {
    return RowRange{0, min(end - page * kKeys, uint32_t{kKeys})};
  };

  uint8_t* const queries = shared;
  uint8_t* const tiles = shared + SharedLayout<kLength>::kQueryBytes;
  uint8_t* const second = tiles + 2 * kTileBytes;
  copy_page<kLength, kFormat>(args, page_table[page_begin], kv_head, valid_of(page_begin),
                              shared_address(kIsHalf ? tiles : second));
  copy_async_commit();
  load_queries<kLength>(args, queries, first_token, token_count, head);

  WarpSums<kLength> sums;
#pragma unroll
  for (int m = 0; m < kWarpTiles<kLength>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums.running_max[m][r] = -INFINITY;
      sums.denominator[m][r] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kLength / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.values[m][i][j] = 0.0f;
  }
  const TileRows rows{first_position + warp_row, args.window, args.softcap};
  const uint32_t last_position = rows.first_position + 16 * kWarpTiles<kLength> - 1;

  for (uint32_t page = page_begin; page < page_end; ++page) {
    const bool is_second = kIsHalf && (page - page_begin) % 2 == 1;
    uint8_t* const keys = is_second ? second : tiles;
    const uint32_t next_page = page + 1 < page_end ? page_table[page + 1] : 0;
    copy_async_wait<0>();
    __syncthreads();
    if constexpr (!kIsHalf) {
      const uint32_t row_bytes = args.pages.row_bytes;
      const uint32_t n = args.pages.head_length;
      expand_rows<kFormat, kLength, kKeys, kBlockThreads<kLength>>(tiles, second, row_bytes, n,
                                                                   threadIdx.x);
      expand_rows<kFormat, kLength, kKeys, kBlockThreads<kLength>>(
          tiles + kTileBytes, second + kKeys * row_bytes, row_bytes, n, threadIdx.x);
      __syncthreads();
    }
    if (page + 1 < page_end)
      copy_page<kLength, kFormat>(args, next_page, kv_head, valid_of(page + 1),
                                  shared_address(!kIsHalf || !is_second ? second : tiles));
    copy_async_commit();

    const uint32_t first_key = page * kKeys;
    // Skips a page that none of the warp's tokens sees.
    if (first_key > last_position || warp_row >= token_count) continue;
    float scores[kWarpTiles<kLength>][kKeys / 8][4];
    score_keys<kLength>(shared_address(queries), shared_address(keys), warp_row, lane, scores);
    const bool is_masked = first_key + kKeys - 1 > rows.first_position ||
                           first_visible(last_position, args.window) > first_key;
    softmax_scores<kLength>(rows, first_key, is_masked, lane, scores, &sums);
    add_values<kLength>(shared_address(keys + kTileBytes), lane, scores, &sums);
  }
  write_results<kLength>(args, first_token, token_count, warp_row, head, lane, sums);
}

// ---- choice of the instance ----

struct Instance {
  void (*kernel)(AttentionKernelArgs);
  uint32_t (*bytes)(uint32_t row_bytes);
  uint32_t bytes_max;  // for its longest heads
  uint32_t threads;
};

struct Instances {
  static constexpr int kLengthMax = 256;
  template <int kLength, KvFormat kFormat>
  static Instance version() {
    return {attention_prefill_kernel<kLength, kFormat>, shared_bytes<kLength, kFormat>,
            shared_bytes<kLength, kFormat>(bytes_of_row(kFormat, kLength)), kBlockThreads<kLength>};
  }
};

}  // namespace

cudaError_t attention_prefill_prepare(KvFormat format, uint32_t head_length) {
  if (head_length == 0 || head_length > kAttentionHeadLengthMax) return cudaErrorInvalidValue;
  const cudaError_t status = attention_prefill_warpgroup_prepare(format, head_length);
  if (status != cudaSuccess) return status;
  const Instance instance = find_version<Instances>(format, head_length);
  return cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(instance.bytes_max));
}

cudaError_t attention_prefill(const AttentionKernelArgs& args, const Launch& launch) {
  if (args.pages.head_length == 0 || args.pages.head_length > kAttentionHeadLengthMax)
    return cudaErrorInvalidValue;
  const uint32_t tiles = prefill_tiles_max(args.step.token_count, args.step.row_count);
  if (tiles == 0) return cudaSuccess;
  if (tiles > args.plan.max_tiles) return cudaErrorInvalidValue;
  if (attention_prefill_has_warpgroup(args.pages.head_length, launch))
    return attention_prefill_warpgroup(args, launch);
  const Instance instance = find_version<Instances>(args.pages.format, args.pages.head_length);
  return launch_kernel(launch, dim3(args.head_count, tiles), dim3(instance.threads),
                       instance.bytes(args.pages.row_bytes), 0, instance.kernel, args);
}

}  // namespace wcuda::kernels
