// Attention over key-value pages: out[h] = sum over p of w[p] * v[p], w = softmax(scale *
// q[h]·k[p]).
//
//   rows of     kernel                          a block works on                   MMA
//   one token   attention_decode                a run of KV pages of (row, head)s  mma.sync f16
//   one token   attention_decode_group          few rows: a group of blocks a row  mma.sync f16
//   more        attention_prefill_warpgroup     128 tokens, 1 head; sm_90a         wgmma f16
//   more        attention_prefill               128 tokens, 1 head                 mma.sync f16
//
// attention_plan (attention_plan.h) assigns work to blocks; it runs once a step and serves all
// layers. Softmax is online: a running maximum m and a denominator d; with new scores s
//
//   m' = max(m, max s)    d' = d * 2^(m - m') + sum 2^(s - m')    out' likewise
//
// in f32, with scores times log2(e); the result is out / d. The numerators 2^(s - m) enter the
// second MMA as f16.
//
// Decode, a warp and 16 positions, lane = 4g + t: operand A is keys (positions by elements), B the
// queries of up to 8 heads of a key-value head, so that one MMA serves 8 heads.
//
//                head 0 … 7                             head 0 … 7
//   position g   s s s s s s s s     softmax, and the     w   →   sums (elements by heads) +=
//   position g+8 s s s s s s s s     transposed tile is   w       values (elements by positions) *
//   w lane: rows g, g + 8, columns 2t, 2t + 1               operand B of the second MMA
//
// Prefill, two warpgroups of 64 tokens and one that loads:
//
//   loading      K0 V0 | K1 V1 | K2 …            two stages each of 128 keys and values
//   tensor cores S0    | S1, O0 | S2, O1 | …     next scores S = Q·K, then O += P·V
//   ALUs               softmax 0 | softmax 1 | …
//
// Bytes moved: decode, the visible keys and values, once; prefill, queries and results once, keys
// and values once per tile of 128 tokens, mostly from L2. Work of prefill: 4 * head_length FLOP per
// token, head and visible position.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_plan.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/rope_head.h"

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
  // If not null, attention_decode also does the work of rope_kv for rows of one token: `query`,
  // `key` and `value` (token_count, pages.head_count * head_length) are the outputs of the
  // projections.
  const float* key = nullptr;
  const float* value = nullptr;
  HeadRope rope;
  // attention_decode_group triggers the next kernel at its start instead of after its wait. The
  // launcher may set it too.
  bool triggers_early = false;
};

constexpr uint32_t kAttentionHeadLengthMax = 256;

// ---- attention_decode: rows of one token ----

// Blocks of a launch, the same for every step; and their maximum over formats and head lengths.
uint32_t decode_block_count(KvFormat format, uint32_t head_length, const Launch& launch);
uint32_t decode_blocks_max(uint32_t sm_count);
// Floats of one partial result.
uint32_t decode_partial_floats(uint32_t head_count, uint32_t kv_head_count, uint32_t head_length);

// Once for each format and head length, before a capture.
cudaError_t attention_decode_prepare(KvFormat format, uint32_t head_length, const Launch& launch);
// Skips rows that do not have exactly one token. Reads the keys and values of earlier positions
// before its dependent wait: no kernel since attention_plan may have written them.
cudaError_t attention_decode(const AttentionKernelArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
