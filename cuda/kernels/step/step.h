// The kernels of a step besides linear layers, attention and sampling, on device arrays:
//
//   input_scatter ─► begin_step ─► embed ─► layers ( … rope_kv … ) ─► logits ─► sample
//   block of inputs   row status    tokens   rope of q and k, KV store
//
// If all rows have one token, attention_plan_start also does the first two, and attention_decode
// does rope_kv. Between steps: copy_page, poison_page, copy_history. Bytes moved: input_scatter and
// the copies, their data twice; begin_step 8 per token; embed a row of the table and a row of the
// output per token; rope_kv queries twice, keys and values once in f32 and once as stored. The host
// version is engine/host_runner.cpp.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

// statuses[i] = kRowSkipped for rows of 0 tokens and rows whose predecessor did not end as kRowOk,
// else kRowOk. The token of a row with kStepRowFeedSampled is copied from the history to tokens and
// fed_tokens (-1 for all other rows); a skipped one gets token 0. Tokens of rows that are not
// skipped are written to the history at first_position. No two rows may have the same slot.
cudaError_t begin_step(const BeginStepArgs& args, const Launch& launch);

// The KV pages, with the layout of KvPool in ops/ops.h. `data` and plane_bytes are multiples of 16.
struct PagePool {
  uint8_t* data = nullptr;
  uint32_t layer_count = 0;
  uint32_t page_count = 0;
  uint64_t plane_bytes = 0;  // of the keys of one page in one layer, and again of the values
};

// Copies page `from` to page `to`, in all layers.
cudaError_t copy_page(const PagePool& pool, uint32_t from, uint32_t to, const Launch& launch);
// Sets all bits of page `to`, which is NaN in every KV format.
cudaError_t poison_page(const PagePool& pool, uint32_t to, const Launch& launch);
// history[to][0 … count - 1] = history[from][0 … count - 1].
cudaError_t copy_history(int32_t* history, uint32_t history_stride, uint32_t from, uint32_t to,
                         uint32_t count, const Launch& launch);

}  // namespace wcuda::kernels
