// The catalogue's random draws: one thread each. Bytes moved: those of the output, and of the input
// of categorical, twice.
#include "kernels/catalogue_launch.h"
#include "kernels/random_ops.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr int64_t kBlocksMax = 8192;

template <class Op, class T>
__global__ void __launch_bounds__(kBlockThreads)
    draw_kernel(const CatalogueArgs args, const int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * kBlockThreads;
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < count; i += stride)
    Op::template put<T>(args, i);
}

template <class Op>
cudaError_t launch_draw(const CatalogueArgs& args, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const int64_t blocks = (count + kBlockThreads - 1) / kBlockThreads;
  const auto grid = static_cast<uint32_t>(blocks < kBlocksMax ? blocks : kBlocksMax);
  if (args.type == Dtype::kF32)
    draw_kernel<Op, float><<<grid, kBlockThreads, 0, stream>>>(args, count);
  else if (args.type == Dtype::kF16)
    draw_kernel<Op, Half><<<grid, kBlockThreads, 0, stream>>>(args, count);
  else
    draw_kernel<Op, Bf16><<<grid, kBlockThreads, 0, stream>>>(args, count);
  return cudaPeekAtLastError();
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
