// The catalogue's element-wise kernels: out[i] = formula(i), one template over the formulas of
// point_ops.h. Any count; a grid of at most kElementBlocksMax blocks strides over it.
#include "kernels/catalogue/catalogue_elements.cuh"
#include "kernels/shared/point_ops.h"

namespace wcuda::kernels {
namespace {

template <class Op, class T>
__global__ void __launch_bounds__(kElementThreads)
    point_kernel(const CatalogueArgs args, const int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * kElementThreads;
  for (int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x; i < count; i += stride)
    store<T>(args.out[0], i, Op::template at<T>(args, i));
}

__global__ void noop_kernel() {}

template <class Op>
cudaError_t launch_point(const CatalogueArgs& args, int64_t count, cudaStream_t stream) {
  return launch_elements(args.type, count, [&](auto zero, uint32_t grid) {
    point_kernel<Op, decltype(zero)><<<grid, kElementThreads, 0, stream>>>(args, count);
  });
}

}  // namespace

cudaError_t catalogue_launch(CatalogueOp op, const CatalogueArgs& args, int64_t count,
                             cudaStream_t stream) {
  switch (op) {
    case CatalogueOp::kNoop:
      noop_kernel<<<1, 1, 0, stream>>>();
      return cudaPeekAtLastError();
#define WCUDA_OP(name)       \
  case CatalogueOp::k##name: \
    return launch_point<point::name>(args, count, stream);
      WCUDA_POINT_OPS(WCUDA_OP)
#undef WCUDA_OP
#define WCUDA_OP(name) case CatalogueOp::k##name:
      WCUDA_REDUCE_OPS(WCUDA_OP)
      return catalogue_reduce(op, args, stream);
      WCUDA_ROW_OPS(WCUDA_OP)
      return catalogue_rows(op, args, stream);
      WCUDA_RANDOM_OPS(WCUDA_OP)
      return catalogue_random(op, args, count, stream);
#undef WCUDA_OP
    default:
      return catalogue_matmul(op, args, stream);
  }
}

}  // namespace wcuda::kernels
