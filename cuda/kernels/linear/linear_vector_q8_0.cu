// linear_vector for Q8_0.
#include "kernels/linear/linear_vector.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(8, 8);

}  // namespace wcuda::kernels
