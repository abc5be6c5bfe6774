// The forward pass: one straight story from token ids to logits.
#pragma once

#include "llm/model/model.h"
#include "llm/ops/ops.h"

namespace wcuda::engine {

// The activations of a step, in device memory; shapes as in engine/limits.h.
struct Activations {
  float* x;          // (token_count, embedding_length) the residual stream
  float* query;      // (token_count, head_count * head_length)
  float* attention;  // (token_count, head_count * head_length)
  float* hidden;     // (token_count, feed_forward_length)
};

// The tokens whose logits are wanted.
struct LogitsRequest {
  uint32_t count = 0;
  const uint32_t* token_indices = nullptr;  // (count) device memory
  float* logits = nullptr;                  // (count, vocabulary)
};

// Runs the model over a batch: appends its keys and values to the pages, computes the logits asked
// for.
Status forward(const model::Model& model, ops::Ops& ops, const ops::Batch& batch,
               const ops::KvPool& pool, const Activations& activations,
               const LogitsRequest& request);

}  // namespace wcuda::engine
