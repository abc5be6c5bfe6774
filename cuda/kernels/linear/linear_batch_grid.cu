// linear_batch for the types with codebooks: IQ1, IQ2 and IQ3.
#include "kernels/linear/linear_batch_kernel.cuh"
#include "kernels/linear/tile_grid.cuh"

namespace wcuda::kernels {

const BatchKernel* find_batch_grid(uint32_t type) {
  static const BatchKernel kKernels[] = {batch_kernel<16>(), batch_kernel<17>(), batch_kernel<18>(),
                                         batch_kernel<19>(), batch_kernel<21>(), batch_kernel<22>(),
                                         batch_kernel<29>()};
  return find_batch_kernel(kKernels, 7, type);
}

}  // namespace wcuda::kernels
