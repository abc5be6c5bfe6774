// linear_batch for query, key and value of two types: Q4_K or Q5_K, and Q6_K for values.
#include "kernels/linear/linear_batch_kernel.cuh"
#include "kernels/linear/tile_k.cuh"

namespace wcuda::kernels {

const BatchKernel* find_batch_mixed(uint32_t type, uint32_t second_type) {
  static const BatchKernel kKernels[] = {batch_mixed_kernel<12, 14>(),
                                         batch_mixed_kernel<13, 14>()};
  for (const BatchKernel& kernel : kKernels)
    if (kernel.type == type && kernel.second_type == second_type) return &kernel;
  return nullptr;
}

}  // namespace wcuda::kernels
