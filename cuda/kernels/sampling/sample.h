// sample: draws the next token of each row from its logits, by the rules of ops/sampling.h. Token,
// log probability and alternatives are bit for bit those of the host for the same logits and
// parameters.
//
// A row of logits is divided among a cluster of 1 to 16 blocks, and there among 16 warps, in runs
// of consecutive tokens:
//
//   logits    |             block 0             |             block 1             | …
//             | warp 0 | warp 1 | … | warp 15   | warp 0 | …
//   shared    | the block's logits, penalties and masks applied   (device memory is read once)
//
// Blocks exchange data by gathers: each block stores an item of 32 bytes (a sum, a candidate, a
// count) into the shared memory of all others, and an mbarrier counts the bytes that have arrived:
//
//   block 0   own item ──► [0][1][2][3]      wait   then all blocks have all items and compute
//   block 1   own item ──► [0][1][2][3]      wait   the same result from them
//
// Sums are of integers and choices are by (key, token), so the division of the row changes no bit.
// Bytes moved: 4 per token of the vocabulary and row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

constexpr uint32_t kSampleTopLogprobsMax = 128;
constexpr uint32_t kSamplePenaltyWindowMax = 4096;

struct SampleOutput {
  int32_t status;  // of wcuda_row_result
  int32_t token;   // -1 unless one was drawn
  float logprob;
  uint32_t top_count;
};

struct SampleArgs {
  uint32_t row_count = 0;
  uint32_t vocabulary = 0;
  // Must be true if any row has a temperature together with a filter (top-k, top-p, min-p,
  // typical), or wants top_logprobs; otherwise the results of such rows are wrong.
  bool has_filters = false;
  // Blocks that share a row: 1, 2, 4, 8 or 16; 0: the launcher chooses. Results do not depend on
  // it.
  uint32_t blocks_per_row = 0;
  const SampleRow* rows = nullptr;  // (row_count)
  const float* logits = nullptr;    // (logits_count, vocabulary)
  uint32_t logits_count = 0;        // 0: unknown; this is slightly slower
  int32_t* history = nullptr;       // (slots, history_stride); the token is written at its position
  uint32_t history_stride = 0;
  const int32_t* bias_tokens = nullptr;  // distinct within a row
  const float* bias_values = nullptr;
  const uint32_t* masks = nullptr;  // (…, ceil(vocabulary / 32))
  // (row_count) in: rows whose status is not kRowOk are skipped; out: the row's status
  int32_t* statuses = nullptr;
  // Outputs may be host memory that the device can write.
  SampleOutput* outputs = nullptr;  // (row_count) written for every row
  uint32_t top_stride = 0;          // at most kSampleTopLogprobsMax
  int32_t* top_tokens = nullptr;    // (row_count, top_stride) of which top_count are written
  float* top_logprobs = nullptr;    // (row_count, top_stride)
  void* scratch = nullptr;          // sample_scratch_bytes, aligned to 256
};

// Returns the size of SampleArgs::scratch for the blocks that the launcher chooses; 0 if a row's
// logits fit into their shared memory. For a blocks_per_row whose shared memory is too small: 4
// bytes per token of the vocabulary and row.
uint64_t sample_scratch_bytes(uint32_t max_rows, uint32_t vocabulary, int32_t compute_capability);

// One or two kernels, whose shape depends only on row_count, has_filters, vocabulary and
// blocks_per_row.
cudaError_t sample(const SampleArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
