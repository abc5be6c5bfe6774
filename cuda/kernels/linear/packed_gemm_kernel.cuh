// The kernel of packed_gemm for one weight type or two. Only for .cu files.
//
//   CTA        two consumer warpgroups of 64 rows each, and a producer warpgroup, of which one
//              thread works; it leaves its registers to the others. One CTA per SM
//   tile       128 rows (of a gate: 64 of gate, 64 of up) x kN tokens, summed over all K-tiles
//   iteration  a K-tile (256 inputs) of two tiles one below the other: what a cluster of two CTAs
//              computes at a time. Its tokens are copied once, to both CTAs
//
// Iterations are numbered tile by tile, and each cluster computes an equal run of them (stream-K),
// so that every SM is busy to the end:
//
//   tiles      |------- 0 -------|------- 1 -------|------- 2 -------|
//   clusters   |---- 0 ----|---- 1 ----|---- 2 ----|---- 3 ----|- 4 …
//
// With tiles of 64 tokens an SM has two CTAs, each for one run, a part of one tile. The CTAs of a
// cluster compute a tile: each writes its sums to its shared memory, adds those of some of the
// tokens in the order of K, and writes the outputs.
//
// Otherwise a CTA whose run covers only some of a tile's K-tiles writes its sums to memory and
// increments a counter. The last one adds the partials in the order of K and writes the outputs. No
// CTA waits for another, and the order of the sum does not depend on which one is last.
//
// Tiles are numbered so that clusters work on neighbouring tiles at the same time: the weights and
// tokens that several of them read come from L2.
//
// Each consumer warp copies the packed tiles of its own 16 rows into a ring in shared memory, the
// first ones before the previous kernel has ended. It converts them to operand A in its registers
// while the MMAs of the previous group run (wgmma m64nNk16, f32 sums). Tokens have the order of
// half_input.h and the 128-byte swizzle.
//
// Bytes moved: packed tiles once for each tile of tokens (from memory once), tokens once for each
// 256 rows, partial sums at most twice 4 * 128 * kN per CTA.
#pragma once

#include <type_traits>

#include "kernels/linear/half_tile.cuh"
#include "kernels/linear/linear_activation.cuh"
#include "kernels/linear/packed_gemm_params.h"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/pipeline.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace wcuda::kernels {

#if WCUDA_HAS_WARPGROUPS

// A run of K-tiles of one tile.
struct GemmSegment {
  uint32_t first_k_tile;
  uint32_t k_tiles;
  uint32_t first_column;
  uint32_t first_row;  // of the matrix
  uint32_t matrix;
  uint32_t first_iteration;  // of the whole tile
};

// The segments of a CTA, one after the other: a run of iterations.
template <uint32_t kN>
struct GemmWork {
  uint32_t iteration;
  uint32_t end;

  static __device__ __forceinline__ uint32_t runs() { return gridDim.x / gemm_pair(kN); }
  static __device__ __forceinline__ uint32_t run() { return blockIdx.x / gemm_pair(kN); }
  // The first iteration of a run, and the run that computes an iteration.
  static __device__ __forceinline__ uint32_t first_iteration(const PackedGemmParams& params,
                                                             uint32_t run) {
    return static_cast<uint32_t>(uint64_t{params.iteration_count / params.granule} * run / runs()) *
           params.granule;
  }
  static __device__ __forceinline__ uint32_t run_of(const PackedGemmParams& params,
                                                    uint32_t iteration) {
    return static_cast<uint32_t>(((iteration + uint64_t{1}) * runs() - 1) / params.iteration_count);
  }

  explicit __device__ GemmWork(const PackedGemmParams& params)
      : iteration(first_iteration(params, run())), end(first_iteration(params, run() + 1)) {}

  __device__ __forceinline__ bool next(const PackedGemmParams& params, GemmSegment* segment) {
    if (iteration >= end) return false;
    const uint32_t tile = iteration / params.k_tile_count;
    segment->first_iteration = tile * params.k_tile_count;
    segment->first_k_tile = iteration - segment->first_iteration;
    const uint32_t split = ((segment->first_k_tile + 1) * params.splits - 1) / params.k_tile_count;
    segment->k_tiles =
        min(params.k_tile_count * (split + 1) / params.splits, end - segment->first_iteration) -
        segment->first_k_tile;
    const uint32_t place = gemm_tile_place(params.tile_count, params.run_tiles, tile);
    segment->first_column = place % params.column_tiles * kN;
    constexpr uint32_t kPair = gemm_pair(kN);
    const uint32_t row_tile = place / params.column_tiles * kPair + blockIdx.x % kPair;
    const bool is_gate = params.epilogue >= Epilogue::kSiluGate;
    segment->matrix = 0;
#pragma unroll 1
    for (uint32_t m = 1; m < params.matrix_count && !is_gate; ++m)
      if (row_tile >= params.first_tile[m]) segment->matrix = m;
    segment->first_row =
        (row_tile - params.first_tile[segment->matrix]) * (is_gate ? kGemmRows / 2 : kGemmRows);
    iteration += segment->k_tiles;
    return true;
  }
};

// The packed tiles of a consumer warp's rows.
template <uint32_t kN>
struct GemmWeights {
  Pipeline ring;        // data: the warp's
  PipelineState stage;  // that is read next
  // What is copied next.
  GemmWork<kN> work;
  const uint8_t* m_tile;  // at the part; null past the end of a matrix
  uint32_t packed_tile = 0, parts = 0;
  uint32_t packed_tile_bytes;

  // Two types differ in the size of a packed tile, not in its inputs.
  template <class First, class Second>
  __device__ __forceinline__ void fetch(const PackedGemmParams& params, uint32_t warp,
                                        uint32_t index) {
    static_assert(First::kPackedTiles == Second::kPackedTiles);
    constexpr uint32_t kParts = gemm_parts(First::kKTileBytes);
    constexpr uint32_t kPackedTiles = First::kPackedTiles / kParts;  // of a part
    if (parts == 0) {
      GemmSegment segment;
      if (!work.next(params, &segment)) return;
      const bool is_gate = params.epilogue >= Epilogue::kSiluGate;
      // A warpgroup has 64 rows, or 32 of gate and the same of up.
      const uint32_t matrix = is_gate ? warp / 2 % 2 : segment.matrix;
      const uint32_t m = is_gate ? warp / 4 * 2 + warp % 2 : warp;
      const uint32_t row = segment.first_row + m * quant::kMTileRows;
      packed_tile_bytes =
          (matrix >= params.second_matrix ? Second::kKTileBytes : First::kKTileBytes) /
          First::kPackedTiles;
      packed_tile = segment.first_k_tile * First::kPackedTiles;
      parts = segment.k_tiles * kParts;
      m_tile =
          row < params.rows[matrix]
              ? params.packed_tiles[matrix] +
                    (uint64_t{row / quant::kMTileRows} * params.packed_tile_count + packed_tile) *
                        packed_tile_bytes
              : nullptr;
    }
    const uint32_t lane = threadIdx.x % 32, barrier = ring.full_barrier(index);
    const uint32_t target = ring.target(index);
    uint32_t bytes = kPackedTiles * packed_tile_bytes;
    if (First::kPackedTiles > 1 && packed_tile + kPackedTiles > params.packed_tile_count) {
      // Packed tiles past the end of an M-tile are zeros.
      bytes = packed_tile < params.packed_tile_count
                  ? (params.packed_tile_count - packed_tile) * packed_tile_bytes
                  : 0;
      for (uint32_t i = bytes + lane * 16; i < kPackedTiles * packed_tile_bytes; i += 512)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(target + i), "r"(0)
                     : "memory");
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

// The producer's lane: tokens, stage by stage; each CTA of a pair copies half for both.
template <uint32_t kN>
__device__ __forceinline__ void produce_tokens(const PackedGemmParams& params,
                                               const Pipeline& ring) {
  constexpr uint32_t kBytes = gemm_stage_bytes(kN);
  constexpr uint32_t kStages = kKTileInputs / 32 / gemm_stage_groups(kN);  // of a K-tile
  constexpr uint32_t kPair = gemm_pair(kN), kShare = kBytes / kPair;
  const uint32_t offset = blockIdx.x % kPair * kShare;
  GemmWork<kN> work(params);
  GemmSegment segment;
  PipelineState stage;
  dependent_wait();
  while (work.next(params, &segment)) {
    const uint8_t* source =
        reinterpret_cast<const uint8_t*>(params.h) + offset +
        (uint64_t{segment.first_column / kN} * params.k_tile_count + segment.first_k_tile) *
            (kStages * kBytes);
    for (uint32_t i = 0; i < kStages * segment.k_tiles; ++i, source += kBytes) {
      const uint32_t barrier = ring.full_barrier(stage.stage);
      ring.wait_empty(stage);
      mbarrier_expect_tx(barrier, kBytes);
      if constexpr (kPair == 1)
        bulk_copy(ring.target(stage.stage), source, kBytes, barrier);
      else
        bulk_copy_multicast(ring.target(stage.stage) + offset, source, kShare, barrier, 3);
      stage.advance(ring.stages);
    }
  }
}

// Adds a segment's products to the sums of a warpgroup. `weights` lie at packed_tiles.
template <class First, class Second, bool kIsSecond, uint32_t kN>
__device__ __forceinline__ void multiply(const PackedGemmParams& params, uint32_t k_tiles,
                                         uint32_t warp, const uint8_t* packed_tiles,
                                         GemmWeights<kN>& weights, const Pipeline& tokens,
                                         PipelineState& token_stage, float (&sums)[kN / 2]) {
  using Operand = std::conditional_t<kIsSecond, Second, First>;
  constexpr uint32_t kStageGroups = gemm_stage_groups(kN);
  const uint32_t lane = threadIdx.x % 32;
  const auto release = [&](uint32_t barrier) {
    __syncwarp();
    if constexpr (gemm_pair(kN) == 1) {
      if (lane == 0) mbarrier_arrive(barrier);
    } else if (lane < 2) {
      mbarrier_arrive_cluster(cluster_address(barrier, lane));
    }
  };
  const auto place = [&](uint32_t stage) {
    return packed_tiles + stage * params.weight_stage_bytes;
  };
  constexpr uint32_t kParts = gemm_parts(Operand::kKTileBytes), kPartGroups = 8 / kParts;
  const auto next_weights = [&] {
    __syncwarp();
    weights.template fetch<First, Second>(params, warp, weights.stage.stage);
    weights.stage.advance(params.weight_stages);
  };
  Operand operands[2];  // of the halves of a K-tile
  uint32_t a[2][8];
  uint32_t last = 0;  // stage of tokens
  uint64_t descriptor = 0;
  if constexpr (kParts == 1) {
    weights.ring.wait_full(weights.stage);
    operands[0].load(place(weights.stage.stage), 0, lane);
  }
#pragma unroll 1
  for (uint32_t k = 0; k < k_tiles; ++k) {
#pragma unroll
    for (uint32_t group = 0; group < 8; ++group) {
      const uint32_t half = group / 4, m = group % 4;
      if (group % kStageGroups == 0) {
        tokens.wait_full(token_stage);
        descriptor = wgmma_descriptor(tokens.target(token_stage.stage), 16);
      }
      if constexpr (kParts > 1) {  // operands are read from the stage, as if the K-tile lay there
        if (group % kPartGroups == 0) {
          weights.ring.wait_full(weights.stage);
          operands[half].load(
              place(weights.stage.stage) - group / kPartGroups * (Operand::kKTileBytes / kParts),
              half, lane);
        }
      }
      // The products of the group before the last have ended: their operands are free, and at the
      // second group of a stage all of the stage before.
      wgmma_wait<1>();
      if (group % kStageGroups == 1 && (group > kStageGroups || k > 0))
        release(tokens.empty_barrier(last));
      operands[half].group(half, m, lane, a[group % 2]);
      wgmma_fence();
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t step = group % kStageGroups * 2 + i;  // of 16 inputs; panels have 4
        wgmma<kN, false>(sums, a[group % 2] + 4 * i,
                         descriptor + step / 4 * (kN * 128 / 16) + step % 4 * 2);
      }
      wgmma_commit();
      if (group % kStageGroups == kStageGroups - 1) {
        last = token_stage.stage;
        token_stage.advance(params.token_stages);
      }
      // While they run.
      if constexpr (kParts == 1) {
        if (group == 0) operands[1].load(place(weights.stage.stage), 1, lane);
        if (group == 4 && k + 1 < k_tiles) {
          PipelineState next = weights.stage;
          next.advance(params.weight_stages);
          weights.ring.wait_full(next);
          operands[0].load(place(next.stage), 0, lane);
        }
      }
      if (group % kPartGroups == kPartGroups - 1) next_weights();
    }
  }
  wgmma_wait<0>();
  accumulator_fence(sums);
  release(tokens.empty_barrier(last));
}

__device__ __forceinline__ void sync_warpgroup(uint32_t warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}

// A thread's part of a warpgroup's sums in memory.
template <uint32_t kN>
__device__ __forceinline__ void store_part(float4* part, const float (&sums)[kN]) {
#pragma unroll
  for (uint32_t i = 0; i < kN / 4; ++i)
    __stcg(part + i * 128,
           make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
}
template <uint32_t kN>
__device__ __forceinline__ void add_part(const float4* part, float (&sums)[kN]) {
  constexpr uint32_t kTurn = 16;  // loads on their way
#pragma unroll
  for (uint32_t begin = 0; begin < kN / 4; begin += kTurn) {
    float4 values[kTurn];
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) values[i] = __ldcg(part + (begin + i) * 128);
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) {
      sums[4 * (begin + i)] += values[i].x;
      sums[4 * (begin + i) + 1] += values[i].y;
      sums[4 * (begin + i) + 2] += values[i].z;
      sums[4 * (begin + i) + 3] += values[i].w;
    }
  }
}

// Adds the parts of a warpgroup's rows of a tile: of several runs in the last of them, or of one
// run in its last segment of the tile. Returns false in the others.
template <uint32_t kN>
__device__ __forceinline__ bool join_parts(const PackedGemmParams& params,
                                           const GemmSegment& segment, uint32_t warpgroup,
                                           float (&sums)[kN / 2], GemmOutputs<kN>* outputs) {
  using Work = GemmWork<kN>;
  constexpr uint32_t kPair = gemm_pair(kN);
  const uint32_t thread = threadIdx.x % 128, rank = blockIdx.x % kPair;
  const uint32_t first = Work::run_of(params, segment.first_iteration);
  const uint32_t last = Work::run_of(params, segment.first_iteration + params.k_tile_count - 1);
  // A run begins at most one tile that it does not end, and ends at most one that it does not
  // begin.
  const auto part_of = [&](uint32_t run, bool is_first) {
    const uint64_t part = (run * kPair + rank) * 2 + (is_first ? 1 : 0);
    return reinterpret_cast<float4*>(params.partials) + (part * 2 + warpgroup) * (kN / 8 * 128) +
           thread;
  };
  if (params.granule > 1) {
    float4* const own = part_of(Work::run(), false);
    if (segment.first_k_tile != 0) add_part(own, sums);
    if (segment.first_k_tile + segment.k_tiles == params.k_tile_count) return true;
    store_part(own, sums);
    return false;
  }
  store_part(part_of(Work::run(), Work::run() == first), sums);
  __threadfence();
  sync_warpgroup(warpgroup);
  if (thread == 0) {
    uint32_t* const counter = params.counters + (first * kPair + rank) * 2 + warpgroup;
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
  for (uint32_t run = first; run <= last; ++run) add_part(part_of(run, run == first), sums);
  return true;
}

// The row of a tile whose outputs a thread writes, for some of the tokens.
template <bool kIsGate>
struct GemmRow {
  static constexpr uint32_t kRows = kIsGate ? kGemmGroupRows / 2 : kGemmGroupRows;
  static constexpr uint32_t kStep = 128 / kRows;  // tokens from one output to the next
  bool has_previous, is_times, is_silu;
  float bias = 0.0f, up_bias = 0.0f;
  uint32_t rows;
  uint32_t first;   // token of the tile
  uint32_t tokens;  // of the tile from `first` on; none past the end of the matrix
  float* place;     // of the first output

  __device__ __forceinline__ GemmRow(const PackedGemmParams& params, const GemmSegment& segment,
                                     uint32_t warpgroup)
      : has_previous(!kIsGate && params.epilogue != Epilogue::kStore),
        is_times(has_previous && params.epilogue != Epilogue::kAdd),
        is_silu(params.epilogue == Epilogue::kSiluGate || params.epilogue == Epilogue::kSiluTimes),
        rows(params.rows[segment.matrix]),
        first(threadIdx.x % 128 / kRows) {
    const uint32_t row = segment.first_row + warpgroup * kRows + threadIdx.x % kRows;
    if (row < rows && params.biases[segment.matrix] != nullptr)
      bias = params.biases[segment.matrix][row];
    if (kIsGate && row < rows && params.biases[1] != nullptr) up_bias = params.biases[1][row];
    place = params.outputs[segment.matrix] + uint64_t{segment.first_column + first} * rows + row;
    tokens = params.tokens - segment.first_column;
    tokens = row < rows && tokens > first ? tokens - first : 0;
  }
  // From the products' sum (of a gate: and of up's), the token's scale, and what lies there.
  __device__ __forceinline__ float output(float sum, float up_sum, float scale,
                                          float previous) const {
    const float value = sum * scale + bias;
    if constexpr (kIsGate) return activation_fast(is_silu, value) * (up_sum * scale + up_bias);
    return is_times ? activation_fast(is_silu, value) * previous : value + previous;
  }
};

// Writes the sums of kCount tokens from `begin` on to shared memory.
template <uint32_t kCount, uint32_t kSums>
__device__ __forceinline__ void stage_sums(const float (&sums)[kSums], uint32_t begin,
                                           float* target) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  target += lane % 4 * 2 * kGemmOutputStride + warp * quant::kMTileRows + lane / 4;
#pragma unroll
  for (uint32_t t = 0; t < kSums / 4; ++t) {  // of 8 tokens
    if (t / (kCount / 8) != begin / kCount) continue;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k)
      target[(t % (kCount / 8) * 8 + k % 2) * kGemmOutputStride + k / 2 * 8] = sums[t * 4 + k];
  }
}

// Outputs of a warpgroup's rows of a tile, 32 tokens at a time through shared memory, so that
// the code is short and stores are of whole lines.
template <bool kIsGate, uint32_t kN>
__device__ __forceinline__ void finish(const PackedGemmParams& params, const GemmSegment& segment,
                                       uint32_t warpgroup, float weight_scale,
                                       const float (&sums)[kN / 2], GemmOutputs<kN>* outputs) {
  using Row = GemmRow<kIsGate>;
  constexpr uint32_t kTokens = kGemmOutputTokens, kTurn = kTokens / Row::kStep;
  const Row row(params, segment, warpgroup);
  const uint32_t tokens = params.tokens - segment.first_column;
  for (uint32_t i = threadIdx.x % 128; i < kN; i += 128)
    outputs->scales[i] = i < tokens ? params.scales[segment.first_column + i] * weight_scale : 0.0f;
  const uint64_t stride = uint64_t{Row::kStep} * row.rows;
  float* place = row.place;
  float previous[kTurn];
  const auto fetch = [&](const float* from, uint32_t begin) {
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i)
      previous[i] =
          row.has_previous && begin + i * Row::kStep < row.tokens ? from[i * stride] : 0.0f;
  };
  fetch(place, 0);
  const float* const sum = outputs->sums + row.first * kGemmOutputStride + threadIdx.x % Row::kRows;
#pragma unroll 1
  for (uint32_t begin = 0; begin < kN && begin < tokens; begin += kTokens) {
    stage_sums<kTokens>(sums, begin, outputs->sums);
    sync_warpgroup(warpgroup);
    float values[kTurn];
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) {
      const float* const at = sum + i * Row::kStep * kGemmOutputStride;
      values[i] = row.output(at[0], at[kIsGate ? Row::kRows : 0],
                             outputs->scales[begin + row.first + i * Row::kStep], previous[i]);
    }
    float* const next = place + kTurn * stride;
    if (row.has_previous) fetch(next, begin + kTokens);
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) {
      if (begin + i * Row::kStep < row.tokens) *place = values[i];
      place += stride;
    }
    sync_warpgroup(warpgroup);
  }
}

// Outputs of a tile whose parts the CTAs of a cluster hold: each adds those of some tokens in the
// order of K, and writes them. The sums take the place of the CTA's stages, all of which have been
// read.
template <bool kIsGate, uint32_t kN>
__device__ __forceinline__ void finish_cluster(const PackedGemmParams& params,
                                               const GemmSegment& segment, uint32_t warpgroup,
                                               float weight_scale, const float (&sums)[kN / 2],
                                               float* stages) {
  using Row = GemmRow<kIsGate>;
  constexpr uint32_t kTurn = 4, kParts = 4;  // outputs of a thread, and loads of each, on their way
  const uint32_t part = cluster_rank();
  float* const own = stages + warpgroup * (kN * kGemmOutputStride);
  asm volatile("bar.sync 1, %0;" ::"n"(kGemmWarps * 32) : "memory");
  stage_sums<kN>(sums, 0, own);
  const Row row(params, segment, warpgroup);
  const uint32_t begin = kN * part / params.k_cluster + row.first;
  const uint32_t end =
      min(kN * (part + 1) / params.k_cluster, params.tokens - segment.first_column);
  const uint32_t address =
      shared_address(own) + (begin * kGemmOutputStride + threadIdx.x % Row::kRows) * 4;
  float* const place = row.place + uint64_t{begin - row.first} * row.rows;
  const float* const scales = params.scales + segment.first_column;
  bool is_first = true;
#pragma unroll 1
  for (uint32_t token = begin; token < end || is_first; token += kTurn * Row::kStep) {
    float scale[kTurn], previous[kTurn];
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) {
      const uint32_t t = token + i * Row::kStep;
      const bool is_output = t < end && row.tokens != 0;
      scale[i] = is_output ? scales[t] * weight_scale : 0.0f;
      previous[i] = is_output && row.has_previous ? place[uint64_t{t - begin} * row.rows] : 0.0f;
    }
    if (is_first) {
      __syncwarp();
      cluster_sync();
      is_first = false;
    }
    float totals[kTurn] = {}, ups[kTurn] = {};
#pragma unroll 1
    for (uint32_t p = 0; p < params.k_cluster; p += kParts) {
      float values[kParts][kTurn] = {}, up_values[kParts][kTurn] = {};
#pragma unroll
      for (uint32_t k = 0; k < kParts; ++k) {
        if (p + k >= params.k_cluster) break;
        const uint32_t from = cluster_address(address, p + k);
#pragma unroll
        for (uint32_t i = 0; i < kTurn; ++i) {
          const uint32_t t = token + i * Row::kStep;
          if (t >= end) break;
          const uint32_t at = from + (t - begin) * (kGemmOutputStride * 4);
          values[k][i] = cluster_load(at);
          if constexpr (kIsGate) up_values[k][i] = cluster_load(at + Row::kRows * 4);
        }
      }
#pragma unroll
      for (uint32_t k = 0; k < kParts; ++k)
#pragma unroll
        for (uint32_t i = 0; i < kTurn; ++i) {
          totals[i] += values[k][i];
          ups[i] += up_values[k][i];
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) {
      const uint32_t t = token + i * Row::kStep;
      if (t < end && row.tokens != 0)
        place[uint64_t{t - begin} * row.rows] =
            row.output(totals[i], ups[i], scale[i], previous[i]);
    }
  }
}

#endif

template <TensorType kType, TensorType kSecond, uint32_t kN>
__global__ void __launch_bounds__(kGemmThreads, gemm_ctas(kN))
    packed_gemm_kernel(const __grid_constant__ PackedGemmParams params) {
#if WCUDA_HAS_WARPGROUPS
  using First = HalfTile<kType>;
  using Second = HalfTile<kSecond>;
  constexpr bool kIsSmall = gemm_is_small(kN);
  extern __shared__ __align__(1024) uint8_t gemm_shared[];
  // The swizzle goes by address; tables of codebooks may lie ahead.
  const uint32_t start = shared_address(gemm_shared);
  const uint32_t aligned = (start + kGemmAlignment - 1) / kGemmAlignment * kGemmAlignment;
  uint8_t* const shared = gemm_shared + (aligned - start);
  // Warp-uniform for the compiler, so that derived values stay uniform.
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

  Pipeline tokens;
  tokens.full = aligned + kGemmTokenBarriers;
  tokens.empty = tokens.full + kGemmStagesMax * kBarrierBytes;
  tokens.data = aligned + kGemmBarrierBytes;
  tokens.stage_bytes = gemm_stage_bytes(kN);
  tokens.stages = params.token_stages;
  const uint32_t stage_offset = kGemmBarrierBytes + params.token_stages * gemm_stage_bytes(kN);
  const uint32_t weight_offset = stage_offset + warp * (params.weight_stage_bytes / kGemmWarps);
  [[maybe_unused]] const uint32_t output_offset =
      stage_offset + params.weight_stages * params.weight_stage_bytes;

  GemmWeights<kN> weights{{}, {}, GemmWork<kN>(params), nullptr, 0, 0, 0};
  weights.ring.full = aligned + warp * (kGemmStagesMax * kBarrierBytes);
  weights.ring.data = aligned + weight_offset;
  weights.ring.stage_bytes = params.weight_stage_bytes;
  weights.ring.stages = params.weight_stages;

  dependent_trigger();
  if (threadIdx.x % 32 == 0) {
    if (warp < kGemmWarps) {
#pragma unroll 1
      for (uint32_t i = 0; i < params.weight_stages; ++i)
        mbarrier_init(weights.ring.full_barrier(i), 1);
    } else if (warp == kGemmWarps) {
#pragma unroll 1
      for (uint32_t i = 0; i < params.token_stages; ++i) {
        mbarrier_init(tokens.full_barrier(i), 1);
        mbarrier_init(tokens.empty_barrier(i), kGemmWarps * gemm_pair(kN));
      }
    }
    mbarrier_init_fence();
    fence_proxy_async();
  }
  __syncwarp();
  if (warp < kGemmWarps) {
#pragma unroll 1
    for (uint32_t i = 0; i < params.weight_stages; ++i)
      weights.template fetch<First, Second>(params, warp, i);
  }
  prepare_operand<First>(0);
  if constexpr (gemm_pair(kN) == 1)
    __syncthreads();
  else
    cluster_sync();

  if (warp >= kGemmWarps) {
    registers_release<kIsSmall ? 24 : 32>();
    if (threadIdx.x == kGemmWarps * 32) produce_tokens<kN>(params, tokens);
    __syncwarp();
    if constexpr (kIsSmall) cluster_sync();
  } else {
    registers_acquire<kIsSmall ? 104 : 232>();
    GemmWork<kN> work(params);
    GemmSegment segment;
    PipelineState token_stage;
    while (work.next(params, &segment)) {
      float sums[kN / 2] = {};
      const bool is_second = kType != kSecond && segment.matrix >= params.second_matrix;
      if (kType != kSecond && is_second)
        multiply<First, Second, true, kN>(params, segment.k_tiles, warp, shared + weight_offset,
                                          weights, tokens, token_stage, sums);
      else
        multiply<First, Second, false, kN>(params, segment.k_tiles, warp, shared + weight_offset,
                                           weights, tokens, token_stage, sums);
      dependent_wait();
      const float weight_scale = 1.0f / (is_second ? Second::kWeightScale : First::kWeightScale);
      const bool is_gate = params.epilogue >= Epilogue::kSiluGate;
      if constexpr (kIsSmall) {  // the only segment
        auto* const stages = reinterpret_cast<float*>(shared + kGemmBarrierBytes);
        if (is_gate)
          finish_cluster<true, kN>(params, segment, warp / 4, weight_scale, sums, stages);
        else
          finish_cluster<false, kN>(params, segment, warp / 4, weight_scale, sums, stages);
      } else {
        auto* const outputs = reinterpret_cast<GemmOutputs<kN>*>(shared + output_offset) + warp / 4;
        if (segment.k_tiles < params.k_tile_count &&
            !join_parts<kN>(params, segment, warp / 4, sums, outputs))
          continue;
        if (is_gate)
          finish<true, kN>(params, segment, warp / 4, weight_scale, sums, outputs);
        else
          finish<false, kN>(params, segment, warp / 4, weight_scale, sums, outputs);
      }
    }
  }
  // No CTA leaves while another copies to it or reads its sums.
  __syncwarp();
  cluster_sync();
#endif
}

// The kernels of a type or of two, and what their launcher needs to know.
struct GemmKernel {
  TensorType type;
  TensorType second_type;  // the same where there is but one
  InputOrder order;
  uint32_t k_tile_bytes;                                       // of two types the larger
  uint32_t packed_tiles;                                       // of a K-tile
  void (*kernels[kGemmSizes])(const PackedGemmParams params);  // as kGemmColumns
};

// Of a type, or of matrices of two types.
template <TensorType kType, TensorType kSecond>
const GemmKernel* packed_gemm_kernels() {
  using First = HalfTile<kType>;
  using Second = HalfTile<kSecond>;
  static_assert(First::kOrder == Second::kOrder && First::kPackedTiles == Second::kPackedTiles);
  static constexpr GemmKernel kKernel = {
      kType,
      kSecond,
      First::kOrder,
      First::kKTileBytes > Second::kKTileBytes ? First::kKTileBytes : Second::kKTileBytes,
      First::kPackedTiles,
      {packed_gemm_kernel<kType, kSecond, 64>, packed_gemm_kernel<kType, kSecond, 128>,
       packed_gemm_kernel<kType, kSecond, 256>}};
  return &kKernel;
}

// For the file of a format: the kernels of one type, of two.
#define WCUDA_PACKED_GEMM(type, second_type) \
  template const GemmKernel* packed_gemm_kernels<type, second_type>()

}  // namespace wcuda::kernels
