// linear_batch for the types of blocks of 32: Q4_0, Q4_1, Q5_0 and Q5_1.
#include "kernels/linear/linear_batch_kernel.cuh"
#include "kernels/linear/tile_legacy.cuh"

namespace wcuda::kernels {

const BatchKernel* find_batch_legacy(uint32_t type) {
  static const BatchKernel kKernels[] = {batch_kernel<2>(), batch_kernel<3>(), batch_kernel<6>(),
                                         batch_kernel<7>()};
  return find_batch_kernel(kKernels, 4, type);
}

}  // namespace wcuda::kernels
