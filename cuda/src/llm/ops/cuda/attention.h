// Attention on CUDA: all work between the QKV projection and the output projection.
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
// max_row_tokens, max_positions, has_shared_prefix and expanded_heads of the batch alone.
// Everything else is read on the device.
//
// With Limits::batch_invariant, the other rows of a step do not change the bits of a row's result.
// Rows of one token and rows of more go through different kernels, which round differently.
class CudaAttention {
 public:
  // Returns the bytes of device memory that prepare needs.
  static uint64_t scratch_bytes(const Limits& limits, const kernels::Launch& launch);
  // Must be called once. `scratch` is aligned to 256 bytes. Sets the shared-memory limits of the
  // kernels and queues the clearing of counters.
  cudaError_t prepare(const Limits& limits, void* scratch, const kernels::Launch& launch);

  // Plans the step for layers of this window (0 if a layer has no window). Must be called once per
  // step, after the batch's arrays are written and before the calls below. Later kernels may read
  // the batch's arrays before they wait for their predecessors.
  cudaError_t plan(const Batch& batch, const KvPool& pool, uint32_t window,
                   const kernels::Launch& launch) const;
  // Does the same, and fills the batch's arrays, in one kernel; it must be the first of its step.
  cudaError_t start(const Batch& batch, const KvPool& pool, uint32_t window,
                    const kernels::StepStart& inputs, const kernels::Launch& launch) const;

  // A token whose token_rows entry is kernels::kDeadToken changes and writes nothing.
  cudaError_t rope_kv(const RopeKvArgs& args, const kernels::Launch& launch) const;

  // prefill computes rows of more than one token, decode rows of one. The window must be that of
  // plan(), or any window if that was 0. Results of dead tokens are not written. With an operand,
  // results go there (attention_writes_operand).
  cudaError_t prefill(const AttentionArgs& args, const kernels::Launch& launch,
                      const kernels::HalfOperand& operand = {}) const;
  // In a step with shared prefixes `decode` comes first, without an operand, then `shared`, which
  // attends to the shared pages with the queries that `decode` has stored, and then `join`, which
  // adds the results of both.
  cudaError_t shared(const AttentionArgs& args, const kernels::Launch& launch) const;
  cudaError_t join(const AttentionArgs& args, const kernels::Launch& launch,
                   const kernels::HalfOperand& operand = {}) const;
  cudaError_t decode(const AttentionArgs& args, const kernels::Launch& launch,
                     const kernels::HalfOperand& operand = {}) const;
  // Returns the kernel that decode() launches.
  Kernel decode_kernel(const Batch& batch, const KvPool& pool, const kernels::Launch& launch) const;

 private:
  kernels::AttentionPlan plan_of(const Batch& batch, const KvPool& pool,
                                 const kernels::Launch& launch) const;
  kernels::AttentionPlanArgs plan_args(const Batch& batch, const KvPool& pool, uint32_t window,
                                       const kernels::Launch& launch) const;
  kernels::AttentionKernelArgs kernel_args(const AttentionArgs& args, const kernels::Launch& launch,
                                           const kernels::HalfOperand& operand) const;

  kernels::AttentionPlan memory_;  // of any step
};

}  // namespace wcuda::ops
