// linear_vector for Q2_K, Q3_K, TQ1_0, TQ2_0, Q1_0 and Q2_0.
#include "kernels/linear/linear_vector.cuh"
#include "kernels/linear/tile_few_bits.cuh"

namespace wcuda::kernels {

WCUDA_LINEAR_VECTOR(10, 10);
WCUDA_LINEAR_VECTOR(11, 11);
WCUDA_LINEAR_VECTOR(34, 34);
WCUDA_LINEAR_VECTOR(35, 35);
WCUDA_LINEAR_VECTOR(41, 41);
WCUDA_LINEAR_VECTOR(42, 42);

}  // namespace wcuda::kernels
