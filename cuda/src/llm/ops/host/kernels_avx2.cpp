// The inner loops for AVX2 with FMA and F16C.
#include "llm/ops/host/kernels_body.h"
#include "llm/ops/host/m_tiles_body.h"

namespace wcuda::ops::host {
extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {
    Isa::kAvx2, "avx2",        find_m_tile_kernel, make_blocks, dot,
    rms_norm,   silu_multiply, gelu_multiply,      attend,      to_halves,
};

}  // namespace wcuda::ops::host
