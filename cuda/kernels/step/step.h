// The kernels of a step besides linear layers, attention and sampling, on device arrays:
//
//   input_scatter ─► begin_step ─► embed ─► layers ( … rope_kv … ) ─► logits ─► sample
//   block of inputs   rows begin    tokens   queries and keys turned, KV written
//
// For rows of one token attention_plan does the first two on the way and attention_decode does
// rope_kv. Between steps: copy_page, poison_page, copy_history. Bytes moved: input_scatter and the
// copies, theirs twice; begin_step 8 a token; embed a row of the table and of the output a token;
// rope_kv queries twice, keys and values once in f32 and once as stored. The host's version is
// engine/host_runner.cpp.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

// statuses[i] = kRowOk, or kRowSkipped where the row it depends on did not end well and for rows of
// 0 tokens. A fed row's token comes from the history into tokens and fed_tokens (-1 for all other
// rows); a skipped fed row gets token 0. Tokens of rows that are not skipped enter the history at
// first_position. No two rows may be of one slot.
cudaError_t begin_step(const BeginStepArgs& args, const Launch& launch);

// Where pages lie: ops/ops.h, KvPool. Data and `plane_bytes` are multiples of 16.
struct PagePool {
  uint8_t* data = nullptr;
  uint32_t layer_count = 0;
  uint32_t page_count = 0;
  uint64_t plane_bytes = 0;  // keys of one page in one layer; values have as many
};

// Page `to` = page `from`, in all layers.
cudaError_t copy_page(const PagePool& pool, uint32_t from, uint32_t to, const Launch& launch);
// Page `to` becomes all ones, which is NaN in every KV type.
cudaError_t poison_page(const PagePool& pool, uint32_t to, const Launch& launch);
// history[to][0 … count - 1] = history[from][0 … count - 1].
cudaError_t copy_history(int32_t* history, uint32_t history_stride, uint32_t from, uint32_t to,
                         uint32_t count, const Launch& launch);

}  // namespace wcuda::kernels
