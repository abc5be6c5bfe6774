// linear_batch for the types of plain numbers and of bytes: F32, F16, BF16 and Q8_0.
#include "kernels/linear/linear_batch_kernel.cuh"

namespace wcuda::kernels {

const BatchKernel* find_batch_plain(uint32_t type) {
  static const BatchKernel kKernels[] = {batch_kernel<0>(), batch_kernel<1>(), batch_kernel<30>(),
                                         batch_kernel<8>()};
  return find_batch_kernel(kKernels, 4, type);
}

}  // namespace wcuda::kernels
