// hidden_state: the final hidden state of rows, from which logits are computed.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

// out[r] = h of the first or the last token of row r, or the sum of h over its tokens in their
// order, where h = rms_norm(x) * norm. Vectors of rows without a kRowHidden… flag do not change.
// All arrays are in device memory. Bytes moved: x once, again for the tokens that are wanted, and
// the output.
struct HiddenStateArgs {
  const StepRow* rows;  // (row_count)
  uint32_t row_count;
  uint32_t token_count;
  uint32_t cols;
  const float* x;     // (token_count, cols)
  const float* norm;  // (cols)
  float epsilon;
  float* rms_inverses;  // (token_count) overwritten
  float* out;           // (row_count, cols)
};
cudaError_t hidden_state(const HiddenStateArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
