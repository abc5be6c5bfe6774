// The warp of fused_layers that copies weights into the ring, and the clearing of the mailbox.
// Only for fused_layers.cu.
#pragma once

#include "kernels/linear/fused_params.cuh"

namespace wcuda::kernels {
namespace {

__device__ inline FusedPartition partition_of(const FusedLayer& layer, uint32_t cta) {
  FusedPartition partition = {};
  partition.is_second = cta >= layer.ctas;
  const uint32_t problem = partition.is_second ? 1 : 0;
  const uint32_t index = partition.is_second ? cta - layer.ctas : cta;
  const uint32_t begin = layer.items[problem].begin(index);
  const uint32_t end = layer.items[problem].begin(index + 1);
  const uint32_t k_tile_bytes = partition.is_second ? EngineB::kStageBytes : EngineA::kStageBytes;
  partition.x_k_tiles = layer.k_tiles;
  if (layer.k_splits != 0) {
    const VectorMatrix& part = layer.matrices[0];
    const uint32_t first_split = begin / part.m_tiles;
    const uint32_t m_tile_bytes = layer.k_splits * kSplitKTiles * k_tile_bytes;
    const uint32_t boundary = (first_split + 1) * part.m_tiles;
    partition.m_tiles[0] = min(end, boundary) - begin;
    partition.m_tiles[1] = max(end, boundary) - boundary;
    for (uint32_t run = 0; run < 2; ++run) {
      const uint32_t k_split = first_split + run;
      const uint32_t m_tile = run == 0 ? begin - first_split * part.m_tiles : 0;
      partition.packed_tiles[run] = part.packed_tiles + uint64_t{m_tile} * m_tile_bytes +
                                    k_split * kSplitKTiles * k_tile_bytes;
      partition.outputs[run] = layer.partials + (k_split * part.m_tiles + m_tile) * kMTileRows;
    }
    partition.skipped_bytes = m_tile_bytes - kSplitKTiles * k_tile_bytes;
    partition.first_k_tile = first_split * kSplitKTiles;
    partition.x_k_tiles = partition.m_tiles[1] != 0 ? 2 * kSplitKTiles : kSplitKTiles;
    return partition;
  }
  const uint32_t m_tile_bytes = layer.k_tiles * k_tile_bytes;
  const bool is_gate = layer.epilogue >= Epilogue::kSiluGate;
  uint32_t run = 0, first = 0;
  for (uint32_t p = layer.matrix_begins[problem]; p < layer.matrix_ends[problem]; ++p) {
    const VectorMatrix& part = layer.matrices[p];
    const uint32_t from = max(begin, first), to = min(end, first + part.m_tiles);
    if (from < to && run < 2) {
      const uint32_t skipped = from - first;
      partition.packed_tiles[run] = part.packed_tiles + uint64_t{skipped} * m_tile_bytes;
      if (part.output != nullptr) partition.outputs[run] = part.output + skipped * kMTileRows;
      if (part.bias != nullptr) partition.biases[run] = part.bias + skipped * kMTileRows;
      partition.m_tiles[run] = to - from;
      partition.rows[run] = min(part.rows - skipped * kMTileRows, (to - from) * kMTileRows);
      if (run == 0 && layer.mailbox != nullptr)
        partition.mailbox = layer.mailbox + skipped * kMTileRows;
      if (run == 0 && layer.addend != nullptr)
        partition.addend = layer.addend + skipped * kMTileRows;
      ++run;
    }
    if (!is_gate) first += part.m_tiles;
  }
  return partition;
}

// The producer side of the ring.
class Copier {
 public:
  __device__ Copier(const FusedParams& params, uint8_t* shared)
      : ring_(pipeline_of(params, shared)),
        policy_(l2_evict_first()),
        landed_(-static_cast<int32_t>(params.flight)) {}
  // Copies the next stage as soon as it is empty and fewer than `flight` copies are in flight.
  __device__ __forceinline__ void copy(const uint8_t* source, uint32_t bytes) {
    ring_.wait_empty(next_);
    if (landed_ >= 0) mbarrier_wait(ring_.full_barrier(landed_), landed_parity_);
    const uint32_t barrier = ring_.full_barrier(next_.stage);
    mbarrier_expect_tx(barrier, bytes);
    bulk_copy(ring_.target(next_.stage), source, bytes, barrier, policy_);
    next_.advance(ring_.stages);
    if (++landed_ == static_cast<int32_t>(ring_.stages)) landed_ = 0, landed_parity_ ^= 1;
  }

 private:
  const Pipeline ring_;
  const uint64_t policy_;
  PipelineState next_;
  // The stage that must have arrived before the next copy starts; negative: none.
  int32_t landed_;
  uint32_t landed_parity_ = 0;
};

// Copies the weights of the partitions of all layers. Called by one lane.
template <class EngineA, class EngineB>
__device__ inline void copy_weights(const FusedParams& params, const FusedPartition* partitions,
                                    uint8_t* shared) {
  Copier copier(params, shared);
#pragma unroll 1
  for (uint32_t p = 0; p < params.count; ++p) {
    const FusedPartition& partition = partitions[p];
    const uint32_t stage_k_tiles =
        partition.is_second ? kStageKTiles<EngineB> : kStageKTiles<EngineA>;
    const uint32_t item_stages = params.layers[p].k_tiles / stage_k_tiles;
    const uint32_t bytes =
        stage_k_tiles * (partition.is_second ? EngineB::kStageBytes : EngineA::kStageBytes);
#pragma unroll 1
    for (uint32_t run = 0; run < 2; ++run) {
      const uint8_t* source = partition.packed_tiles[run];
      uint32_t left = item_stages;  // stages left of the item
#pragma unroll 1
      for (uint32_t stages = partition.m_tiles[run] * item_stages; stages != 0; --stages) {
        copier.copy(source, bytes);
        source += bytes;
        if (--left == 0) source += partition.skipped_bytes, left = item_stages;
      }
    }
  }
}

// Returns when all CTAs have read what they need from mailboxes. Called by one lane.
__device__ inline void wait_for_others(const FusedParams& params, uint8_t* shared) {
  Barriers& all = *reinterpret_cast<Barriers*>(shared + params.barriers_offset);
  mbarrier_wait(shared_address(&all.staged), 0);
  // Counts arrivals over all launches; each adds its number of CTAs.
  const uint64_t before = increment_acq_rel(params.arrivals);
  const uint64_t all_ctas = (before / gridDim.x + 1) * gridDim.x;
  SpinLimit spins;
  while (load_acquire_64(params.arrivals) < all_ctas) spins.count();
}

// Clears a CTA's part of the mailboxes. Called by all threads.
__device__ inline void clear_mailbox(const FusedParams& params) {
  const uint32_t float4s = params.mailbox_floats / 4;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < float4s; i += gridDim.x * kThreads)
    reinterpret_cast<uint4*>(params.mailbox)[i] =
        make_uint4(kMissing, kMissing, kMissing, kMissing);
}

}  // namespace
}  // namespace wcuda::kernels
