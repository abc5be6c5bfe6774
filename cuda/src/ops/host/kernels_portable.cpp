// The inner loops for any processor.
#include "ops/host/kernels_body.h"

namespace wcuda::ops::host {

extern const Kernels kPortableKernels;
const Kernels kPortableKernels = {
    Isa::kPortable, "portable", dot, rms_norm, silu_multiply, gelu_multiply, attend,
};

}  // namespace wcuda::ops::host
