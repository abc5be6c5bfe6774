// The ring in which a warp of linear_vector keeps K-tiles of weights.
#pragma once

#include "kernels/linear/vector_params.h"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/copy_async.cuh"
#include "kernels/ptx/pipeline.cuh"
#include "kernels/ptx/shared_address.cuh"

namespace wcuda::kernels::vector {

// Returns a value that is the same in all lanes as one that the compiler knows to be warp-uniform.
__device__ inline uint32_t uniform(uint32_t value) { return __shfl_sync(~0u, value, 0); }

// A warp's ring of K-tiles, which it refills itself. With kBulk, one lane starts a TMA bulk copy,
// whose bytes the barrier of the stage counts. Otherwise every lane copies pieces of 16 bytes by
// cp.async, one group per stage.
template <bool kBulk>
class VectorPipeline {
 public:
  // `warp` must be warp-uniform for the compiler: see uniform().
  __device__ VectorPipeline(const VectorParams& params, uint8_t* shared, uint32_t stage_bytes,
                            uint32_t warp, uint32_t lane) {
    ring_.stage_bytes = stage_bytes;
    ring_.stages = kBulk ? params.stages : kVectorCopyStages;
    base_ = shared + params.ring_offset + warp * ring_.stages * stage_bytes;
    ring_.full =
        shared_address(shared) + params.barriers_offset + warp * (kVectorStagesMax * kBarrierBytes);
#if __CUDA_ARCH__ >= 900
    if constexpr (kBulk) {
      policy_ = l2_evict_first();
      if (lane == 0) {
#pragma unroll
        for (uint32_t i = 0; i < kVectorStagesMax; ++i) mbarrier_init(ring_.full_barrier(i), 1);
        mbarrier_init_fence();
      }
      __syncwarp();
    }
#endif
  }

  __device__ uint32_t stages() const { return ring_.stages; }

  // Fills the next stage, or skips it if `bytes` is 0. `is_free` is always true, but it is computed
  // from data that was read from the stage. This delays the bulk copy until these loads have
  // completed; it would not wait for them by itself.
  __device__ void fill(const uint8_t* source, uint32_t bytes, uint32_t lane, bool is_free) {
    const uint32_t target = shared_address(base_) + fill_stage_ * ring_.stage_bytes;
    if constexpr (kBulk) {
#if __CUDA_ARCH__ >= 900
      if (lane == 0 && bytes != 0 && is_free) {
        const uint32_t barrier = ring_.full_barrier(fill_stage_);
        mbarrier_expect_tx(barrier, bytes);
        bulk_copy(target, source, bytes, barrier, policy_);
      }
#endif
    } else {
      for (uint32_t at = lane * 16; at < bytes; at += 512) copy_async_16(target + at, source + at);
      copy_async_commit();
    }
    if (++fill_stage_ == ring_.stages) fill_stage_ = 0;
  }

  // Waits for the oldest stage and returns it.
  __device__ uint8_t* wait() const {
    if constexpr (kBulk) {
#if __CUDA_ARCH__ >= 900
      ring_.wait_full(state_);
#endif
    } else {
      copy_async_wait<kVectorCopyStages - 1>();
      __syncwarp();
    }
    return base_ + state_.stage * ring_.stage_bytes;
  }
  __device__ void advance() { state_.advance(ring_.stages); }

 private:
  Pipeline ring_;  // without "empty"
  uint8_t* base_;
  uint32_t fill_stage_ = 0;
  PipelineState state_;
  uint64_t policy_ = 0;
};

}  // namespace wcuda::kernels::vector
