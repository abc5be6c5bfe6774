// attention_decode: out = softmax(scale * q·k) · v for rows of one token, over key-value pages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_plan.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/step/rope_kv.h"

namespace wcuda::kernels {

struct AttentionKernelArgs {
  StepRows step;
  AttentionPlan plan;
  KvPages pages;
  uint32_t layer = 0;
  uint32_t head_count = 0;  // of queries, a multiple of pages.head_count
  float scale = 1.0f;
  uint32_t window = 0;           // 0: all positions; else no wider than the plan's
  float softcap = 0.0f;          // 0: none; else scores become softcap * tanh(score / softcap)
  const float* sinks = nullptr;  // (head_count) a further score whose value is 0; null: none
  const float* query = nullptr;  // (token_count, head_count * head_length)
  float* out = nullptr;          // the same shape
  // Where not null, attention_decode does rope_kv's work for the rows of one token: `query`, `key`
  // and `value` (token_count, pages.head_count * head_length) are as the products gave them.
  const float* key = nullptr;
  const float* value = nullptr;
  HeadTurn turn;
  // In place of `out`, for attention_prefill_warpgroup alone: rounded to f16, as values in pages of
  // f16 are, of which results are averages.
  uint16_t* out_half = nullptr;
  // attention_decode of few rows lets the next kernel start at its start, not after its wait. It
  // may choose so itself.
  bool triggers_early = false;
};

constexpr uint32_t kAttentionHeadLengthMax = 256;

// Blocks of a launch, whatever the step; and the most of any format and length.
uint32_t decode_block_count(KvFormat format, uint32_t head_length, const Launch& launch);
uint32_t decode_blocks_max(uint32_t sm_count);
// Floats of one unfinished sum, and how many there can be in a step.
uint32_t decode_part_floats(uint32_t head_count, uint32_t kv_head_count, uint32_t head_length);

// Once for each format and head length, before a capture.
cudaError_t attention_decode_prepare(KvFormat format, uint32_t head_length, const Launch& launch);
// Rows of other than one token are left alone. Reads keys and values of positions before the rows'
// own ahead of the wait: no kernel since attention_plan may have written those.
cudaError_t attention_decode(const AttentionKernelArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
