// The ring of chunks of weights that a warp of linear_vector reads from.
#pragma once

#include "kernels/linear/vector_params.h"
#include "kernels/ptx/shared_address.cuh"

namespace wcuda::kernels::vector {

constexpr uint32_t kStagesMax = 6;

// A value that is the same in all lanes of a warp, known to the compiler as such.
__device__ inline uint32_t uniform(uint32_t value) { return __shfl_sync(~0u, value, 0); }

// A warp's ring of chunks. Bulk: one lane starts copies, a barrier a stage counts bytes. Else:
// every lane copies 16-byte pieces, a group of copies a stage.
template <bool kBulk>
struct Ring {
  uint8_t* base;
  uint32_t barriers;  // shared address
  uint32_t stage_bytes, stages;
  uint32_t fill_stage = 0, stage = 0, parity = 0;
  uint64_t policy = 0;

  // warp: the same value in a warp, known to the compiler as such.
  __device__ Ring(const VectorParams& params, uint8_t* shared, uint32_t bytes, uint32_t warp,
                  uint32_t lane) {
    stage_bytes = bytes;
    stages = kBulk ? params.stages : kVectorCopyStages;
    base = shared + params.ring_offset + warp * stages * stage_bytes;
    barriers = shared_address(shared) + params.barriers_offset + warp * (kStagesMax * 8);
#if __CUDA_ARCH__ >= 900
    if constexpr (kBulk) {
      asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      if (lane == 0) {
#pragma unroll
        for (uint32_t i = 0; i < kStagesMax; ++i)
          asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + i * 8) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      }
      __syncwarp();
    }
#endif
  }

  // Fills the next stage; bytes 0: nothing to fill. is_free, which is true, depends on what was
  // read from the stage: a bulk copy does not wait for reads that are on the way.
  __device__ void fill(const uint8_t* source, uint32_t bytes, uint32_t lane, bool is_free) {
    const uint32_t target = shared_address(base) + fill_stage * stage_bytes;
    if constexpr (kBulk) {
#if __CUDA_ARCH__ >= 900
      if (lane == 0 && bytes != 0 && is_free) {
        const uint32_t barrier = barriers + fill_stage * 8;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(bytes)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(target),
            "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
            : "memory");
      }
#endif
    } else {
      for (uint32_t at = lane * 16; at < bytes; at += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + at),
                     "l"(source + at)
                     : "memory");
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
    if (++fill_stage == stages) fill_stage = 0;
  }

  // The oldest stage, once it is filled.
  __device__ uint8_t* wait() const {
    if constexpr (kBulk) {
#if __CUDA_ARCH__ >= 900
      asm volatile(
          "{\n.reg .pred done;\n"
          "again:\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
          "@!done bra again;\n}" ::"r"(barriers + stage * 8),
          "r"(parity)
          : "memory");
#endif
    } else {
      asm volatile("cp.async.wait_group %0;" ::"n"(kVectorCopyStages - 1) : "memory");
      __syncwarp();
    }
    return base + stage * stage_bytes;
  }
  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace wcuda::kernels::vector
