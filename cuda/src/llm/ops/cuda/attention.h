// Attention on CUDA: all between the products of q, k, v and the output projection.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"
#include "kernels/step/rope_kv.h"
#include "llm/ops/ops.h"

namespace wcuda::ops {

// One object an engine. All calls queue work on launch.stream and may be captured; which kernels
// run and their grids follow from the limits and from token_count, row_count, page_table_stride,
// max_row_tokens and max_positions of the batch alone. Everything else is read on the device.
//
// With Limits::batch_invariant a row's result is the same bits whatever else is in the step. Rows
// of one token and of more go through different kernels, which round differently.
class CudaAttention {
 public:
  // Device memory that prepare takes.
  static uint64_t scratch_bytes(const Limits& limits, uint32_t sm_count);
  // Once: `scratch` is aligned to 256 bytes. Allows the kernels their shared memory and queues the
  // clearing of counters.
  cudaError_t prepare(const Limits& limits, void* scratch, const kernels::Launch& launch);

  // Once a step, after the batch's arrays are written and before the calls below: plans the step
  // for layers of this window (0 if one of them sees everything). Later kernels may read the
  // batch's arrays before they wait for their predecessors.
  cudaError_t plan(const Batch& batch, const KvPool& pool, uint32_t window,
                   const kernels::Launch& launch) const;
  // The same in one kernel with what fills the batch's arrays; first of its step.
  cudaError_t start(const Batch& batch, const KvPool& pool, uint32_t window,
                    const kernels::StepStart& inputs, const kernels::Launch& launch) const;

  // A token whose token_rows entry is kernels::kDeadToken changes and writes nothing.
  cudaError_t rope_kv(const RopeKvArgs& args, const kernels::Launch& launch) const;

  // Of rows of more than one token, and of one. The window must be the step's, or any if that was
  // 0. Results of dead tokens are not written.
  cudaError_t prefill(const AttentionArgs& args, const kernels::Launch& launch) const;
  cudaError_t decode(const AttentionArgs& args, const kernels::Launch& launch) const;
  // The kernel that decode() launches.
  Kernel decode_kernel(const Batch& batch, const KvPool& pool, const kernels::Launch& launch) const;

 private:
  kernels::AttentionPlan plan_of(const Batch& batch, const KvPool& pool,
                                 const kernels::Launch& launch) const;
  kernels::AttentionKernelArgs kernel_args(const AttentionArgs& args,
                                           const kernels::Launch& launch) const;

  kernels::AttentionPlan memory_;  // of any step
};

}  // namespace wcuda::ops
