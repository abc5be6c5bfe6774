// The catalogue's random draws: one thread per draw. Bytes moved: the output; for categorical also
// the input, twice.
#include "kernels/catalogue/catalogue_elements.cuh"
#include "kernels/shared/random_ops.h"

namespace wcuda::kernels {
namespace {

template <class Op, class T>
__global__ void __launch_bounds__(kElementThreads)
    draw_kernel(const CatalogueArgs args, const int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * kElementThreads;
  for (int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x; i < count; i += stride)
    Op::template put<T>(args, i);
}

template <class Op>
cudaError_t launch_draw(const CatalogueArgs& args, int64_t count, cudaStream_t stream) {
  return launch_elements(args.type, count, [&](auto zero, uint32_t grid) {
    draw_kernel<Op, decltype(zero)><<<grid, kElementThreads, 0, stream>>>(args, count);
  });
}

}  // namespace

cudaError_t catalogue_random(CatalogueOp op, const CatalogueArgs& args, int64_t count,
                             cudaStream_t stream) {
  switch (op) {
#define WCUDA_OP(name)       \
  case CatalogueOp::k##name: \
    return launch_draw<draw::name>(args, count, stream);
    WCUDA_RANDOM_OPS(WCUDA_OP)
#undef WCUDA_OP
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace wcuda::kernels
