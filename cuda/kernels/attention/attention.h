// Attention over key-value pages: out[h] = sum over p of softmax_p(scale * q[h]·k[p]) * v[p].
//
//   rows of     kernel                          a block works on                   MMA
//   one token   attention_decode                KV pages of (row, head) pairs      mma.sync f16
//   one token   attention_decode_group          the same; few rows, more blocks    mma.sync f16
//   more        attention_prefill_warpgroup     128 tokens, 1 head; sm_90a         wgmma f16
//   more        attention_expand                1 page, 1 head: other types to f16
//   more        attention_prefill               128 tokens, 1 head                 mma.sync f16
//   one token   attention_shared                pages that rows share; sm_90a      wgmma f16
//   one token   attention_join                  adds the results for these and for other pages
//
// attention_plan (attention_plan.h) assigns work to blocks; it runs once per step and serves all
// layers. Softmax is online, in f32. It keeps a running maximum m, a denominator d and sums. New
// scores s, which are multiplied by log2(e), update them:
//
//   m' = max(m, max s)    d' = d * 2^(m - m') + sum 2^(s - m')    sums' likewise
//
// The result is sums / d. The numerators 2^(s - m) enter the second MMA as f16.
//
// Decode: a warp computes 16 positions at a time. Operand A is keys (positions by elements),
// operand B the queries of up to 8 heads of a key-value head. For lane = 4g + t:
//
//                head 0 … 7
//   position g   s s s s s s s s     a lane has rows g and g + 8, columns 2t and 2t + 1
//   position g+8 s s s s s s s s
//
// Softmax turns scores s into numerators. Their tile, transposed between lanes, is operand B of the
// second MMA: sums (elements by heads) += values (elements by positions) * numerators.
//
// Prefill: two warpgroups compute 64 tokens each, and a third loads:
//
//   loading      K0 V0 | K1 V1 | K2 …            two stages each of 128 keys and values
//   tensor cores S0    | S1, O0 | S2, O1 | …     next scores S = Q·K, then O += P·V
//   ALUs               softmax 0 | softmax 1 | …
//
// Bytes moved: in decode the visible keys and values once; in prefill queries and results once, and
// keys and values once per tile of 128 tokens, mostly from L2. Prefill computes 4 * head_length
// FLOP per token, head and visible position.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_plan.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/input_order.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/rope_head.h"

namespace wcuda::kernels {

struct AttentionKernelArgs {
  static constexpr uint32_t kAllTiles = 1u << 31;
  StepRows step;
  AttentionPlan plan;
  KvPages pages;
  uint32_t layer = 0;
  uint32_t head_count = 0;  // of queries, a multiple of pages.head_count
  // attention_prefill_warpgroup computes item_heads query heads from first_head on, whose keys and
  // values are those of pages.head_count heads.
  uint32_t first_head = 0;
  uint32_t item_heads = 0;  // usually head_count
  // If not null, `pages` are those that attention_expand writes: page i of a row is page
  // row_pages[row] + i.
  const uint32_t* row_pages = nullptr;
  float scale = 1.0f;
  uint32_t window = 0;   // 0: all positions; else no wider than the plan's
  float softcap = 0.0f;  // 0: none; else scores become softcap * tanh(score / softcap)
  const float* sinks =
      nullptr;  // (head_count) one extra score per head with a zero value vector; may be null
  const float* query = nullptr;  // (token_count, head_count * head_length)
  float* out = nullptr;          // the same shape
  // If operand.h is not null, results are written there instead of to `out`. Needs pages in f16 and
  // a head length that is a multiple of 32. Not supported by attention_prefill.
  HalfOperand operand;
  // If not null, attention_decode also does the work of rope_kv for rows of one token: `query`,
  // `key` and `value` (token_count, pages.head_count * head_length) are the outputs of the
  // projections.
  const float* key = nullptr;
  const float* value = nullptr;
  HeadRope rope;
  // Rows of a group share leading pages: attention_prefill_warpgroup computes partial results of
  // these, with the queries that attention_decode has stored. Requires a window of 0.
  bool is_shared = false;
  // This step may store keys and values in the tile (16 positions or more) of a row's own position
  // and in this many tiles before it. 0 without drafts. 1 if all rows have one token: at most
  // kDecodeDraftsMax rows of the same sequence precede a row. kAllTiles if some have several.
  uint32_t stored_tiles = 0;
  // attention_decode_group triggers the next kernel at its start instead of after its wait. The
  // launcher may also set this flag.
  bool triggers_early = false;
};

constexpr uint32_t kAttentionHeadLengthMax = 256;

// ---- attention_decode: rows of one token ----

// Return the number of blocks of a launch, which is the same for every step, and its maximum over
// formats.
uint32_t decode_block_count(KvFormat format, uint32_t head_length, const Launch& launch);
uint32_t decode_blocks_max(uint32_t sm_count);
// Returns the number of floats in one partial result.
uint32_t decode_partial_floats(uint32_t head_count, uint32_t kv_head_count, uint32_t head_length);

// Must be called once for each format and head length, before a graph is captured.
cudaError_t attention_decode_prepare(KvFormat format, uint32_t head_length, const Launch& launch);
// Skips rows that do not have exactly one token. Before its dependent wait, the kernel reads the
// keys and values of earlier positions outside stored_tiles: kernels between attention_plan and
// this one must not write them.
cudaError_t attention_decode(const AttentionKernelArgs& args, const Launch& launch);

// ---- attention_join: rows of one token in a step with shared pages ----

// In such a step attention_decode comes first. It computes the results for the pages that a row
// does not share, `out` must be plan.own_results, without an operand, and stores the queries for
// attention_shared, which comes next. Then attention_join adds the results of both.
cudaError_t attention_join(const AttentionKernelArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
