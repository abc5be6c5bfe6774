// linear_vector for IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/tile_levels.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(20, 20);
WCUDA_LINEAR_VECTOR(23, 23);
WCUDA_LINEAR_VECTOR(39, 39);
WCUDA_LINEAR_VECTOR(40, 40);

}  // namespace wcuda::kernels
