// The warp of layer_chain that copies weights into the ring, and the clearing of the exchange.
// Only for layer_chain.cu.
#pragma once

#include "kernels/linear/fused_params.cuh"

namespace wcuda::kernels {
namespace {

__device__ inline ChainShare share_of(const ChainLayer& layer, uint32_t cta) {
  ChainShare share = {};
  share.is_second = cta >= layer.ctas;
  const uint32_t section = share.is_second ? 1 : 0;
  const uint32_t index = share.is_second ? cta - layer.ctas : cta;
  const uint32_t begin = layer.units[section].begin(index);
  const uint32_t end = layer.units[section].begin(index + 1);
  const uint32_t chunk_bytes = share.is_second ? 3360 : 2304;
  share.x_chunks = layer.chunks;
  if (layer.slices != 0) {
    const VectorPart& part = layer.parts[0];
    const uint32_t first_slice = begin / part.strips;
    const uint32_t strip_bytes = layer.slices * kSliceChunks * chunk_bytes;
    const uint32_t border = (first_slice + 1) * part.strips;
    share.strips[0] = min(end, border) - begin;
    share.strips[1] = max(end, border) - border;
    for (uint32_t run = 0; run < 2; ++run) {
      const uint32_t slice = first_slice + run;
      const uint32_t strip = run == 0 ? begin - first_slice * part.strips : 0;
      share.records[run] =
          part.records + uint64_t{strip} * strip_bytes + slice * kSliceChunks * chunk_bytes;
      share.outputs[run] = layer.partials + (slice * part.strips + strip) * 16;
    }
    share.skipped_bytes = strip_bytes - kSliceChunks * chunk_bytes;
    share.first_chunk = first_slice * kSliceChunks;
    share.x_chunks = share.strips[1] != 0 ? 2 * kSliceChunks : kSliceChunks;
    return share;
  }
  const uint32_t strip_bytes = layer.chunks * chunk_bytes;
  const bool is_gate = layer.epilogue >= Epilogue::kSiluGate;
  uint32_t run = 0, first = 0;
  for (uint32_t p = layer.part_begins[section]; p < layer.part_ends[section]; ++p) {
    const VectorPart& part = layer.parts[p];
    const uint32_t from = max(begin, first), to = min(end, first + part.strips);
    if (from < to && run < 2) {
      const uint32_t skipped = from - first;
      share.records[run] = part.records + uint64_t{skipped} * strip_bytes;
      if (part.output != nullptr) share.outputs[run] = part.output + skipped * 16;
      if (part.bias != nullptr) share.biases[run] = part.bias + skipped * 16;
      share.strips[run] = to - from;
      share.rows[run] = min(part.rows - skipped * 16, (to - from) * 16);
      if (run == 0 && layer.exchange != nullptr) share.exchange = layer.exchange + skipped * 16;
      if (run == 0 && layer.addend != nullptr) share.addend = layer.addend + skipped * 16;
      ++run;
    }
    if (!is_gate) first += part.strips;
  }
  return share;
}

// The ring as the lane that copies sees it.
class Copier {
 public:
  __device__ Copier(const ChainParams& params, uint8_t* shared)
      : params_(params),
        full_(shared_address(reinterpret_cast<Barriers*>(shared + params.barriers_offset)->full)),
        empty_(shared_address(reinterpret_cast<Barriers*>(shared + params.barriers_offset)->empty)),
        ring_(shared_address(shared) + params.ring_offset),
        landed_(-static_cast<int32_t>(params.flight)) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
  }
  // Waits for room for the next stage, which gets so many bytes.
  __device__ __forceinline__ void begin(uint32_t bytes) {
    wait_barrier(empty_ + index_ * 8, parity_);
    if (landed_ >= 0) wait_barrier(full_ + landed_ * 8, landed_parity_);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full_ + index_ * 8),
                 "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void copy(uint32_t offset, const uint8_t* source, uint32_t bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(ring_ + index_ * kStageBytes + offset),
        "l"(source), "r"(bytes), "r"(full_ + index_ * 8), "l"(policy_)
        : "memory");
  }
  __device__ __forceinline__ void end() {
    if (++index_ == params_.stages) index_ = 0, parity_ ^= 1;
    if (++landed_ == static_cast<int32_t>(params_.stages)) landed_ = 0, landed_parity_ ^= 1;
  }

 private:
  const ChainParams& params_;
  uint32_t full_, empty_, ring_;
  uint64_t policy_;
  // The next stage: a wait for parity 1 of a new barrier returns at once.
  uint32_t index_ = 0, parity_ = 1;
  // The one that must be there before that goes on its way.
  int32_t landed_;
  uint32_t landed_parity_ = 0;
};

// Copies the weights of the shares of all layers. One lane calls.
template <class EngineA, class EngineB>
__device__ inline void copy_weights(const ChainParams& params, const ChainShare* shares,
                                    uint8_t* shared) {
  Copier copier(params, shared);
#pragma unroll 1
  for (uint32_t p = 0; p < params.count; ++p) {
    const ChainShare& share = shares[p];
    const uint32_t stage_chunks = share.is_second ? kStageChunks<EngineB> : kStageChunks<EngineA>;
    const uint32_t unit_stages = params.layers[p].chunks / stage_chunks;
    const uint32_t bytes =
        stage_chunks * (share.is_second ? EngineB::kStageBytes : EngineA::kStageBytes);
#pragma unroll 1
    for (uint32_t run = 0; run < 2; ++run) {
      const uint8_t* source = share.records[run];
      uint32_t left = unit_stages;  // of the unit
#pragma unroll 1
      for (uint32_t stages = share.strips[run] * unit_stages; stages != 0; --stages) {
        copier.begin(bytes);
        copier.copy(0, source, bytes);
        copier.end();
        source += bytes;
        if (--left == 0) source += share.skipped_bytes, left = unit_stages;
      }
    }
  }
}

// Returns once all CTAs have read what they need of exchanges. One lane calls.
__device__ inline void wait_for_others(const ChainParams& params, uint8_t* shared) {
  Barriers& all = *reinterpret_cast<Barriers*>(shared + params.barriers_offset);
  wait_barrier(shared_address(&all.staged), 0);
  uint64_t before, now;  // of all chains, each of which adds its CTAs
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;"
               : "=l"(before)
               : "l"(params.arrivals)
               : "memory");
  const uint64_t all_ctas = (before / gridDim.x + 1) * gridDim.x;
  Patience patience;
  for (;;) {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                 : "=l"(now)
                 : "l"(params.arrivals)
                 : "memory");
    if (now >= all_ctas) break;
    patience.lose();
  }
}

// Clears a CTA's part of exchanges. All threads call.
__device__ inline void clear_exchange(const ChainParams& params) {
  const uint32_t fours = params.exchange_floats / 4;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < fours; i += gridDim.x * kThreads)
    reinterpret_cast<uint4*>(params.exchange)[i] =
        make_uint4(kMissing, kMissing, kMissing, kMissing);
}

}  // namespace
}  // namespace wcuda::kernels
