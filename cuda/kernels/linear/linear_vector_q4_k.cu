// linear_vector for Q4_K.
#include "kernels/linear/linear_vector.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(12, 12);

}  // namespace wcuda::kernels
