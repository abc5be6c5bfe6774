// linear_batch for the types of 16 levels: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
#include "kernels/linear/linear_batch_kernel.cuh"
#include "kernels/linear/tile_levels.cuh"

namespace wcuda::kernels {

const BatchKernel* find_batch_levels(uint32_t type) {
  static const BatchKernel kKernels[] = {batch_kernel<20>(), batch_kernel<23>(), batch_kernel<39>(),
                                         batch_kernel<40>()};
  return find_batch_kernel(kKernels, 4, type);
}

}  // namespace wcuda::kernels
