// linear_batch for the types of one to three bits: Q2_K, Q3_K, TQ1_0, TQ2_0, Q1_0 and Q2_0.
#include "kernels/linear/linear_batch_kernel.cuh"
#include "kernels/linear/tile_few_bits.cuh"

namespace wcuda::kernels {

const BatchKernel* find_batch_few_bits(uint32_t type) {
  static const BatchKernel kKernels[] = {batch_kernel<10>(), batch_kernel<11>(),
                                         batch_kernel<34>(), batch_kernel<35>(),
                                         batch_kernel<41>(), batch_kernel<42>()};
  return find_batch_kernel(kKernels, 6, type);
}

}  // namespace wcuda::kernels
