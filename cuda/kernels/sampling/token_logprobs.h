// token_logprobs: log probabilities of given tokens. raw_logprobs: those of sampled tokens where
// they are not of the logits that were sampled from. Bit for bit those of the host
// (ops/sampling.h).
//
// One block computes one row of logits. Bytes moved: 8 per token of the vocabulary and row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ptx/launch.h"
#include "kernels/sampling/sample.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

// For each row of `sample` that has_raw_logprobs and drew a token: overwrites the log probability
// and the alternatives in its output by those of the logits before bias, mask and penalties.
// `sample` describes arrays that are not described here.
struct RawLogprobsArgs {
  uint32_t row_count = 0;
  uint32_t vocabulary = 0;
  const SampleRow* rows = nullptr;  // (row_count)
  const float* logits = nullptr;    // (…, vocabulary)
  const int32_t* history = nullptr;
  uint32_t history_stride = 0;
  const int32_t* statuses = nullptr;  // (row_count)
  SampleOutput* outputs = nullptr;    // (row_count)
  uint32_t top_stride = 0;
  int32_t* top_tokens = nullptr;  // (row_count, top_stride)
  float* top_logprobs = nullptr;
};
// Token i is tokens[i].token, from row i of the logits. If a logit is NaN or +infinity, the status
// of the token's row becomes kRowNotFinite, and nothing is written for the token.
struct TokenLogprobsArgs {
  uint32_t token_count = 0;
  uint32_t vocabulary = 0;
  const ScoredToken* tokens = nullptr;  // (token_count)
  const float* logits = nullptr;        // (token_count, vocabulary)
  uint32_t top_stride = 0;              // at most kSampleTopLogprobsMax
  float* logprobs = nullptr;            // (token_count)
  int32_t* top_tokens = nullptr;  // (token_count, top_stride), of which tokens[i].top are written;
  float* top_logprobs = nullptr;  // -1 and -infinity where fewer tokens are possible
  int32_t* row_statuses = nullptr;  // by ScoredToken.row
};
cudaError_t token_logprobs(const TokenLogprobsArgs& args, const Launch& launch);

cudaError_t raw_logprobs(const RawLogprobsArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
