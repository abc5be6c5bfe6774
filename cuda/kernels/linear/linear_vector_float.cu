// linear_vector for F32, F16 and BF16.
#include "kernels/linear/linear_vector.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(0, 0);
WCUDA_LINEAR_VECTOR(1, 1);
WCUDA_LINEAR_VECTOR(30, 30);

}  // namespace wcuda::kernels
