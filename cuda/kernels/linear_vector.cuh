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
  uint32_t chunk_begin, chunks;  // of a strip: its slice of the inputs, in stages
};

// The sums of a CTA's slice, slot by slot: sums (strips, T, 16).
template <class Engine, uint32_t T, bool kCluster>
__device__ inline void sum_slice(const VectorParams& params, const Share& share, uint8_t* shared) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t items = share.strips * share.chunks;
  const auto run_begin = [&](uint32_t w) { return items * w / kVectorWarps; };
  const uint32_t begin = run_begin(warp), end = run_begin(warp + 1);
  float* slots = reinterpret_cast<float*>(shared + params.slots_offset);
  float* totals = reinterpret_cast<float*>(shared + params.sums_offset);
  float* squares = totals + params.strips_max * 16 * T + T;

  Ring<kCluster> ring(params, shared, Engine::kStageBytes, warp, lane);
  const uint32_t strip_bytes = params.strip_bytes[share.section];
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
    fill_strip = strip = begin / share.chunks;
    fill_chunk = chunk = begin % share.chunks;
    find_source();
  }
  for (uint32_t i = 0; i < ring.stages; ++i) fill();

  Engine::stage_x(params, share.chunk_begin * Engine::kStageInputs,
                  share.chunks * Engine::kStageInputs, shared, squares);
  __syncthreads();

  float sums[Engine::kSums] = {};
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
      Engine::store(sums, slots + (strip + warp) * 16 * T, lane);
#pragma unroll
      for (uint32_t i = 0; i < Engine::kSums; ++i) sums[i] = 0.0f;
      chunk = 0;
      ++strip;
    }
  }
  __syncthreads();

  for (uint32_t i = threadIdx.x; i < share.strips * 16 * T; i += kVectorThreads) {
    const uint32_t s = i / (16 * T);
    float total = 0.0f;
    for (uint32_t w = 0; w < kVectorWarps; ++w)
      if (run_begin(w) < run_begin(w + 1) && run_begin(w) < (s + 1) * share.chunks &&
          run_begin(w + 1) > s * share.chunks)
        total += slots[(s + w) * 16 * T + i % (16 * T)];
    totals[i] = total;
  }
  if (threadIdx.x < T) {
    float total = 0.0f;
    for (uint32_t w = 0; w < kVectorWarps; ++w) total += squares[w * T + threadIdx.x];
    totals[params.strips_max * 16 * T + threadIdx.x] = total;
  }
}

__device__ inline float gate(Epilogue epilogue, float v) {
  if (epilogue == Epilogue::kSiluGate) return v / (1.0f + expf(-v));
  return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * v * (1.0f + 0.044715f * v * v)));
}

// Writes the outputs of a cluster's strips that fall to CTA `rank` of `ranks`; load(slice, index)
// gives a slice's sum.
template <uint32_t T, class Load>
__device__ inline void finish(const VectorParams& params, const Share& share, uint32_t rank,
                              uint32_t ranks, Load load) {
  const bool is_gate = params.epilogue >= Epilogue::kSiluGate;
  const uint32_t width = is_gate ? 2 : 1;
  const uint32_t count = share.strips / width * 16 * T;
  const auto total = [&](uint32_t index) {
    float sum = 0.0f;
    for (uint32_t slice = 0; slice < params.cluster_size; ++slice) sum += load(slice, index);
    return sum;
  };
  const uint32_t end = count * (rank + 1) / ranks;
  for (uint32_t i = count * rank / ranks + threadIdx.x; i < end; i += kVectorThreads) {
    const uint32_t local = i / (16 * T) * width, token = i / 16 % T;
    const Place place = place_of(params, share.section, share.strip_begin + local);
    const VectorPart& part = params.parts[place.part];
    const uint32_t row = place.strip * 16 + i % 16;
    if (token >= params.columns || row >= part.rows) continue;
    float inverse = 1.0f;
    if (params.norm != nullptr)
      inverse =
          1.0f / sqrtf(total(params.strips_max * 16 * T + token) / static_cast<float>(params.cols) +
                       params.epsilon);
    float y = total((local * T + token) * 16 + i % 16) * inverse;
    if (part.bias != nullptr) y += part.bias[row];
    float* out = part.output + uint64_t{token} * part.rows + row;
    if (is_gate) {
      float up = total(((local + 1) * T + token) * 16 + i % 16) * inverse;
      if (params.parts[1].bias != nullptr) up += params.parts[1].bias[row];
      y = gate(params.epilogue, y) * up;
    } else if (params.epilogue == Epilogue::kAdd) {
      y += *out;
    }
    *out = y;
  }
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
    const uint32_t ranks = params.cluster_size;
    const uint32_t rank = blockIdx.x % ranks;
    const uint32_t cluster = blockIdx.x / ranks;
    Share share;
    share.section = cluster < params.clusters[0] ? 0 : 1;
    const uint32_t section_clusters = params.clusters[share.section];
    const uint32_t index = share.section == 0 ? cluster : cluster - params.clusters[0];
    const uint32_t width = params.epilogue >= Epilogue::kSiluGate ? 2 : 1;
    const uint64_t strips = params.strips[share.section] / width;
    share.strip_begin = static_cast<uint32_t>(strips * index / section_clusters) * width;
    share.strips =
        static_cast<uint32_t>(strips * (index + 1) / section_clusters) * width - share.strip_begin;
    const auto slice = [&](uint32_t inputs) {
      const uint32_t chunks = (params.cols + inputs - 1) / inputs;
      share.chunk_begin = chunks * rank / ranks;
      share.chunks = chunks * (rank + 1) / ranks - share.chunk_begin;
    };
    if (share.section == 0) {
      slice(EngineA::kStageInputs);
      sum_slice<EngineA, T, kCluster>(params, share, shared);
    } else {
      if constexpr (!std::is_same_v<EngineA, EngineB>) {
        slice(EngineB::kStageInputs);
        sum_slice<EngineB, T, kCluster>(params, share, shared);
      }
    }

    const float* totals = reinterpret_cast<const float*>(shared + params.sums_offset);
    if (ranks == 1) {
      __syncthreads();
      finish<T>(params, share, 0, 1, [&](uint32_t, uint32_t i) { return totals[i]; });
      return;
    }
    if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
      asm volatile(
          "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
              : "memory");
      const uint32_t base = shared_address(totals);
      finish<T>(params, share, rank, ranks, [&](uint32_t peer, uint32_t i) {
        uint32_t address;
        float value;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(base + i * 4), "r"(peer));
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
        return value;
      });
      // No CTA ends before its sums are read.
      asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
    } else {
      const uint32_t count = params.strips_max * 16 * T + T;
      float* partials = params.partials + uint64_t{cluster} * ranks * count;
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < count; i += kVectorThreads)
        if (i < share.strips * 16 * T || i >= count - T) partials[rank * count + i] = totals[i];
      __threadfence();
      __shared__ bool is_last;
      __syncthreads();
      if (threadIdx.x == 0) is_last = atomicAdd(params.tickets + cluster, 1) + 1 == ranks;
      __syncthreads();
      if (!is_last) return;
      __threadfence();
      finish<T>(params, share, 0, 1,
                [&](uint32_t peer, uint32_t i) { return __ldcg(partials + peer * count + i); });
      if (threadIdx.x == 0) params.tickets[cluster] = 0;
    }
  }
}

// Bytes of shared memory of a CTA that let two kernels with two CTAs each stay on an SM: the next
// kernel of a chain then fills its rings while this one ends.
constexpr uint32_t kSharedBudget = 56 * 1024;
constexpr uint32_t kSlotsBudget = 24 * 1024;
constexpr uint32_t kStagesMax = 8;

inline uint32_t round_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

// Shares out clusters, strips and shared memory, and launches. params has the arguments and parts.
template <class EngineA, class EngineB, uint32_t T, bool kCluster>
inline cudaError_t launch(VectorParams params, const VectorTuning& tuning, const Launch& launch) {
  constexpr uint32_t kStageInputs =
      EngineA::kStageInputs > EngineB::kStageInputs ? EngineA::kStageInputs : EngineB::kStageInputs;
  constexpr uint32_t kStageBytes =
      EngineA::kStageBytes > EngineB::kStageBytes ? EngineA::kStageBytes : EngineB::kStageBytes;
  const uint32_t chunks = (params.cols + kStageInputs - 1) / kStageInputs;
  const auto slice_inputs = [&](uint32_t ranks) {
    return (chunks + ranks - 1) / ranks * kStageInputs;
  };
  const auto x_bytes = [&](uint32_t ranks) {
    const uint32_t inputs = slice_inputs(ranks);
    return EngineA::codes_bytes(inputs) + EngineA::scales_bytes(inputs);
  };
  uint32_t ranks = tuning.cluster_size;
  if (ranks == 0) {
    ranks = params.cols > 8192 ? 4 : 2;
    while (ranks < 8 && x_bytes(ranks) > 20 * 1024) ranks *= 2;
  }
  while (ranks > 1 && ranks > chunks) ranks /= 2;
  params.cluster_size = ranks;

  const uint32_t width = params.epilogue >= Epilogue::kSiluGate ? 2 : 1;
  const uint32_t ctas = static_cast<uint32_t>(launch.sm_count) * tuning.ctas_per_sm;
  uint32_t clusters = ctas < ranks ? 1 : ctas / ranks;
  params.strip_bytes[0] = static_cast<uint32_t>(EngineA::kLayout.strip_bytes(params.cols));
  params.strip_bytes[1] = static_cast<uint32_t>(EngineB::kLayout.strip_bytes(params.cols));
  const uint32_t units[2] = {params.strips[0] / width, params.strips[1] / width};
  const uint32_t strips_limit = kSlotsBudget / (2 * 64 * T) / width * width;
  for (;; clusters *= 2) {
    params.clusters[0] = clusters < units[0] ? clusters : units[0];
    params.clusters[1] = 0;
    if (units[1] != 0) {
      const double first = static_cast<double>(units[0]) * params.strip_bytes[0];
      const double second = static_cast<double>(units[1]) * params.strip_bytes[1];
      auto share = static_cast<uint32_t>(clusters * (first / (first + second)) + 0.5);
      if (share >= clusters) share = clusters - 1;
      if (share == 0) share = 1;
      params.clusters[0] = share < units[0] ? share : units[0];
      const uint32_t rest = clusters > share ? clusters - share : 1;
      params.clusters[1] = rest < units[1] ? rest : units[1];
    }
    params.strips_max = 0;
    for (int s = 0; s < 2; ++s)
      if (units[s] != 0) {
        const uint32_t most = (units[s] + params.clusters[s] - 1) / params.clusters[s] * width;
        if (most > params.strips_max) params.strips_max = most;
      }
    if (params.strips_max <= strips_limit || params.strips_max <= width) break;
  }

  const uint32_t slice = slice_inputs(ranks);
  params.x_scales_offset = EngineA::codes_bytes(slice);
  params.ring_offset = round_up(params.x_scales_offset + EngineA::scales_bytes(slice), 128);
  const uint32_t slots_bytes = (params.strips_max + kVectorWarps) * 64 * T;
  const uint32_t sums_bytes = params.strips_max * 64 * T + T * 4 + kVectorWarps * T * 4;
  uint32_t stages = kCluster ? tuning.stages : kVectorCopyStages;
  if (stages == 0) {
    const uint32_t used = params.ring_offset + slots_bytes + sums_bytes + 512;
    stages = used >= kSharedBudget ? 0 : (kSharedBudget - used) / (kVectorWarps * kStageBytes);
    if (stages < 2) stages = 2;
    if (stages > kStagesMax) stages = kStagesMax;
  }
  params.stages = stages;
  params.barriers_offset = params.ring_offset + kVectorWarps * stages * kStageBytes;
  params.slots_offset = params.barriers_offset + kVectorWarps * stages * 8;
  params.sums_offset = params.slots_offset + slots_bytes;
  const uint32_t shared_bytes = params.sums_offset + sums_bytes;
  clusters = params.clusters[0] + params.clusters[1];

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
  return launch_kernel(launch, dim3(clusters * ranks), dim3(kVectorThreads), shared_bytes,
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
