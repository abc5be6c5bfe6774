// pad_matrix: copies a matrix, optionally transposed, and pads it with zeros. Bytes moved: the
// source is read once and the target written once.
//
//   source (2, 3)    target (3, 4)    a block copies tiles of 32 x 32; those of
//   a b c       ─→   a b c 0          a transposed source pass through shared
//   d e f            d e f 0          memory, so that both sides are accessed
//                    0 0 0 0          along their rows
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace wcuda::kernels {

struct PadMatrixArgs {
  const void* source = nullptr;  // (source_rows, source_columns) per batch
  void* target = nullptr;        // (rows, columns) per batch; does not overlap the source
  uint32_t element_bytes = 1;    // 1, 2 or 4; both are aligned to it
  bool is_transposed = false;    // the source is stored (source_columns, source_rows)
  int64_t source_rows = 0, source_columns = 0;
  int64_t rows = 0, columns = 0;
  int64_t batch = 1;
  // Elements from one stored row to the next, and from one matrix to the next.
  int64_t source_stride = 0, source_batch_stride = 0;
  int64_t target_stride = 0, target_batch_stride = 0;
};

// Queues the copy. Source elements past (rows, columns) are dropped.
cudaError_t pad_matrix(const PadMatrixArgs& args, cudaStream_t stream);

}  // namespace wcuda::kernels
