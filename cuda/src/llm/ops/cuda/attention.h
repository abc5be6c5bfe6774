// Attention on CUDA: all between the products of q, k, v and the output projection.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_decode.h"
#include "kernels/linear/linear.h"
#include "kernels/step/rope_kv.h"
#include "llm/ops/ops.h"

namespace wcuda::ops {

// What scores of some families have besides: for those to come.
struct AttentionOptions {
  float softcap = 0.0f;         // 0: none; else scores become softcap * tanh(score / softcap)
  Vector sinks = nullptr;       // (head_count) a further score of each head, whose value is 0
  bool triggers_early = false;  // as kernels::AttentionKernelArgs has it
};

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
  cudaError_t begin_step(const Batch& batch, const KvPool& pool, uint32_t window,
                         const kernels::Launch& launch);

  // The second half of Ops::attention_input, once args.query_out, key and value hold Wx + b:
  // query_out is changed in place; key, value (token_count, kv heads * head_length) go to the pool.
  // A token whose token_rows entry is kernels::kDeadToken changes and writes nothing. In a step
  // whose rows have one token this only takes note: the next call must be attention's for the same
  // layer, whose kernel then turns and stores on the way; query_out stays as it is.
  cudaError_t rope_kv(const AttentionInputArgs& args, const float* key, const float* value,
                      const kernels::Launch& launch);
  // Whether rope_kv would only take note.
  static bool leaves_rope(const AttentionInputArgs& args);
  // The same from (token_count, query, key, value of all heads); not where leaves_rope.
  cudaError_t rope_joined_kv(const AttentionInputArgs& args, const float* joined,
                             const kernels::Launch& launch);

  // Ops::attention. Its window must be the step's, or any if that was 0. Results of dead tokens are
  // not written.
  cudaError_t attention(const AttentionArgs& args, const kernels::Launch& launch,
                        const AttentionOptions& options = {});
  // Whether attention_half() can be called in its place, which leaves args.out as f16.
  static bool has_half(const AttentionArgs& args, const kernels::Launch& launch);
  cudaError_t attention_half(const AttentionArgs& args, const kernels::Launch& launch);

 private:
  kernels::RopeKvArgs rope_args(const AttentionInputArgs& args) const;
  kernels::AttentionKernelArgs kernel_args(const AttentionArgs& args) const;

  kernels::AttentionPlan plan_;
  uint32_t step_window_ = 0;
  kernels::RopeKvArgs left_;  // what rope_kv has left to attention
  bool is_left_ = false;
};

}  // namespace wcuda::ops
