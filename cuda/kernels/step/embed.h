// embed: reads rows of the token table as activations.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/matrix.h"

namespace wcuda::kernels {

// out[t] = scale * table[tokens[t]], (token_count, table.cols) f32, bit for bit as on the host.
// `tokens` (token_count) is device memory that earlier kernels may write. A token outside the table
// reads its last row: tokens of padding rows may have any value.
cudaError_t embed(const int32_t* tokens, uint32_t token_count, const Matrix& table, float scale,
                  float* out, const Launch& launch);

}  // namespace wcuda::kernels
