// The kernel of linear_vector: y[t] = W · h[t] for T = 1, 2, 4 or 8 tokens t, where h[t] is x[t] or
// its RMS norm.
//
//                      inputs (K)
//              K-warp 0 | K-warp 1 | K-warp 2
//   M-tile 0   warp 0   | warp 1   | warp 2     M-warp 0
//   M-tile 1   warp 3   | warp 4   | warp 5     M-warp 1
//   M-tile 2   warp 0   | warp 1   | warp 2     M-warp 0
//   M-tile 3   warp 3   | warp 4   | warp 5     M-warp 1
//
// A CTA computes a range of M-tiles of 16 rows of W. Its warps form a grid of M-warps by K-warps;
// the picture shows 2 by 3. With n M-warps, M-warp i takes M-tiles i, i + n, i + 2 n, … A K-warp
// takes a contiguous range of the K-tiles (kernels/linear/tile.cuh) of each M-tile.
//
// A warp needs the activations x of its own K-tiles only. The warps of one K-warp column stage
// these activations in shared memory together. With one M-warp, every warp stages its own
// activations, and the MMAs need no barrier of the whole CTA before them. Each warp has its own
// ring of stages for weights. TMA bulk copies fill the rings, beginning before the previous kernel
// has ended.
//
// Each pair of M-tile and K-warp has an accumulator in shared memory. After every `batch` M-tiles,
// the epilogue adds the accumulators of the K-warps in a fixed order and writes the outputs. Bytes
// moved: every weight once from device memory, and x once per CTA from L2.
//
// With split-K, the CTAs of a cluster divide the inputs. Each CTA sends its sums, through
// distributed shared memory, to the CTA of the cluster that finishes the M-tile. Code for compute
// capability below 9.0 has no clusters: CTAs write their sums to global memory, and the last CTA to
// arrive adds them in the same order. It has no TMA either: each lane fills the rings with 16-byte
// copies.
//
// Three latencies add up to the gap between two kernels: from the start of this kernel to its first
// copy, from the end of the previous kernel to the first MMA, and from the last MMA to the end of
// this kernel. The code keeps each of them short.
#pragma once

#include <type_traits>

#include "kernels/linear/float_engine.cuh"
#include "kernels/linear/int8_engine.cuh"
#include "kernels/linear/linear_vector.h"
#include "kernels/linear/vector_params.h"
#include "kernels/linear/vector_pipeline.cuh"
#include "kernels/linear/vector_plan.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/tile_sizes.h"

namespace wcuda::kernels {

using quant::kMTileRows;

namespace vector {

struct MatrixTile {
  uint32_t matrix;
  uint32_t m_tile;
};

// Maps M-tile v of the launch to a matrix and an M-tile of that matrix. With a gate, the M-tiles of
// gate and up alternate. Otherwise the matrices follow each other.
__device__ inline MatrixTile find_tile(const VectorParams& params, uint32_t v) {
  if (params.epilogue >= Epilogue::kSiluGate) return {v % 2, v / 2};
  const uint32_t matrix =
      (v >= params.matrix_begins[1] ? 1 : 0) + (v >= params.matrix_begins[2] ? 1 : 0);
  return {matrix, v - params.matrix_begins[matrix]};
}

// The work of a CTA.
struct Partition {
  uint32_t cluster, k_split;
  uint32_t m_tile_begin, m_tiles;  // M-tiles of the cluster
};

// Returns the number of M-tiles in a work item: 2 with a gate (one of gate, one of up), otherwise
// 1.
__device__ inline uint32_t item_m_tiles(const VectorParams& params) {
  return params.epilogue >= Epilogue::kSiluGate ? 2 : 1;
}

// Stores a float in the shared memory of CTA `rank` of the cluster, at the address of `place`.
__device__ inline void store_float([[maybe_unused]] float* place, [[maybe_unused]] uint32_t rank,
                                   [[maybe_unused]] float value) {
#if __CUDA_ARCH__ >= 900
  cluster_store(cluster_address(shared_address(place), rank), value);
#endif
}

__device__ inline float gate(Epilogue epilogue, float v) {
  if (epilogue == Epilogue::kSiluGate) return __fdividef(v, 1.0f + __expf(-v));
  return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * v * (1.0f + 0.044715f * v * v)));
}

// An output, and the terms that are added to its dot product.
struct Output {
  float* target = nullptr;  // null if the row or the token is padding
  uint32_t index;           // token * kMTileRows + row in the M-tile
  float bias = 0.0f, up_bias = 0.0f;
  float before = 0.0f;  // previous value of the target, with Epilogue::kAdd
};

// Finds output `index` of M-tile `m_tile` of the cluster; with a gate, `m_tile` is that of the gate
// matrix. May run before the previous kernel has ended, because it reads nothing that the previous
// kernel writes. read_before() then reads the previous value of the target.
__device__ inline Output find_output(const VectorParams& params, const Partition& partition,
                                     uint32_t m_tile, uint32_t index) {
  Output output;
  output.index = index;
  const uint32_t token = index / kMTileRows;
  const MatrixTile tile = find_tile(params, partition.m_tile_begin + m_tile);
  const VectorMatrix& matrix = params.matrices[tile.matrix];
  const uint32_t row = tile.m_tile * kMTileRows + index % kMTileRows;
  if (token >= params.tokens || row >= matrix.rows) return output;
  output.target = matrix.output + uint64_t{token} * matrix.rows + row;
  if (matrix.bias != nullptr) output.bias = matrix.bias[row];
  if (params.epilogue >= Epilogue::kSiluGate && params.matrices[1].bias != nullptr)
    output.up_bias = params.matrices[1].bias[row];
  return output;
}

__device__ inline void read_before(const VectorParams& params, Output& output) {
  if (params.epilogue == Epilogue::kAdd && output.target != nullptr) output.before = *output.target;
}

// Computes and writes an output. sum(0) returns its dot product and, with a gate, sum(1) that of
// the up matrix. square(token) returns the sum of squares of x.
template <class Sum, class Square>
__device__ inline void finish(const VectorParams& params, const Output& output, Sum sum,
                              Square square) {
  if (output.target == nullptr) return;
  float inverse = 1.0f;
  if (params.norm != nullptr)
    inverse = rsqrtf(square(output.index / kMTileRows) * params.mean_factor + params.epsilon);
  float y = sum(0) * inverse + output.bias;
  if (params.epilogue >= Epilogue::kSiluGate)
    y = gate(params.epilogue, y) * (sum(1) * inverse + output.up_bias);
  *output.target = y + output.before;
}

// Returns the sum of 4 * `float4s` floats; `float4s` is at most 4. `values` must be aligned to 16
// bytes.
__device__ inline float add_up(const float* values, uint32_t float4s) {
  float4 v[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
    v[i] = i < float4s ? reinterpret_cast<const float4*>(values)[i] : float4{};
  float total = (v[0].x + v[0].y) + (v[0].z + v[0].w);
#pragma unroll
  for (uint32_t i = 1; i < 4; ++i) total += (v[i].x + v[i].y) + (v[i].z + v[i].w);
  return total;
}

// The sums of all K-splits for the M-tiles that this CTA finishes, as float[k_splits][stride]. Each
// K-split begins with its sums, float[M-tiles][T][kMTileRows], and ends with the sums of squares of
// x, float[T].
struct Totals {
  float* base;
  uint32_t stride;  // floats between K-splits
};

// Epilogue of M-tiles `begin` to `end` - 1 of the cluster. Without split-K, it adds their
// accumulators and writes the outputs. With split-K, it sends the sums to the CTA that finishes the
// M-tile. Called by all threads. `thread` is the index of this thread, rotated by run() so that
// thread 0 has the first output of the batch. `output` is the first output of this thread.
template <uint32_t T, bool kCluster>
__device__ inline void finish_batch(const VectorParams& params, const Partition& partition,
                                    const Totals& totals, uint32_t begin, uint32_t end,
                                    uint32_t thread, Output output, const float* accumulators,
                                    const float* squares) {
  const uint32_t width = item_m_tiles(params), stride = params.accumulator_stride,
                 m_tile_accumulators = stride * kMTileRows * T;
  const auto square = [&](uint32_t token) {
    return add_up(squares + token * kVectorWarpsMax, (blockDim.x / 32 + 3) / 4);
  };
  __syncthreads();
  if (params.cluster_size == 1) {
    const uint32_t count = (end - begin) / width * kMTileRows * T;
#pragma unroll 1
    for (uint32_t i = thread; i < count;) {
      const float* sums = accumulators + i / (kMTileRows * T) * width * m_tile_accumulators +
                          i % (kMTileRows * T) * stride;
      finish(
          params, output,
          [&](uint32_t k) {
            return add_up(sums + k * m_tile_accumulators, (params.k_warps + 3) / 4);
          },
          square);
      i += blockDim.x;
      if (i >= count) break;
      output = find_output(params, partition, begin + i / (kMTileRows * T) * width,
                           i % (kMTileRows * T));
      read_before(params, output);
    }
    return;
  }
  const uint32_t k_splits = params.cluster_size;
#pragma unroll 1
  for (uint32_t i = thread; i < (end - begin) * kMTileRows * T; i += blockDim.x) {
    const uint32_t s = i / (kMTileRows * T), index = i % (kMTileRows * T);
    const float sum =
        add_up(accumulators + s * m_tile_accumulators + index * stride, (params.k_warps + 3) / 4);
    float* const own = totals.base + partition.k_split * totals.stride;
    if constexpr (kCluster) {
      const uint32_t m_tile = begin + s, item = m_tile / width;
      store_float(own + (item / k_splits * width + m_tile % width) * kMTileRows * T + index,
                  item % k_splits, sum);
    } else {
      own[(begin + s) * kMTileRows * T + index] = sum;
    }
  }
  if (begin == 0 && params.norm != nullptr && threadIdx.x < T) {
    const float sum = square(threadIdx.x);
    float* const own = totals.base + (partition.k_split + 1) * totals.stride - T + threadIdx.x;
    if constexpr (kCluster)
#pragma unroll 1
      for (uint32_t rank = 0; rank < k_splits; ++rank) store_float(own, rank, sum);
    else
      *own = sum;
  }
}

// Finishes the outputs of `items` work items of the cluster: numbers `first`, `first` + `step`,
// `first` + 2 * `step`, … Their totals must be complete. load(pointer) reads a float of the totals.
template <uint32_t T, class Load>
__device__ inline void finish_totals(const VectorParams& params, const Partition& partition,
                                     const Totals& totals, uint32_t items, uint32_t step,
                                     uint32_t first, Load load) {
  const uint32_t width = item_m_tiles(params);
  const auto add = [&](uint32_t i) {
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t r = 0; r < params.cluster_size; ++r)
      sum += load(totals.base + r * totals.stride + i);
    return sum;
  };
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < items * kMTileRows * T; i += blockDim.x) {
    const uint32_t u = i / (kMTileRows * T), index = i % (kMTileRows * T);
    Output output = find_output(params, partition, (u * step + first) * width, index);
    read_before(params, output);
    finish(
        params, output, [&](uint32_t k) { return add((u * width + k) * kMTileRows * T + index); },
        [&](uint32_t token) { return add(totals.stride - T + token); });
  }
}

// Main loop of a CTA: fills the rings, stages x, multiplies, and runs the epilogue of each batch.
template <class Engine, uint32_t T, bool kCluster>
__device__ inline void run(const VectorParams& params, const Partition& partition,
                           const Totals& totals, uint32_t m_tile_bytes, uint8_t* shared) {
  const uint32_t lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
  const uint32_t m_warp = static_cast<uint32_t>(params.m_warp_of >> (4 * warp)) & 15;
  const uint32_t k_warp = warp - m_warp * params.k_warps;
  const uint32_t split_begin = params.k_splits.begin(partition.k_split);
  const EvenPartition& partitions =
      params.k_warp_tiles[partition.k_split < params.k_splits.rest ? 1 : 0];
  const uint32_t k_tile_begin = partitions.begin(k_warp), k_tile_end = partitions.begin(k_warp + 1);
  const uint32_t split_offset = split_begin * Engine::kStageBytes;

  VectorPipeline<kCluster> ring(params, shared, Engine::kStageBytes, warp, lane);
  uint32_t fill_m_tile = m_warp, fill_k_tile = k_tile_begin;
  const uint8_t* source = nullptr;
  const auto source_of = [&](uint32_t m_tile) {
    const MatrixTile tile = find_tile(params, partition.m_tile_begin + m_tile);
    return params.matrices[tile.matrix].packed_tiles + uint64_t{tile.m_tile} * m_tile_bytes +
           split_offset;
  };
  const auto bytes_of = [&](uint32_t k_tile) {
    if constexpr (Engine::kStagePackedTiles == 1) return Engine::kStageBytes;
    return min(Engine::kStageBytes, m_tile_bytes - split_offset - k_tile * Engine::kStageBytes);
  };
  const auto fill = [&](bool is_free) {
    const bool is_there = fill_m_tile < partition.m_tiles;
    ring.fill(source + fill_k_tile * Engine::kStageBytes, is_there ? bytes_of(fill_k_tile) : 0,
              lane, is_free);
    if (is_there && ++fill_k_tile == k_tile_end) {
      fill_k_tile = k_tile_begin;
      fill_m_tile += params.m_warp_count;
      if (fill_m_tile < partition.m_tiles) source = source_of(fill_m_tile);
    }
  };
  if (fill_m_tile < partition.m_tiles) source = source_of(fill_m_tile);
#pragma unroll 1
  for (uint32_t i = 0; i < params.early_stages; ++i) fill(true);

  // This thread's output in the first epilogue batch.
  const uint32_t width = item_m_tiles(params);
  Output output;
  if (params.cluster_size == 1 &&
      threadIdx.x < min(params.batch, partition.m_tiles) / width * kMTileRows * T)
    output = find_output(params, partition, threadIdx.x / (kMTileRows * T) * width,
                         threadIdx.x % (kMTileRows * T));

  Engine::prepare();
  float* const squares = reinterpret_cast<float*>(shared + params.squares_offset);
  constexpr uint32_t kVec8s = Engine::kStageInputs / 8;
  const StageRange range = {(split_begin + k_tile_begin) * Engine::kStageInputs,
                            (k_tile_end - k_tile_begin) * kVec8s, k_tile_begin * kVec8s, m_warp,
                            params.m_warp_count};
  bool is_filled = false;
  const auto fill_rest = [&] {
    is_filled = true;
#pragma unroll 1
    for (uint32_t i = params.early_stages; i < ring.stages(); ++i) fill(true);
  };
  Engine::stage_x(params, range, shared, squares + warp, fill_rest);
  if (!is_filled) fill_rest();
  read_before(params, output);
  if (params.m_warp_count == 1)
    __syncwarp();
  else
    __syncthreads();

  uint32_t m_tile = m_warp, first_thread = 0;
  bool is_second = false;
#pragma unroll 1
  for (uint32_t begin = 0; begin < partition.m_tiles; begin += params.batch) {
    const uint32_t end = min(begin + params.batch, partition.m_tiles);
    float* const accumulators =
        reinterpret_cast<float*>(shared + params.accumulators_offset) +
        (is_second ? params.batch * params.accumulator_stride * kMTileRows * T : 0);
#pragma unroll 1
    for (; m_tile < end; m_tile += params.m_warp_count) {
      float sums[Engine::kSums] = {};
#pragma unroll 1
      for (uint32_t k_tile = k_tile_begin; k_tile < k_tile_end; ++k_tile) {
        uint8_t* const stage = ring.wait();
        if constexpr (Engine::kStagePackedTiles > 1) {
          const uint32_t bytes = bytes_of(k_tile);
          if (bytes < Engine::kStageBytes) {  // the M-tile ends in this stage: clear its rest
            __syncwarp();
#pragma unroll 1
            for (uint32_t i = bytes + lane * 16; i < Engine::kStageBytes; i += 512)
              *reinterpret_cast<uint4*>(stage + i) = make_uint4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
            if constexpr (kCluster) fence_proxy_async();
#endif
            __syncwarp();
          }
        }
        Engine::consume(params, stage, shared, k_tile * (Engine::kStageInputs / 32), lane,
                        shared + params.scratch_offset + warp * Engine::kScratchBytes, sums);
        __syncwarp();
        const uint32_t read = __float_as_uint(sums[0]) | __float_as_uint(sums[1]);
        fill((read & params.zero) == 0);
        ring.advance();
      }
      float* const accumulator =
          accumulators + (m_tile - begin) * kMTileRows * T * params.accumulator_stride + k_warp;
      Engine::store(sums, lane, [&](uint32_t i, float value) {
        accumulator[i * params.accumulator_stride] = value;
        // The last K-warp clears the padding up to a float4.
        if (k_warp + 1 == params.k_warps)
          for (uint32_t pad = k_warp + 1; pad % 4 != 0; ++pad)
            accumulator[i * params.accumulator_stride + pad - k_warp] = 0.0f;
      });
    }
    // Distributed shared memory may be written only after all CTAs of the cluster have started.
    if (kCluster && params.cluster_size != 1 && begin == 0) cluster_wait();
    const uint32_t thread =
        threadIdx.x + (threadIdx.x < first_thread ? blockDim.x : 0) - first_thread;
    if (begin != 0 && params.cluster_size == 1 && thread < (end - begin) / width * kMTileRows * T) {
      output = find_output(params, partition, begin + thread / (kMTileRows * T) * width,
                           thread % (kMTileRows * T));
      read_before(params, output);
    }
    finish_batch<T, kCluster>(params, partition, totals, begin, end, thread, output, accumulators,
                              squares);
    // Epilogue batches alternate between two sets of accumulators, so that fast warps can begin the
    // next batch. Outputs are assigned to threads in rotation across batches: the next batch begins
    // with the thread after the last one that had an output.
    is_second = !is_second;
    first_thread += params.batch * kMTileRows * T;
    while (first_thread >= blockDim.x) first_thread -= blockDim.x;
  }
}

// For 1 and 2 tokens, __launch_bounds__ limits the registers so that two CTAs fit on an SM. For 4
// and 8 tokens, two CTAs do not fit anyway, because of the shared memory that the activations need.
template <class EngineA, class EngineB, uint32_t T, bool kCluster>
__global__ void __launch_bounds__(kVectorWarpsMax * 32, T >= 4 ? 1 : 2)
    linear_vector_kernel(const __grid_constant__ VectorParams params) {
  // Code for an architecture has only the form that its launches use.
#if __CUDA_ARCH__ >= 900
  constexpr bool kIsCompiled = kCluster;
#else
  constexpr bool kIsCompiled = !kCluster;
#endif
  constexpr bool kIsMixed = !std::is_same_v<EngineA, EngineB>;
  if constexpr (kIsCompiled) {
    extern __shared__ __align__(128) uint8_t shared[];
    dependent_trigger();
    if (kCluster && params.cluster_size != 1) cluster_arrive_relaxed();
    const uint32_t width = item_m_tiles(params);
    Partition partition;
    partition.k_split = blockIdx.x;
    partition.cluster = blockIdx.y;
    const bool is_second = kIsMixed && partition.cluster >= params.problems[0].clusters;
    const VectorProblem& problem = params.problems[is_second ? 1 : 0];
    const uint32_t index =
        is_second ? partition.cluster - params.problems[0].clusters : partition.cluster;
    const uint32_t item_begin = problem.items.begin(index);
    partition.m_tile_begin = (is_second ? params.m_tiles[0] : 0) + item_begin * width;
    partition.m_tiles = (problem.items.begin(index + 1) - item_begin) * width;
    Totals totals;
    if constexpr (kCluster) {
      totals.stride = params.owned_max * kMTileRows * T + T;
      totals.base = reinterpret_cast<float*>(shared + params.totals_offset);
    } else {
      totals.stride = params.m_tiles_max * kMTileRows * T + T;
      totals.base =
          params.partials + uint64_t{partition.cluster} * params.cluster_size * totals.stride;
    }
    if (!is_second) {
      run<EngineA, T, kCluster>(params, partition, totals, problem.m_tile_bytes, shared);
    } else {
      if constexpr (kIsMixed)
        run<EngineB, T, kCluster>(params, partition, totals, problem.m_tile_bytes, shared);
    }
    const uint32_t k_splits = params.cluster_size;
    if (k_splits == 1) return;

    if constexpr (kCluster) {
      cluster_sync();
      const uint32_t owned =
          (partition.m_tiles / width + k_splits - 1 - partition.k_split) / k_splits;
      finish_totals<T>(params, partition, totals, owned, k_splits, partition.k_split,
                       [](const float* place) { return *place; });
    } else {
      __threadfence();
      __shared__ bool is_last;
      __syncthreads();
      if (threadIdx.x == 0)
        is_last = atomicAdd(params.tickets + partition.cluster, 1) + 1 == k_splits;
      __syncthreads();
      if (!is_last) return;
      __threadfence();
      finish_totals<T>(params, partition, totals, partition.m_tiles / width, 1, 0,
                       [](const float* place) { return __ldcg(place); });
      if (threadIdx.x == 0) params.tickets[partition.cluster] = 0;
    }
  }
}

// Returns how many clusters of `size` CTAs, each with `shared_bytes` of shared memory, can be
// resident at the same time; 0 if unknown.
template <class Kernel>
inline uint32_t clusters_at_once(Kernel kernel, uint32_t size, uint32_t shared_bytes) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {size, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(size);
  config.blockDim = dim3(kVectorWarpsMax * 32);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes)) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess)
    return 0;
  return static_cast<uint32_t>(count);
}

inline VectorDevice vector_device(const Launch& launch) {
  int device = 0, of_block = 0, of_sm = 0, reserved = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaDeviceGetAttribute(&of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
  VectorDevice result;
  result.sm_count = static_cast<uint32_t>(launch.sm_count);
  result.block_shared_bytes = static_cast<uint32_t>(of_block);
  result.sm_shared_bytes = static_cast<uint32_t>(of_sm);
  result.reserved_shared_bytes = static_cast<uint32_t>(reserved);
  result.compute_capability = launch.compute_capability;
  return result;
}

// Returns what plan_vector needs to know about the two engines.
template <class EngineA, class EngineB, uint32_t T>
inline VectorEngine vector_engine() {
  static_assert(EngineA::kStageInputs == EngineB::kStageInputs);
  constexpr auto max = [](uint32_t a, uint32_t b) { return a > b ? a : b; };
  VectorEngine engine;
  engine.tokens = T;
  engine.stage_inputs = EngineA::kStageInputs;
  engine.stage_bytes = max(EngineA::kStageBytes, EngineB::kStageBytes);
  engine.static_bytes = EngineA::kStaticBytes;
  engine.scratch_bytes = max(EngineA::kScratchBytes, EngineB::kScratchBytes);
  engine.x_codes_bytes = EngineA::codes_bytes(EngineA::kStageInputs);
  engine.x_scales_bytes = EngineA::scales_bytes(EngineA::kStageInputs);
  return engine;
}

// Plans the launch, then launches the kernel. `params` has the arguments and the matrices.
template <class EngineA, class EngineB, uint32_t T, bool kCluster>
inline cudaError_t launch(VectorParams params, const VectorTuning& tuning, const Launch& launch) {
  const VectorEngine engine = vector_engine<EngineA, EngineB, T>();
  const VectorDevice device = vector_device(launch);
  params.problems[0].m_tile_bytes =
      static_cast<uint32_t>(EngineA::kLayout.m_tile_bytes(params.cols));
  params.problems[1].m_tile_bytes =
      static_cast<uint32_t>(EngineB::kLayout.m_tile_bytes(params.cols));
  const auto kernel = linear_vector_kernel<EngineA, EngineB, T, kCluster>;
  const uint32_t k_splits = choose_k_splits(params, engine, device, tuning);
  const uint32_t clusters_max =
      kCluster && k_splits > 2
          ? clusters_at_once(kernel, k_splits, shared_limits(engine, device).alone)
          : 0;
  const VectorPlan plan = plan_vector(&params, engine, device, tuning, k_splits, clusters_max);

  if (plan.partials_bytes != 0) {
    if (launch.scratch == nullptr || launch.scratch_bytes < plan.partials_bytes + 16)
      return cudaErrorInvalidValue;
    params.tickets = static_cast<uint32_t*>(launch.scratch);
    params.partials = static_cast<float*>(launch.scratch) + (plan.clusters + 3) / 4 * 4;
  }
  // Without this attribute, static and dynamic shared memory together may have 48 KB. Static memory
  // is a codebook of at most 16 KB, which leaves 32 KB.
  if (plan.shared_bytes > 32 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return launch_kernel(launch, dim3(k_splits, plan.clusters), dim3(plan.threads), plan.shared_bytes,
                       kCluster && k_splits > 1 ? k_splits : 0, kernel, params);
}

template <TensorType kType, uint32_t T>
struct EngineOf {
  using Type = Int8Engine<kType, T>;
};
template <uint32_t T>
struct EngineOf<TensorType::kF32, T> {
  using Type = F32Engine<T>;
};
template <uint32_t T>
struct EngineOf<TensorType::kF16, T> {
  using Type = HalfEngine<TensorType::kF16, T>;
};
template <uint32_t T>
struct EngineOf<TensorType::kBF16, T> {
  using Type = HalfEngine<TensorType::kBF16, T>;
};

template <TensorType kTypeA, TensorType kTypeB, uint32_t T>
inline cudaError_t launch_tokens(const VectorParams& params, const VectorTuning& tuning,
                                 const Launch& launch_args) {
  using A = typename EngineOf<kTypeA, T>::Type;
  using B = typename EngineOf<kTypeB, T>::Type;
  if (launch_args.compute_capability >= 90)
    return launch<A, B, T, true>(params, tuning, launch_args);
  return launch<A, B, T, false>(params, tuning, launch_args);
}

}  // namespace vector

// Problem 0 has the matrices of type kTypeA. Problem 1 has those of type kTypeB and may be empty.
template <TensorType kTypeA, TensorType kTypeB>
cudaError_t launch_linear_vector(const VectorParams& params, const VectorTuning& tuning,
                                 const Launch& launch) {
  if (params.tokens == 1) return vector::launch_tokens<kTypeA, kTypeB, 1>(params, tuning, launch);
  if (params.tokens == 2) return vector::launch_tokens<kTypeA, kTypeB, 2>(params, tuning, launch);
  if (params.tokens <= 4) return vector::launch_tokens<kTypeA, kTypeB, 4>(params, tuning, launch);
  return vector::launch_tokens<kTypeA, kTypeB, 8>(params, tuning, launch);
}

// Instantiates the launcher for a pair of tensor types.
#define WCUDA_LINEAR_VECTOR(type_a, type_b)                                      \
  template cudaError_t launch_linear_vector<type_a, type_b>(const VectorParams&, \
                                                            const VectorTuning&, const Launch&)

}  // namespace wcuda::kernels
