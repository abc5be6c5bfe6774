// linear_vector for Q6_K.
#include "kernels/linear_vector.cuh"
#include "kernels/tile_k.h"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(14, 14);

}  // namespace wcuda::kernels
