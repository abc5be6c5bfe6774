// The kernels of draft heads besides those of any decoder. A target model keeps features of its
// tokens, which its draft head reads:
//
//   target: before some layers   keep_features   x ─► pages (bf16)
//   head:   read_features   pages ─► f ─► linear ─► g
//           head_input      embedding, g ─► x, and the input of query, key and value
//           keep_states     x of the last token of each row ─► state of its sequence
//           scatter_logits  logits of the head's vocabulary ─► of the target's
//
// A row without features has one token, and the state of its sequence instead of g. All arrays are
// in device memory. Bytes moved: by each, its inputs and outputs once; by head_input, its inputs
// twice. Alignment: 4 bytes. Tokens of kDeadToken do nothing.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/feature_pages.h"

namespace wcuda::kernels {

// Writes x to each third j of the features whose bit j is set in `thirds`.
struct KeepFeaturesArgs {
  StepRows step;
  FeaturePages pages;
  const float* x;  // (token_count, pages.width / 3)
  uint32_t thirds;
};
cudaError_t keep_features(const KeepFeaturesArgs& args, const Launch& launch);

// out = the features, or rms_norm(features) * norm; 0 for tokens of rows without kRowFeatures.
struct ReadFeaturesArgs {
  StepRows step;
  FeaturePages pages;           // of the target
  const uint32_t* page_tables;  // (row_count, page_table_stride) of the target's sequences
  uint32_t page_table_stride;
  const float* norm;  // (pages.width) or null
  float epsilon;
  float* out;  // (token_count, pages.width)
};
cudaError_t read_features(const ReadFeaturesArgs& args, const Launch& launch);

// Where s = g, or the state of the sequence of a row without kRowFeatures:
// input = concat(rms_norm(embedding) * token_norm, rms_norm(s) * state_norm), and
// x = s, or rms_norm(s) * state_norm.
struct HeadInputArgs {
  StepRows step;
  uint32_t cols;
  const float* embedding;  // (token_count, cols) may be x
  const float* g;          // (token_count, cols)
  const float* states;     // (slots, cols)
  const float* token_norm;
  const float* state_norm;  // (cols)
  float epsilon;
  bool norms_residual;
  float* input;  // (token_count, 2 * cols)
  float* x;      // (token_count, cols)
};
cudaError_t head_input(const HeadInputArgs& args, const Launch& launch);

struct KeepStatesArgs {
  StepRows step;
  uint32_t cols;
  const float* x;  // (token_count, cols)
  float* states;   // (slots, cols)
};
cudaError_t keep_states(const KeepStatesArgs& args, const Launch& launch);

// out[i][tokens[j]] = logits[i][j], and the lowest f32 for all other tokens.
struct ScatterLogitsArgs {
  uint32_t count;
  uint32_t head_vocabulary;
  uint32_t vocabulary;
  const float* logits;    // (count, head_vocabulary)
  const int32_t* tokens;  // (head_vocabulary) in 0 … vocabulary - 1
  float* out;             // (count, vocabulary)
};
cudaError_t scatter_logits(const ScatterLogitsArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
