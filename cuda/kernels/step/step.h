// The kernels of a step besides linear layers, attention and sampling, on device arrays:
//
//   input_scatter ─► begin_step ─► embed ─► layers ( … rope_kv … ) ─► logits ─► sample
//   block of inputs   row status    tokens   rope of q and k, KV store
//
// If all rows have one token, attention_plan_start also does the work of input_scatter and
// begin_step, and attention_decode that of rope_kv. In steps that continue drafts, continue_drafts
// runs before all others. copy_page, poison_page, copy_history and write_history run between steps.
// The host version is engine/host_runner.cpp. Bytes moved: by input_scatter and the copies, their
// data twice; by begin_step, 8 per token; by embed, a row of the table and one of the output per
// token; by rope_kv, queries twice, keys and values once in f32 and once as stored.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

// Sets statuses[i] to kRowSkipped for rows of 0 tokens and rows whose predecessor did not end as
// kRowOk, and to kRowOk for all others. The token of a row with kStepRowFeedSampled is copied from
// the history to tokens and fed_tokens (-1 for all other rows), or is 0 if the row is skipped. Rows
// that are not skipped write their tokens to the history at first_position. Positions of rows with
// the same slot must differ.
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
// history[i] = tokens[i] for i in [0, count), from any host memory: the tokens are parameters of
// the kernels, one for each kHistoryChunk tokens.
constexpr uint32_t kHistoryChunk = 960;  // parameters of a kernel have 4096 bytes
cudaError_t write_history(int32_t* history, const int32_t* tokens, uint32_t count,
                          const Launch& launch);

}  // namespace wcuda::kernels
