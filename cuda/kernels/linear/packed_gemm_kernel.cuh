// The kernel of packed_gemm, for matrices of one or two weight types. Only for .cu files.
//
//   CTA        two consumer warpgroups with 64 rows each, and a producer warpgroup. The producer
//              releases most of its registers; only one of its threads works. Each SM runs one CTA
//   tile       128 rows x kN tokens, summed over all K-tiles. In a gated layer: 64 rows of the gate
//              matrix and the same 64 rows of the up matrix
//   iteration  one K-tile (256 inputs) of two tiles whose rows are adjacent. A cluster of two CTAs
//              computes it, one tile per CTA, and copies the activations once, to both CTAs
//   short      a pair of tiles with 192 rows, for kN = 256. The first warpgroups of the CTAs have
//              64 rows each; the second ones have the last 64, each for half of the tokens. If
//              pairs of 256 rows leave SMs idle in the last round, the plan takes short ones there
//
// Iterations are numbered tile by tile, and each cluster computes an equal run of them (stream-K),
// so that every SM is busy to the end:
//
//   tiles      |------- 0 -------|------- 1 -------|------- 2 -------|
//   clusters   |---- 0 ----|---- 1 ----|---- 2 ----|---- 3 ----|- 4 …
//
// A CTA whose run covers only some of a tile's K-tiles writes its partial sums to global memory and
// increments a counter. The last CTA to do so adds the partial sums in the order of K and writes
// the outputs. Thus no CTA waits for another, and the order of additions does not depend on which
// CTA is last. With batch invariance, K is cut into partitions that depend only on the matrices.
// Each cluster computes a run of such partitions or, if memory for partial sums is short, of whole
// tiles.
//
// A grouped launch (packed_gemm_grouped) has tiles of 128 tokens of one group each, which the
// device lists (token_tiles.h). Each cluster computes whole tiles, every so many of them. Only this
// kernel has code for groups: a branch for them makes steps of the other 0.6 to 1 % slower
// (docs/lab/2026-11-29-grouped.md).
//
// The numbering of tiles lets clusters work on neighbouring tiles at the same time, so that weights
// and activations that several of them read come from L2.
//
// Each consumer warp copies the packed tiles of its own 16 rows into its own ring in shared memory,
// and converts them to operand A in its registers, a group of 32 inputs at a time. Four warps
// multiply 64 rows with the kN tokens (wgmma m64nNk16, f32 sums). Activations are stored in the
// order that half_input.h defines, with the 128-byte swizzle. Timeline of a CTA:
//
//   previous kernel   ────────────────┐ ends
//   copies, weights   fill the ring   │                refill stages as warps have read them …
//   copies, tokens                    └ stage 0 | stage 1 | stage 2 …
//   consumer warps                              | convert group 0 | convert group 1 | …
//   tensor cores                                                  | multiply group 0 | …
//
// Lane 4g + t of warp w of a warpgroup holds sums[k] of row 16w + g + 8 * (k / 2 % 2) and token
// 8 * (k / 4) + 2t + k % 2.
//
// Bytes moved: packed tiles once for each tile of tokens (from DRAM once, then from L2);
// activations once for each 256 rows (192 of a short pair); at most two partial sums of 4 * 128 *
// kN bytes per CTA.
#pragma once

#include <type_traits>

#include "kernels/linear/half_tile.cuh"
#include "kernels/linear/linear_activation.cuh"
#include "kernels/linear/packed_gemm_params.h"
#include "kernels/linear/token_statistics.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/pipeline.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace wcuda::kernels {

#if WCUDA_HAS_WARPGROUPS

// Whether the kernel skips stages past the end of K. With tiles of 128 tokens, the branch would
// make the compiler serialize the MMAs of Q4_K.
template <uint32_t kN>
constexpr bool kSkipsPadding = kN == 256;

// A run of K-tiles of a warpgroup's part of one tile. With batch invariance, it lies within one
// partition of K.
struct GemmSegment {
  uint32_t first_k_tile;
  uint32_t k_tiles;
  uint32_t groups;  // groups of 32 inputs; together they fill whole stages of activations
  uint32_t token_tile;
  uint32_t group;        // of a grouped launch
  bool is_half;          // the warpgroup has half of the tile's tokens
  uint32_t first_token;  // of the warpgroup
  uint32_t tokens;       // of the warpgroup, up to the end of the batch; may be 0
  uint32_t first_row;    // of the warpgroup, in the matrix
  uint32_t matrix;
  uint32_t first_iteration;  // of the whole tile
  uint32_t partition;        // index of the partition of K within the tile
};

// Returns the matrix that a warp has of a segment: a warpgroup has 64 rows, or 32 rows of gate and
// the same 32 rows of up.
__device__ __forceinline__ uint32_t matrix_of(const PackedGemmParams& params,
                                              const GemmSegment& segment, uint32_t warp) {
  return params.epilogue >= Epilogue::kSiluGate ? warp / 2 % 2 : segment.matrix;
}

// Returns the M-tiles of a matrix.
__device__ __forceinline__ uint32_t m_tiles_of(uint32_t rows) {
  return (rows + quant::kMTileRows - 1) / quant::kMTileRows;
}

// Returns the biases of a matrix, or null.
template <bool kIsGrouped>
__device__ __forceinline__ const float* biases_of(const PackedGemmParams& params,
                                                  const GemmSegment& segment, uint32_t matrix) {
  const float* const biases = params.biases[matrix];
  if (!kIsGrouped || biases == nullptr) return biases;
  return biases + uint64_t{segment.group} * params.rows[matrix];
}

// Iterates over the segments of a warpgroup.
struct GemmWork {
  uint32_t iteration;
  uint32_t end;

  // Returns the first iteration of a cluster. cluster_of returns the cluster that computes an
  // iteration, if K is not cut into partitions.
  static __device__ __forceinline__ uint32_t first_iteration(const PackedGemmParams& params,
                                                             uint32_t cluster) {
    const auto piece = static_cast<uint32_t>(uint64_t{params.tile_count} * params.tile_pieces *
                                             cluster / (gridDim.x / kGemmCluster));
    return piece / params.tile_pieces * params.k_tile_count +
           piece % params.tile_pieces * params.k_tile_count / params.tile_pieces;
  }
  static __device__ __forceinline__ uint32_t cluster_of(const PackedGemmParams& params,
                                                        uint32_t iteration) {
    return static_cast<uint32_t>(((iteration + uint64_t{1}) * (gridDim.x / kGemmCluster) - 1) /
                                 params.iteration_count);
  }

  explicit __device__ GemmWork(const PackedGemmParams& params)
      : iteration(first_iteration(params, blockIdx.x / kGemmCluster)),
        end(first_iteration(params, blockIdx.x / kGemmCluster + 1)) {}

  template <uint32_t kN, bool kIsGrouped>
  __device__ __forceinline__ bool next(const PackedGemmParams& params, uint32_t warpgroup,
                                       GemmSegment* segment) {
    if (iteration >= end) return false;
    if constexpr (kIsGrouped) return next_of_group<kN>(params, warpgroup, segment);
    const uint32_t tile = iteration / params.k_tile_count;
    segment->first_iteration = tile * params.k_tile_count;
    segment->first_k_tile = iteration - segment->first_iteration;
    segment->partition =
        ((segment->first_k_tile + 1) * params.partitions - 1) / params.k_tile_count;
    segment->k_tiles = min(params.k_tile_count * (segment->partition + 1) / params.partitions,
                           end - segment->first_iteration) -
                       segment->first_k_tile;
    segment->groups = segment->k_tiles * 8;
    if (kSkipsPadding<kN>)
      segment->groups = min(segment->groups, params.k_groups - segment->first_k_tile * 8);
    const uint32_t place = gemm_tile_place(params.tile_count, params.run_tiles, tile);
    segment->token_tile = place % params.token_tiles;
    const uint32_t rank = blockIdx.x % kGemmCluster, pair = place / params.token_tiles;
    const bool is_short = kN == kGemmShortTokens && pair >= params.full_pairs;
    segment->is_half = is_short && warpgroup == 1;
    segment->first_token = segment->token_tile * kN + (segment->is_half ? rank * (kN / 2) : 0);
    segment->tokens =
        segment->first_token < params.tokens
            ? min(params.tokens - segment->first_token, segment->is_half ? kN / 2 : kN)
            : 0;
    // Counts the rows of a warpgroup.
    const uint32_t block = is_short ? params.full_pairs + pair * 3 + (warpgroup == 1 ? 2 : rank)
                                    : pair * 4 + rank * 2 + warpgroup;
    set_rows(params, block, segment);
    iteration += segment->k_tiles;
    return true;
  }

 private:
  // A segment of a grouped launch is a whole tile.
  template <uint32_t kN>
  __device__ __forceinline__ bool next_of_group(const PackedGemmParams& params, uint32_t warpgroup,
                                                GemmSegment* segment) {
    const uint32_t place =
        gemm_tile_place(params.tile_count, params.run_tiles, iteration / params.k_tile_count);
    segment->token_tile = place / params.row_pairs;
    if (segment->token_tile >= params.token_tiles) return false;
    const TokenTile tokens = params.groups[segment->token_tile];
    if (tokens.count == 0) return false;  // nor has any tile after it
    segment->first_iteration = iteration;
    segment->first_k_tile = 0;
    segment->k_tiles = params.k_tile_count;
    segment->groups = segment->k_tiles * 8;
    if (kSkipsPadding<kN>) segment->groups = min(segment->groups, params.k_groups);
    segment->group = tokens.group;
    segment->is_half = false;
    segment->first_token = tokens.first;
    segment->tokens = tokens.count;
    segment->partition = 0;
    const uint32_t rank = blockIdx.x % kGemmCluster;
    set_rows(params, place % params.row_pairs * 4 + rank * 2 + warpgroup, segment);
    iteration += segment->k_tiles;
    return true;
  }

  // Sets matrix and first row of the warpgroup's block of rows.
  static __device__ __forceinline__ void set_rows(const PackedGemmParams& params, uint32_t block,
                                                  GemmSegment* segment) {
    const bool is_gate = params.epilogue >= Epilogue::kSiluGate;
    segment->matrix = 0;
    for (uint32_t m = 1; m < params.matrix_count && !is_gate; ++m)
      if (block / 2 >= params.first_tile[m]) segment->matrix = m;
    segment->first_row = (block - params.first_tile[segment->matrix] * 2) *
                         (is_gate ? kGemmGroupRows / 2 : kGemmGroupRows);
  }
};

// The ring of packed tiles of a consumer warp. A stage holds a K-tile of the warp's 16 rows, or a
// quarter of it if the type is large (gemm_parts).
struct GemmWeights {
  Pipeline ring;        // `data` is the address of this warp's bytes of stage 0
  PipelineState stage;  // the stage to read next
  // The segments to copy, and within the current one: the next packed tile (as a pointer, which is
  // null if the rows are past the end of the matrix, and as an index) and the stages left to copy.
  GemmWork work;
  const uint8_t* m_tile;
  uint32_t packed_tile = 0, parts = 0;
  uint32_t packed_tile_bytes;

  // Copies the next packed tiles into stage `index`, whose previous contents the warp has read.
  // First and Second may differ in the bytes of a packed tile, but not in its number of inputs.
  template <class First, class Second, uint32_t kN, bool kIsGrouped>
  __device__ __forceinline__ void fetch(const PackedGemmParams& params, uint32_t warp,
                                        uint32_t index) {
    static_assert(First::kPackedTiles == Second::kPackedTiles);
    constexpr uint32_t kParts = gemm_parts(First::kKTileBytes);
    constexpr uint32_t kPackedTiles = First::kPackedTiles / kParts;  // of a stage
    if (parts == 0) {
      GemmSegment segment;
      if (!work.next<kN, kIsGrouped>(params, warp / 4, &segment)) return;
      const bool is_gate = params.epilogue >= Epilogue::kSiluGate;
      const uint32_t matrix = matrix_of(params, segment, warp);
      const uint32_t m = warp % (is_gate ? 2 : 4);
      const uint32_t row = segment.first_row + m * quant::kMTileRows;
      packed_tile_bytes =
          (matrix >= params.second_matrix ? Second::kKTileBytes : First::kKTileBytes) /
          First::kPackedTiles;
      packed_tile = segment.first_k_tile * First::kPackedTiles;
      parts = (segment.groups + 8 / kParts - 1) / (8 / kParts);
      uint32_t m_tiles = row / quant::kMTileRows;  // before it
      if (kIsGrouped) m_tiles += segment.group * m_tiles_of(params.rows[matrix]);
      m_tile =
          row < params.rows[matrix]
              ? params.packed_tiles[matrix] +
                    (uint64_t{m_tiles} * params.packed_tile_count + packed_tile) * packed_tile_bytes
              : nullptr;
    }
    const uint32_t lane = threadIdx.x % 32, barrier = ring.full_barrier(index);
    const uint32_t target = ring.target(index);
    uint32_t bytes = kPackedTiles * packed_tile_bytes;
    if (First::kPackedTiles > 1 && packed_tile + kPackedTiles > params.packed_tile_count) {
      // Zeros take the place of packed tiles past the end of an M-tile.
      bytes = packed_tile < params.packed_tile_count
                  ? (params.packed_tile_count - packed_tile) * packed_tile_bytes
                  : 0;
      for (uint32_t i = bytes + lane * 16; i < kPackedTiles * packed_tile_bytes; i += 512)
        clear_shared_16_bytes(target + i);
      __syncwarp();
    }
    if (lane == 0) {
      mbarrier_expect_tx(barrier, m_tile != nullptr ? bytes : 0);
      if (m_tile != nullptr && bytes != 0) bulk_copy(target, m_tile, bytes, barrier);
    }
    __syncwarp();
    if (m_tile != nullptr) m_tile += kPackedTiles * packed_tile_bytes;
    packed_tile += kPackedTiles;
    --parts;
  }
};

// Runs on one lane of the producer: copies the activations, stage by stage. Each CTA of the cluster
// copies one half of every stage to both CTAs (multicast); of a grouped launch only the tokens that
// the tile has, for the sums of others are not written.
template <uint32_t kN, bool kIsGrouped>
__device__ __forceinline__ void produce_tokens(const PackedGemmParams& params,
                                               const Pipeline& ring) {
  constexpr uint32_t kBytes = kGemmTokenStageBytes, kHalf = kBytes / kGemmCluster;
  constexpr uint32_t kStages = kKTileInputs / 32 / gemm_stage_groups(kN);  // of a K-tile
  const uint32_t offset = blockIdx.x % kGemmCluster * kHalf;
  GemmWork work(params);
  GemmSegment segment;
  PipelineState stage;
  dependent_wait();
  while (work.next<kN, kIsGrouped>(params, 0, &segment)) {
    const uint8_t* source =
        reinterpret_cast<const uint8_t*>(params.h) + offset +
        (uint64_t{segment.token_tile} * params.k_tile_count + segment.first_k_tile) *
            (kStages * kBytes);
    const uint32_t stages = segment.groups / gemm_stage_groups(kN);
    for (uint32_t i = 0; i < stages; ++i, source += kBytes) {
      const uint32_t barrier = ring.full_barrier(stage.stage);
      ring.wait_empty(stage);
      // A half of a stage for 128 tokens is a panel of 64 inputs of each.
      static_assert(!kIsGrouped || kHalf == kN * 128);
      const uint32_t bytes = kIsGrouped ? segment.tokens * 128 : kHalf;
      mbarrier_expect_tx(barrier, bytes * kGemmCluster);
      bulk_copy_multicast(ring.target(stage.stage) + offset, source, bytes, barrier, 3);
      stage.advance(ring.stages);
    }
  }
}

// Adds a segment's products to the sums of a warpgroup, for kTokens of a tile's kN tokens, from
// `first_token` on. `packed_tiles` points to weights.ring.data.
template <class First, class Second, bool kIsSecond, uint32_t kN, uint32_t kTokens, bool kIsGrouped>
__device__ __forceinline__ void multiply(const PackedGemmParams& params, uint32_t groups,
                                         uint32_t warp, float scale_factor, uint32_t first_token,
                                         const uint8_t* packed_tiles, GemmWeights& weights,
                                         const Pipeline& tokens, PipelineState& token_stage,
                                         float (&sums)[kTokens / 2]) {
  using Operand = std::conditional_t<kIsSecond, Second, First>;
  constexpr uint32_t kStageGroups = gemm_stage_groups(kN);
  const uint32_t lane = threadIdx.x % 32;
  const auto release = [&](uint32_t barrier) {
    __syncwarp();
    if (lane < kGemmCluster) mbarrier_arrive_cluster(cluster_address(barrier, lane));
  };
  const auto place = [&](uint32_t stage) {
    return packed_tiles + stage * params.weight_stage_bytes;
  };
  constexpr uint32_t kParts = gemm_parts(Operand::kKTileBytes), kPartGroups = 8 / kParts;
  const auto next_weights = [&] {
    __syncwarp();
    weights.fetch<First, Second, kN, kIsGrouped>(params, warp, weights.stage.stage);
    weights.stage.advance(params.weight_stages);
  };
  const __half2 factors = __float2half2_rn(scale_factor);
  Operand operands[2];  // of the two halves of a K-tile
  uint32_t a[2][8];     // operand A of this group and the previous one
  uint32_t last = 0;    // the stage of activations before the current one
  uint64_t descriptor = 0;
  if constexpr (kParts == 1) {
    weights.ring.wait_full(weights.stage);
    operands[0].load(place(weights.stage.stage), 0, lane, factors);
  }
#pragma unroll 1
  for (uint32_t first = 0; first < groups; first += 8) {
#pragma unroll
    for (uint32_t group = 0; group < 8; ++group) {
      const uint32_t half = group / 4, m = group % 4;
      if (group % kStageGroups == 0) {
        tokens.wait_full(token_stage);
        descriptor = wgmma_descriptor(tokens.target(token_stage.stage) + first_token * 128, 16);
      }
      // If a stage holds only a part of a K-tile, the pointer is moved back by the parts before it,
      // because load() expects a whole K-tile.
      if constexpr (kParts > 1) {
        if (group % kPartGroups == 0) {
          weights.ring.wait_full(weights.stage);
          operands[half].load(
              place(weights.stage.stage) - group / kPartGroups * (Operand::kKTileBytes / kParts),
              half, lane, factors);
        }
      }
      // Only the products of the previous group may still be in flight. The operand registers of
      // the group before it are free and, at the second group of a stage, so is the previous stage.
      wgmma_wait<1>();
      if (group % kStageGroups == 1 && (group > kStageGroups || first > 0))
        release(tokens.empty_barrier(last));
      operands[half].group(half, m, lane, a[group % 2]);
      wgmma_fence();
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t step = group % kStageGroups * 2 + i;  // 16 inputs; 4 per panel
        wgmma<kTokens, false>(sums, a[group % 2] + 4 * i,
                              descriptor + step / 4 * (kN * 128 / 16) + step % 4 * 2);
      }
      wgmma_commit();
      if (group % kStageGroups == kStageGroups - 1) {
        last = token_stage.stage;
        token_stage.advance(params.token_stages);
      }
      // Loads the next operands while these products run.
      if constexpr (kParts == 1) {
        if (group == 0) operands[1].load(place(weights.stage.stage), 1, lane, factors);
        if (group == 4 && first + 8 < groups) {
          PipelineState next = weights.stage;
          next.advance(params.weight_stages);
          weights.ring.wait_full(next);
          operands[0].load(place(next.stage), 0, lane, factors);
        }
      }
      if (kParts > 1 && group % kPartGroups == kPartGroups - 1) next_weights();
      if (kSkipsPadding<kN> && group % kStageGroups == kStageGroups - 1 &&
          first + group + 1 >= groups)
        break;
    }
    if (kParts == 1) next_weights();
  }
  wgmma_wait<0>();
  accumulator_fence(sums);
  release(tokens.empty_barrier(last));
  divide_by_scale_factor<Operand>(scale_factor, sums);
}

__device__ __forceinline__ void sync_warpgroup(uint32_t warpgroup) {
  named_barrier_sync(warpgroup + 1, 128);
}

// Stores a thread's partial sums of a tile, or adds stored ones to `sums`. The 128 threads of a
// warpgroup store their float4s interleaved: `part` points to the first float4 of this thread.
template <uint32_t kSums>
__device__ __forceinline__ void store_partial(float4* part, const float (&sums)[kSums]) {
#pragma unroll
  for (uint32_t i = 0; i < kSums / 4; ++i)
    __stcg(part + i * 128,
           make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
}
template <uint32_t kSums>
__device__ __forceinline__ void add_partial(const float4* part, float (&sums)[kSums]) {
  constexpr uint32_t kInFlight = 16;  // loads in flight
#pragma unroll
  for (uint32_t begin = 0; begin < kSums / 4; begin += kInFlight) {
    float4 values[kInFlight];
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) values[i] = __ldcg(part + (begin + i) * 128);
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      sums[4 * (begin + i)] += values[i].x;
      sums[4 * (begin + i) + 1] += values[i].y;
      sums[4 * (begin + i) + 2] += values[i].z;
      sums[4 * (begin + i) + 3] += values[i].w;
    }
  }
}

// Adds the partial sums of a tile, for the rows of one warpgroup. If several CTAs computed them,
// the last CTA to finish adds them; if one CTA computed all of them, it adds them in its last
// segment of the tile. Returns true if `sums` now holds the complete sums, and false if another CTA
// or a later segment completes them.
template <uint32_t kN>
__device__ __forceinline__ bool join_partitions(const PackedGemmParams& params,
                                                const GemmSegment& segment, uint32_t warpgroup,
                                                float (&sums)[kN / 2], GemmOutputs* outputs) {
  const uint32_t thread = threadIdx.x % 128, rank = blockIdx.x % kGemmCluster;
  const bool is_fixed = params.partitions > 1;
  const uint32_t tile = segment.first_iteration / params.k_tile_count;
  // Indices of the first and the last partial sums of the tile. If K is cut into fixed partitions,
  // partial sums are numbered over all tiles. Otherwise they have the index of the cluster that
  // computed them.
  const uint32_t first =
      is_fixed ? tile * params.partitions : GemmWork::cluster_of(params, segment.first_iteration);
  const uint32_t last =
      is_fixed ? first + params.partitions - 1
               : GemmWork::cluster_of(params, segment.first_iteration + params.k_tile_count - 1);
  // If K is not cut into fixed partitions, a CTA stores at most two partial sums: number 1 of a
  // tile that it begins, and number 0 of a tile that an earlier cluster began.
  const auto partial_at = [&](uint32_t part) {
    const uint64_t partial = is_fixed ? part * kGemmCluster + rank
                                      : (part * kGemmCluster + rank) * 2 + (part == first ? 1 : 0);
    return reinterpret_cast<float4*>(params.partials) + (partial * 2 + warpgroup) * (kN / 8 * 128) +
           thread;
  };
  if (params.tile_pieces == 1) {  // this CTA computes all partitions, one after the other
    float4* const own = partial_at(blockIdx.x / kGemmCluster);
    if (segment.partition != 0) add_partial(own, sums);
    if (segment.partition + 1 == params.partitions) return true;
    store_partial(own, sums);
    return false;
  }
  float4* const own = partial_at(is_fixed ? first + segment.partition : blockIdx.x / kGemmCluster);
  store_partial(own, sums);
  __threadfence();
  sync_warpgroup(warpgroup);
  if (thread == 0) {
    uint32_t* const counter =
        params.counters + ((is_fixed ? tile : first) * kGemmCluster + rank) * 2 + warpgroup;
    const bool is_last = atomicAdd(counter, 1) == last - first;
    if (is_last) *counter = 0;
    outputs->is_last = is_last ? 1 : 0;
  }
  sync_warpgroup(warpgroup);
  if (outputs->is_last == 0) return false;
  __threadfence();
#pragma unroll
  for (uint32_t i = 0; i < kN / 2; ++i) sums[i] = 0.0f;
#pragma unroll 1
  for (uint32_t part = first; part <= last; ++part) add_partial(partial_at(part), sums);
  return true;
}

// Stores a warpgroup's sums of 32 tokens in shared memory, from token `begin` of the tile on.
template <uint32_t kN>
__device__ __forceinline__ void store_sums(uint32_t begin, uint32_t warp,
                                           const float (&sums)[kN / 2], GemmOutputs* outputs) {
  const uint32_t lane = threadIdx.x % 32;
  float* const target =
      outputs->sums + lane % 4 * 2 * kGemmOutputStride + warp % 4 * quant::kMTileRows + lane / 4;
#pragma unroll
  for (uint32_t t = 0; t < kN / 8; ++t) {
    if (t / 4 != begin / kGemmOutputTokens) continue;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k)
      target[(t % 4 * 8 + k % 2) * kGemmOutputStride + k / 2 * 8] = sums[t * 4 + k];
  }
}

// Writes the outputs of gate and up as operand B of the next product. The 32 rows of a warpgroup
// are one group of inputs of that product. A warpgroup handles 32 tokens at a time, and each thread
// writes 8 inputs of one token, 16 bytes.
template <uint32_t kN>
__device__ __forceinline__ void finish_operand(const PackedGemmParams& params,
                                               const GemmSegment& segment, uint32_t warp,
                                               float weight_scale, const float (&sums)[kN / 2],
                                               GemmOutputs* outputs) {
  constexpr uint32_t kRows = kGemmGroupRows / 2;
  const GemmOperand& operand = params.operand;
  const uint32_t thread = threadIdx.x % 128, warpgroup = warp / 4;
  const uint32_t first_row = segment.first_row, tokens = segment.tokens;
  for (uint32_t i = thread; i < kN; i += 128) {
    const uint32_t token = segment.first_token + i;
    const float norm = i < tokens ? params.norms[token] * 1.01f : 0.0f;  // inputs are rounded
    const int32_t exponent = scale_exponent(operand.gate_norm * norm * (operand.up_norm * norm));
    outputs->scales[i] = i < tokens ? params.scales[token] * weight_scale : 0.0f;
    outputs->exponents[i] = static_cast<int8_t>(exponent);
    if (first_row == 0 && i < tokens) operand.out.scales[token] = power_of_two(-exponent);
  }
  if (first_row >= params.rows[0]) return;
  const uint32_t piece = thread % 4;
  uint32_t rows[8];  // rows within the group, in the order of the operand
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) rows[i] = input_of_place(operand.out.order, piece * 8 + i);
  const uint32_t place = first_row / 8 + piece;  // index among the token's pieces of 8 inputs
  const bool is_silu = params.epilogue == Epilogue::kSiluGate;
#pragma unroll 1
  for (uint32_t begin = 0; begin < kN && begin < tokens; begin += kGemmOutputTokens) {
    store_sums<kN>(begin, warp, sums, outputs);
    sync_warpgroup(warpgroup);
    const uint32_t i = begin + thread / 4, token = segment.first_token + i;
    const float scale = outputs->scales[i], factor = power_of_two(outputs->exponents[i]);
    const float* const sum = outputs->sums + thread / 4 * kGemmOutputStride;
    uint32_t words[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      float values[2];
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const uint32_t row = rows[2 * j + k];
        values[k] =
            activation_fast(is_silu, sum[row] * scale) * (sum[row + kRows] * scale) * factor;
      }
      words[j] = half2_bits(__floats2half2_rn(values[0], values[1]));
    }
    if (i < tokens) {
      reinterpret_cast<uint4*>(operand.out.h)[operand.out.piece_index(token, place)] =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
    sync_warpgroup(warpgroup);
  }
}

// Stores the outputs of a warpgroup's rows of a tile, or adds them, by bulk copies: a token's rows
// are up to 256 consecutive bytes. Two buffers of 16 tokens take turns.
template <bool kIsGrouped, uint32_t kN>
__device__ __forceinline__ void finish_in_bulk(const PackedGemmParams& params,
                                               const GemmSegment& segment, uint32_t warp,
                                               float weight_scale, const float (&sums)[kN / 2],
                                               GemmOutputs* outputs) {
  constexpr uint32_t kTokens = kGemmOutputTokens / 2, kSpans = kTokens / 8;  // of 8 tokens
  const uint32_t thread = threadIdx.x % 128, lane = thread % 32, warpgroup = warp / 4;
  const uint32_t rows = params.rows[segment.matrix], tokens = segment.tokens;
  const uint32_t first_row = segment.first_row;
  const uint32_t place = warp % 4 * quant::kMTileRows + lane / 4;  // of a row, and of row + 8
  for (uint32_t i = thread; i < kN; i += 128)
    outputs->scales[i] = i < tokens ? params.scales[segment.first_token + i] * weight_scale : 0.0f;
  const float* const biases = biases_of<kIsGrouped>(params, segment, segment.matrix);
  float bias[2] = {};
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i)
    if (biases != nullptr && first_row + place + 8 * i < rows)
      bias[i] = biases[first_row + place + 8 * i];
  const uint32_t bytes =
      first_row < rows ? min(kGemmGroupRows, rows - first_row) * uint32_t{sizeof(float)} : 0;
  float* const target =
      params.outputs[segment.matrix] + uint64_t{segment.first_token} * rows + first_row;
  bulk_wait_read();           // of the tile before
  sync_warpgroup(warpgroup);  // scales are there
#pragma unroll
  for (uint32_t begin = 0; begin < kN; begin += kTokens) {
    if (begin >= tokens) break;
    float* const buffer = outputs->sums + begin / kTokens % 2 * (kTokens * kGemmOutputStride);
#pragma unroll
    for (uint32_t span = 0; span < kSpans; ++span) {
      const uint32_t token = span * 8 + lane % 4 * 2;
      const float2 scale = *reinterpret_cast<const float2*>(outputs->scales + begin + token);
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k)
        buffer[(token + k % 2) * kGemmOutputStride + place + k / 2 * 8] =
            sums[(begin / 8 + span) * 4 + k] * (k % 2 == 0 ? scale.x : scale.y) + bias[k / 2];
    }
    fence_proxy_async();
    bulk_wait_read();  // of the other buffer, which all may overwrite after the barrier
    sync_warpgroup(warpgroup);
    const uint32_t token = warp % 4 * (kTokens / 4) + lane;
    if (lane < kTokens / 4 && begin + token < tokens && bytes != 0) {
      float* const to = target + uint64_t{begin + token} * rows;
      const uint32_t from = shared_address(buffer + token * kGemmOutputStride);
      if (params.epilogue == Epilogue::kAdd)
        bulk_add(to, from, bytes);
      else
        bulk_store(to, from, bytes);
    }
    bulk_commit();
  }
}

// Writes the outputs of a warpgroup's rows of a tile. They pass through shared memory, 32 tokens at
// a time, so that the code is short and each store covers whole cache lines. Each thread writes one
// row, for every kStep-th token.
template <bool kIsGate, bool kIsGrouped, uint32_t kN>
__device__ __forceinline__ void finish(const PackedGemmParams& params, const GemmSegment& segment,
                                       uint32_t warp, float weight_scale,
                                       const float (&sums)[kN / 2], GemmOutputs* outputs) {
  constexpr uint32_t kRows = kIsGate ? kGemmGroupRows / 2 : kGemmGroupRows;
  constexpr uint32_t kStep = 128 / kRows;
  constexpr uint32_t kOutputs = kGemmOutputTokens / kStep;  // outputs per thread and 32 tokens
  const uint32_t thread = threadIdx.x % 128, warpgroup = warp / 4;
  const uint32_t row = segment.first_row + thread % kRows;
  const uint32_t rows = params.rows[segment.matrix], first = thread / kRows;
  const bool has_previous = !kIsGate && params.epilogue != Epilogue::kStore;
  const bool is_times = has_previous && params.epilogue != Epilogue::kAdd;
  const bool is_silu =
      params.epilogue == Epilogue::kSiluGate || params.epilogue == Epilogue::kSiluTimes;
  float bias = 0.0f, up_bias = 0.0f;
  const float* const biases = biases_of<kIsGrouped>(params, segment, segment.matrix);
  if (row < rows && biases != nullptr) bias = biases[row];
  if constexpr (kIsGate) {
    const float* const up_biases = biases_of<kIsGrouped>(params, segment, 1);
    if (row < rows && up_biases != nullptr) up_bias = up_biases[row];
  }
  for (uint32_t i = thread; i < kN; i += 128)
    outputs->scales[i] =
        i < segment.tokens ? params.scales[segment.first_token + i] * weight_scale : 0.0f;
  const uint64_t stride = uint64_t{kStep} * rows;
  float* place =
      params.outputs[segment.matrix] + uint64_t{segment.first_token + first} * rows + row;
  // Tokens of the tile from the thread's first token on; 0 for rows past the end of the matrix.
  const uint32_t tokens = row < rows && segment.tokens > first ? segment.tokens - first : 0;
  float previous[kOutputs];
  const auto fetch = [&](const float* from, uint32_t begin) {
#pragma unroll
    for (uint32_t i = 0; i < kOutputs; ++i)
      previous[i] = has_previous && begin + i * kStep < tokens ? from[i * stride] : 0.0f;
  };
  fetch(place, 0);
  const float* const sum = outputs->sums + first * kGemmOutputStride + thread % kRows;
#pragma unroll 1
  for (uint32_t begin = 0; begin < kN; begin += kGemmOutputTokens) {
    if (begin >= segment.tokens) break;
    store_sums<kN>(begin, warp, sums, outputs);
    sync_warpgroup(warpgroup);
    float values[kOutputs];
#pragma unroll
    for (uint32_t i = 0; i < kOutputs; ++i) {
      const float scale = outputs->scales[begin + first + i * kStep];
      values[i] = sum[i * kStep * kGemmOutputStride] * scale + bias;
      if constexpr (kIsGate)
        values[i] = activation_fast(is_silu, values[i]) *
                    (sum[i * kStep * kGemmOutputStride + kRows] * scale + up_bias);
      else
        values[i] =
            is_times ? activation_fast(is_silu, values[i]) * previous[i] : values[i] + previous[i];
    }
    float* const next = place + kOutputs * stride;
    if (has_previous) fetch(next, begin + kGemmOutputTokens);
#pragma unroll
    for (uint32_t i = 0; i < kOutputs; ++i) {
      if (begin + i * kStep < tokens) *place = values[i];
      place += stride;
    }
    sync_warpgroup(warpgroup);
  }
}

#endif

template <TensorType kType, TensorType kSecond, uint32_t kN, bool kIsGrouped = false>
__global__ void __launch_bounds__(kGemmThreads, 1)
    packed_gemm_kernel(const __grid_constant__ PackedGemmParams params) {
#if WCUDA_HAS_WARPGROUPS
  using First = HalfTile<kType>;
  using Second = HalfTile<kSecond>;
  extern __shared__ __align__(1024) uint8_t gemm_shared[];
  // The swizzle is a function of the shared-memory address, so the data must be aligned. Dynamic
  // shared memory may begin unaligned, because static codebook tables are placed before it.
  const uint32_t start = shared_address(gemm_shared);
  const uint32_t aligned = (start + kGemmAlignment - 1) / kGemmAlignment * kGemmAlignment;
  uint8_t* const shared = gemm_shared + (aligned - start);
  // The shuffle shows the compiler that `warp` is uniform, and so are values derived from it.
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

  Pipeline tokens;
  tokens.full = aligned + kGemmTokenBarriers;
  tokens.empty = tokens.full + kGemmStagesMax * kBarrierBytes;
  tokens.data = aligned + kGemmBarrierBytes;
  tokens.stage_bytes = kGemmTokenStageBytes;
  tokens.stages = params.token_stages;
  const uint32_t output_offset = kGemmBarrierBytes + params.token_stages * kGemmTokenStageBytes;
  const uint32_t weight_offset =
      output_offset + kGemmOutputBytes + warp * (params.weight_stage_bytes / kGemmWarps);

  dependent_trigger();
  if (threadIdx.x == kGemmWarps * 32) {
    for (uint32_t i = 0; i < params.token_stages; ++i) {
      mbarrier_init(tokens.full_barrier(i), 1);
      mbarrier_init(tokens.empty_barrier(i), kGemmWarps * kGemmCluster);
    }
    for (uint32_t i = 0; i < kGemmWarps * kGemmStagesMax; ++i)
      mbarrier_init(aligned + i * kBarrierBytes, 1);
    mbarrier_init_fence();
    fence_proxy_async();
  }
  prepare_operand<First>(0);
  cluster_sync();
  if (kIsGrouped) dependent_wait();  // for the list of tiles

  if (warp >= kGemmWarps) {
    registers_release<32>();
    if (threadIdx.x == kGemmWarps * 32) produce_tokens<kN, kIsGrouped>(params, tokens);
    __syncwarp();
  } else {
    registers_acquire<232>();
    GemmWeights weights{{}, {}, GemmWork(params), nullptr, 0, 0, 0};
    weights.ring.full = aligned + warp * (kGemmStagesMax * kBarrierBytes);
    weights.ring.data = aligned + weight_offset;
    weights.ring.stage_bytes = params.weight_stage_bytes;
    weights.ring.stages = params.weight_stages;
    for (uint32_t i = 0; i < params.weight_stages; ++i)
      weights.fetch<First, Second, kN, kIsGrouped>(params, warp, i);

    auto* const outputs = reinterpret_cast<GemmOutputs*>(shared + output_offset) + warp / 4;
    GemmWork work(params);
    GemmSegment segment;
    PipelineState token_stage;
    while (work.next<kN, kIsGrouped>(params, warp / 4, &segment)) {
      float sums[kN / 2] = {};
      const bool is_second = kType != kSecond && segment.matrix >= params.second_matrix;
      const uint32_t first = kIsGrouped ? 0 : segment.first_token % kN;
      const float scale_factor = params.scale_factors[matrix_of(params, segment, warp)];
      const uint8_t* const packed_tiles = shared + weight_offset;
      if (kType != kSecond && is_second)
        multiply<First, Second, true, kN, kN, kIsGrouped>(params, segment.groups, warp,
                                                          scale_factor, first, packed_tiles,
                                                          weights, tokens, token_stage, sums);
      else if (kN == kGemmShortTokens && kType == kSecond && segment.is_half)
        multiply<First, Second, false, kN, kN / 2, kIsGrouped>(
            params, segment.groups, warp, scale_factor, first, packed_tiles, weights, tokens,
            token_stage, reinterpret_cast<float(&)[kN / 4]>(sums));
      else if (kIsGrouped && segment.tokens <= kGroupedFewTokens)
        multiply<First, Second, false, kN, kGroupedFewTokens, kIsGrouped>(
            params, segment.groups, warp, scale_factor, first, packed_tiles, weights, tokens,
            token_stage, reinterpret_cast<float(&)[kGroupedFewTokens / 2]>(sums));
      else
        multiply<First, Second, false, kN, kN, kIsGrouped>(params, segment.groups, warp,
                                                           scale_factor, first, packed_tiles,
                                                           weights, tokens, token_stage, sums);
      dependent_wait();
      if (!kIsGrouped && segment.k_tiles < params.k_tile_count &&
          !join_partitions<kN>(params, segment, warp / 4, sums, outputs))
        continue;
      const float weight_scale = 1.0f / (is_second ? Second::kWeightScale : First::kWeightScale);
      if (!kIsGrouped && params.operand.out.h != nullptr)
        finish_operand<kN>(params, segment, warp, weight_scale, sums, outputs);
      else if (params.writes_in_bulk)
        finish_in_bulk<kIsGrouped, kN>(params, segment, warp, weight_scale, sums, outputs);
      else if (params.epilogue >= Epilogue::kSiluGate)
        finish<true, kIsGrouped, kN>(params, segment, warp, weight_scale, sums, outputs);
      else
        finish<false, kIsGrouped, kN>(params, segment, warp, weight_scale, sums, outputs);
    }
    bulk_wait();  // the outputs are in memory when the kernel ends
  }
  // Neither CTA of the cluster exits while the other may still write to its shared memory.
  cluster_sync();
#endif
}

// The kernels for one weight type or two, and what their launcher needs to know.
struct GemmKernel {
  TensorType type;
  TensorType second_type;  // equal to `type` if there is only one
  InputOrder order;
  uint32_t k_tile_bytes;                              // if there are two types, the larger size
  uint32_t packed_tiles;                              // per K-tile
  void (*kernels[2])(const PackedGemmParams params);  // for each size in kGemmTileTokens
  void (*grouped)(const PackedGemmParams params);     // null if there are two types
};

// Returns the kernels for one weight type, or for layers whose matrices have two types.
template <TensorType kType, TensorType kSecond>
const GemmKernel* packed_gemm_kernels() {
  using First = HalfTile<kType>;
  using Second = HalfTile<kSecond>;
  static_assert(First::kOrder == Second::kOrder && First::kPackedTiles == Second::kPackedTiles);
  static constexpr auto kGrouped = [] {
    if constexpr (kType == kSecond)
      return packed_gemm_kernel<kType, kSecond, kGroupedTokens, true>;
    else
      return nullptr;
  };
  static constexpr GemmKernel kKernel = {
      kType,
      kSecond,
      First::kOrder,
      First::kKTileBytes > Second::kKTileBytes ? First::kKTileBytes : Second::kKTileBytes,
      First::kPackedTiles,
      {packed_gemm_kernel<kType, kSecond, 128>, packed_gemm_kernel<kType, kSecond, 256>},
      kGrouped()};
  return &kKernel;
}

// Instantiates the kernels of one type (passed twice) or of two, in a source file of their own.
#define WCUDA_PACKED_GEMM(type, second_type) \
  template const GemmKernel* packed_gemm_kernels<type, second_type>()

}  // namespace wcuda::kernels
