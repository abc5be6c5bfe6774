// The inner loops for AVX-512 with VNNI.
#include "llm/ops/host/kernels_body.h"
#include "llm/ops/host/strips_body.h"

namespace wcuda::ops::host {

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {
    Isa::kAvx512, "avx512",      find_strip,    make_blocks, dot,
    rms_norm,     silu_multiply, gelu_multiply, attend,
};

}  // namespace wcuda::ops::host
