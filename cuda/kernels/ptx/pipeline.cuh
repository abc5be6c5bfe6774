// A ring of stages in shared memory between a producer and a consumer.
//
//   stage      0        1        2        0        1
//   producer   copy     copy     copy     copy     copy      waits for "empty" of the stage
//   consumer            use      use      use      use       waits for "full"
//   parity     0        0        0        1        1         of "full"; "empty" has the other one
//
// "full" counts the bytes of copies, "empty" the consumers that have finished with the stage. A
// consumer that itself refills the stages it has read does not use "empty". Only for .cu files.
#pragma once

#include "kernels/ptx/mbarrier.cuh"

namespace wcuda::kernels {

// Counts the uses of stages: gives the stage and the parity of the current use.
struct PipelineState {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(uint32_t stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // Advances by at most `stages`.
  __device__ __forceinline__ void advance(uint32_t count, uint32_t stages) {
    stage += count;
    if (stage >= stages) stage -= stages, parity ^= 1;
  }
  // Advances by any number.
  __device__ __forceinline__ void skip(uint32_t count, uint32_t stages) {
    stage += count;
    while (stage >= stages) stage -= stages, parity ^= 1;
  }
};

// The same for a number of stages known at compile time, in one register.
template <uint32_t kStages>
struct PipelineCounter {
  uint32_t count = 0;
  __device__ uint32_t stage() const { return count % kStages; }
  __device__ uint32_t parity() const { return count / kStages % 2; }
};

// Shared addresses of a ring: "full" barriers, "empty" barriers and stages are arrays.
struct Pipeline {
  uint32_t full = 0;
  uint32_t empty = 0;
  uint32_t data = 0;
  uint32_t stage_bytes = 0;
  uint32_t stages = 0;

  __device__ __forceinline__ uint32_t full_barrier(uint32_t stage) const {
    return full + stage * kBarrierBytes;
  }
  __device__ __forceinline__ uint32_t empty_barrier(uint32_t stage) const {
    return empty + stage * kBarrierBytes;
  }
  __device__ __forceinline__ uint32_t target(uint32_t stage) const {
    return data + stage * stage_bytes;
  }

  // Consumer: waits until the stage's bytes have arrived.
  __device__ __forceinline__ void wait_full(const PipelineState& state) const {
    mbarrier_wait(full_barrier(state.stage), state.parity);
  }
  // Producer: waits until the consumers have finished with the previous contents of the stage.
  // Returns immediately in the first round.
  __device__ __forceinline__ void wait_empty(const PipelineState& state) const {
    mbarrier_wait(empty_barrier(state.stage), state.parity ^ 1);
  }
};

}  // namespace wcuda::kernels
