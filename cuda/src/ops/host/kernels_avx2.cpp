// The inner loops for AVX2 with FMA and F16C.
#include "ops/host/kernels_body.h"

namespace wcuda::ops::host {

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {
    Isa::kAvx2, "avx2", dot, rms_norm, silu_multiply, gelu_multiply, attend,
};

}  // namespace wcuda::ops::host
