// The kernel of linear_vector: y[c] = W · h[c] for T = 1, 2, 4 or 8 tokens c.
//
// A CTA (or a cluster of C CTAs that share them along the inputs) has a range of strips. Its warps
// are `ways` along the inputs times groups along the strips: a warp has some chunks
// (kernels/linear/tile.cuh) of every strip of its group, and needs only their part of x, which it
// stages in shared memory together with the warps of the other groups: no barrier of the CTA comes
// before the products. Each warp has a ring of stages of its own, filled by bulk copies that start
// before the kernel ahead has ended. Sums go to a slot for each strip and way; after every `window`
// strips the CTA adds up slots in one order and writes outputs. Bytes moved: every weight once, x
// once a CTA slice (from L2).
//
// With C > 1 the sums of a slice go to the CTA of the cluster that finishes the strip, through
// distributed shared memory. Without clusters (compute capability below 9.0) they are added through
// global memory by the CTA that arrives last, in the same order, and the ring is filled by copies
// of 16 bytes a lane.
//
// What counts between two kernels is the length of the path: the prologue to the first fill, from
// the end of the kernel ahead to the first product, from the last product to the end.
#pragma once

#include <type_traits>

#include "kernels/linear/float_engine.cuh"
#include "kernels/linear/int8_engine.cuh"
#include "kernels/linear/linear_vector.h"
#include "kernels/linear/vector_params.h"
#include "kernels/linear/vector_pipeline.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace wcuda::kernels {

namespace vector {

struct Place {
  uint32_t part;
  uint32_t strip;
};

// Strip v of all: of the parts one after the other, or of gate and up in turn.
__device__ inline Place place_of(const VectorParams& params, uint32_t v) {
  if (params.epilogue >= Epilogue::kSiluGate) return {v % 2, v / 2};
  const uint32_t part = (v >= params.part_begins[1] ? 1 : 0) + (v >= params.part_begins[2] ? 1 : 0);
  return {part, v - params.part_begins[part]};
}

// What a CTA works on.
struct Share {
  uint32_t cluster, slice;
  uint32_t strip_begin, strips;  // of the cluster
};

__device__ inline uint32_t width_of(const VectorParams& params) {
  return params.epilogue >= Epilogue::kSiluGate ? 2 : 1;
}

// Stores a float at `place` of the shared memory of CTA `rank` of the cluster.
__device__ inline void put_float([[maybe_unused]] float* place, [[maybe_unused]] uint32_t rank,
                                 [[maybe_unused]] float value) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(place)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#endif
}

__device__ inline float gate(Epilogue epilogue, float v) {
  if (epilogue == Epilogue::kSiluGate) return __fdividef(v, 1.0f + __expf(-v));
  return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * v * (1.0f + 0.044715f * v * v)));
}

// An output, and what is added to its product.
struct Output {
  float* target = nullptr;  // null: padding
  uint32_t index;           // (token, row) of the strip
  float bias = 0.0f, up_bias = 0.0f;
  float before = 0.0f;
};

// Output `index` (token, row) of strip `strip` of the cluster; with a gate, the gate's strip. Reads
// nothing that the kernel ahead writes; read_before does.
__device__ inline Output find_output(const VectorParams& params, const Share& share, uint32_t strip,
                                     uint32_t index) {
  Output output;
  output.index = index;
  const uint32_t token = index / 16;
  const Place place = place_of(params, share.strip_begin + strip);
  const VectorPart& part = params.parts[place.part];
  const uint32_t row = place.strip * 16 + index % 16;
  if (token >= params.columns || row >= part.rows) return output;
  output.target = part.output + uint64_t{token} * part.rows + row;
  if (part.bias != nullptr) output.bias = part.bias[row];
  if (params.epilogue >= Epilogue::kSiluGate && params.parts[1].bias != nullptr)
    output.up_bias = params.parts[1].bias[row];
  return output;
}

__device__ inline void read_before(const VectorParams& params, Output& output) {
  if (params.epilogue == Epilogue::kAdd && output.target != nullptr) output.before = *output.target;
}

// sum(k) gives the product (k = 1: of the up matrix), square(token) the sum of squares of x.
template <class Sum, class Square>
__device__ inline void finish(const VectorParams& params, const Output& output, Sum sum,
                              Square square) {
  if (output.target == nullptr) return;
  float inverse = 1.0f;
  if (params.norm != nullptr)
    inverse = rsqrtf(square(output.index / 16) * params.mean_factor + params.epsilon);
  float y = sum(0) * inverse + output.bias;
  if (params.epilogue >= Epilogue::kSiluGate)
    y = gate(params.epilogue, y) * (sum(1) * inverse + output.up_bias);
  *output.target = y + output.before;
}

// The sum of 4 * fours values, at most 16, 16-byte aligned.
__device__ inline float add_up(const float* values, uint32_t fours) {
  float4 v[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
    v[i] = i < fours ? reinterpret_cast<const float4*>(values)[i] : float4{};
  float total = (v[0].x + v[0].y) + (v[0].z + v[0].w);
#pragma unroll
  for (uint32_t i = 1; i < 4; ++i) total += (v[i].x + v[i].y) + (v[i].z + v[i].w);
  return total;
}

// Sums of slices, where they are added up: of slice r and strip s of those that the CTA finishes
// float (token, row), and after the strips the sums of squares.
struct Totals {
  float* base;
  uint32_t stride;  // from slice to slice
};

// Adds up the slots of the window of strips `begin` … `end` of the cluster and finishes its
// outputs, or hands sums on to who does. All threads call; thread: this one, counted from the one
// that has the first output, `output`.
template <uint32_t T, bool kCluster>
__device__ inline void close_window(const VectorParams& params, const Share& share,
                                    const Totals& totals, uint32_t begin, uint32_t end,
                                    uint32_t thread, Output output, const float* slots,
                                    const float* squares) {
  const uint32_t width = width_of(params), stride = params.slot_stride,
                 strip_slots = stride * 16 * T;
  const auto square = [&](uint32_t token) {
    return add_up(squares + token * 16, (blockDim.x / 32 + 3) / 4);
  };
  __syncthreads();
  if (params.cluster_size == 1) {
    const uint32_t count = (end - begin) / width * 16 * T;
#pragma unroll 1
    for (uint32_t i = thread; i < count;) {
      const float* sums = slots + i / (16 * T) * width * strip_slots + i % (16 * T) * stride;
      finish(
          params, output,
          [&](uint32_t k) { return add_up(sums + k * strip_slots, (params.ways + 3) / 4); },
          square);
      i += blockDim.x;
      if (i >= count) break;
      output = find_output(params, share, begin + i / (16 * T) * width, i % (16 * T));
      read_before(params, output);
    }
    return;
  }
  const uint32_t slices = params.cluster_size;
#pragma unroll 1
  for (uint32_t i = thread; i < (end - begin) * 16 * T; i += blockDim.x) {
    const uint32_t s = i / (16 * T), index = i % (16 * T);
    const float sum = add_up(slots + s * strip_slots + index * stride, (params.ways + 3) / 4);
    float* const own = totals.base + share.slice * totals.stride;
    if constexpr (kCluster) {
      const uint32_t strip = begin + s, unit = strip / width;
      put_float(own + (unit / slices * width + strip % width) * 16 * T + index, unit % slices, sum);
    } else {
      own[(begin + s) * 16 * T + index] = sum;
    }
  }
  if (begin == 0 && params.norm != nullptr && threadIdx.x < T) {
    const float sum = square(threadIdx.x);
    float* const own = totals.base + (share.slice + 1) * totals.stride - T + threadIdx.x;
    if constexpr (kCluster)
#pragma unroll 1
      for (uint32_t rank = 0; rank < slices; ++rank) put_float(own, rank, sum);
    else
      *own = sum;
  }
}

// Finishes the outputs of `units` strips, or pairs of strips, whose totals are there: number u is
// number u * step + first of the cluster. load reads a float of the totals.
template <uint32_t T, class Load>
__device__ inline void finish_totals(const VectorParams& params, const Share& share,
                                     const Totals& totals, uint32_t units, uint32_t step,
                                     uint32_t first, Load load) {
  const uint32_t width = width_of(params);
  const auto add = [&](uint32_t i) {
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t r = 0; r < params.cluster_size; ++r)
      sum += load(totals.base + r * totals.stride + i);
    return sum;
  };
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < units * 16 * T; i += blockDim.x) {
    const uint32_t u = i / (16 * T), index = i % (16 * T);
    Output output = find_output(params, share, (u * step + first) * width, index);
    read_before(params, output);
    finish(
        params, output, [&](uint32_t k) { return add((u * width + k) * 16 * T + index); },
        [&](uint32_t token) { return add(totals.stride - T + token); });
  }
}

// The products of a CTA.
template <class Engine, uint32_t T, bool kCluster>
__device__ inline void run(const VectorParams& params, const Share& share, const Totals& totals,
                           uint32_t strip_bytes, uint8_t* shared) {
  const uint32_t lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
  const uint32_t group = static_cast<uint32_t>(params.groups >> (4 * warp)) & 15;
  const uint32_t way = warp - group * params.ways;
  const uint32_t slice_begin = params.slices.begin(share.slice);
  const EvenShares& shares = params.way_chunks[share.slice < params.slices.rest ? 1 : 0];
  const uint32_t chunk_begin = shares.begin(way), chunk_end = shares.begin(way + 1);
  const uint32_t slice_offset = slice_begin * Engine::kStageBytes;

  Ring<kCluster> ring(params, shared, Engine::kStageBytes, warp, lane);
  uint32_t fill_strip = group, fill_chunk = chunk_begin;
  const uint8_t* source = nullptr;
  const auto source_of = [&](uint32_t strip) {
    const Place place = place_of(params, share.strip_begin + strip);
    return params.parts[place.part].records + uint64_t{place.strip} * strip_bytes + slice_offset;
  };
  const auto bytes_of = [&](uint32_t chunk) {
    if constexpr (Engine::kStageRecords == 1) return Engine::kStageBytes;
    return min(Engine::kStageBytes, strip_bytes - slice_offset - chunk * Engine::kStageBytes);
  };
  const auto fill = [&](bool is_free) {
    const bool is_there = fill_strip < share.strips;
    ring.fill(source + fill_chunk * Engine::kStageBytes, is_there ? bytes_of(fill_chunk) : 0, lane,
              is_free);
    if (is_there && ++fill_chunk == chunk_end) {
      fill_chunk = chunk_begin;
      fill_strip += params.group_count;
      if (fill_strip < share.strips) source = source_of(fill_strip);
    }
  };
  if (fill_strip < share.strips) source = source_of(fill_strip);
#pragma unroll 1
  for (uint32_t i = 0; i < params.early_stages; ++i) fill(true);

  // The thread's output of the first window.
  const uint32_t width = width_of(params);
  Output output;
  if (params.cluster_size == 1 && threadIdx.x < min(params.window, share.strips) / width * 16 * T)
    output = find_output(params, share, threadIdx.x / (16 * T) * width, threadIdx.x % (16 * T));

  Engine::prepare();
  float* const squares = reinterpret_cast<float*>(shared + params.squares_offset);
  constexpr uint32_t kEights = Engine::kStageInputs / 8;
  const StageRange range = {(slice_begin + chunk_begin) * Engine::kStageInputs,
                            (chunk_end - chunk_begin) * kEights, chunk_begin * kEights, group,
                            params.group_count};
  bool is_filled = false;
  const auto fill_rest = [&] {
    is_filled = true;
#pragma unroll 1
    for (uint32_t i = params.early_stages; i < ring.stages; ++i) fill(true);
  };
  Engine::stage_x(params, range, shared, squares + warp, fill_rest);
  if (!is_filled) fill_rest();
  read_before(params, output);
  if (params.group_count == 1)
    __syncwarp();
  else
    __syncthreads();

  uint32_t strip = group, turn = 0;
  bool is_second = false;
#pragma unroll 1
  for (uint32_t begin = 0; begin < share.strips; begin += params.window) {
    const uint32_t end = min(begin + params.window, share.strips);
    float* const slots = reinterpret_cast<float*>(shared + params.slots_offset) +
                         (is_second ? params.window * params.slot_stride * 16 * T : 0);
#pragma unroll 1
    for (; strip < end; strip += params.group_count) {
      float sums[Engine::kSums] = {};
#pragma unroll 1
      for (uint32_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
        uint8_t* const stage = ring.wait();
        if constexpr (Engine::kStageRecords > 1) {
          const uint32_t bytes = bytes_of(chunk);
          if (bytes < Engine::kStageBytes) {  // the strip ends in this stage: clear the rest
            __syncwarp();
#pragma unroll 1
            for (uint32_t i = bytes + lane * 16; i < Engine::kStageBytes; i += 512)
              *reinterpret_cast<uint4*>(stage + i) = make_uint4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
            if constexpr (kCluster) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
            __syncwarp();
          }
        }
        Engine::consume(params, stage, shared, chunk * (Engine::kStageInputs / 32), lane,
                        shared + params.scratch_offset + warp * Engine::kScratchBytes, sums);
        __syncwarp();
        const uint32_t read = __float_as_uint(sums[0]) | __float_as_uint(sums[1]);
        fill((read & params.zero) == 0);
        ring.advance();
      }
      float* const slot = slots + (strip - begin) * 16 * T * params.slot_stride + way;
      Engine::store(sums, lane, [&](uint32_t i, float value) {
        slot[i * params.slot_stride] = value;
        // The last way clears what is added with it.
        if (way + 1 == params.ways)
          for (uint32_t pad = way + 1; pad % 4 != 0; ++pad)
            slot[i * params.slot_stride + pad - way] = 0.0f;
      });
    }
#if __CUDA_ARCH__ >= 900
    // The others' shared memory is theirs from here on.
    if (kCluster && params.cluster_size != 1 && begin == 0)
      asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
    const uint32_t thread = threadIdx.x + (threadIdx.x < turn ? blockDim.x : 0) - turn;
    if (begin != 0 && params.cluster_size == 1 && thread < (end - begin) / width * 16 * T) {
      output = find_output(params, share, begin + thread / (16 * T) * width, thread % (16 * T));
      read_before(params, output);
    }
    close_window<T, kCluster>(params, share, totals, begin, end, thread, output, slots, squares);
    // Windows take turns with two sets of slots: a warp may be one window ahead.
    is_second = !is_second;
    turn += params.window * 16 * T;
    while (turn >= blockDim.x) turn -= blockDim.x;
  }
}

// Up to 2 tokens: registers for two CTAs on an SM. From 4 on x takes too much memory for two.
template <class EngineA, class EngineB, uint32_t T, bool kCluster>
__global__ void __launch_bounds__(kVectorWarpsMax * 32, T >= 4 ? 1 : 2)
    linear_vector_kernel(const __grid_constant__ VectorParams params) {
#if __CUDA_ARCH__ >= 900
  constexpr bool kIsCompiled = true;
#else
  constexpr bool kIsCompiled = !kCluster;
#endif
  constexpr bool kIsMixed = !std::is_same_v<EngineA, EngineB>;
  if constexpr (kIsCompiled) {
    extern __shared__ __align__(128) uint8_t shared[];
    dependent_trigger();
#if __CUDA_ARCH__ >= 900
    if (kCluster && params.cluster_size != 1)
      asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    const uint32_t width = width_of(params);
    Share share;
    share.slice = blockIdx.x;
    share.cluster = blockIdx.y;
    const bool is_second = kIsMixed && share.cluster >= params.sections[0].clusters;
    const VectorSection& section = params.sections[is_second ? 1 : 0];
    const uint32_t index = is_second ? share.cluster - params.sections[0].clusters : share.cluster;
    const uint32_t unit_begin = section.units.begin(index);
    share.strip_begin = (is_second ? params.strips[0] : 0) + unit_begin * width;
    share.strips = (section.units.begin(index + 1) - unit_begin) * width;
    Totals totals;
    if constexpr (kCluster) {
      totals.stride = params.owned_max * 16 * T + T;
      totals.base = reinterpret_cast<float*>(shared + params.totals_offset);
    } else {
      totals.stride = params.strips_max * 16 * T + T;
      totals.base = params.partials + uint64_t{share.cluster} * params.cluster_size * totals.stride;
    }
    if (!is_second) {
      run<EngineA, T, kCluster>(params, share, totals, section.strip_bytes, shared);
    } else {
      if constexpr (kIsMixed)
        run<EngineB, T, kCluster>(params, share, totals, section.strip_bytes, shared);
    }
    const uint32_t slices = params.cluster_size;
    if (slices == 1) return;

    if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
      asm volatile(
          "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
              : "memory");
#endif
      const uint32_t owned = (share.strips / width + slices - 1 - share.slice) / slices;
      finish_totals<T>(params, share, totals, owned, slices, share.slice,
                       [](const float* place) { return *place; });
    } else {
      __threadfence();
      __shared__ bool is_last;
      __syncthreads();
      if (threadIdx.x == 0) is_last = atomicAdd(params.tickets + share.cluster, 1) + 1 == slices;
      __syncthreads();
      if (!is_last) return;
      __threadfence();
      finish_totals<T>(params, share, totals, share.strips / width, 1, 0,
                       [](const float* place) { return __ldcg(place); });
      if (threadIdx.x == 0) params.tickets[share.cluster] = 0;
    }
  }
}

// Bytes of shared memory that a CTA may have. Kernels of two kinds take turns in a chain, those
// that add to their output and the others: one of each fits on an SM, two of the others do not.
// Where a kernel needs more it has the SM alone, with more than half, so that no SM gets two of its
// CTAs, which are two shares of its work there (8B Q4_K chain, H200: 502 steps/s with room for two
// of any kind, 668 for one kernel at a time).
struct SharedLimits {
  uint32_t most, alone, of_other, of_add;
};
inline SharedLimits shared_limits(uint32_t static_bytes) {
  int device = 0, of_block = 0, of_sm = 0, reserved = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaDeviceGetAttribute(&of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
  const uint32_t both = static_cast<uint32_t>(of_sm - 2 * reserved) / 512 * 512;
  const uint32_t of_other = both / 2 + 256;
  return {static_cast<uint32_t>(of_block) - static_bytes, static_cast<uint32_t>(of_sm) / 2,
          of_other - static_bytes, both - of_other - static_bytes};
}
constexpr uint32_t kRingBytes = 116 * 1024;
constexpr uint32_t kWindowBytes = 24 * 1024;  // of two sets of slots, or twice of one

inline uint32_t round_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }
inline uint32_t divide_up(uint32_t value, uint32_t by) { return (value + by - 1) / by; }

// Clusters of `size` CTAs with so much shared memory that run at once; 0: not known.
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

// Clusters of the first section, of `clusters` for both: so that the busiest reads least, and else
// by the sections' bytes. (Query, key and value of 8B Q4_K_M: 4 and 2 strips rather than 4 and 3.)
inline uint32_t share_clusters(const uint32_t (&units)[2], const VectorSection (&sections)[2],
                               uint32_t clusters) {
  const uint64_t bytes[2] = {uint64_t{units[0]} * sections[0].strip_bytes,
                             uint64_t{units[1]} * sections[1].strip_bytes};
  uint64_t least = ~uint64_t{0}, least_rest = ~uint64_t{0};
  uint32_t best = 1;
  for (uint32_t share = 1; share < clusters; ++share) {
    const uint32_t other = clusters - share;
    const uint64_t first = uint64_t{divide_up(units[0], share)} * sections[0].strip_bytes;
    const uint64_t second = uint64_t{divide_up(units[1], other)} * sections[1].strip_bytes;
    const uint64_t most = first > second ? first : second;
    const uint64_t means[2] = {bytes[0] / share, bytes[1] / other};
    const uint64_t rest = means[0] > means[1] ? means[0] : means[1];
    if (most > least || (most == least && rest >= least_rest)) continue;
    least = most;
    least_rest = rest;
    best = share;
  }
  return best;
}

// How the warps of a CTA share out `chunks` of `strips`: the least work for the busiest. One token:
// chunks. More: chunks (20 each), the end of a strip, and a barrier more with several groups (H200,
// 8B Q4_K alone, 1, 2 and 4 groups: gate and up of 8 tokens 38.5, 31.8, 28.7 us, of 4 tokens 23.3,
// 21.7, 20.8, of 2 tokens 19.2, 18.6, 18.7; more than 4 gain nothing).
inline void arrange_warps(VectorParams& params, uint32_t chunks, uint32_t strips, uint32_t warps,
                          uint32_t tokens, uint32_t groups) {
  uint32_t best = ~0u;
  for (uint32_t count = 1; count <= warps; ++count) {
    if (groups != 0 && count != groups) continue;
    uint32_t ways = warps / count;
    if (ways > chunks) ways = chunks;
    ways = divide_up(chunks, divide_up(chunks, ways));  // no more than make a difference
    uint32_t work = divide_up(chunks, ways) * divide_up(strips, count);
    if (tokens != 1) {
      if (count > 4 && groups == 0) break;
      const uint32_t strip_end = tokens == 2 ? 4 : tokens <= 4 ? 14 : 25;
      work = work * 20 + divide_up(strips, count) * strip_end + (count != 1 ? 10 : 0);
      // Staging, by all warps.
      if (tokens > 2) work += chunks * tokens * 9 / (ways * count);
    }
    // Of equals, the most ways: x is staged with fewer barriers.
    if (work >= best) continue;
    best = work;
    params.ways = ways;
    params.group_count = count;
  }
  params.groups = 0;
  for (uint64_t w = 0; w < params.ways * params.group_count; ++w)
    params.groups |= w / params.ways << (4 * w);
}

// Shares out clusters, strips and shared memory, and launches. params has the arguments and parts.
template <class EngineA, class EngineB, uint32_t T, bool kCluster>
inline cudaError_t launch(VectorParams params, const VectorTuning& tuning, const Launch& launch) {
  constexpr uint32_t kStageBytes =
      EngineA::kStageBytes > EngineB::kStageBytes ? EngineA::kStageBytes : EngineB::kStageBytes;
  static_assert(EngineA::kStageInputs == EngineB::kStageInputs);
  constexpr uint32_t kStageInputs = EngineA::kStageInputs;
  const SharedLimits limits = shared_limits(EngineA::kStaticBytes);
  const uint32_t chunks = divide_up(params.cols, kStageInputs);
  params.mean_factor = 1.0f / static_cast<float>(params.cols);
  params.part_begins[0] = 0;
  for (uint32_t i = 1; i < kLinearMatricesMax; ++i)
    params.part_begins[i] =
        params.parts[i].strips == 0 ? ~0u : params.part_begins[i - 1] + params.parts[i - 1].strips;
  const uint32_t width = params.epilogue >= Epilogue::kSiluGate ? 2 : 1;
  const uint32_t units[2] = {params.strips[0] / width, params.strips[1] / width};
  params.sections[0].strip_bytes = static_cast<uint32_t>(EngineA::kLayout.strip_bytes(params.cols));
  params.sections[1].strip_bytes = static_cast<uint32_t>(EngineB::kLayout.strip_bytes(params.cols));

  const auto x_bytes = [&](uint32_t ranks) {
    const uint32_t inputs = divide_up(chunks, ranks) * kStageInputs;
    return round_up(EngineA::codes_bytes(inputs) + EngineA::scales_bytes(inputs), 128);
  };
  // As many warps as have room for their rings.
  uint32_t warps_max = kVectorWarpsMax;
  while (warps_max * kStageBytes * (kCluster ? 1 : kVectorCopyStages) > limits.most * 2 / 3)
    warps_max /= 2;
  // Slices: so that x leaves room for a ring.
  uint32_t ranks = tuning.cluster_size != 0 ? tuning.cluster_size : 1;
  if (tuning.cluster_size == 0) {
    while (ranks < 8 && x_bytes(ranks) > limits.most / 3) ranks *= 2;
    // More where few strips a CTA do not repay what staging takes (H200, 8B Q4_K: query, key and
    // value of 8 tokens 9.8 and 9.3 us; down of 4 tokens in 2 and 4 slices 13.4 and 12.2 us).
    const bool has_few_strips =
        params.strips[0] + params.strips[1] <= 3 * static_cast<uint32_t>(launch.sm_count);
    if (kCluster && T == 8 && ranks == 1 && params.cols >= 4096 && has_few_strips) ranks = 2;
    if (kCluster && T == 4 && ranks == 2 && has_few_strips) ranks = 4;
  }
  while (ranks > 1 && ranks > chunks) ranks /= 2;
  params.cluster_size = ranks;
  params.slices = share_out(chunks, ranks);

  const auto kernel = linear_vector_kernel<EngineA, EngineB, T, kCluster>;
  const auto ctas = static_cast<uint32_t>(launch.sm_count);
  uint32_t clusters = ctas < ranks ? 1 : ctas / ranks, shared_bytes = 0;
  if (kCluster && ranks > 2) {
    // Not every SM is in a cluster of so many.
    const auto most = clusters_at_once(kernel, ranks, limits.alone);
    if (most != 0 && most < clusters) clusters = most;
  }
  for (;; clusters *= 2) {
    uint32_t counts[2] = {clusters < units[0] ? clusters : units[0], 0};
    if (units[1] != 0) {
      const uint32_t share = share_clusters(units, params.sections, clusters);
      counts[0] = share < units[0] ? share : units[0];
      const uint32_t rest = clusters > share ? clusters - share : 1;
      counts[1] = rest < units[1] ? rest : units[1];
    }
    params.strips_max = 0;
    for (int s = 0; s < 2; ++s) {
      params.sections[s].clusters = counts[s];
      if (counts[s] == 0) continue;
      params.sections[s].units = share_out(units[s], counts[s]);
      const uint32_t most = divide_up(units[s], counts[s]) * width;
      if (most > params.strips_max) params.strips_max = most;
    }
    arrange_warps(params, params.slices.base, params.strips_max, warps_max, T, tuning.groups);
    for (uint32_t i = 0; i < 2; ++i)
      params.way_chunks[i] = share_out(params.slices.base + i, params.ways);
    const uint32_t warps = params.ways * params.group_count;

    params.slot_stride = divide_up(params.ways, 4) % 2 != 0 ? round_up(params.ways, 4)
                                                            : round_up(params.ways, 4) + 4;
    const uint32_t slot_bytes = params.slot_stride * 64 * T, turn = params.group_count * width;
    params.window = kWindowBytes / slot_bytes;
    params.window -= params.window % (params.window >= turn ? turn : width);
    if (params.window < width) params.window = width;
    const bool has_one_window = params.strips_max * slot_bytes <= 2 * kWindowBytes;
    if (has_one_window) params.window = params.strips_max;
    const uint32_t slots_bytes = params.window * slot_bytes * (has_one_window ? 1 : 2);
    params.owned_max = divide_up(params.strips_max / width, ranks) * width;
    const uint32_t totals_bytes =
        kCluster && ranks > 1 ? ranks * (params.owned_max * 16 + 1) * T * 4 : 0;
    const uint32_t scratch_bytes =
        warps * (EngineA::kScratchBytes > EngineB::kScratchBytes ? EngineA::kScratchBytes
                                                                 : EngineB::kScratchBytes);
    const uint32_t slice_inputs = divide_up(chunks, ranks) * kStageInputs;
    params.x_scales_offset = EngineA::codes_bytes(slice_inputs);
    params.ring_offset = x_bytes(ranks);
    const uint32_t rest = params.ring_offset + warps * kStagesMax * 8 + slots_bytes +
                          kVectorWarpsMax * T * 4 + scratch_bytes + totals_bytes;

    const uint32_t stage = warps * kStageBytes;
    const uint32_t items = divide_up(divide_up(chunks, ranks), params.ways) *
                           divide_up(params.strips_max, params.group_count);
    uint32_t most = items < kStagesMax ? items : kStagesMax;
    if (tuning.stages != 0 && tuning.stages < most) most = tuning.stages;
    uint32_t stages = kCluster ? most : kVectorCopyStages, least = 0;
    if (kCluster) {
      const bool is_add = params.epilogue == Epilogue::kAdd;
      const uint32_t limit = is_add ? limits.of_add : limits.of_other;
      const auto fitting = [&](uint32_t bytes) {
        return bytes < rest ? 0 : (bytes - rest) / stage;
      };
      const uint32_t together = fitting(limit);
      // Large products have the SM alone, with a deeper ring (H200, 70B in the mix q4_k_m: 96.6
      // steps/s instead of 94.4; 8B Q4_K, whose products are smaller, 790 instead of 807).
      const uint64_t bytes = uint64_t{params.strips[0]} * params.sections[0].strip_bytes +
                             uint64_t{params.strips[1]} * params.sections[1].strip_bytes;
      const bool is_large = T == 1 && params.cols >= 8192 && bytes >= 36u << 20;
      const bool is_alone = tuning.residency == 1 || (tuning.residency == 0 && is_large);
      if (T < 4 && !is_alone && together >= (most < 2 ? most : tuning.residency == 2 ? 1u : 2u)) {
        if (stages > together) stages = together;
        if (!is_add) least = limit;
      } else {
        least = limits.alone;
        if (stages > fitting(limits.most)) stages = fitting(limits.most);
        if (tuning.stages == 0 && stages > kRingBytes / stage) stages = kRingBytes / stage;
        if (stages == 0) stages = 1;
      }
    }
    params.stages = stages;
    // One stage at first: more would be in the way of x (H200, chains of Q4_K: 8B 778 steps/s with
    // all at once, 792 with one; 1B 3112, 3260).
    const uint32_t early = tuning.early_stages != 0 ? tuning.early_stages : 1;
    params.early_stages = early < stages ? early : stages;
    params.barriers_offset = params.ring_offset + stages * stage;
    params.slots_offset = params.barriers_offset + warps * kStagesMax * 8;
    params.squares_offset = params.slots_offset + slots_bytes;
    params.scratch_offset = params.squares_offset + kVectorWarpsMax * T * 4;
    params.totals_offset = params.scratch_offset + scratch_bytes;
    shared_bytes = params.totals_offset + totals_bytes;
    if (shared_bytes < least) shared_bytes = least;
    // Too many strips for their totals: more CTAs than fit at once.
    if (shared_bytes <= limits.most || params.strips_max <= width) break;
  }
  clusters = params.sections[0].clusters + params.sections[1].clusters;

  if (!kCluster && ranks > 1) {
    const uint64_t bytes =
        uint64_t{clusters} * 4 * (1 + uint64_t{ranks} * T * (params.strips_max * 16 + 1));
    if (launch.scratch == nullptr || launch.scratch_bytes < bytes + 16)
      return cudaErrorInvalidValue;
    params.tickets = static_cast<uint32_t*>(launch.scratch);
    params.partials = static_cast<float*>(launch.scratch) + round_up(clusters, 4);
  }

  // The limit of 48 KB counts a tile's codebook too.
  if (shared_bytes > 32 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return launch_kernel(launch, dim3(ranks, clusters), dim3(params.ways * params.group_count * 32),
                       shared_bytes, kCluster && ranks > 1 ? ranks : 0, kernel, params);
}

template <uint32_t kType, uint32_t T>
struct EngineOf {
  using Type = Int8Engine<kType, T>;
};
template <uint32_t T>
struct EngineOf<0, T> {
  using Type = F32Engine<T>;
};
template <uint32_t T>
struct EngineOf<1, T> {
  using Type = HalfEngine<1, T>;
};
template <uint32_t T>
struct EngineOf<30, T> {
  using Type = HalfEngine<30, T>;
};

template <uint32_t kTypeA, uint32_t kTypeB, uint32_t T>
inline cudaError_t launch_columns(const VectorParams& params, const VectorTuning& tuning,
                                  const Launch& launch_args) {
  using A = typename EngineOf<kTypeA, T>::Type;
  using B = typename EngineOf<kTypeB, T>::Type;
  if (launch_args.compute_capability >= 90)
    return launch<A, B, T, true>(params, tuning, launch_args);
  return launch<A, B, T, false>(params, tuning, launch_args);
}

}  // namespace vector

// Section 0 holds matrices of kTypeA, section 1 (may be empty) of kTypeB.
template <uint32_t kTypeA, uint32_t kTypeB>
cudaError_t launch_linear_vector(const VectorParams& params, const VectorTuning& tuning,
                                 const Launch& launch) {
  if (params.columns == 1) return vector::launch_columns<kTypeA, kTypeB, 1>(params, tuning, launch);
  if (params.columns == 2) return vector::launch_columns<kTypeA, kTypeB, 2>(params, tuning, launch);
  if (params.columns <= 4) return vector::launch_columns<kTypeA, kTypeB, 4>(params, tuning, launch);
  return vector::launch_columns<kTypeA, kTypeB, 8>(params, tuning, launch);
}

// Every type, and the pairs of types that one launch takes together: those that the mixed formats
// put side by side.
#define WCUDA_LINEAR_VECTOR_TYPES(entry)                                                          \
  entry(0, 0) entry(1, 1) entry(30, 30) entry(2, 2) entry(3, 3) entry(6, 6) entry(7, 7)           \
      entry(8, 8) entry(12, 12) entry(13, 13) entry(14, 14) entry(12, 14) entry(13, 14)           \
          entry(10, 10) entry(11, 11) entry(16, 16) entry(17, 17) entry(18, 18) entry(19, 19)     \
              entry(20, 20) entry(21, 21) entry(22, 22) entry(23, 23) entry(29, 29) entry(34, 34) \
                  entry(35, 35) entry(39, 39) entry(40, 40) entry(41, 41) entry(42, 42)

// For the file of a format: the kernels of one type, of two.
#define WCUDA_LINEAR_VECTOR(type_a, type_b)                                      \
  template cudaError_t launch_linear_vector<type_a, type_b>(const VectorParams&, \
                                                            const VectorTuning&, const Launch&)

}  // namespace wcuda::kernels
