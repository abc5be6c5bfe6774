// The kernel of linear_vector: y[c] = W · h[c] for T = 1, 2, 4 or 8 tokens c.
//
// A cluster of C CTAs shares its strips along the inputs: every CTA stages its slice of x once, in
// shared memory, and its warps take equal runs of chunks (kernels/tile.h), strip after strip. Each
// warp has a ring of chunks of its own, filled by bulk copies that start before the kernel ahead
// has ended. Sums of a warp go to fixed slots, are added over the warps, then over the cluster, in
// one order. Bytes moved: every weight once, x once a CTA slice (from L2).
//
// Without clusters (compute capability below 9.0) the slices are added through global memory by the
// CTA that arrives last, in the same order, and the ring is filled by copies of 16 bytes a lane.
#pragma once

#include <type_traits>

#include "kernels/dependent_launch.h"
#include "kernels/float_engine.cuh"
#include "kernels/int8_engine.cuh"
#include "kernels/linear_vector.h"
#include "kernels/vector_params.h"
#include "kernels/vector_ring.cuh"

namespace wcuda::kernels {

namespace vector {

struct Place {
  uint32_t part;
  uint32_t strip;
};

// Strip v of a section: of its parts one after the other, or of gate and up in turn.
__device__ inline Place place_of(const VectorParams& params, uint32_t section, uint32_t v) {
  if (params.epilogue >= Epilogue::kSiluGate) return {v % 2, v / 2};
  uint32_t part = section == 0 ? 0 : params.part_split;
  while (v >= params.parts[part].strips) v -= params.parts[part++].strips;
  return {part, v};
}

// What a CTA works on.
struct Share {
  uint32_t section;
  uint32_t strip_begin, strips;
  uint32_t chunk_begin, chunks;  // of a strip: its slice, in stages
  uint32_t reciprocal;           // of chunks
};

// Who adds up strip s of a cluster (counted from its first) and finishes it, and its number there.
// Without clusters, each CTA adds up all strips of its slice.
struct Owner {
  uint32_t rank;
  uint32_t index;
};
__device__ inline Owner owner_of(const VectorParams& params, uint32_t s) {
  if (params.slot_ranks == 1) return {0, s};
  const uint32_t width = params.epilogue >= Epilogue::kSiluGate ? 2 : 1, unit = s / width;
  return {unit % params.slot_ranks, unit / params.slot_ranks * width + s % width};
}

// Float number `offset` of the shared memory of CTA `rank` of the cluster.
template <bool kCluster>
__device__ inline void put_float(const VectorParams& params, float* own, uint32_t offset,
                                 uint32_t rank, float value) {
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    if (params.slot_ranks != 1) {
      uint32_t address;
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(address)
          : "r"(shared_address(own + offset)), "r"(rank));
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
      return;
    }
#endif
  }
  own[offset] = value;
}

// Adds up the runs of the CTA's warps: a slot (T, 16) for each strip of a run, at the strip's
// owner, (slot_ranks, slots_of_rank, T, 16). Slot index + warp is a run's alone, as both only grow.
// Sums of squares of the slice go to every CTA, (slot_ranks, T).
template <class Engine, uint32_t T, bool kCluster>
__device__ inline void sum_slice(const VectorParams& params, const Share& share, uint32_t rank,
                                 uint8_t* shared) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t items = share.strips * share.chunks;
  const uint32_t begin = items * warp / kVectorWarps, end = items * (warp + 1) / kVectorWarps;
  float* slots = reinterpret_cast<float*>(shared + params.slots_offset);
  float* squares = reinterpret_cast<float*>(shared + params.squares_offset);
  const uint32_t slot_rank = params.slot_ranks == 1 ? 0 : rank;

  Ring<kCluster> ring(params, shared, Engine::kStageBytes, warp, lane);
  const uint32_t strip_bytes = params.sections[share.section].strip_bytes;
  uint32_t fill_item = begin, fill_chunk = 0, fill_strip = 0;
  const uint8_t* source = nullptr;
  const auto find_source = [&] {
    const Place place = place_of(params, share.section, share.strip_begin + fill_strip);
    source = params.parts[place.part].records + uint64_t{place.strip} * strip_bytes;
  };
  const auto fill = [&] {
    uint32_t bytes = 0;
    const uint32_t at = (share.chunk_begin + fill_chunk) * Engine::kStageBytes;
    if (fill_item < end) bytes = min(Engine::kStageBytes, strip_bytes - at);
    ring.fill(source + at, bytes, lane);
    if (fill_item >= end) return;
    ++fill_item;
    if (++fill_chunk == share.chunks) {
      fill_chunk = 0;
      ++fill_strip;
      if (fill_item < end) find_source();
    }
  };
  uint32_t strip = 0, chunk = 0;
  if (begin < end) {
    fill_strip = strip = share.chunks == 1 ? begin : __umulhi(begin, share.reciprocal);
    fill_chunk = chunk = begin - strip * share.chunks;
    find_source();
  }
#pragma unroll 1
  for (uint32_t i = 0; i < ring.stages; ++i) fill();

  Engine::stage_x(params, share.chunk_begin * Engine::kStageInputs,
                  share.chunks * Engine::kStageInputs, shared, squares + params.slot_ranks * T);
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  // The others' shared memory is theirs from here on.
  if (kCluster && params.slot_ranks != 1)
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
  if (params.norm != nullptr && threadIdx.x < T) {
    float total = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < kVectorWarps; ++w)
      total += squares[params.slot_ranks * T + w * T + threadIdx.x];
    for (uint32_t peer = 0; peer < params.slot_ranks; ++peer)
      put_float<kCluster>(params, squares, slot_rank * T + threadIdx.x, peer, total);
  }

  float sums[Engine::kSums] = {};
#pragma unroll 1
  for (uint32_t item = begin; item < end; ++item) {
    uint8_t* stage = ring.wait();
    if constexpr (Engine::kStageRecords > 1) {
      const uint32_t at = (share.chunk_begin + chunk) * Engine::kStageBytes;
      if (strip_bytes - at < Engine::kStageBytes) {  // the strip ends in this stage: clear the rest
        __syncwarp();
        for (uint32_t i = strip_bytes - at + lane * 16; i < Engine::kStageBytes; i += 512)
          *reinterpret_cast<uint4*>(stage + i) = make_uint4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
        if constexpr (kCluster) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncwarp();
      }
    }
    Engine::consume(params, stage, shared, chunk * (Engine::kStageInputs / 32), lane, sums, [&] {
      __syncwarp();
      fill();
    });
    ring.advance();
    if (++chunk == share.chunks || item + 1 == end) {
      const Owner owner = owner_of(params, strip);
      const uint32_t slot = (slot_rank * params.slots_of_rank + owner.index + warp) * 16 * T;
      Engine::store(sums, lane, [&](uint32_t i, float value) {
        put_float<kCluster>(params, slots, slot + i, owner.rank, value);
      });
#pragma unroll
      for (uint32_t i = 0; i < Engine::kSums; ++i) sums[i] = 0.0f;
      chunk = 0;
      ++strip;
    }
  }
}

// The slots of a strip that one CTA's warps first … last fill; warps with empty runs fill none.
struct Runs {
  uint32_t items;
  uint32_t first, last;
};
__device__ inline Runs runs_of(const Share& share, uint32_t s, uint32_t chunks) {
  // Runs [items * w / warps, items * (w + 1) / warps) that meet the chunks of strip s.
  const uint32_t items = share.strips * chunks;
  return {items, ((s * chunks + 1) * kVectorWarps - 1) / items,
          ((s + 1) * chunks * kVectorWarps - 1) / items};
}
// slot: float of slot 0 … of the strip.
template <uint32_t T>
__device__ inline float add_runs(const Runs& runs, const float* slot) {
  float total = 0.0f;
  for (uint32_t w = runs.first; w <= runs.last; ++w)
    if (runs.items * w / kVectorWarps < runs.items * (w + 1) / kVectorWarps)
      total += slot[w * 16 * T];
  return total;
}

// The sum of float i (of T x 16) of strip s over all runs, in the order of slices and warps. `runs`
// are those of the first slice.
template <uint32_t T>
__device__ inline float add_slots(const VectorParams& params, const Share& share, Runs runs,
                                  uint32_t s, uint32_t i, const float* slots) {
  const float* slot = slots + owner_of(params, s).index * 16 * T + i;
  float total = add_runs<T>(runs, slot);
  const EvenShares& chunks = params.sections[share.section].chunks;
  for (uint32_t r = 1; r < params.slot_ranks; ++r) {
    if (r == chunks.rest) runs = runs_of(share, s, chunks.base);
    slot += params.slots_of_rank * 16 * T;
    total += add_runs<T>(runs, slot);
  }
  return total;
}

__device__ inline float gate(Epilogue epilogue, float v) {
  if (epilogue == Epilogue::kSiluGate) return v / (1.0f + expf(-v));
  return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * v * (1.0f + 0.044715f * v * v)));
}

// An output of a CTA, and what is added to its products.
struct Output {
  float* target = nullptr;  // null: padding
  uint32_t strip;           // of the cluster; with a gate, the gate's, `up` is the next
  uint32_t index;           // (token, row) of the strip
  float bias = 0.0f, up_bias = 0.0f;
  float before = 0.0f;
  Runs runs[2];  // of the first slice; of gate and up
};

// Output i of those of CTA `rank`, which owns `units` strips or pairs of strips: (unit, token,
// row).
template <uint32_t T>
__device__ inline Output find_output(const VectorParams& params, const Share& share, uint32_t rank,
                                     uint32_t units, uint32_t i) {
  Output output;
  const uint32_t width = params.epilogue >= Epilogue::kSiluGate ? 2 : 1;
  if (i >= units * 16 * T) return output;
  output.strip = (i / (16 * T) * params.slot_ranks + rank) * width;
  output.index = i % (16 * T);
  const uint32_t token = output.index / 16;
  const Place place = place_of(params, share.section, share.strip_begin + output.strip);
  const VectorPart& part = params.parts[place.part];
  const uint32_t row = place.strip * 16 + output.index % 16;
  if (token >= params.columns || row >= part.rows) return output;
  output.target = part.output + uint64_t{token} * part.rows + row;
  if (params.epilogue == Epilogue::kAdd) output.before = *output.target;
  if (part.bias != nullptr) output.bias = part.bias[row];
  if (width == 2 && params.parts[1].bias != nullptr) output.up_bias = params.parts[1].bias[row];
  const EvenShares& chunks = params.sections[share.section].chunks;
  const uint32_t first_chunks =
      params.slot_ranks == 1 ? share.chunks : chunks.base + (chunks.rest != 0 ? 1 : 0);
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k)
    if (k < width) output.runs[k] = runs_of(share, output.strip + k, first_chunks);
  return output;
}

// sum(k, strip, index) gives a product (k = 1: of the up matrix), square(token) the sum of squares
// of x.
template <class Sum, class Square>
__device__ inline void finish(const VectorParams& params, const Output& output, Sum sum,
                              Square square) {
  if (output.target == nullptr) return;
  float inverse = 1.0f;
  if (params.norm != nullptr)
    inverse = rsqrtf(square(output.index / 16) / static_cast<float>(params.cols) + params.epsilon);
  float y = sum(0, output.strip, output.index) * inverse + output.bias;
  if (params.epilogue >= Epilogue::kSiluGate)
    y = gate(params.epilogue, y) *
        (sum(1, output.strip + 1, output.index) * inverse + output.up_bias);
  *output.target = y + output.before;
}

template <class EngineA, class EngineB, uint32_t T, bool kCluster>
__global__ void __launch_bounds__(kVectorThreads, 32 / kVectorWarps)
    linear_vector_kernel(const __grid_constant__ VectorParams params) {
#if __CUDA_ARCH__ >= 900
  constexpr bool kIsCompiled = true;
#else
  constexpr bool kIsCompiled = !kCluster;
#endif
  if constexpr (kIsCompiled) {
    extern __shared__ __align__(128) uint8_t shared[];
    dependent_trigger();
#if __CUDA_ARCH__ >= 900
    if (kCluster && params.slot_ranks != 1)
      asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    const uint32_t slices = params.cluster_size;
    const uint32_t slice = blockIdx.x, cluster = blockIdx.y;
    const uint32_t width = params.epilogue >= Epilogue::kSiluGate ? 2 : 1;
    Share share;
    share.section = cluster < params.sections[0].clusters ? 0 : 1;
    const VectorSection& section = params.sections[share.section];
    const uint32_t index = share.section == 0 ? cluster : cluster - params.sections[0].clusters;
    share.strip_begin = section.units.begin(index) * width;
    share.strips = section.units.begin(index + 1) * width - share.strip_begin;
    share.chunk_begin = section.chunks.begin(slice);
    share.chunks = section.chunks.begin(slice + 1) - share.chunk_begin;
    share.reciprocal = section.reciprocals[slice < section.chunks.rest ? 1 : 0];
    if (share.section == 0) {
      sum_slice<EngineA, T, kCluster>(params, share, slice, shared);
    } else {
      if constexpr (!std::is_same_v<EngineA, EngineB>)
        sum_slice<EngineB, T, kCluster>(params, share, slice, shared);
    }

    const float* slots = reinterpret_cast<const float*>(shared + params.slots_offset);
    const float* squares = reinterpret_cast<const float*>(shared + params.squares_offset);
    const uint32_t ranks = params.slot_ranks, rank = ranks == 1 ? 0 : slice;
    if (kCluster || slices == 1) {
      const uint32_t owned = (share.strips / width + ranks - 1 - rank) / ranks;
      Output output = find_output<T>(params, share, rank, owned, threadIdx.x);
      if (ranks == 1) __syncthreads();
#if __CUDA_ARCH__ >= 900
      else
        asm volatile(
            "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                : "memory");
#endif
      const auto square = [&](uint32_t token) {
        float total = 0.0f;
        for (uint32_t r = 0; r < ranks; ++r) total += squares[r * T + token];
        return total;
      };
#pragma unroll 1
      for (uint32_t i = threadIdx.x;;) {
        finish(
            params, output,
            [&](uint32_t k, uint32_t s, uint32_t at) {
              return add_slots<T>(params, share, output.runs[k], s, at, slots);
            },
            square);
        if ((i += kVectorThreads) >= owned * 16 * T) break;
        output = find_output<T>(params, share, rank, owned, i);
      }
      return;
    }

    const uint32_t count = params.strips_max * 16 * T + T;
    float* partials = params.partials + uint64_t{cluster} * slices * count;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < share.strips * 16 * T; i += kVectorThreads)
      partials[slice * count + i] =
          add_runs<T>(runs_of(share, i / (16 * T), share.chunks), slots + i);
    if (params.norm != nullptr && threadIdx.x < T)
      partials[(slice + 1) * count - T + threadIdx.x] = squares[threadIdx.x];
    __threadfence();
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(params.tickets + cluster, 1) + 1 == slices;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    const auto total = [&](uint32_t i) {
      float sum = 0.0f;
      for (uint32_t r = 0; r < slices; ++r) sum += __ldcg(partials + r * count + i);
      return sum;
    };
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < share.strips / width * 16 * T; i += kVectorThreads)
      finish(
          params, find_output<T>(params, share, 0, share.strips / width, i),
          [&](uint32_t, uint32_t s, uint32_t at) { return total(s * 16 * T + at); },
          [&](uint32_t token) { return total(count - T + token); });
    if (threadIdx.x == 0) params.tickets[cluster] = 0;
  }
}

// Bytes of shared memory of a CTA. More than half of what an SM has: two CTAs of a kernel on one SM
// are two shares of its work there (8B Q4_K chain, H200: 502 steps/s with room for two, 668 so).
constexpr uint32_t kSharedMin = 116 * 1024;
constexpr uint32_t kSharedMax = 211 * 1024;  // of 227; codebooks take up to 16
constexpr uint32_t kRingBytes = 116 * 1024;
constexpr uint32_t kActivationsBudget = 40 * 1024;
constexpr uint32_t kStagesMax = 8;

inline uint32_t round_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

// Shares out clusters, strips and shared memory, and launches. params has the arguments and parts.
template <class EngineA, class EngineB, uint32_t T, bool kCluster>
inline cudaError_t launch(VectorParams params, const VectorTuning& tuning, const Launch& launch) {
  constexpr uint32_t kStageBytes =
      EngineA::kStageBytes > EngineB::kStageBytes ? EngineA::kStageBytes : EngineB::kStageBytes;
  static_assert(EngineA::kStageInputs == EngineB::kStageInputs);
  constexpr uint32_t kStageInputs = EngineA::kStageInputs;
  const uint32_t chunks = (params.cols + kStageInputs - 1) / kStageInputs;
  const uint32_t width = params.epilogue >= Epilogue::kSiluGate ? 2 : 1;
  const uint32_t units[2] = {params.strips[0] / width, params.strips[1] / width};
  params.sections[0].strip_bytes = static_cast<uint32_t>(EngineA::kLayout.strip_bytes(params.cols));
  params.sections[1].strip_bytes = static_cast<uint32_t>(EngineB::kLayout.strip_bytes(params.cols));

  const auto slice_inputs = [&](uint32_t ranks) {
    return (chunks + ranks - 1) / ranks * kStageInputs;
  };
  uint32_t ranks = tuning.cluster_size != 0 ? tuning.cluster_size : 1;
  if (tuning.cluster_size == 0)
    while (ranks < 8 &&
           EngineA::codes_bytes(slice_inputs(ranks)) + EngineA::scales_bytes(slice_inputs(ranks)) >
               kActivationsBudget)
      ranks *= 2;
  while (ranks > 1 && ranks > chunks) ranks /= 2;
  params.cluster_size = ranks;
  params.slot_ranks = kCluster ? ranks : 1;

  const uint32_t ctas = static_cast<uint32_t>(launch.sm_count) * tuning.ctas_per_sm;
  uint32_t clusters = ctas < ranks ? 1 : ctas / ranks, shared_bytes = 0;
  for (;; clusters *= 2) {
    uint32_t counts[2] = {clusters < units[0] ? clusters : units[0], 0};
    if (units[1] != 0) {
      const double first = static_cast<double>(units[0]) * params.sections[0].strip_bytes;
      const double second = static_cast<double>(units[1]) * params.sections[1].strip_bytes;
      auto share = static_cast<uint32_t>(clusters * (first / (first + second)) + 0.5);
      if (share >= clusters) share = clusters - 1;
      if (share == 0) share = 1;
      counts[0] = share < units[0] ? share : units[0];
      const uint32_t rest = clusters > share ? clusters - share : 1;
      counts[1] = rest < units[1] ? rest : units[1];
    }
    params.strips_max = 0;
    for (int s = 0; s < 2; ++s) {
      VectorSection& section = params.sections[s];
      section.clusters = counts[s];
      if (counts[s] == 0) continue;
      section.units = share_out(units[s], counts[s]);
      section.chunks = share_out(chunks, ranks);
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t divisor = section.chunks.base + i;
        section.reciprocals[i] = static_cast<uint32_t>(0xffffffffu / divisor + 1);
      }
      const uint32_t most = (units[s] + counts[s] - 1) / counts[s] * width;
      if (most > params.strips_max) params.strips_max = most;
    }

    const uint32_t slice = slice_inputs(ranks);
    params.x_scales_offset = EngineA::codes_bytes(slice);
    params.ring_offset = round_up(params.x_scales_offset + EngineA::scales_bytes(slice), 128);
    params.slots_of_rank =
        (params.strips_max / width + params.slot_ranks - 1) / params.slot_ranks * width +
        kVectorWarps;
    const uint32_t slots_bytes = params.slot_ranks * params.slots_of_rank * 64 * T;
    const uint32_t squares_bytes = (params.slot_ranks + kVectorWarps) * T * 4;
    const uint32_t rest = params.ring_offset + slots_bytes + squares_bytes;
    constexpr uint32_t kStage = kVectorWarps * (kStageBytes + 8);
    uint32_t stages = kCluster ? tuning.stages : kVectorCopyStages;
    if (stages == 0) {
      stages = rest >= kSharedMax ? 2 : (kSharedMax - rest) / kStage;
      if (stages > kRingBytes / kStage) stages = kRingBytes / kStage;
      if (stages < 2) stages = 2;
      if (stages > kStagesMax) stages = kStagesMax;
    }
    params.stages = stages;
    params.barriers_offset = params.ring_offset + kVectorWarps * stages * kStageBytes;
    params.slots_offset = params.barriers_offset + kVectorWarps * stages * 8;
    params.squares_offset = params.slots_offset + slots_bytes;
    shared_bytes = params.squares_offset + squares_bytes;
    if (kCluster && tuning.ctas_per_sm == 1 && shared_bytes < kSharedMin) shared_bytes = kSharedMin;
    // Too many strips for the slots: more CTAs than fit at once.
    if (shared_bytes <= kSharedMax || params.strips_max <= width) break;
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

  const auto kernel = linear_vector_kernel<EngineA, EngineB, T, kCluster>;
  // The limit of 48 KB counts a tile's codebook too.
  if (shared_bytes > 32 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return launch_kernel(launch, dim3(ranks, clusters), dim3(kVectorThreads), shared_bytes,
                       kCluster && ranks > 1 ? ranks : 0, kernel, params);
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
