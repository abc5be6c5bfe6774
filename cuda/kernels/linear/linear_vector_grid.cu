// linear_vector for IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S.
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/tile_grid.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(16, 16);
WCUDA_LINEAR_VECTOR(17, 17);
WCUDA_LINEAR_VECTOR(18, 18);
WCUDA_LINEAR_VECTOR(19, 19);
WCUDA_LINEAR_VECTOR(21, 21);
WCUDA_LINEAR_VECTOR(22, 22);
WCUDA_LINEAR_VECTOR(29, 29);

}  // namespace wcuda::kernels
