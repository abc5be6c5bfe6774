// linear_vector for Q6_K.
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/tile_k.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(14, 14);

}  // namespace wcuda::kernels
