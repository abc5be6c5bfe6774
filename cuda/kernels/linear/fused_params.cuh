// What the CTAs of layer_chain are given and share: parameters, shares, the ring's barriers, and
// the exchange. Only for layer_chain.cu.
#pragma once

#include "kernels/linear/fused_layers.h"
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/persistent_plan.h"
#include "kernels/linear/tile_k.cuh"

namespace wcuda::kernels {
namespace {

using EngineA = vector::EngineOf<12, 1>::Type;
using EngineB = vector::EngineOf<14, 1>::Type;
using persistent::kSliceChunks;
using persistent::kSlotStride;
using persistent::kStageBytes;
using persistent::kStagesMax;
using persistent::kWarps;
using persistent::kWindow;
static_assert(EngineA::kStageRecords == 1 && EngineA::kStageBytes == persistent::kChunkBytes[0] &&
              EngineB::kStageRecords == 1 && EngineB::kStageBytes == persistent::kChunkBytes[1]);
static_assert(EngineA::codes_bytes(kChunkInputs) == persistent::kCodesBytes &&
              EngineA::scales_bytes(kChunkInputs) == persistent::kScalesBytes);

constexpr uint32_t kThreads = (kWarps + 1) * 32;
constexpr uint32_t kSlicesAtOnce = 8;  // whose sums are read together
constexpr uint32_t kMissing = 0;       // an output of 0 goes as -0
// Reads in vain, of some 0.7 us each, before a CTA takes it that others will never come: the device
// then counts as lost.
constexpr uint32_t kReadsMax = 1u << 26;
// On their way at once. More is in the way of outputs.
constexpr uint32_t kFlightStages = 5;

// A stage of the ring: four chunks of Q4_K, or two of Q6_K, of neighbouring warps.
template <class Engine>
constexpr uint32_t kStageChunks = kStageBytes / Engine::kStageBytes == 4 ? 4 : 2;

template <class Engine>
constexpr uint32_t kOddShift = vector::Codes<typename Engine::Tile>::kOddShift;

// Pointers into the exchange are set last.
struct ChainLayer {
  VectorPart parts[kLinearMatricesMax];  // of section 0, then of section 1
  uint32_t part_begins[2], part_ends[2];
  uint32_t ctas;        // of section 0; section 1 has the others
  EvenShares units[2];  // strips, or pairs of gate and up, of a section, over its CTAs
  uint32_t chunks;      // of a strip, or of one of its slices
  // Of strips with many chunks: a unit is a slice of one, kSliceChunks of them.
  uint32_t slices;     // of a strip; 0: units are whole
  uint32_t rows_each;  // outputs of a CTA, which adds up their slices
  float* partials;     // (slices, strips * 16)
  Epilogue epilogue;
  const float* x;
  const float* norm;
  float epsilon, mean_factor;
  float* exchange;         // a copy of the output; null: none
  const float* addend;     // what is added to outputs: what they are, or their copy in an exchange
  bool is_addend_awaited;  // in an exchange
};

struct ChainParams {
  ChainLayer layers[kChainMax];
  uint32_t count;
  uint32_t x_scales_offset, squares_offset, slots_offset, shares_offset, barriers_offset,
      ring_offset;
  uint32_t window;
  uint32_t stages, flight;  // of the ring; of these on their way at once
  float* exchange;
  uint32_t exchange_floats;  // a multiple of 4
  uint64_t* arrivals;        // CTAs that have read all they need, of all chains
};

// A CTA's share of a layer: up to two runs of strips (of one slice each), or those of gate and of
// up.
struct ChainShare {
  const uint8_t* records[2];
  float* outputs[2];
  const float* biases[2];
  const float* addend;
  float* exchange;
  uint32_t strips[2];
  uint32_t rows[2];                // that are there
  uint32_t skipped_bytes;          // from one unit to the next
  uint32_t first_chunk, x_chunks;  // of x, those that are needed
  bool is_second;
};
static_assert(sizeof(ChainShare) == persistent::kShareBytes);

// ---- barriers ----

struct Barriers {
  // Of a stage: bytes that have come; lanes of products that are done with it.
  uint64_t full[kStagesMax], empty[kStagesMax];
  uint64_t staged;  // warps that have read all they need of exchanges
};
static_assert(sizeof(Barriers) == persistent::kBarriersBytes);

__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
template <uint32_t kCount>
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "n"(kCount)
               : "memory");
}
// The warps of products wait for each other.
__device__ __forceinline__ void sync_products() {
  asm volatile("barrier.sync.aligned 1, %0;" ::"n"(kWarps * 32) : "memory");
}

// A stage of the ring, and how often the ring was filled before, modulo 2.
struct RingPlace {
  uint32_t index = 0, parity = 0;
};

// ---- the exchange ----

__device__ __forceinline__ float4 load_now(const float* place) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(place)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_word(const void* place) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(place) : "memory");
  return v;
}
__device__ __forceinline__ void store_word(float* place, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(place), "r"(v) : "memory");
}
// Counts what is read in vain.
class Patience {
 public:
  __device__ __forceinline__ void lose() {
    if (--left_ == 0) __trap();
  }

 private:
  uint32_t left_ = kReadsMax;
};
__device__ __forceinline__ bool is_missing(const float4& v) {
  return __float_as_uint(v.x) == kMissing || __float_as_uint(v.y) == kMissing ||
         __float_as_uint(v.z) == kMissing || __float_as_uint(v.w) == kMissing;
}

// Outputs go as they are, but 0 as -0.
__device__ __forceinline__ void send(float* place, float value) {
  store_word(place, __float_as_uint(value) == kMissing ? 0x80000000 : __float_as_uint(value));
}

// What is added to an output.
__device__ __forceinline__ float read_addend(const ChainLayer& layer, const float* place) {
  uint32_t value = load_word(place);
  Patience patience;
  while (layer.is_addend_awaited && value == kMissing) {
    patience.lose();
    value = load_word(place);
  }
  return __uint_as_float(value);
}

}  // namespace
}  // namespace wcuda::kernels
