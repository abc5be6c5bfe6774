// CudaLinear: the linear layers of a step on a CUDA device, each by the kernel that its node names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/status.h"
#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"
#include "llm/ops/linear_plan.h"

namespace wcuda::ops {

// One object an engine; not thread-safe. Deterministic: the same arguments give the same bits.
class CudaLinear {
 public:
  // Device memory that run() needs, to the byte. Pure; of `launch` the device's figures count.
  static uint64_t scratch_bytes(const Limits& limits, const kernels::Launch& launch);

  // `scratch` has scratch_bytes(limits, launch) bytes, aligned to 256; parts of it are cleared on
  // launch.stream.
  cudaError_t prepare(const Limits& limits, const kernels::Launch& launch, void* scratch);

  // Queues the layer by the kernel of `node`. Sizes are within the limits that prepare() was given.
  // Under batch_invariant a token's bits depend on nothing but its own x.
  Status run(const Node& node, const kernels::LinearArgs& args, const kernels::Launch& launch);
  // Layers of one token as one kernel.
  Status run_persistent(const kernels::LinearArgs* layers, uint32_t count,
                        const kernels::Launch& launch);

 private:
  // Offsets into the scratch memory.
  struct Scratch {
    uint64_t input = 0;   // f16 activations and their scales
    uint64_t vector = 0;  // of linear_vector
    uint64_t vector_bytes = 0;
    uint64_t gemm = 0;  // of packed_gemm
    uint64_t gemm_bytes = 0;
    uint64_t persistent = 0;
    uint64_t persistent_bytes = 0;
    uint64_t bytes = 0;
  };
  static Scratch layout(const Limits& limits, const kernels::Launch& launch);

  uint8_t* at(uint64_t offset) const { return static_cast<uint8_t*>(memory_) + offset; }

  bool is_batch_invariant_ = false;
  uint32_t tokens_max_ = 0;  // that are worked on at once
  Scratch scratch_;
  void* memory_ = nullptr;
};

}  // namespace wcuda::ops
