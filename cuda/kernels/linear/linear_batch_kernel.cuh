// The kernel of linear_batch for one weight type. Only for .cu files.
//
// A block makes a tile of up to 256 rows (16 M-tiles) by kColumns columns; the blocks of a cluster
// share the inputs of a tile among them and add their sums in the order of their ranks. Without a
// cluster and with 128 columns a block makes tile after tile, and outputs are written from
// registers while copies go on. Each consumer warp brings the packed tiles of its own M-tiles (two
// for 128 columns), a K-tile of 256 inputs at a time, into a ring of stages in shared memory with
// bulk copies, the first ones before the kernels ahead have ended; a producer warp brings columns.
// A warp turns the codes of its M-tiles to f16 operands in its registers, and four warps together
// multiply 64 rows with the columns (wgmma m64nNk16, sums f32).
//
// Up to 64 columns time goes into instructions (375 of a warp for 16 rows by 256 inputs of Q4_K at
// 16 columns) and into waiting: for the columns, for the sums of the cluster, for the next kernel.
// Therefore blocks are small, so that two kernels' have room at once, nothing is divided at the
// start, and four outputs of a thread are made at a time.
//
// Columns lie as half_input.h says, in the layout of the 128-byte swizzle.
//
// Bytes moved: packed tiles once for each tile of columns, and from memory once, as tiles of the
// same rows run together; columns once for each tile of rows.
#pragma once

#include "kernels/linear/half_tile.cuh"
#include "kernels/linear/linear_activation.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/pipeline.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace wcuda::kernels {

constexpr uint32_t kBatchStagesMax = 8;
constexpr uint32_t kBatchClusterMax = 8;
// Rows of a tile: the sums of 256 rows fill the registers.
WCUDA_HD constexpr uint32_t batch_rows_max(uint32_t columns) { return columns > 32 ? 256 : 128; }
// Blocks of a multiprocessor. Up to 32 columns, where sums are few, they leave room for the next
// kernels', which bring their first weights while these end.
WCUDA_HD constexpr uint32_t batch_blocks(uint32_t rows, uint32_t columns) {
  return columns > 32 ? 1 : rows > 64 ? 2 : 4;
}
// M-tiles of a consumer warp.
WCUDA_HD constexpr uint32_t batch_m_tiles(uint32_t columns) { return columns > 64 ? 2 : 1; }
// Warps beside the consumers, of which one works: with two M-tiles a warpgroup, which gives its
// registers away.
WCUDA_HD constexpr uint32_t batch_producers(uint32_t columns) { return columns > 64 ? 4 : 1; }
// 227 KB a multiprocessor, less what tables of codebooks take.
WCUDA_HD constexpr uint32_t batch_shared_bytes(uint32_t blocks) {
  return (blocks == 1 ? 219 : blocks == 2 ? 110 : 55) * 1024;
}
// What aligning takes.
constexpr uint32_t kBatchAlignment = 1024;
// Barriers: of weights a consumer warp and stage, of columns two a stage.
constexpr uint32_t kBatchWarpsMax = 16;
constexpr uint32_t kBatchColumnBarriers = kBatchWarpsMax * kBatchStagesMax * 8;
constexpr uint32_t kBatchBarrierBytes = 2048;
static_assert(kBatchColumnBarriers + kBatchStagesMax * 16 <= kBatchBarrierBytes);
// Between the sums of two columns: the lanes of a store lie in different banks.
constexpr uint32_t kBatchPadding = 4;
// Where outputs are written from registers: 8 columns of a warp's two M-tiles on their way.
constexpr uint32_t kStoreStride = 2 * quant::kMTileRows + kBatchPadding;
constexpr uint32_t kStoreBytes = 8 * kStoreStride * 4;
WCUDA_HD constexpr uint32_t batch_threads(uint32_t rows, uint32_t columns) {
  return rows / (64 * batch_m_tiles(columns)) * 128 + batch_producers(columns) * 32;
}

// Threads that the registers of a thread are bounded for: more than a block has, 80 registers a
// thread up to 32 columns.
WCUDA_HD constexpr uint32_t batch_bound(uint32_t columns) {
  return columns > 32 ? batch_threads(batch_rows_max(columns), columns) : 384;
}

// A stage of columns: half a K-tile, or a whole one where columns are small.
WCUDA_HD constexpr uint32_t batch_stage_units(uint32_t columns) { return columns <= 16 ? 2 : 1; }
WCUDA_HD constexpr uint32_t batch_stage_bytes(uint32_t columns) {
  return batch_stage_units(columns) * kHalfKTileInputs * columns * 2;
}
// One in use, others on their way.
WCUDA_HD constexpr uint32_t batch_column_stages(uint32_t columns) { return columns == 64 ? 4 : 3; }

struct LinearBatchParams {
  uint32_t tokens;
  uint32_t column_tiles;
  uint32_t packed_tile_count;  // of an M-tile
  uint32_t k_tile_count;
  uint32_t
      first_k_tile[kBatchClusterMax + 1];  // of each block of a cluster; the last: k_tile_count
  uint32_t cluster;                        // blocks that share a tile
  uint32_t sharing;             // blocks (1 or 2) of different rows that share their columns
  uint32_t tile_count;          // of rows (of all that share) and columns
  uint32_t tile_rows;           // 64, 128 or 256
  uint32_t weight_stage_count;  // of a K-tile
  uint32_t matrix_count;
  Epilogue epilogue;
  const uint16_t* h;    // (column_tiles, chunk_count * 4, kColumns, 64)
  const float* scales;  // (columns)
  const uint8_t* packed_tiles[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax];
  float* outputs[kLinearMatricesMax];
  uint32_t rows[kLinearMatricesMax];
  uint32_t first_tile[kLinearMatricesMax];  // of each matrix; a gate's matrices share their tiles
  uint32_t second_tile;                     // the first of the second type
};

#if WCUDA_HAS_WARPGROUPS

// The tile of a block: which rows of which matrix.
struct BatchTile {
  uint32_t matrix;
  uint32_t first_row;
  uint32_t rows;  // of each half, gate and up, of a gate's tile
  bool is_gate;

  __device__ BatchTile(const LinearBatchParams& params, uint32_t index) {
    is_gate = params.epilogue == Epilogue::kSiluGate || params.epilogue == Epilogue::kGeluTanhGate;
    rows = is_gate ? params.tile_rows / 2 : params.tile_rows;
    matrix = 0;
    for (uint32_t m = 1; m < params.matrix_count && !is_gate; ++m)
      if (index >= params.first_tile[m]) matrix = m;
    first_row = (index - params.first_tile[matrix]) * rows;
  }
  // Packed tiles of M-tile `m_tile` of the tile; null past the end of the matrix.
  __device__ const uint8_t* m_tile(const LinearBatchParams& params, uint32_t m_tile,
                                   uint64_t m_tile_bytes) const {
    const uint32_t m_tiles = rows / quant::kMTileRows;
    const uint32_t of_matrix = is_gate ? m_tile / m_tiles : matrix;
    const uint32_t row = first_row + m_tile % m_tiles * quant::kMTileRows;
    if (row >= params.rows[of_matrix]) return nullptr;
    return params.packed_tiles[of_matrix] + row / quant::kMTileRows * m_tile_bytes;
  }
};

// What is added to a descriptor of columns for step `step` of 16 inputs: panels of 64 inputs, in
// which a column is 128 bytes.
template <uint32_t kColumns>
WCUDA_HD constexpr uint32_t column_step(uint32_t step) {
  return step / 4 * (kColumns * 128 / 16) + step % 4 * (32 / 16);
}

// What a block makes: `tiles` tiles, one for every so many blocks, each over K-tiles first … first
// + count - 1. Tiles of the same rows run together.
struct BatchWork {
  bool goes_on;  // to another tile
  uint32_t tiles;
  uint32_t first;
  uint32_t count;

  __device__ BatchWork(const LinearBatchParams& params, bool is_direct) : goes_on(is_direct) {
    tiles = 1;
    first = params.first_k_tile[blockIdx.x % kBatchClusterMax];
    count = params.first_k_tile[blockIdx.x % kBatchClusterMax + 1] - first;
    if (!goes_on) return;
    const uint32_t groups = gridDim.x / params.sharing;
    tiles = (params.tile_count - blockIdx.x / params.sharing + groups - 1) / groups;
    first = 0;
    count = params.k_tile_count;
  }
  // Of tile number `turn`: which of the rows' tiles, which of the columns'. Blocks that do not go
  // on are a grid (cluster, tiles of columns, tiles of rows).
  __device__ uint2 place(const LinearBatchParams& params, uint32_t turn) const {
    if (!goes_on) return make_uint2(blockIdx.z, blockIdx.y);
    const uint32_t index = blockIdx.x / params.sharing + turn * (gridDim.x / params.sharing);
    return make_uint2(index / params.column_tiles * params.sharing + blockIdx.x % params.sharing,
                      index % params.column_tiles);
  }
};

// A consumer warp brings the packed tiles of its own M-tiles: those of M-tile s of the warp lie s *
// strip_stride bytes after those of the first.
template <class Operand, uint32_t kMTiles>
struct BatchWeights {
  static constexpr uint32_t kPackedTileBytes = Operand::kKTileBytes / Operand::kPackedTiles;
  Pipeline ring;  // data: the place of the warp's first M-tile
  uint32_t m_tile_stride;
  PipelineState stage;  // that is read next
  // What is fetched next.
  const uint8_t* m_tiles[kMTiles];  // null past the end of a matrix
  uint32_t k_tile;
  uint32_t turn = 0;

  __device__ __forceinline__ void find_m_tiles(const LinearBatchParams& params,
                                               const BatchWork& work, uint32_t warp,
                                               uint32_t warps) {
    const BatchTile tile(params, work.place(params, turn).x);
    const uint64_t m_tile_bytes = uint64_t{params.packed_tile_count} * kPackedTileBytes;
#pragma unroll
    for (uint32_t s = 0; s < kMTiles; ++s)
      m_tiles[s] = tile.m_tile(params, warp + s * warps, m_tile_bytes);
    k_tile = work.first;
  }
  // The next K-tile to stage `index`, which the warp has read.
  __device__ __forceinline__ void fetch(const LinearBatchParams& params, const BatchWork& work,
                                        uint32_t warp, uint32_t warps, uint32_t index) {
    if (kMTiles > 1 ? turn >= work.tiles : k_tile >= work.first + work.count) return;
    const uint32_t lane = threadIdx.x % 32, barrier = ring.full_barrier(index);
    const uint32_t target = ring.target(index);
    uint32_t bytes = Operand::kKTileBytes;
    if (Operand::kPackedTiles > 1 &&
        (k_tile + 1) * Operand::kPackedTiles > params.packed_tile_count) {
      // Packed tiles past the end of an M-tile are zeros.
      bytes = (params.packed_tile_count - k_tile * Operand::kPackedTiles) * kPackedTileBytes;
#pragma unroll
      for (uint32_t s = 0; s < kMTiles; ++s)
        for (uint32_t i = bytes + lane * 16; i < Operand::kKTileBytes; i += 512)
          asm volatile(
              "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(target + s * m_tile_stride + i),
              "r"(0)
              : "memory");
      __syncwarp();
    }
    if (lane == 0) {
      uint32_t expected = 0;
#pragma unroll
      for (uint32_t s = 0; s < kMTiles; ++s) expected += m_tiles[s] != nullptr ? bytes : 0;
      mbarrier_expect_tx(barrier, expected);
#pragma unroll
      for (uint32_t s = 0; s < kMTiles; ++s)
        if (m_tiles[s] != nullptr)
          bulk_copy(target + s * m_tile_stride,
                    m_tiles[s] + uint64_t{k_tile} * Operand::kKTileBytes, bytes, barrier);
    }
    __syncwarp();
    ++k_tile;
    if (kMTiles == 1 || k_tile < work.first + work.count) return;  // one tile, or the same
    if (++turn < work.tiles) find_m_tiles(params, work, warp, warps);
  }
};

// The producer's lane: columns, stage by stage, tile after tile.
template <uint32_t kColumns>
__device__ __forceinline__ void produce_columns(const LinearBatchParams& params,
                                                const BatchWork& work, const Pipeline& ring) {
  constexpr uint32_t kStages = 2 / batch_stage_units(kColumns);  // of a K-tile
  dependent_wait();
  PipelineState stage;
  for (uint32_t turn = 0; turn < work.tiles; ++turn) {
    const uint8_t* source =
        reinterpret_cast<const uint8_t*>(params.h) +
        (uint64_t{work.place(params, turn).y} * params.k_tile_count + work.first) * kStages *
            ring.stage_bytes;
    for (uint32_t i = 0; i < kStages * work.count; ++i, source += ring.stage_bytes) {
      const uint32_t barrier = ring.full_barrier(stage.stage);
      const uint32_t target = ring.target(stage.stage);
      ring.wait_empty(stage);
      mbarrier_expect_tx(barrier, ring.stage_bytes);
      if (params.sharing == 1) {
        bulk_copy(target, source, ring.stage_bytes, barrier);
      } else {  // each block brings half for both
        const uint32_t bytes = ring.stage_bytes / 2, offset = blockIdx.x % 2 * bytes;
        bulk_copy_multicast(target + offset, source + offset, bytes, barrier, 3);
      }
      stage.advance(ring.stages);
    }
  }
}

// Sums of a warp's M-tiles over the K-tiles of a tile.
template <class Operand, uint32_t kColumns, uint32_t kMTiles>
__device__ __forceinline__ void consume(const LinearBatchParams& params, const BatchWork& work,
                                        uint32_t warp, uint32_t warps, const uint8_t* packed_tiles,
                                        BatchWeights<Operand, kMTiles>& weights,
                                        const Pipeline& columns, PipelineState& column_stage,
                                        float (&sums)[kMTiles][kColumns / 2]) {
  const uint32_t lane = threadIdx.x % 32;
  // A stage of columns, to all whose producers fill it.
  const auto release = [&](uint32_t barrier) {
    if (kMTiles > 1 && params.sharing > 1) {
      if (lane < params.sharing) mbarrier_arrive_cluster(cluster_address(barrier, lane));
    } else if (lane == 0) {
      mbarrier_arrive(barrier);
    }
  };
  for (uint32_t k_tile = 0; k_tile < work.count; ++k_tile) {
    weights.ring.wait_full(weights.stage);
    const uint8_t* const k_tile_packed_tiles =
        packed_tiles + weights.stage.stage * weights.ring.stage_bytes;
    // Both halves' at once where registers allow.
    constexpr bool kIsEarly = kColumns <= 16;
    Operand operands[kIsEarly ? 2 : 1];
    if constexpr (kIsEarly) {
      operands[0].load(k_tile_packed_tiles, 0, lane);
      operands[1].load(k_tile_packed_tiles, 1, lane);
    }
    constexpr bool kIsHalf = batch_stage_units(kColumns) == 1;  // stages of columns
    const uint32_t first_columns = column_stage.stage;
    uint64_t descriptor = 0;
    uint32_t a[2][8];
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      if (kIsHalf || half == 0) {
        columns.wait_full(column_stage);
        descriptor = wgmma_descriptor(columns.target(column_stage.stage), 16);
      } else {
        descriptor += column_step<kColumns>(kHalfKTileInputs / 16);
      }
#pragma unroll
      for (uint32_t s = 0; s < kMTiles; ++s) {
        Operand& operand = operands[kIsEarly ? half : 0];
        if constexpr (!kIsEarly)
          operand.load(k_tile_packed_tiles + s * weights.m_tile_stride, half, lane);
#pragma unroll
        for (uint32_t m = 0; m < 4; ++m) {
          // What reads these registers, two steps ago, ends; at step 1 of a half all of the last.
          wgmma_wait<1>();
          if (kIsHalf && half == 1 && s == 0 && m == 1) {
            __syncwarp();
            release(columns.empty_barrier(first_columns));
          }
          operand.group(half, m, lane, a[m % 2]);
          wgmma_fence();
#pragma unroll
          for (uint32_t k = 0; k < 2; ++k)
            wgmma<kColumns, false>(sums[s], a[m % 2] + 4 * k,
                                   descriptor + column_step<kColumns>(m * 2 + k));
          wgmma_commit();
        }
      }
      if (kIsHalf && half == 0) column_stage.advance(batch_column_stages(kColumns));
    }
    // The compiler keeps products in flight only within a turn of the loop.
    wgmma_wait<0>();
    __syncwarp();
    release(columns.empty_barrier(column_stage.stage));
    column_stage.advance(batch_column_stages(kColumns));
    weights.fetch(params, work, warp, warps, weights.stage.stage);
    weights.stage.advance(weights.ring.stages);
  }
}

// The outputs of a warp's two M-tiles (of a gate: gate and up of the same rows), by way of `stage`,
// (8, kStoreStride) in shared memory. The loop is not unrolled: each of its 120 KB of instructions
// would be used once a tile (27 us a tile, H200).
template <uint32_t kColumns>
__device__ __forceinline__ void store_m_tiles(const LinearBatchParams& params,
                                              const BatchTile& tile, uint32_t first_column,
                                              uint32_t m_tile, uint32_t m_tile_stride,
                                              float weight_scale,
                                              const float (&sums)[2][kColumns / 2], float* stage) {
  const uint32_t lane = threadIdx.x % 32, rows = params.rows[tile.matrix];
  // Lanes 0 … 15 have rows of the first M-tile, the others of the second; of a gate both have the
  // same rows, and the others the next column.
  const uint32_t upper = lane / 16;
  const uint32_t row = tile.first_row +
                       (m_tile + (tile.is_gate ? 0 : upper * m_tile_stride)) * quant::kMTileRows +
                       lane % 16;
  const bool is_row = row < rows, is_add = params.epilogue == Epilogue::kAdd;
  float bias = 0.0f, up_bias = 0.0f;
  if (is_row && params.biases[tile.matrix] != nullptr) bias = params.biases[tile.matrix][row];
  if (is_row && tile.is_gate && params.biases[1] != nullptr) up_bias = params.biases[1][row];
  float* const output = params.outputs[tile.matrix] + row;
  // Of the next turn's columns: on their way while this turn's are made.
  float scales[8], previous[8];
  const auto fetch = [&](uint32_t first) {
#pragma unroll
    for (uint32_t c = 0; c < 8; ++c) {
      const bool is_column = first + c < params.tokens;
      scales[c] = is_column ? params.scales[first + c] : 0.0f;
      previous[c] = is_add && is_row && is_column ? output[uint64_t{first + c} * rows] : 0.0f;
    }
  };
  fetch(first_column);
#pragma unroll 1
  for (uint32_t turn = 0; turn < kColumns / 8; ++turn) {
    const uint32_t turn_column = first_column + turn * 8;
    if (turn_column >= params.tokens) break;
#pragma unroll
    for (uint32_t t = 0; t < kColumns / 8; ++t) {
      if (t != turn) continue;
#pragma unroll
      for (uint32_t s = 0; s < 2; ++s)
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k)
          stage[(lane % 4 * 2 + k % 2) * kStoreStride + s * 16 + lane / 4 + k / 2 * 8] =
              sums[s][t * 4 + k];
    }
    __syncwarp();
    float values[8];
    if (tile.is_gate) {
#pragma unroll
      for (uint32_t c = 0; c < 8; c += 2) {
        const float* const parts = stage + (c + upper) * kStoreStride + lane % 16;
        const float scale = (upper != 0 ? scales[c + 1] : scales[c]) * weight_scale;
        values[c] =
            gated_fast(params.epilogue, parts[0] * scale + bias, parts[16] * scale + up_bias);
      }
    } else {
#pragma unroll
      for (uint32_t c = 0; c < 8; ++c)
        values[c] =
            stage[c * kStoreStride + lane] * (scales[c] * weight_scale) + bias + previous[c];
    }
    fetch(turn_column + 8);
#pragma unroll
    for (uint32_t c = 0; c < 8; ++c) {
      if (tile.is_gate && c % 2 != 0) continue;
      const uint32_t column = turn_column + c + (tile.is_gate ? upper : 0);
      if (is_row && column < params.tokens) output[uint64_t{column} * rows] = values[c];
    }
    __syncwarp();
  }
}

// Adds the sums of the cluster's blocks, (kColumns, rows of the tile) each behind the barriers of
// its shared memory, and writes the outputs: each block a part.
__device__ __forceinline__ void finish_tile(const LinearBatchParams& params, const BatchTile& tile,
                                            uint32_t first_column, uint32_t columns,
                                            uint32_t threads, uint32_t shared, float weight_scale) {
  // Outputs of a thread and blocks whose parts are on their way at once.
  constexpr uint32_t kTurn = 4, kBlocks = 4;
  const uint32_t stride = params.tile_rows + kBatchPadding;
  const uint32_t rows = params.rows[tile.matrix], count = tile.rows * columns;
  const uint32_t row_bits = __ffs(static_cast<int32_t>(tile.rows)) - 1;  // a power of two
  const uint32_t step = params.cluster * threads;
  const bool is_add = params.epilogue == Epilogue::kAdd;
  float* const outputs = params.outputs[tile.matrix] + uint64_t{first_column} * rows;
  const float* const scales = params.scales + first_column;
  const float* const biases = params.biases[tile.matrix];
  const float* const up_biases = tile.is_gate ? params.biases[1] : nullptr;
  for (uint32_t base = 0; base < count; base += kTurn * step) {
    const uint32_t first = base + blockIdx.x * threads + threadIdx.x;
    uint32_t places[kTurn];  // of a thread's outputs in the sums; past the end of output 0
    float totals[kTurn] = {}, ups[kTurn] = {}, scale[kTurn], bias[kTurn] = {}, up_bias[kTurn] = {};
    float previous[kTurn] = {};
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) {
      const uint32_t at = first + i * step < count ? first + i * step : 0;
      const uint32_t column = at >> row_bits, row = at & (tile.rows - 1);
      const uint32_t of_matrix = tile.first_row + row;
      places[i] = column * stride + row;
      scale[i] = scales[column] * weight_scale;
      if (of_matrix >= rows) continue;
      if (biases != nullptr) bias[i] = biases[of_matrix];
      if (up_biases != nullptr) up_bias[i] = up_biases[of_matrix];
      if (is_add) previous[i] = outputs[uint64_t{column} * rows + of_matrix];
    }
    for (uint32_t b = 0; b < params.cluster; b += kBlocks) {
      float parts[kBlocks][kTurn] = {}, up_parts[kBlocks][kTurn] = {};
#pragma unroll
      for (uint32_t k = 0; k < kBlocks; ++k) {
        if (b + k >= params.cluster) break;
        const uint32_t block = cluster_address(shared, b + k);
        const uint32_t sums = block + kBatchBarrierBytes;
#pragma unroll
        for (uint32_t i = 0; i < kTurn; ++i) {
          parts[k][i] = cluster_load(sums + places[i] * 4);
        }
        if (!tile.is_gate) continue;
#pragma unroll
        for (uint32_t i = 0; i < kTurn; ++i)
          up_parts[k][i] = cluster_load(sums + (places[i] + tile.rows) * 4);
      }
#pragma unroll
      for (uint32_t k = 0; k < kBlocks; ++k)
#pragma unroll
        for (uint32_t i = 0; i < kTurn; ++i) {
          totals[i] += parts[k][i];
          ups[i] += up_parts[k][i];
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) {
      const uint32_t at = first + i * step;
      const uint32_t column = at >> row_bits, of_matrix = tile.first_row + (at & (tile.rows - 1));
      if (at >= count || of_matrix >= rows) continue;
      float value = totals[i] * scale[i] + bias[i];
      if (tile.is_gate) value = gated_fast(params.epilogue, value, ups[i] * scale[i] + up_bias[i]);
      if (is_add) value += previous[i];
      outputs[uint64_t{column} * rows + of_matrix] = value;
    }
  }
}

#endif

// Types with a codebook: its table to shared memory.
template <class Operand>
__device__ __forceinline__ auto prepare_operand(int) -> decltype(Operand::T::prepare()) {
  Operand::T::prepare();
}
template <class Operand>
__device__ __forceinline__ void prepare_operand(...) {}

// A block of the grid.
template <class Operand, uint32_t kColumns>
__device__ __forceinline__ void batch_block(const LinearBatchParams& params) {
#if WCUDA_HAS_WARPGROUPS
  constexpr uint32_t kMTiles = batch_m_tiles(kColumns);
  extern __shared__ __align__(1024) uint8_t batch_shared[];
  // The swizzle goes by address; tables of codebooks may lie ahead.
  const auto start = shared_address(batch_shared);
  const uint32_t shared = (start + kBatchAlignment - 1) / kBatchAlignment * kBatchAlignment;
  // Warp-uniform for the compiler, so that derived values stay uniform.
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t consumer_warps = blockDim.x / 32 - batch_producers(kColumns);
  const bool is_direct = kMTiles > 1 && params.cluster == 1;
  const BatchWork work(params, is_direct);

  BatchWeights<Operand, kMTiles> weights;
  weights.ring.full = shared + warp * (kBatchStagesMax * 8);
  Pipeline columns;
  columns.full = shared + kBatchColumnBarriers;
  columns.empty = columns.full + kBatchStagesMax * 8;
  columns.data = shared + kBatchBarrierBytes;
  columns.stage_bytes = batch_stage_bytes(kColumns);
  columns.stages = batch_column_stages(kColumns);
  weights.ring.data =
      columns.data + columns.stages * columns.stage_bytes + warp * Operand::kKTileBytes;
  weights.ring.stage_bytes = params.tile_rows / quant::kMTileRows * Operand::kKTileBytes;
  weights.ring.stages = params.weight_stage_count;
  weights.m_tile_stride = consumer_warps * Operand::kKTileBytes;
  // Behind the stages: outputs on their way.
  uint8_t* const behind = batch_shared + (columns.data - start) +
                          columns.stages * columns.stage_bytes +
                          weights.ring.stages * weights.ring.stage_bytes;

  dependent_trigger();
  if (lane == 0) {
    if (warp < consumer_warps) {
#pragma unroll 1
      for (uint32_t i = 0; i < weights.ring.stages; ++i)
        mbarrier_init(weights.ring.full + i * 8, 1);
    } else if (warp == consumer_warps) {
#pragma unroll 1
      for (uint32_t i = 0; i < columns.stages; ++i) {
        mbarrier_init(columns.full + i * 8, 1);
        mbarrier_init(columns.empty + i * 8, consumer_warps * params.sharing);
      }
    }
    mbarrier_init_fence();
    fence_proxy_async();
  }
  __syncwarp();
  if (warp < consumer_warps) {
    weights.find_m_tiles(params, work, warp, consumer_warps);
#pragma unroll 1
    for (uint32_t i = 0; i < weights.ring.stages; ++i)
      weights.fetch(params, work, warp, consumer_warps, i);
  }
  prepare_operand<Operand>(0);
  if (params.sharing > 1)
    cluster_sync();  // barriers of both blocks
  else
    __syncthreads();

  // All sums are in shared memory: of a block alone, its consumers' business.
  const auto sync_sums = [&] {
    __syncwarp();
    if (params.cluster > 1)
      cluster_sync();
    else if (warp < consumer_warps)
      asm volatile("bar.sync 1, %0;" ::"r"(consumer_warps * 32) : "memory");
  };
  // The other blocks have read this one's.
  const auto sync_end = [&] {
    __syncwarp();
    if (params.cluster == 1) return;
    cluster_arrive_relaxed();
    cluster_wait();
  };
  if (warp >= consumer_warps) {
    if constexpr (kMTiles > 1) registers_release<40>();
    if (threadIdx.x == consumer_warps * 32) produce_columns<kColumns>(params, work, columns);
    __syncwarp();
    if (!is_direct) {
      sync_sums();
      sync_end();
    } else if (params.sharing > 1) {
      __syncwarp();
      cluster_sync();  // neither leaves while the other copies to it
    }
    return;
  }

  if constexpr (kMTiles > 1) registers_acquire<232>();
  constexpr float kScale = 1.0f / Operand::kWeightScale;
  const uint8_t* const packed_tiles = batch_shared + (weights.ring.data - start);
  uint8_t* const head = batch_shared + (shared - start);
  PipelineState column_stage;
  for (uint32_t i = 0; i < work.tiles; ++i) {
    const uint2 place = work.place(params, i);
    const BatchTile tile(params, place.x);
    const uint32_t first_column = place.y * kColumns;
    float sums[kMTiles][kColumns / 2] = {};
    consume<Operand, kColumns>(params, work, warp, consumer_warps, packed_tiles, weights, columns,
                               column_stage, sums);
    if constexpr (kMTiles > 1)
      if (is_direct) {
        dependent_wait();
        store_m_tiles<kColumns>(params, tile, first_column, warp, consumer_warps, kScale, sums,
                                reinterpret_cast<float*>(behind + warp * kStoreBytes));
        continue;
      }
    // The sums take the place of the stages once all have been read.
    asm volatile("bar.sync 1, %0;" ::"r"(consumer_warps * 32) : "memory");
    float* const parts = reinterpret_cast<float*>(head + kBatchBarrierBytes);
    const uint32_t stride = params.tile_rows + kBatchPadding;
#pragma unroll
    for (uint32_t s = 0; s < kMTiles; ++s)
#pragma unroll
      for (uint32_t k = 0; k < kColumns / 2; ++k) {
        const uint32_t column = k / 4 * 8 + lane % 4 * 2 + k % 2;
        const uint32_t row =
            (warp + s * consumer_warps) * quant::kMTileRows + lane / 4 + k / 2 % 2 * 8;
        parts[column * stride + row] = sums[s][k];
      }
    dependent_wait();
    sync_sums();
    finish_tile(params, tile, first_column, min(kColumns, params.tokens - first_column),
                consumer_warps * 32, shared, kScale);
    sync_end();
  }
  if (is_direct && params.sharing > 1) {
    __syncwarp();
    cluster_sync();
  }
#endif
}

// 16 consumer warps and the producer leave 96 registers a thread, 12 warps 168.
template <TensorType kType, uint32_t kColumns>
__global__ void __launch_bounds__(batch_bound(kColumns), batch_blocks(128, kColumns))
    linear_batch_kernel(const __grid_constant__ LinearBatchParams params) {
  batch_block<HalfTile<kType>, kColumns>(params);
}

// Matrices of two types: tiles from params.second_tile on are of kSecond. Up to 64 columns, where a
// block makes one tile.
template <TensorType kType, TensorType kSecond, uint32_t kColumns>
__global__ void __launch_bounds__(batch_bound(kColumns), batch_blocks(128, kColumns))
    linear_batch_mixed_kernel(const __grid_constant__ LinearBatchParams params) {
  static_assert(batch_m_tiles(kColumns) == 1);
  if (blockIdx.z < params.second_tile)
    batch_block<HalfTile<kType>, kColumns>(params);
  else
    batch_block<HalfTile<kSecond>, kColumns>(params);
}

// The kernels of a type or of two, and what their launcher needs to know.
struct BatchKernel {
  TensorType type;
  TensorType second_type;  // the same where there is but one
  InputOrder order;
  uint32_t k_tile_bytes;                               // of two types the larger
  uint32_t packed_tiles;                               // of a K-tile
  void (*kernels[4])(const LinearBatchParams params);  // 16, 32, 64, 128 columns; of two: null
};

// Of a type, or of matrices of two types.
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
      result.kernels[3] = linear_batch_kernel<kType, 128>;
    } else {
      result.kernels[0] = linear_batch_mixed_kernel<kType, kSecond, 16>;
      result.kernels[1] = linear_batch_mixed_kernel<kType, kSecond, 32>;
      result.kernels[2] = linear_batch_mixed_kernel<kType, kSecond, 64>;
    }
    return result;
  }();
  return &kernel;
}

// For the file of a format: the kernels of one type, of two.
#define WCUDA_LINEAR_BATCH(type, second_type) \
  template const BatchKernel* linear_batch_kernels<type, second_type>()

}  // namespace wcuda::kernels
