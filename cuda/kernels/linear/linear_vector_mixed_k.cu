// linear_vector for Q6_K beside Q4_K and Q5_K, as the mixes q4_k_m and q5_k_m have them.
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/tile_k.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(12, 14);
WCUDA_LINEAR_VECTOR(13, 14);

}  // namespace wcuda::kernels
