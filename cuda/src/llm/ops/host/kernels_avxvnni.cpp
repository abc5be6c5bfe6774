// The inner loops for AVX2 with AVX-VNNI.
#include "llm/ops/host/kernels_body.h"
#include "llm/ops/host/m_tiles_body.h"

namespace wcuda::ops::host {
extern const Kernels kAvxVnniKernels;
const Kernels kAvxVnniKernels = {
    Isa::kAvxVnni, "avxvnni",     find_m_tile_kernel, make_blocks, dot,
    rms_norm,      silu_multiply, gelu_multiply,      attend,      to_halves,
};

}  // namespace wcuda::ops::host
