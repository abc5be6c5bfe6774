// The kernel of linear_batch, for matrices of one or two weight types. Only for .cu files.
//
// A tile is up to 256 rows (16 M-tiles) by kTokens tokens. The blocks of a cluster compute one
// tile: each takes some of the K-tiles (256 inputs), and at the end they add their sums in the
// order of their ranks:
//
//   block 0   K-tiles 0 … 3    ─┐
//   block 1   K-tiles 4 … 7    ─┼─→ sums in the shared memory of each block ─→ outputs
//   block 2   K-tiles 8 … 10   ─┘   each block adds and writes a third of the outputs
//
// Outputs of a tile that one block computes alone are written from registers.
//
// Each consumer warp copies the packed tiles of its own M-tile into a ring of stages in shared
// memory, one K-tile per stage, with bulk copies. It starts the first copies before the previous
// kernel has ended. A producer warp copies the activations. A consumer warp converts its weights to
// f16 operands in its registers, and four warps together multiply 64 rows by the kTokens tokens
// (wgmma m64nNk16, f32 sums). Activations are stored in the order that half_input.h defines, with
// the 128-byte swizzle. Timeline of a block with S stages of weights:
//
//   previous kernel   ─────────────────────┐ ends
//   copies, weights   K-tiles 0 … S - 1    │                      K-tile S   K-tile S + 1 …
//   copies, tokens                         └ stage 0 | stage 1 …
//   consumer warps                                   | K-tile 0 | K-tile 1 | …  | sums | outputs
//
// The time is spent on instructions (400 per warp for 16 rows x 256 inputs of Q4_K and 16 tokens)
// and on waiting: for activations, for the sums of the cluster, and between kernels. Therefore,
// with tiles of at most 32 tokens, blocks have at most 128 rows, so that blocks of two consecutive
// kernels fit on an SM at the same time; the host divides the K-tiles, so that no block starts with
// integer divisions; and each thread computes four outputs at a time.
//
// Lane 4g + t of warp w holds sums[k] of row 16w + g + 8 * (k / 2 % 2) and of token
// 8 * (k / 4) + 2t + k % 2.
//
// Bytes moved: packed tiles once for each tile of tokens, activations once for each tile of rows.
#pragma once

#include "kernels/linear/batch_params.h"
#include "kernels/linear/half_tile.cuh"
#include "kernels/linear/linear_activation.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/pipeline.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace wcuda::kernels {

#if WCUDA_HAS_WARPGROUPS

// The rows of a block's tile.
struct BatchTile {
  uint32_t matrix;
  uint32_t first_row;
  uint32_t rows;  // of each matrix in the tile: tile_rows; in a gated layer half of that, once for
                  // gate and once for up
  bool is_gate;

  __device__ BatchTile(const LinearBatchParams& params, uint32_t index) {
    is_gate = params.epilogue == Epilogue::kSiluGate || params.epilogue == Epilogue::kGeluTanhGate;
    rows = is_gate ? params.tile_rows / 2 : params.tile_rows;
    matrix = 0;
    for (uint32_t m = 1; m < params.matrix_count && !is_gate; ++m)
      if (index >= params.first_tile[m]) matrix = m;
    first_row = (index - params.first_tile[matrix]) * rows;
  }
  // Returns the matrix of M-tile `m_tile` of the tile.
  __device__ uint32_t matrix_of(uint32_t m_tile) const {
    return is_gate ? m_tile / (rows / quant::kMTileRows) : matrix;
  }
  // Returns the packed tiles of M-tile `m_tile` of the tile, or null past the end of the matrix.
  __device__ const uint8_t* m_tile(const LinearBatchParams& params, uint32_t m_tile,
                                   uint64_t m_tile_bytes) const {
    const uint32_t m_tiles = rows / quant::kMTileRows;
    const uint32_t of_matrix = matrix_of(m_tile);
    const uint32_t row = first_row + m_tile % m_tiles * quant::kMTileRows;
    if (row >= params.rows[of_matrix]) return nullptr;
    return params.packed_tiles[of_matrix] + row / quant::kMTileRows * m_tile_bytes;
  }
};

// Returns what to add to a stage's wgmma descriptor for step `step`; a step has 16 inputs.
// Activations are stored in panels of 64 inputs, and a token has 128 bytes in each panel.
template <uint32_t kTokens>
WCUDA_HD constexpr uint32_t token_step(uint32_t step) {
  return step / 4 * (kTokens * 128 / 16) + step % 4 * (32 / 16);
}

// The K-tiles that a block computes: first … first + count - 1. blockIdx.x is its rank in the
// cluster, blockIdx.y its tile of tokens, and blockIdx.z its tile of rows.
struct BatchWork {
  uint32_t first;
  uint32_t count;

  explicit __device__ BatchWork(const LinearBatchParams& params)
      : first(params.first_k_tile[blockIdx.x]),
        count(params.first_k_tile[blockIdx.x + 1] - first) {}
};

// The ring of packed tiles of a consumer warp.
template <class Operand>
struct BatchWeights {
  static constexpr uint32_t kPackedTileBytes = Operand::kKTileBytes / Operand::kPackedTiles;
  Pipeline ring;          // `data` is the address of the warp's M-tile in stage 0
  PipelineState stage;    // the stage to read next
  const uint8_t* m_tile;  // null past the end of a matrix
  uint32_t k_tile;        // the K-tile to copy next

  // Copies the next K-tile into stage `index`, whose previous contents the warp has read.
  __device__ __forceinline__ void fetch(const LinearBatchParams& params, const BatchWork& work,
                                        uint32_t index) {
    if (k_tile >= work.first + work.count) return;
    const uint32_t lane = threadIdx.x % 32, barrier = ring.full_barrier(index);
    const uint32_t target = ring.target(index);
    uint32_t bytes = Operand::kKTileBytes;
    if (Operand::kPackedTiles > 1 &&
        (k_tile + 1) * Operand::kPackedTiles > params.packed_tile_count) {
      // Zeros take the place of packed tiles past the end of an M-tile.
      bytes = (params.packed_tile_count - k_tile * Operand::kPackedTiles) * kPackedTileBytes;
      for (uint32_t i = bytes + lane * 16; i < Operand::kKTileBytes; i += 512)
        clear_shared_16_bytes(target + i);
      __syncwarp();
    }
    if (lane == 0) {
      mbarrier_expect_tx(barrier, m_tile != nullptr ? bytes : 0);
      if (m_tile != nullptr)
        bulk_copy(target, m_tile + uint64_t{k_tile} * Operand::kKTileBytes, bytes, barrier);
    }
    __syncwarp();
    ++k_tile;
  }
};

// Runs on one lane of the producer warp: copies the activations, stage by stage.
template <uint32_t kTokens>
__device__ __forceinline__ void produce_tokens(const LinearBatchParams& params,
                                               const BatchWork& work, const Pipeline& ring) {
  constexpr uint32_t kStages = 2 / batch_stage_halves(kTokens);  // per K-tile
  dependent_wait();
  PipelineState stage;
  const uint8_t* source =
      reinterpret_cast<const uint8_t*>(params.h) +
      (uint64_t{blockIdx.y} * params.k_tile_count + work.first) * kStages * ring.stage_bytes;
  for (uint32_t i = 0; i < kStages * work.count; ++i, source += ring.stage_bytes) {
    const uint32_t barrier = ring.full_barrier(stage.stage);
    ring.wait_empty(stage);
    mbarrier_expect_tx(barrier, ring.stage_bytes);
    bulk_copy(ring.target(stage.stage), source, ring.stage_bytes, barrier);
    stage.advance(ring.stages);
  }
}

// Computes the sums of a warp's M-tile over the K-tiles of the block. A warp unpacks half a K-tile,
// multiplies it, and waits for the products. To unpack the next groups meanwhile gains nothing: on
// Hopper, while products of few tokens run, other warps hardly issue instructions either
// (docs/lab/2026-11-25-products-and-unpacking.md).
template <class Operand, uint32_t kTokens>
__device__ __forceinline__ void consume(const LinearBatchParams& params, const BatchWork& work,
                                        const uint8_t* packed_tiles, BatchWeights<Operand>& weights,
                                        __half2 factor, const Pipeline& tokens,
                                        float (&sums)[kTokens / 2]) {
  constexpr uint32_t kStageHalves = batch_stage_halves(kTokens);
  // Whether the next codes are loaded before the products are waited for.
  constexpr bool kIsEarly = kTokens > 32;
  const uint32_t lane = threadIdx.x % 32;
  PipelineState token_stage;
  Operand operand;
  const auto load = [&](uint32_t half) {
    if (half == 0) weights.ring.wait_full(weights.stage);
    operand.load(packed_tiles + weights.stage.stage * weights.ring.stage_bytes, half, lane, factor,
                 half == 1);
  };
  load(0);
#pragma unroll 1
  for (uint32_t left = work.count; left != 0; --left) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint32_t a[4][8];  // of four groups of 32 inputs
#pragma unroll
      for (uint32_t m = 0; m < 4; ++m) operand.group(half, m, lane, a[m]);
      if (half == 1) {
        __syncwarp();  // some operands read the stage until here
        weights.fetch(params, work, weights.stage.stage);
        weights.stage.advance(weights.ring.stages);
      }
      const uint32_t stage_half = half % kStageHalves;
      if (stage_half == 0) tokens.wait_full(token_stage);
      const uint64_t descriptor = wgmma_descriptor(tokens.target(token_stage.stage), 16);
      wgmma_fence();
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i)
        wgmma<kTokens, false>(sums, a[i / 2] + i % 2 * 4,
                              descriptor + token_step<kTokens>(stage_half * 8 + i));
      wgmma_commit();
      const bool has_next = half == 0 || left != 1;
      if (kIsEarly && has_next) load(1 - half);
      wgmma_wait<0>();
      if (stage_half == kStageHalves - 1) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(tokens.empty_barrier(token_stage.stage));
        token_stage.advance(batch_token_stages(kTokens));
      }
      if (!kIsEarly && has_next) load(1 - half);
    }
  }
}

// How an output follows from the value of its row and another one: that of the same row of up in a
// gated layer, else the output's previous value or 0.
struct OutputRule {
  bool has_previous;
  bool is_product;  // of the value's activation and the other one; else their sum
  bool is_silu;

  explicit __device__ OutputRule(const LinearBatchParams& params)
      : has_previous(params.epilogue == Epilogue::kAdd || params.epilogue == Epilogue::kSiluTimes ||
                     params.epilogue == Epilogue::kGeluTanhTimes),
        is_product(params.epilogue != Epilogue::kStore && params.epilogue != Epilogue::kAdd),
        is_silu(params.epilogue == Epilogue::kSiluGate || params.epilogue == Epilogue::kSiluTimes) {
  }
  __device__ __forceinline__ float output(float value, float other) const {
    return is_product ? activation_fast(is_silu, value) * other : value + other;
  }
};

// Adds the sums of the cluster's blocks and writes the outputs; each block writes a part of them.
// The sums of a block, (kTokens, rows of the tile), follow the barriers in its shared memory.
__device__ __forceinline__ void finish_tile(const LinearBatchParams& params, const BatchTile& tile,
                                            uint32_t first_token, uint32_t tokens, uint32_t threads,
                                            uint32_t shared, float weight_scale) {
  // Outputs that a thread computes at a time, and blocks whose sums it loads at a time.
  constexpr uint32_t kOutputs = 4, kBlocks = 4;
  const uint32_t stride = params.tile_rows + kBatchPadding;
  const uint32_t rows = params.rows[tile.matrix], count = tile.rows * tokens;
  const uint32_t row_bits = __ffs(static_cast<int32_t>(tile.rows)) - 1;  // a power of two
  const uint32_t step = params.cluster * threads;
  const OutputRule rule(params);
  float* const outputs = params.outputs[tile.matrix] + uint64_t{first_token} * rows;
  const float* const scales = params.scales + first_token;
  const float* const biases = params.biases[tile.matrix];
  const float* const up_biases = tile.is_gate ? params.biases[1] : nullptr;
  for (uint32_t base = 0; base < count; base += kOutputs * step) {
    const uint32_t first = base + blockIdx.x * threads + threadIdx.x;
    uint32_t places[kOutputs];  // index of each output in the sums; past the end, that of output 0
    float totals[kOutputs] = {}, ups[kOutputs] = {}, scale[kOutputs], bias[kOutputs] = {},
          up_bias[kOutputs] = {};
    float previous[kOutputs] = {};
#pragma unroll
    for (uint32_t i = 0; i < kOutputs; ++i) {
      const uint32_t at = first + i * step < count ? first + i * step : 0;
      const uint32_t token = at >> row_bits, row = at & (tile.rows - 1);
      const uint32_t of_matrix = tile.first_row + row;
      places[i] = token * stride + row;
      scale[i] = scales[token] * weight_scale;
      if (of_matrix >= rows) continue;
      if (biases != nullptr) bias[i] = biases[of_matrix];
      if (up_biases != nullptr) up_bias[i] = up_biases[of_matrix];
      if (rule.has_previous) previous[i] = outputs[uint64_t{token} * rows + of_matrix];
    }
    for (uint32_t b = 0; b < params.cluster; b += kBlocks) {
      float parts[kBlocks][kOutputs] = {}, up_parts[kBlocks][kOutputs] = {};
#pragma unroll
      for (uint32_t k = 0; k < kBlocks; ++k) {
        if (b + k >= params.cluster) break;
        const uint32_t block = cluster_address(shared, b + k);
        const uint32_t sums = block + kBatchBarrierBytes;
#pragma unroll
        for (uint32_t i = 0; i < kOutputs; ++i) {
          parts[k][i] = cluster_load(sums + places[i] * 4);
        }
        if (!tile.is_gate) continue;
#pragma unroll
        for (uint32_t i = 0; i < kOutputs; ++i)
          up_parts[k][i] = cluster_load(sums + (places[i] + tile.rows) * 4);
      }
#pragma unroll
      for (uint32_t k = 0; k < kBlocks; ++k)
#pragma unroll
        for (uint32_t i = 0; i < kOutputs; ++i) {
          totals[i] += parts[k][i];
          ups[i] += up_parts[k][i];
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < kOutputs; ++i) {
      const uint32_t at = first + i * step;
      const uint32_t token = at >> row_bits, of_matrix = tile.first_row + (at & (tile.rows - 1));
      if (at >= count || of_matrix >= rows) continue;
      outputs[uint64_t{token} * rows + of_matrix] =
          rule.output(totals[i] * scale[i] + bias[i],
                      tile.is_gate ? ups[i] * scale[i] + up_bias[i] : previous[i]);
    }
  }
}

// Writes the outputs of a tile that one block computes, from the sums in registers. In a gated
// layer, a warp with rows of gate and the warp with the same rows of up exchange sums in `space`,
// which overlaps the stages of activations: then each has both for half of the tokens.
template <uint32_t kTokens>
__device__ __forceinline__ void finish_lone_tile(const LinearBatchParams& params,
                                                 const BatchTile& tile, uint32_t first_token,
                                                 uint32_t warp, uint32_t warps, float4* space,
                                                 float weight_scale, float (&sums)[kTokens / 2]) {
  constexpr uint32_t kSpans = kTokens / 8;  // of 8 tokens, of which a lane has 2 and 4 sums
  constexpr uint32_t kHalf = kTokens / 4;   // sums of half of the tokens
  const uint32_t lane = threadIdx.x % 32, rows = params.rows[tile.matrix];
  const uint32_t m_tiles = tile.is_gate ? warps / 2 : warps, m_tile = warp % m_tiles;
  const bool is_second = warp >= m_tiles;  // has the second half of the tokens
  if (tile.is_gate) {
    float4* const sent = space + warp * (kSpans / 2 * 32) + lane;
    named_barrier_sync<1>(warps * 32);  // no warp reads activations any more
#pragma unroll
    for (uint32_t i = 0; i < kHalf; i += 4)
      sent[i * 8] = is_second ? make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3])
                              : make_float4(sums[kHalf + i], sums[kHalf + i + 1],
                                            sums[kHalf + i + 2], sums[kHalf + i + 3]);
    named_barrier_sync<1>(warps * 32);
    const float4* const received = space + (warp ^ m_tiles) * (kSpans / 2 * 32) + lane;
    // Then the first half of `sums` is of gate, the second of up.
#pragma unroll
    for (uint32_t i = 0; i < kHalf; i += 4) {
      const float4 four = received[i * 8];
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        if (is_second)
          sums[i + k] = values[k];
        else
          sums[kHalf + i + k] = values[k];
      }
    }
  }
  const OutputRule rule(params);
  const uint32_t row = tile.first_row + m_tile * quant::kMTileRows + lane / 4;  // and row + 8
  const float* const biases = params.biases[tile.matrix];
  float bias[2] = {}, up_bias[2] = {};
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    if (row + 8 * i >= rows) continue;
    if (biases != nullptr) bias[i] = biases[row + 8 * i];
    if (tile.is_gate && params.biases[1] != nullptr) up_bias[i] = params.biases[1][row + 8 * i];
  }
  const uint32_t first = first_token + (is_second ? kTokens / 2 : 0) + lane % 4 * 2;
  float* const outputs = params.outputs[tile.matrix] + row;
#pragma unroll
  for (uint32_t span = 0; span < kSpans; ++span) {
    if (tile.is_gate && span == kSpans / 2) return;
    float scale[2], previous[4] = {};
    bool is_there[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t token = first + span * 8 + k % 2;
      is_there[k] = token < params.tokens && row + k / 2 * 8 < rows;
      if (k < 2) scale[k] = token < params.tokens ? params.scales[token] * weight_scale : 0.0f;
      if (rule.has_previous && is_there[k])
        previous[k] = outputs[uint64_t{token} * rows + k / 2 * 8];
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t token = first + span * 8 + k % 2, i = span * 4 + k;
      const float value = sums[i] * scale[k % 2] + bias[k / 2];
      const float other =
          tile.is_gate ? sums[kHalf + i % kHalf] * scale[k % 2] + up_bias[k / 2] : previous[k];
      if (is_there[k]) outputs[uint64_t{token} * rows + k / 2 * 8] = rule.output(value, other);
    }
  }
}

#endif

// Computes one block of the grid.
template <class Operand, uint32_t kTokens>
__device__ __forceinline__ void batch_block(const LinearBatchParams& params) {
#if WCUDA_HAS_WARPGROUPS
  extern __shared__ __align__(1024) uint8_t batch_shared[];
  // The swizzle is a function of the shared-memory address, so the data must be aligned. Dynamic
  // shared memory may begin unaligned, because static codebook tables are placed before it.
  const auto start = shared_address(batch_shared);
  const uint32_t shared = (start + kBatchAlignment - 1) / kBatchAlignment * kBatchAlignment;
  // The shuffle lets the compiler treat `warp` and values derived from it as uniform.
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t consumer_warps = blockDim.x / 32 - 1;
  const BatchWork work(params);
  const BatchTile tile(params, blockIdx.z);
  const uint32_t first_token = blockIdx.y * kTokens;

  BatchWeights<Operand> weights;
  weights.ring.full = shared + warp * (kBatchStagesMax * 8);
  Pipeline tokens;
  tokens.full = shared + kBatchTokenBarriers;
  tokens.empty = tokens.full + kBatchStagesMax * 8;
  tokens.data = shared + kBatchBarrierBytes;
  tokens.stage_bytes = batch_stage_bytes(kTokens);
  tokens.stages = batch_token_stages(kTokens);
  weights.ring.data =
      tokens.data + tokens.stages * tokens.stage_bytes + warp * Operand::kKTileBytes;
  weights.ring.stage_bytes = params.tile_rows / quant::kMTileRows * Operand::kKTileBytes;
  weights.ring.stages = params.weight_stage_count;

  dependent_trigger();
  if (lane == 0) {
    if (warp < consumer_warps) {
#pragma unroll 1
      for (uint32_t i = 0; i < weights.ring.stages; ++i)
        mbarrier_init(weights.ring.full + i * 8, 1);
    } else {
#pragma unroll 1
      for (uint32_t i = 0; i < tokens.stages; ++i) {
        mbarrier_init(tokens.full + i * 8, 1);
        mbarrier_init(tokens.empty + i * 8, consumer_warps);
      }
    }
    mbarrier_init_fence();
    fence_proxy_async();
  }
  __syncwarp();
  if (warp < consumer_warps) {
    weights.m_tile =
        tile.m_tile(params, warp, uint64_t{params.packed_tile_count} * weights.kPackedTileBytes);
    weights.k_tile = work.first;
#pragma unroll 1
    for (uint32_t i = 0; i < weights.ring.stages; ++i) weights.fetch(params, work, i);
  }
  prepare_operand<Operand>(0);
  __syncthreads();

  const bool is_lone = params.cluster == 1;
  // Waits until the other blocks of the cluster have read this block's sums.
  const auto sync_end = [] {
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
  };
  if (warp >= consumer_warps) {
    if (lane == 0) produce_tokens<kTokens>(params, work, tokens);
    __syncwarp();
    if (is_lone) return;
    cluster_sync();
    sync_end();
    return;
  }

  float sums[kTokens / 2] = {};
  const float scale_factor = params.scale_factors[tile.matrix_of(warp)];
  consume<Operand, kTokens>(params, work, batch_shared + (weights.ring.data - start), weights,
                            __float2half2_rn(scale_factor), tokens, sums);
  divide_by_scale_factor<Operand>(scale_factor, sums);
  constexpr float kFactor = 1.0f / Operand::kWeightScale;
  auto* const parts =
      reinterpret_cast<float*>(batch_shared + (shared - start) + kBatchBarrierBytes);
  dependent_wait();
  if (is_lone) {
    finish_lone_tile<kTokens>(params, tile, first_token, warp, consumer_warps,
                              reinterpret_cast<float4*>(parts), kFactor, sums);
    return;
  }
  // After all warps have read all stages, the sums overwrite them.
  named_barrier_sync<1>(consumer_warps * 32);
  const uint32_t stride = params.tile_rows + kBatchPadding;
#pragma unroll
  for (uint32_t k = 0; k < kTokens / 2; ++k) {
    const uint32_t token = k / 4 * 8 + lane % 4 * 2 + k % 2;
    const uint32_t row = warp * quant::kMTileRows + lane / 4 + k / 2 % 2 * 8;
    parts[token * stride + row] = sums[k];
  }
  __syncwarp();
  cluster_sync();
  finish_tile(params, tile, first_token, min(kTokens, params.tokens - first_token),
              consumer_warps * 32, shared, kFactor);
  sync_end();
#endif
}

// With tiles of 64 tokens, 16 consumer warps and the producer leave 96 registers per thread. With
// smaller tiles, batch_bound limits them to 80.
template <TensorType kType, uint32_t kTokens>
__global__ void __launch_bounds__(batch_bound(kTokens), batch_blocks(128, kTokens))
    linear_batch_kernel(const __grid_constant__ LinearBatchParams params) {
  batch_block<HalfTile<kType>, kTokens>(params);
}

// For matrices of two types. Tiles from params.second_tile on have type kSecond.
template <TensorType kType, TensorType kSecond, uint32_t kTokens>
__global__ void __launch_bounds__(batch_bound(kTokens), batch_blocks(128, kTokens))
    linear_batch_mixed_kernel(const __grid_constant__ LinearBatchParams params) {
  if (blockIdx.z < params.second_tile)
    batch_block<HalfTile<kType>, kTokens>(params);
  else
    batch_block<HalfTile<kSecond>, kTokens>(params);
}

// The kernels for one weight type or two, and what their launcher needs to know.
struct BatchKernel {
  TensorType type;
  TensorType second_type;  // equal to `type` if there is only one
  InputOrder order;
  uint32_t k_tile_bytes;                               // if there are two types, the larger size
  uint32_t packed_tiles;                               // per K-tile
  void (*kernels[3])(const LinearBatchParams params);  // for 16, 32 and 64 tokens
};

// Returns the kernels for one weight type, or for layers whose matrices have two types.
template <TensorType kType, TensorType kSecond>
const BatchKernel* linear_batch_kernels() {
  using First = HalfTile<kType>;
  using Second = HalfTile<kSecond>;
  static_assert(First::kOrder == Second::kOrder && First::kPackedTiles == Second::kPackedTiles);
  static const BatchKernel kernel = [] {
    BatchKernel result = {
        kType,
        kSecond,
        First::kOrder,
        First::kKTileBytes > Second::kKTileBytes ? First::kKTileBytes : Second::kKTileBytes,
        First::kPackedTiles,
        {}};
    if constexpr (kType == kSecond) {
      result.kernels[0] = linear_batch_kernel<kType, 16>;
      result.kernels[1] = linear_batch_kernel<kType, 32>;
      result.kernels[2] = linear_batch_kernel<kType, 64>;
    } else {
      result.kernels[0] = linear_batch_mixed_kernel<kType, kSecond, 16>;
      result.kernels[1] = linear_batch_mixed_kernel<kType, kSecond, 32>;
      result.kernels[2] = linear_batch_mixed_kernel<kType, kSecond, 64>;
    }
    return result;
  }();
  return &kernel;
}

// Instantiates the kernels of one type (passed twice) or of two, in a source file of their own.
#define WCUDA_LINEAR_BATCH(type, second_type) \
  template const BatchKernel* linear_batch_kernels<type, second_type>()

}  // namespace wcuda::kernels
