// linear_batch for the types of the K formats of 4 to 6 bits: Q4_K, Q5_K and Q6_K.
#include "kernels/linear/linear_batch_kernel.cuh"
#include "kernels/linear/tile_k.cuh"

namespace wcuda::kernels {

const BatchKernel* find_batch_k(uint32_t type) {
  static const BatchKernel kKernels[] = {batch_kernel<12>(), batch_kernel<13>(),
                                         batch_kernel<14>()};
  return find_batch_kernel(kKernels, 3, type);
}

}  // namespace wcuda::kernels
