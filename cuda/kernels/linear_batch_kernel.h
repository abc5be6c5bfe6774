// The kernel of linear_batch for one weight type. Only for .cu files.
//
// A block makes a tile of up to 256 rows (16 strips) for all columns, over a part of the inputs;
// the blocks of a cluster share the inputs of a tile among them and add their sums in the order of
// their ranks. One producer warp brings chunks of 256 inputs, records and columns, into a ring of
// stages in shared memory with bulk copies; it starts with the weights before the kernels ahead
// have ended. Each consumer warp holds one strip: it turns the strip's codes to f16 operands in its
// registers, and four warps together multiply them with the columns (wgmma m64nNk16, sums f32).
//
// Columns lie in pieces of 8 inputs, (depth / 8, kColumns, 8): eight columns of a piece are the 128
// bytes of a core matrix of wgmma's layout without swizzle.
//
// Bytes moved: records once; columns once for each tile.
#pragma once

#include "kernels/dependent_launch.h"
#include "kernels/half_tile.h"
#include "kernels/linear_activation.h"

namespace wcuda::kernels {

constexpr uint32_t kBatchStagesMax = 8;
constexpr uint32_t kBatchClusterMax = 8;
constexpr uint32_t kBatchWarpgroupsMax = 4;
// 227 KB a block, less what tables of codebooks take.
constexpr uint32_t kBatchSharedBytes = (227 - 8) * 1024;
constexpr uint32_t kBatchBarrierBytes = 1024;

struct LinearBatchParams {
  uint32_t columns;
  uint32_t record_count;  // of a strip
  uint32_t chunk_count;
  uint32_t cluster;     // blocks that share a tile
  uint32_t warpgroups;  // consumers; 64 rows each
  uint32_t stage_count;
  uint32_t matrix_count;
  Epilogue epilogue;
  const uint16_t* h;    // (chunk_count * 32, kColumns, 8)
  const float* scales;  // (columns)
  const uint8_t* records[kLinearMatricesMax];
  const float* biases[kLinearMatricesMax];
  float* outputs[kLinearMatricesMax];
  uint32_t rows[kLinearMatricesMax];
  uint32_t first_tile[kLinearMatricesMax];  // of each matrix; a gate's matrices share their tiles
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
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Of the whole cluster, shared memory included.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ float cluster_load(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
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

// Operand B: core matrices of 8 columns x 8 inputs, 128 bytes apart along columns and 16 * kColumns
// along inputs.
template <uint32_t kColumns>
__device__ __forceinline__ uint64_t column_descriptor(uint32_t address) {
  constexpr uint64_t kStrides = uint64_t{kColumns} << 16 | uint64_t{128 / 16} << 32;
  return kStrides | (address >> 4 & 0x3fff);
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

// The tile of a block: which rows of which matrix.
struct BatchTile {
  uint32_t matrix;
  uint32_t first_row;
  uint32_t rows;  // of the tile, and of each half of a gate's; a multiple of 32
  bool is_gate;

  __device__ BatchTile(const LinearBatchParams& params, uint32_t index) {
    is_gate = params.epilogue == Epilogue::kSiluGate || params.epilogue == Epilogue::kGeluTanhGate;
    rows = params.warpgroups * (is_gate ? 32 : 64);
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

// Fills the ring: chunks first … end - 1 of the tile's strips and of the columns.
template <class Operand, uint32_t kColumns>
__device__ __forceinline__ void produce(const LinearBatchParams& params, const BatchTile& tile,
                                        uint32_t first, uint32_t end, uint32_t stages,
                                        uint32_t full, uint32_t empty) {
  constexpr uint32_t kColumnBytes = kChunkInputs * kColumns * 2;
  constexpr uint32_t kRecordBytes = Operand::kChunkBytes / Operand::kRecords;
  const uint32_t lane = threadIdx.x % 32, strip_count = params.warpgroups * 4;
  const uint32_t stage_bytes = strip_count * Operand::kChunkBytes + kColumnBytes;
  const uint64_t strip_bytes = uint64_t{params.record_count} * kRecordBytes;
  const uint8_t* const strip = lane < strip_count ? tile.strip(params, lane, strip_bytes) : nullptr;
  const uint32_t present = __popc(__ballot_sync(~0u, strip != nullptr));

  const auto copy_weights = [&](uint32_t chunk, uint32_t stage) {
    const uint32_t records =
        min(Operand::kRecords, params.record_count - chunk * Operand::kRecords);
    const uint32_t bytes = records * kRecordBytes, barrier = full + stage * 8;
    const uint32_t target = stages + stage * stage_bytes;
    // Records past the end of a strip are zeros.
    for (uint32_t i = bytes + lane * 16;
         bytes < Operand::kChunkBytes && i < strip_count * Operand::kChunkBytes; i += 512)
      if (i % Operand::kChunkBytes >= bytes)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(target + i), "r"(0)
                     : "memory");
    __syncwarp();
    if (lane == 0) barrier_expect(barrier, present * bytes + kColumnBytes);
    __syncwarp();
    if (strip != nullptr)
      bulk_copy(target + lane * Operand::kChunkBytes,
                strip + uint64_t{chunk} * Operand::kChunkBytes, bytes, barrier);
  };
  const auto copy_columns = [&](uint32_t chunk, uint32_t stage) {
    if (lane == 0)
      bulk_copy(stages + stage * stage_bytes + strip_count * Operand::kChunkBytes,
                params.h + uint64_t{chunk} * (kColumnBytes / 2), kColumnBytes, full + stage * 8);
  };

  const uint32_t ahead = min(params.stage_count, end - first);
  for (uint32_t i = 0; i < ahead; ++i) copy_weights(first + i, i);
  dependent_wait();
  for (uint32_t i = 0; i < ahead; ++i) copy_columns(first + i, i);
  uint32_t stage = 0, parity = 0;
  for (uint32_t chunk = first + ahead; chunk < end; ++chunk) {
    barrier_wait(empty + stage * 8, parity);
    copy_weights(chunk, stage);
    copy_columns(chunk, stage);
    if (++stage == params.stage_count) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Sums of a warp's strip over chunks first … end - 1.
template <class Operand, uint32_t kColumns>
__device__ __forceinline__ void consume(const LinearBatchParams& params, uint32_t first,
                                        uint32_t end, const uint8_t* shared, uint32_t stages,
                                        uint32_t full, uint32_t empty,
                                        float (&sums)[kColumns / 2]) {
  constexpr uint32_t kColumnBytes = kChunkInputs * kColumns * 2;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t strip_count = params.warpgroups * 4;
  const uint32_t stage_bytes = strip_count * Operand::kChunkBytes + kColumnBytes;
  uint32_t stage = 0, parity = 0;
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    barrier_wait(full + stage * 8, parity);
    const uint32_t offset = stage * stage_bytes;
    const uint8_t* const records = shared + offset + warp * Operand::kChunkBytes;
    const uint64_t columns =
        column_descriptor<kColumns>(stages + offset + strip_count * Operand::kChunkBytes);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      Operand operand;
      operand.load(records, half, lane);
      uint32_t a[2][8];
#pragma unroll
      for (uint32_t m = 0; m < 4; ++m) {
        if (half + m > 0) wgmma_wait<1>();
        operand.group(half, m, lane, a[m % 2]);
        wgmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k)
          wgmma<kColumns>(sums, a[m % 2] + 4 * k,
                          columns + ((half * 4 + m) * 2 + k) * (2 * kColumns));
        wgmma_commit();
      }
    }
    wgmma_wait<0>();
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage * 8);
    if (++stage == params.stage_count) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Adds the sums of the cluster's blocks, (kColumns, rows of the tile) each at `sums` of its shared
// memory, and writes the outputs: each block a part.
__device__ inline void finish_tile(const LinearBatchParams& params, const BatchTile& tile,
                                   uint32_t rank, uint32_t sums, uint32_t stride,
                                   float weight_scale) {
  uint32_t blocks[kBatchClusterMax];
#pragma unroll
  for (uint32_t b = 0; b < kBatchClusterMax; ++b)
    blocks[b] = b < params.cluster ? cluster_address(sums, b) : sums;
  const auto total = [&](uint32_t at) {
    float sum = cluster_load(blocks[0] + at * 4);
#pragma unroll
    for (uint32_t b = 1; b < kBatchClusterMax; ++b)
      if (b < params.cluster) sum += cluster_load(blocks[b] + at * 4);
    return sum;
  };

  const uint32_t rows = params.rows[tile.matrix], count = tile.rows * params.columns;
  const uint32_t end = count / params.cluster * (rank + 1) +
                       (rank + 1 == params.cluster ? count % params.cluster : 0);
  for (uint32_t i = count / params.cluster * rank + threadIdx.x; i < end; i += blockDim.x) {
    const uint32_t column = i / tile.rows, row = i % tile.rows, of_matrix = tile.first_row + row;
    if (of_matrix >= rows) continue;
    const float scale = params.scales[column] * weight_scale;
    float value = total(column * stride + row) * scale;
    if (params.biases[tile.matrix] != nullptr) value += params.biases[tile.matrix][of_matrix];
    float* const output = params.outputs[tile.matrix] + uint64_t{column} * rows + of_matrix;
    if (tile.is_gate) {
      float up = total(column * stride + tile.rows + row) * scale;
      if (params.biases[1] != nullptr) up += params.biases[1][of_matrix];
      value = gated(params.epilogue, value, up);
    } else if (params.epilogue == Epilogue::kAdd) {
      value += *output;
    }
    *output = value;
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

// 4 consumer warpgroups and the producer warp leave 120 registers a thread.
template <uint32_t kType, uint32_t kColumns>
__global__ void __launch_bounds__(kBatchWarpgroupsMax * 128 + 32, 1)
    linear_batch_kernel(const __grid_constant__ LinearBatchParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Operand = HalfTile<kType>;
  extern __shared__ __align__(1024) uint8_t batch_shared[];
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(batch_shared));
  const uint32_t full = shared, empty = shared + kBatchStagesMax * 8;
  const uint32_t stages = shared + kBatchBarrierBytes;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t consumer_warps = params.warpgroups * 4;
  const uint32_t rank = params.cluster > 1 ? cluster_rank() : 0;
  const BatchTile tile(params, blockIdx.x / params.cluster);
  const uint32_t first = params.chunk_count * rank / params.cluster;
  const uint32_t end = params.chunk_count * (rank + 1) / params.cluster;

  dependent_trigger();
  prepare_operand<Operand>(0);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < params.stage_count; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, consumer_warps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::
                     : "memory");
  }
  __syncthreads();

  float* const parts = reinterpret_cast<float*>(batch_shared + kBatchBarrierBytes);
  const uint32_t stride = params.warpgroups * 64 + 4;  // lanes of a store lie in different banks
  if (warp == consumer_warps) {
    produce<Operand, kColumns>(params, tile, first, end, stages, full, empty);
  } else {
    float sums[kColumns / 2] = {};
    consume<Operand, kColumns>(params, first, end, batch_shared + kBatchBarrierBytes, stages, full,
                               empty, sums);
    // The sums take the place of the stages once all have been read.
    asm volatile("bar.sync 1, %0;" ::"r"(consumer_warps * 32) : "memory");
#pragma unroll
    for (uint32_t i = 0; i < kColumns / 2; ++i) {
      const uint32_t column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      parts[column * stride + warp * 16 + lane / 4 + i / 2 % 2 * 8] = sums[i];
    }
    dependent_wait();
  }
  __syncwarp();
  if (params.cluster > 1)
    cluster_sync();
  else
    __syncthreads();
  finish_tile(params, tile, rank, stages, stride, 1.0f / Operand::kWeightScale);
  if (params.cluster > 1) cluster_sync();
#endif
}

// A type's kernels, and what their launcher needs to know.
struct BatchKernel {
  uint32_t type;
  InputOrder order;
  uint32_t chunk_bytes;
  uint32_t records;                                    // of a chunk
  void (*kernels[3])(const LinearBatchParams params);  // 16, 32, 64 columns
};

template <uint32_t kType>
constexpr BatchKernel batch_kernel() {
  using Operand = HalfTile<kType>;
  return {kType,
          Operand::kOrder,
          Operand::kChunkBytes,
          Operand::kRecords,
          {linear_batch_kernel<kType, 16>, linear_batch_kernel<kType, 32>,
           linear_batch_kernel<kType, 64>}};
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

}  // namespace wcuda::kernels
