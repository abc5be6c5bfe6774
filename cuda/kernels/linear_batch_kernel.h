// The kernel of linear_batch for one weight type. Only for .cu files.
//
// A block makes a tile of up to 256 rows (16 strips) by kColumns columns; the blocks of a cluster
// share the inputs of a tile among them and add their sums in the order of their ranks. Without a
// cluster and with 128 columns a block makes tile after tile, and outputs are written from
// registers while copies go on. Each consumer warp brings the records of its own strips (two for
// 128 columns), a chunk of 256 inputs at a time, into a ring of stages in shared memory with bulk
// copies, the first ones before the kernels ahead have ended; a producer warp brings columns, 128
// inputs at a time. A warp turns the codes of its strips to f16 operands in its registers, and four
// warps together multiply 64 rows with the columns (wgmma m64nNk16, sums f32). With one warp that
// brought all records the products of an 8B model took 3.5 ms at 16 columns, not 3.4 (H200).
//
// Columns lie as half_input.h says, in the layout of the 128-byte swizzle.
//
// Bytes moved: records once for each tile of columns, and from memory once, as tiles of the same
// rows run together; columns once for each tile of rows.
#pragma once

#include "kernels/cluster.h"
#include "kernels/dependent_launch.h"
#include "kernels/half_tile.h"
#include "kernels/linear_activation.h"

namespace wcuda::kernels {

constexpr uint32_t kBatchStagesMax = 8;
constexpr uint32_t kBatchClusterMax = 8;
// Rows of a tile: the sums of 256 rows fill the registers.
WCUDA_HD constexpr uint32_t batch_rows_max(uint32_t columns) { return columns > 32 ? 256 : 128; }
// Blocks of a multiprocessor. Two where sums are few: the next kernel's find a place beside.
WCUDA_HD constexpr uint32_t batch_blocks(uint32_t columns) { return columns > 32 ? 1 : 2; }
// Strips of a consumer warp.
WCUDA_HD constexpr uint32_t batch_strips(uint32_t columns) { return columns > 64 ? 2 : 1; }
// Warps beside the consumers, of which one works: with two strips a warpgroup, which gives its
// registers away.
WCUDA_HD constexpr uint32_t batch_producers(uint32_t columns) { return columns > 64 ? 4 : 1; }
// 227 KB a multiprocessor, less what tables of codebooks take; half of it for two blocks.
constexpr uint32_t kBatchSharedBytes = (227 - 8) * 1024;
constexpr uint32_t kBatchSharedBytesOfTwo = 110 * 1024;
// What aligning takes.
constexpr uint32_t kBatchAlignment = 1024;
// Barriers: of weights a consumer warp and stage, of columns two a stage.
constexpr uint32_t kBatchWarpsMax = 16;
constexpr uint32_t kBatchColumnBarriers = kBatchWarpsMax * kBatchStagesMax * 8;
constexpr uint32_t kBatchBarrierBytes = 2048;
static_assert(kBatchColumnBarriers + kBatchStagesMax * 16 <= kBatchBarrierBytes);
// Between the sums of two columns: the lanes of a store lie in different banks.
constexpr uint32_t kBatchPadding = 4;
WCUDA_HD constexpr uint32_t batch_threads(uint32_t rows, uint32_t columns) {
  return rows / (64 * batch_strips(columns)) * 128 + batch_producers(columns) * 32;
}

struct LinearBatchParams {
  uint32_t columns;
  uint32_t column_tiles;
  uint32_t record_count;  // of a strip
  uint32_t chunk_count;
  uint32_t cluster;             // blocks that share a tile
  uint32_t sharing;             // blocks (1 or 2) of different rows that share their columns
  uint32_t tile_count;          // of rows (of all that share) and columns
  uint32_t tile_rows;           // 64, 128 or 256
  uint32_t weight_stage_count;  // of a chunk
  uint32_t column_stage_count;  // of half a chunk
  uint32_t matrix_count;
  Epilogue epilogue;
  const uint16_t* h;    // (column_tiles, chunk_count * 4, kColumns, 64)
  const float* scales;  // (columns)
  const uint8_t* records[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax];
  float* outputs[kLinearMatricesMax];
  uint32_t rows[kLinearMatricesMax];
  uint32_t first_tile[kLinearMatricesMax];  // of each matrix; a gate's matrices share their tiles
  uint32_t second_tile;                     // the first of the second type
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(uint32_t target, const void* source, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
// To the same place of the blocks of `ranks` (a bit each), and their barriers.
__device__ __forceinline__ void bulk_copy_shared(uint32_t target, const void* source,
                                                 uint32_t bytes, uint32_t barrier, uint32_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(target),
      "l"(source), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(ranks))
      : "memory");
}
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(barrier, rank))
               : "memory");
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <uint32_t kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Operand B: panels of 64 inputs, in which a column is 128 bytes, its pieces of 16 bytes exchanged
// as the 128-byte swizzle wants it; eight columns are 1024 bytes.
__device__ __forceinline__ uint64_t column_descriptor(uint32_t address) {
  return (address >> 4 & 0x3fff) | uint64_t{1} << 16 | uint64_t{1024 / 16} << 32 |
         uint64_t{1} << 62;
}
// What is added to it for step `step` of 16 inputs.
template <uint32_t kColumns>
WCUDA_HD constexpr uint32_t column_step(uint32_t step) {
  return step / 4 * (kColumns * 128 / 16) + step % 4 * (32 / 16);
}

// sums (8 columns each: c 0 … 3) += a * columns.
template <uint32_t kColumns>
__device__ __forceinline__ void wgmma(float (&sums)[kColumns / 2], const uint32_t* a,
                                      uint64_t columns);
template <>
__device__ __forceinline__ void wgmma<16>(float (&d)[8], const uint32_t* a, uint64_t columns) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns));
}
template <>
__device__ __forceinline__ void wgmma<32>(float (&d)[16], const uint32_t* a, uint64_t columns) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns));
}
template <>
__device__ __forceinline__ void wgmma<64>(float (&d)[32], const uint32_t* a, uint64_t columns) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns));
}

template <>
__device__ __forceinline__ void wgmma<128>(float (&d)[64], const uint32_t* a, uint64_t columns) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns));
}

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
  // Records of strip `strip` of the tile; null past the end of the matrix.
  __device__ const uint8_t* strip(const LinearBatchParams& params, uint32_t strip,
                                  uint64_t strip_bytes) const {
    const uint32_t strips = rows / quant::kRecordRows;
    const uint32_t of_matrix = is_gate ? strip / strips : matrix;
    const uint32_t row = first_row + strip % strips * quant::kRecordRows;
    if (row >= params.rows[of_matrix]) return nullptr;
    return params.records[of_matrix] + row / quant::kRecordRows * strip_bytes;
  }
};

// A ring of stages in shared memory: a barrier each for "full" and, where others fill it, "empty".
struct BatchRing {
  uint32_t full;  // barriers, 8 bytes each
  uint32_t empty;
  uint32_t stages;
  uint32_t stage_bytes;
  uint32_t count;
};
// A place in the order in which stages are used; `parity` is that of the phase to wait for.
struct BatchStage {
  uint32_t index = 0;
  uint32_t parity = 0;
  __device__ void next(uint32_t count) {
    if (++index < count) return;
    index = 0;
    parity ^= 1;
  }
};

// What a block makes: `tiles` tiles, one for every so many blocks, each over chunks first … first +
// count - 1. Tiles of the same rows run together.
struct BatchWork {
  uint32_t tiles;
  uint32_t first;
  uint32_t count;

  __device__ BatchWork(const LinearBatchParams& params, bool goes_on, uint32_t rank) {
    const uint32_t group = params.cluster > 1 ? params.cluster : params.sharing;
    tiles = goes_on ? (params.tile_count - blockIdx.x / group + gridDim.x / group - 1) /
                          (gridDim.x / group)
                    : 1;
    first = params.chunk_count * rank / params.cluster;
    count = params.chunk_count * (rank + 1) / params.cluster - first;
  }
  // Of tile number `turn`: which of the rows' tiles, which of the columns'.
  __device__ uint2 place(const LinearBatchParams& params, uint32_t turn) const {
    const uint32_t group = params.cluster > 1 ? params.cluster : params.sharing;
    const uint32_t index = blockIdx.x / group + turn * (gridDim.x / group);
    return make_uint2(index / params.column_tiles * params.sharing + blockIdx.x % params.sharing,
                      index % params.column_tiles);
  }
};

// A consumer warp brings the records of its own strips: those of strip s of the warp lie s *
// strip_stride bytes after those of the first.
template <class Operand, uint32_t kStrips>
struct BatchWeights {
  static constexpr uint32_t kRecordBytes = Operand::kChunkBytes / Operand::kRecords;
  BatchRing ring;  // stages: the place of the warp's first strip
  uint32_t strip_stride;
  BatchStage stage;  // that is read next
  // What is fetched next.
  const uint8_t* strips[kStrips];  // null past the end of a matrix
  uint32_t chunk;
  uint32_t turn = 0;

  __device__ __forceinline__ void find_strips(const LinearBatchParams& params,
                                              const BatchWork& work, uint32_t warp,
                                              uint32_t warps) {
    const BatchTile tile(params, work.place(params, turn).x);
    const uint64_t strip_bytes = uint64_t{params.record_count} * kRecordBytes;
#pragma unroll
    for (uint32_t s = 0; s < kStrips; ++s)
      strips[s] = tile.strip(params, warp + s * warps, strip_bytes);
    chunk = work.first;
  }
  // The next chunk to stage `index`, which the warp has read.
  __device__ __forceinline__ void fetch(const LinearBatchParams& params, const BatchWork& work,
                                        uint32_t warp, uint32_t warps, uint32_t index) {
    if (turn >= work.tiles) return;
    const uint32_t lane = threadIdx.x % 32, barrier = ring.full + index * 8;
    const uint32_t target = ring.stages + index * ring.stage_bytes;
    uint32_t bytes = Operand::kChunkBytes;
    if (Operand::kRecords > 1 && (chunk + 1) * Operand::kRecords > params.record_count) {
      // Records past the end of a strip are zeros.
      bytes = (params.record_count - chunk * Operand::kRecords) * kRecordBytes;
#pragma unroll
      for (uint32_t s = 0; s < kStrips; ++s)
        for (uint32_t i = bytes + lane * 16; i < Operand::kChunkBytes; i += 512)
          asm volatile(
              "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(target + s * strip_stride + i),
              "r"(0)
              : "memory");
      __syncwarp();
    }
    if (lane == 0) {
      uint32_t expected = 0;
#pragma unroll
      for (uint32_t s = 0; s < kStrips; ++s) expected += strips[s] != nullptr ? bytes : 0;
      barrier_expect(barrier, expected);
#pragma unroll
      for (uint32_t s = 0; s < kStrips; ++s)
        if (strips[s] != nullptr)
          bulk_copy(target + s * strip_stride, strips[s] + uint64_t{chunk} * Operand::kChunkBytes,
                    bytes, barrier);
    }
    __syncwarp();
    if (++chunk < work.first + work.count) return;
    if (++turn < work.tiles) find_strips(params, work, warp, warps);
  }
};

// The producer's lane: columns, half a chunk a stage, tile after tile.
__device__ inline void produce_columns(const LinearBatchParams& params, const BatchWork& work,
                                       const BatchRing& ring) {
  dependent_wait();
  BatchStage stage;
  for (uint32_t turn = 0; turn < work.tiles; ++turn) {
    const uint8_t* source =
        reinterpret_cast<const uint8_t*>(params.h) +
        (uint64_t{work.place(params, turn).y} * params.chunk_count + work.first) * 2 *
            ring.stage_bytes;
    for (uint32_t i = 0; i < 2 * work.count; ++i, source += ring.stage_bytes) {
      const uint32_t barrier = ring.full + stage.index * 8;
      const uint32_t target = ring.stages + stage.index * ring.stage_bytes;
      barrier_wait(ring.empty + stage.index * 8, stage.parity ^ 1);  // at once in the first round
      barrier_expect(barrier, ring.stage_bytes);
      if (params.sharing == 1) {
        bulk_copy(target, source, ring.stage_bytes, barrier);
      } else {  // each block brings half for both
        const uint32_t bytes = ring.stage_bytes / 2, offset = blockIdx.x % 2 * bytes;
        bulk_copy_shared(target + offset, source + offset, bytes, barrier, 3);
      }
      stage.next(ring.count);
    }
  }
}

// Sums of a warp's strips over the chunks of a tile.
template <class Operand, uint32_t kColumns, uint32_t kStrips>
__device__ __forceinline__ void consume(const LinearBatchParams& params, const BatchWork& work,
                                        uint32_t warp, uint32_t warps, const uint8_t* records,
                                        BatchWeights<Operand, kStrips>& weights,
                                        const BatchRing& columns, BatchStage& column_stage,
                                        float (&sums)[kStrips][kColumns / 2]) {
  const uint32_t lane = threadIdx.x % 32;
  // A stage of columns, to all whose producers fill it.
  const auto release = [&](uint32_t barrier) {
    if (kStrips > 1 && params.sharing > 1) {
      if (lane < params.sharing) barrier_arrive_at(barrier, lane);
    } else if (lane == 0) {
      barrier_arrive(barrier);
    }
  };
  for (uint32_t chunk = 0; chunk < work.count; ++chunk) {
    barrier_wait(weights.ring.full + weights.stage.index * 8, weights.stage.parity);
    const uint8_t* const chunk_records = records + weights.stage.index * weights.ring.stage_bytes;
    const uint32_t first_columns = column_stage.index;
    uint32_t a[2][8];
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      barrier_wait(columns.full + column_stage.index * 8, column_stage.parity);
      const uint64_t descriptor =
          column_descriptor(columns.stages + column_stage.index * columns.stage_bytes);
#pragma unroll
      for (uint32_t s = 0; s < kStrips; ++s) {
        Operand operand;
        operand.load(chunk_records + s * weights.strip_stride, half, lane);
#pragma unroll
        for (uint32_t m = 0; m < 4; ++m) {
          // What reads these registers, two steps ago, ends; at step 1 of a half all of the last.
          wgmma_wait<1>();
          if (half == 1 && s == 0 && m == 1) {
            __syncwarp();
            release(columns.empty + first_columns * 8);
          }
          operand.group(half, m, lane, a[m % 2]);
          wgmma_fence();
#pragma unroll
          for (uint32_t k = 0; k < 2; ++k)
            wgmma<kColumns>(sums[s], a[m % 2] + 4 * k,
                            descriptor + column_step<kColumns>(m * 2 + k));
          wgmma_commit();
        }
      }
      if (half == 0) column_stage.next(columns.count);
    }
    // The compiler keeps products in flight only within a turn of the loop.
    wgmma_wait<0>();
    __syncwarp();
    release(columns.empty + column_stage.index * 8);
    column_stage.next(columns.count);
    weights.fetch(params, work, warp, warps, weights.stage.index);
    weights.stage.next(weights.ring.count);
  }
}

// The outputs of a warp's two strips (of a gate: gate and up of the same rows), from its registers.
template <uint32_t kColumns>
__device__ __forceinline__ void store_strips(const LinearBatchParams& params, const BatchTile& tile,
                                             uint32_t first_column, uint32_t strip,
                                             uint32_t strip_stride, float weight_scale,
                                             const float (&sums)[2][kColumns / 2]) {
  constexpr uint32_t kTurn = 16;  // columns whose scales and previous outputs are read together
  const uint32_t lane = threadIdx.x % 32, rows = params.rows[tile.matrix];
  const uint32_t outputs = tile.is_gate ? 1 : 2;
  uint32_t row[2][2];  // of each strip: g and g + 8
  float bias[2][2] = {};
#pragma unroll
  for (uint32_t s = 0; s < 2; ++s)
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      row[s][r] = tile.first_row +
                  (strip + (tile.is_gate ? 0 : s * strip_stride)) * quant::kRecordRows + lane / 4 +
                  8 * r;
      const float* const biases = params.biases[tile.is_gate ? s : tile.matrix];
      if (biases != nullptr && row[s][r] < rows) bias[s][r] = biases[row[s][r]];
    }
  const bool is_add = params.epilogue == Epilogue::kAdd;
#pragma unroll
  for (uint32_t turn = 0; turn < kColumns / kTurn; ++turn) {
    float previous[kTurn / 4][2][2], scales[kTurn / 4];
#pragma unroll
    for (uint32_t i = 0; i < kTurn / 4; ++i) {
      const uint32_t column = first_column + turn * kTurn + i / 2 * 8 + lane % 4 * 2 + i % 2;
      scales[i] = column < params.columns ? params.scales[column] : 0.0f;
      const float* const old = params.outputs[tile.matrix] + uint64_t{column} * rows;
#pragma unroll
      for (uint32_t s = 0; s < 2; ++s)
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r)
          previous[i][s][r] =
              is_add && column < params.columns && row[s][r] < rows ? old[row[s][r]] : 0.0f;
    }
#pragma unroll
    for (uint32_t i = 0; i < kTurn / 4; ++i) {
      const uint32_t column = first_column + turn * kTurn + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (column >= params.columns) continue;
      const float scale = scales[i] * weight_scale;
      float* const output = params.outputs[tile.matrix] + uint64_t{column} * rows;
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t at = (turn * kTurn / 8 + i / 2) * 4 + r * 2 + i % 2;
        float value[2];
#pragma unroll
        for (uint32_t s = 0; s < 2; ++s) {
          value[s] = sums[s][at] * scale + bias[s][r];
          if (is_add) value[s] += previous[i][s][r];
        }
        if (tile.is_gate) value[0] = gated(params.epilogue, value[0], value[1]);
#pragma unroll
        for (uint32_t s = 0; s < 2; ++s)
          if (s < outputs && row[s][r] < rows) output[row[s][r]] = value[s];
      }
    }
  }
}

// Adds the sums of the cluster's blocks, (kColumns, rows of the tile) each at `sums` of its shared
// memory, and writes the outputs: each block a part.
__device__ inline void finish_tile(const LinearBatchParams& params, const BatchTile& tile,
                                   uint32_t first_column, uint32_t columns, uint32_t rank,
                                   uint32_t threads, uint32_t sums, float weight_scale) {
  // Outputs of a thread and blocks whose parts are on their way at once.
  constexpr uint32_t kTurn = 4, kBlocks = 4;
  const uint32_t stride = params.tile_rows + kBatchPadding;
  const uint32_t rows = params.rows[tile.matrix], count = tile.rows * columns;
  const uint32_t row_bits = __ffs(static_cast<int32_t>(tile.rows)) - 1;  // a power of two
  const uint32_t end = count / params.cluster * (rank + 1) +
                       (rank + 1 == params.cluster ? count % params.cluster : 0);
  const bool is_add = params.epilogue == Epilogue::kAdd;
  float* const outputs = params.outputs[tile.matrix] + uint64_t{first_column} * rows;
  const float* const scales = params.scales + first_column;
  const float* const biases = params.biases[tile.matrix];
  const float* const up_biases = tile.is_gate ? params.biases[1] : nullptr;
  for (uint32_t first = count / params.cluster * rank + threadIdx.x; first < end;
       first += kTurn * threads) {
    uint32_t places[kTurn];  // of a thread's outputs in the sums; past the end those of the first
    float totals[kTurn] = {}, ups[kTurn] = {}, scale[kTurn], bias[kTurn] = {}, up_bias[kTurn] = {};
    float previous[kTurn] = {};
#pragma unroll
    for (uint32_t i = 0; i < kTurn; ++i) {
      const uint32_t at = first + i * threads < end ? first + i * threads : first;
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
        const uint32_t block = cluster_address(sums, b + k);
#pragma unroll
        for (uint32_t i = 0; i < kTurn; ++i) parts[k][i] = cluster_load(block + places[i] * 4);
        if (!tile.is_gate) continue;
#pragma unroll
        for (uint32_t i = 0; i < kTurn; ++i)
          up_parts[k][i] = cluster_load(block + (places[i] + tile.rows) * 4);
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
      const uint32_t at = first + i * threads;
      const uint32_t column = at >> row_bits, of_matrix = tile.first_row + (at & (tile.rows - 1));
      if (at >= end || of_matrix >= rows) continue;
      float value = totals[i] * scale[i] + bias[i];
      if (tile.is_gate) value = gated(params.epilogue, value, ups[i] * scale[i] + up_bias[i]);
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
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr uint32_t kStrips = batch_strips(kColumns);
  extern __shared__ __align__(1024) uint8_t batch_shared[];
  // The swizzle goes by address; tables of codebooks may lie ahead.
  const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(batch_shared));
  const uint32_t shared = (start + kBatchAlignment - 1) / kBatchAlignment * kBatchAlignment;
  // Known to the compiler as the same in all lanes, so that what hangs on it is.
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t consumer_warps = blockDim.x / 32 - batch_producers(kColumns);
  const uint32_t rank = params.cluster > 1 ? cluster_rank() : 0;
  const bool is_direct = kStrips > 1 && params.cluster == 1;
  const BatchWork work(params, is_direct, rank);

  BatchWeights<Operand, kStrips> weights;
  weights.ring.full = shared + warp * (kBatchStagesMax * 8);
  BatchRing columns;
  columns.full = shared + kBatchColumnBarriers;
  columns.empty = columns.full + kBatchStagesMax * 8;
  columns.stages = shared + kBatchBarrierBytes;
  columns.stage_bytes = kUnitInputs * kColumns * 2;
  columns.count = params.column_stage_count;
  weights.ring.stages =
      columns.stages + columns.count * columns.stage_bytes + warp * Operand::kChunkBytes;
  weights.ring.stage_bytes = params.tile_rows / quant::kRecordRows * Operand::kChunkBytes;
  weights.ring.count = params.weight_stage_count;
  weights.strip_stride = consumer_warps * Operand::kChunkBytes;

  dependent_trigger();
  if (lane == 0) {
    if (warp < consumer_warps) {
      for (uint32_t i = 0; i < weights.ring.count; ++i) barrier_init(weights.ring.full + i * 8, 1);
    } else if (warp == consumer_warps) {
      for (uint32_t i = 0; i < columns.count; ++i) {
        barrier_init(columns.full + i * 8, 1);
        barrier_init(columns.empty + i * 8, consumer_warps * params.sharing);
      }
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::
                     : "memory");
  }
  __syncwarp();
  if (warp < consumer_warps) {
    weights.find_strips(params, work, warp, consumer_warps);
    for (uint32_t i = 0; i < weights.ring.count; ++i)
      weights.fetch(params, work, warp, consumer_warps, i);
  }
  prepare_operand<Operand>(0);
  if (params.sharing > 1)
    cluster_sync();  // barriers of both blocks
  else
    __syncthreads();

  // All sums are in shared memory.
  const auto sync_sums = [&] {
    __syncwarp();
    if (params.cluster > 1)
      cluster_sync();
    else
      __syncthreads();
  };
  // The other blocks have read this one's.
  const auto sync_end = [&] {
    __syncwarp();
    if (params.cluster == 1) return;
    cluster_arrive_relaxed();
    cluster_wait();
  };
  if (warp >= consumer_warps) {
    if constexpr (kStrips > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == consumer_warps * 32) produce_columns(params, work, columns);
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

  if constexpr (kStrips > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  constexpr float kScale = 1.0f / Operand::kWeightScale;
  const uint8_t* const records = batch_shared + (weights.ring.stages - start);
  BatchStage column_stage;
  for (uint32_t i = 0; i < work.tiles; ++i) {
    const uint2 place = work.place(params, i);
    const BatchTile tile(params, place.x);
    const uint32_t first_column = place.y * kColumns;
    float sums[kStrips][kColumns / 2] = {};
    consume<Operand, kColumns>(params, work, warp, consumer_warps, records, weights, columns,
                               column_stage, sums);
    if constexpr (kStrips > 1)
      if (is_direct) {
        dependent_wait();
        store_strips<kColumns>(params, tile, first_column, warp, consumer_warps, kScale, sums);
        continue;
      }
    // The sums take the place of the stages once all have been read.
    asm volatile("bar.sync 1, %0;" ::"r"(consumer_warps * 32) : "memory");
    float* const parts =
        reinterpret_cast<float*>(batch_shared + (shared - start) + kBatchBarrierBytes);
    const uint32_t stride = params.tile_rows + kBatchPadding;
#pragma unroll
    for (uint32_t s = 0; s < kStrips; ++s)
#pragma unroll
      for (uint32_t k = 0; k < kColumns / 2; ++k) {
        const uint32_t column = k / 4 * 8 + lane % 4 * 2 + k % 2;
        const uint32_t row =
            (warp + s * consumer_warps) * quant::kRecordRows + lane / 4 + k / 2 % 2 * 8;
        parts[column * stride + row] = sums[s][k];
      }
    dependent_wait();
    sync_sums();
    finish_tile(params, tile, first_column, min(kColumns, params.columns - first_column), rank,
                consumer_warps * 32, shared + kBatchBarrierBytes, kScale);
    sync_end();
  }
  if (is_direct && params.sharing > 1) {
    __syncwarp();
    cluster_sync();
  }
#endif
}

// 16 consumer warps and the producer leave 96 registers a thread, 12 warps 168.
template <uint32_t kType, uint32_t kColumns>
__global__ void __launch_bounds__(batch_threads(batch_rows_max(kColumns), kColumns),
                                  batch_blocks(kColumns))
    linear_batch_kernel(const __grid_constant__ LinearBatchParams params) {
  batch_block<HalfTile<kType>, kColumns>(params);
}

// Matrices of two types: tiles from params.second_tile on are of kSecond. Up to 64 columns, where a
// block makes one tile.
template <uint32_t kType, uint32_t kSecond, uint32_t kColumns>
__global__ void __launch_bounds__(batch_threads(batch_rows_max(kColumns), kColumns),
                                  batch_blocks(kColumns))
    linear_batch_mixed_kernel(const __grid_constant__ LinearBatchParams params) {
  static_assert(batch_strips(kColumns) == 1);
  if (blockIdx.x / params.cluster / params.column_tiles < params.second_tile)
    batch_block<HalfTile<kType>, kColumns>(params);
  else
    batch_block<HalfTile<kSecond>, kColumns>(params);
}

// The kernels of a type or of two, and what their launcher needs to know.
struct BatchKernel {
  uint32_t type;
  uint32_t second_type;  // the same where there is but one
  InputOrder order;
  uint32_t chunk_bytes;                                // of two types the larger
  uint32_t records;                                    // of a chunk
  void (*kernels[4])(const LinearBatchParams params);  // 16, 32, 64, 128 columns; of two: null
};

template <uint32_t kType>
constexpr BatchKernel batch_kernel() {
  using Operand = HalfTile<kType>;
  return {kType,
          kType,
          Operand::kOrder,
          Operand::kChunkBytes,
          Operand::kRecords,
          {linear_batch_kernel<kType, 16>, linear_batch_kernel<kType, 32>,
           linear_batch_kernel<kType, 64>, linear_batch_kernel<kType, 128>}};
}

template <uint32_t kType, uint32_t kSecond>
constexpr BatchKernel batch_mixed_kernel() {
  using First = HalfTile<kType>;
  using Second = HalfTile<kSecond>;
  static_assert(First::kOrder == Second::kOrder && First::kRecords == Second::kRecords);
  return {
      kType,
      kSecond,
      First::kOrder,
      First::kChunkBytes > Second::kChunkBytes ? First::kChunkBytes : Second::kChunkBytes,
      First::kRecords,
      {linear_batch_mixed_kernel<kType, kSecond, 16>, linear_batch_mixed_kernel<kType, kSecond, 32>,
       linear_batch_mixed_kernel<kType, kSecond, 64>, nullptr}};
}

inline const BatchKernel* find_batch_kernel(const BatchKernel* kernels, uint32_t count,
                                            uint32_t type) {
  for (uint32_t i = 0; i < count; ++i)
    if (kernels[i].type == type) return &kernels[i];
  return nullptr;
}

// A family of types each; null for others.
const BatchKernel* find_batch_plain(uint32_t type);
const BatchKernel* find_batch_legacy(uint32_t type);
const BatchKernel* find_batch_k(uint32_t type);
const BatchKernel* find_batch_few_bits(uint32_t type);
const BatchKernel* find_batch_levels(uint32_t type);
const BatchKernel* find_batch_grid(uint32_t type);
// Of matrices of both types.
const BatchKernel* find_batch_mixed(uint32_t type, uint32_t second_type);

}  // namespace wcuda::kernels
