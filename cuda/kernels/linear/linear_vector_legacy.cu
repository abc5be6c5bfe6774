// linear_vector for Q4_0, Q4_1, Q5_0 and Q5_1.
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/tile_legacy.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(2, 2);
WCUDA_LINEAR_VECTOR(3, 3);
WCUDA_LINEAR_VECTOR(6, 6);
WCUDA_LINEAR_VECTOR(7, 7);

}  // namespace wcuda::kernels
