// linear_vector for Q5_K.
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/tile_k.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(13, 13);

}  // namespace wcuda::kernels
