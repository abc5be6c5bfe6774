// Launchers of the catalogue by family; catalogue_launch selects among them. `count`: output
// elements.
//
//   family    a block of 256 threads computes                        bytes moved
//   point     256 elements, then those one grid further on           inputs and outputs once
//   random    256 elements, as above                                 outputs once
//   reduce    a contiguous range of at least 4,096 elements; one     the input once
//             more block reduces the results of all ranges
//   rows      a row: thread t takes elements t, t + 256, …           each row once per pass over it
//   matmul    a tile of 128 x 128 outputs, 8 x 8 per thread          at least a, b and c
//
// reduce:
//
//   elements   | range 0 | range 1 | … | range n |   a block each
//                   └─────────┴───┬───────┘
//   scratch        r0        r1   …       rn         one block
//                   └─────────┴───┬───────┘
//   out                           r
//
// matmul, for each 16 of k, from shared memory:
//
//                         b (16, 128)
//                ┌──────────────────────────┐
//   a (128, 16)  │ thread (x, y):           │   8 x 8 sums per thread, in registers
//                │ rows 8y … 8y + 7, columns│
//                │ 4x … + 3, 64 + 4x … + 3  │
//                └──────────────────────────┘
//
// Results depend on the arguments alone, not on the device or its load: sums have a fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/shared/catalogue.h"

namespace wcuda::kernels {

cudaError_t catalogue_launch(CatalogueOp op, const CatalogueArgs& args, int64_t count,
                             cudaStream_t stream);

cudaError_t catalogue_reduce(CatalogueOp op, const CatalogueArgs& args, cudaStream_t stream);
cudaError_t catalogue_rows(CatalogueOp op, const CatalogueArgs& args, cudaStream_t stream);
cudaError_t catalogue_random(CatalogueOp op, const CatalogueArgs& args, int64_t count,
                             cudaStream_t stream);
cudaError_t catalogue_matmul(CatalogueOp op, const CatalogueArgs& args, cudaStream_t stream);

// Writes to `place`, in device memory, the index of the first of `count` ids that is not below
// `vocab`, or `count` if all are. One block: there are few ids compared with the rows they select.
cudaError_t catalogue_unknown_id(const int32_t* ids, int64_t count, int64_t vocab, int64_t* place,
                                 cudaStream_t stream);

}  // namespace wcuda::kernels
