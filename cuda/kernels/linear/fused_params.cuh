// Parameters of fused_layers, the partitions of its CTAs, the barriers of the ring, and the
// mailbox. Only for fused_layers.cu.
#pragma once

#include "kernels/linear/fused_layers.h"
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/persistent_plan.h"
#include "kernels/linear/tile_k.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/memory_order.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/pipeline.cuh"
#include "kernels/ptx/shared_address.cuh"

namespace wcuda::kernels {
namespace {

using EngineA = vector::EngineOf<TensorType::kQ4_K, 1>::Type;
using EngineB = vector::EngineOf<TensorType::kQ6_K, 1>::Type;
using persistent::kAccumulatorStride;
using persistent::kEpilogueBatch;
using persistent::kSplitKTiles;
using persistent::kStageBytes;
using persistent::kStagesMax;
using persistent::kWarps;
static_assert(EngineA::kStagePackedTiles == 1 &&
              EngineA::kStageBytes == persistent::kKTileBytes[0] &&
              EngineB::kStagePackedTiles == 1 &&
              EngineB::kStageBytes == persistent::kKTileBytes[1]);
static_assert(EngineA::codes_bytes(kKTileInputs) == persistent::kCodesBytes &&
              EngineA::scales_bytes(kKTileInputs) == persistent::kScalesBytes);

constexpr uint32_t kThreads = (kWarps + 1) * 32;
constexpr uint32_t kSplitsAtOnce = 8;  // K-splits whose sums are read together
constexpr uint32_t kMissing = 0;       // an output of 0 is sent as -0
// A CTA that waits for another CTA traps after this many polls, of about 0.7 us each and 45 s in
// all. The device is then lost.
constexpr uint32_t kSpinsMax = 1u << 26;
// Copies in flight at once. More would compete with the exchange of outputs.
constexpr uint32_t kFlightStages = 5;

// A stage of the ring holds the K-tiles of four neighbouring warps (Q4_K) or of two (Q6_K).
template <class Engine>
constexpr uint32_t kStageKTiles = kStageBytes / Engine::kStageBytes == 4 ? 4 : 2;

template <class Engine>
constexpr uint32_t kOddShift = vector::Codes<typename Engine::Tile>::kOddShift;

// Pointers into the mailbox are set last.
struct FusedLayer {
  VectorMatrix matrices[kLinearMatricesMax];  // of problem 0, then of problem 1
  uint32_t matrix_begins[2], matrix_ends[2];
  uint32_t ctas;           // of problem 0; problem 1 has the others
  EvenPartition items[2];  // of each problem: divides its M-tiles (or pairs of M-tiles of gate and
                           // up) among its CTAs
  uint32_t k_tiles;        // of an M-tile, or of one of its K-splits
  // With split-K an item is a K-split of an M-tile: kSplitKTiles of its K-tiles.
  uint32_t k_splits;   // per M-tile; 0: items are whole M-tiles
  uint32_t rows_each;  // outputs whose K-splits a CTA adds
  float* partials;     // (K-splits, M-tiles * 16)
  Epilogue epilogue;
  const float* x;
  const float* norm;
  float epsilon, mean_factor;
  float* mailbox;          // a copy of the output; null: none
  const float* addend;     // added to outputs: their previous values, or the copy in a mailbox
  bool is_addend_awaited;  // the addend is in a mailbox
};

struct FusedParams {
  FusedLayer layers[kFusedLayersMax];
  uint32_t count;
  uint32_t x_scales_offset, squares_offset, accumulators_offset, partitions_offset, barriers_offset,
      ring_offset;
  uint32_t batch;
  uint32_t stages, flight;  // of the ring, and at most in flight at once
  float* mailbox;
  uint32_t mailbox_floats;  // a multiple of 4
  uint64_t* arrivals;       // counts CTAs that have read all they need, over all launches
};

// A CTA's partition of a layer: up to two runs of M-tiles (with split-K, each of one K-split), or
// one run of gate and one of up.
struct FusedPartition {
  const uint8_t* packed_tiles[2];
  float* outputs[2];
  const float* biases[2];
  const float* addend;
  float* mailbox;
  uint32_t m_tiles[2];
  uint32_t rows[2];                  // rows that exist
  uint32_t skipped_bytes;            // between two items
  uint32_t first_k_tile, x_k_tiles;  // the K-tiles of x that are needed
  bool is_second;
};
static_assert(sizeof(FusedPartition) == persistent::kPartitionBytes);

// ---- barriers ----

struct Barriers {
  // Per stage: "full" counts its bytes, "empty" the lanes that have finished with it.
  uint64_t full[kStagesMax], empty[kStagesMax];
  uint64_t staged;  // counts warps that have read all they need from mailboxes
};
static_assert(sizeof(Barriers) == persistent::kBarriersBytes);

__device__ __forceinline__ Pipeline pipeline_of(const FusedParams& params, uint8_t* shared) {
  const Barriers& all = *reinterpret_cast<Barriers*>(shared + params.barriers_offset);
  Pipeline pipeline;
  pipeline.full = shared_address(all.full);
  pipeline.empty = shared_address(all.empty);
  pipeline.data = shared_address(shared) + params.ring_offset;
  pipeline.stage_bytes = kStageBytes;
  pipeline.stages = params.stages;
  return pipeline;
}
// Barrier of the computing warps.
__device__ __forceinline__ void sync_consumers() { named_barrier_sync<1>(kWarps * 32); }

// ---- the mailbox ----
//
// CTAs exchange outputs through words of global memory, without a grid barrier. The invariant:
//
//   - A word is kMissing, all zeros, until its value is written, so the value is its own flag.
//     An output of 0 is sent as -0, which gives the same sums.
//   - A word is written once per launch, by one CTA. A reader needs only the word itself, so no
//     other access must be ordered with it: relaxed loads and stores at gpu scope suffice. They
//     bypass L1, where an old value could remain. A 16-byte load may see its four words at
//     different times, so each of them is tested.
//   - All CTAs are resident at once (one per SM, a grid of sm_count), so a CTA never waits for one
//     that cannot start. If a wait does not end, SpinLimit traps.
//   - A CTA that has read all it needs arrives at a counter (release). When all have arrived
//     (acquire), each clears its part of the mailbox. The next launch reads and writes mailboxes
//     only after dependent_wait(), when this launch has ended.

// Traps after kSpinsMax polls.
class SpinLimit {
 public:
  __device__ __forceinline__ void count() {
    if (--left_ == 0) __trap();
  }

 private:
  uint32_t left_ = kSpinsMax;
};
__device__ __forceinline__ bool is_missing(const float4& v) {
  return __float_as_uint(v.x) == kMissing || __float_as_uint(v.y) == kMissing ||
         __float_as_uint(v.z) == kMissing || __float_as_uint(v.w) == kMissing;
}

// Sends an output; 0 is sent as -0.
__device__ __forceinline__ void send(float* place, float value) {
  store_relaxed_32(place, __float_as_uint(value) == kMissing ? 0x80000000 : __float_as_uint(value));
}

// Reads the addend of an output.
__device__ __forceinline__ float read_addend(const FusedLayer& layer, const float* place) {
  uint32_t value = load_relaxed_32(place);
  SpinLimit spins;
  while (layer.is_addend_awaited && value == kMissing) {
    spins.count();
    value = load_relaxed_32(place);
  }
  return __uint_as_float(value);
}

}  // namespace
}  // namespace wcuda::kernels
