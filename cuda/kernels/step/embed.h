// embed: rows of the token table as activations.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/matrix.h"

namespace wcuda::kernels {

// out (token_count, table.cols) f32 = scale * row tokens[t] of the table, to the bit as on the
// host. `tokens` (token_count) is device memory that kernels ahead may write. A token outside the
// table takes its last row: rows that only pad a batch may hold anything.
cudaError_t embed(const int32_t* tokens, uint32_t token_count, const Matrix& table, float scale,
                  float* out, const Launch& launch);

}  // namespace wcuda::kernels
