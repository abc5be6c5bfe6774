// CudaLinear: computes each linear layer of a step on a CUDA device with the kernel of its node.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/status.h"
#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/input_order.h"
#include "llm/ops/linear_plan.h"

namespace wcuda::ops {

// One object per engine; not thread-safe. Deterministic: the same arguments give the same bits.
class CudaLinear {
 public:
  // Returns the bytes of device memory that run() needs. Pure; depends on the device in `launch`.
  static uint64_t scratch_bytes(const Limits& limits, const kernels::Launch& launch);

  // `scratch` has scratch_bytes(limits, launch) bytes, aligned to 256. Parts of it are cleared on
  // launch.stream.
  cudaError_t prepare(const Limits& limits, const kernels::Launch& launch, void* scratch);

  // Queues the layer with the kernel of `node`. Sizes must be within the limits of prepare(). With
  // batch_invariant, a token's bits depend only on its own x.
  Status run(const Node& node, const kernels::LinearArgs& args, const kernels::Launch& launch);
  // Queues gate and up, which write the f16 operand of `reader` to outputs[0].
  Status write_operand(const kernels::LinearArgs& args, const kernels::Matrix& reader,
                       float gate_norm, float up_norm, const kernels::Launch& launch);
  // Returns where another kernel writes the f16 operand of `reader` for so many tokens in `memory`,
  // which has as many floats as they have inputs, of at least 512 tokens.
  Result<kernels::HalfOperand> operand_of(Form form, const kernels::Matrix& reader, uint32_t tokens,
                                          void* memory, const kernels::Launch& launch) const;
  // Queues layers of one token in one kernel.
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
  // Returns the tokens of each launch but the last.
  uint32_t launch_tokens(uint32_t tokens) const;

  bool is_batch_invariant_ = false;
  uint32_t tokens_max_ = 0;  // tokens per launch
  Scratch scratch_;
  void* memory_ = nullptr;
};

}  // namespace wcuda::ops
