// The inner loops for AVX-512 with VNNI.
#include "llm/ops/host/kernels_body.h"
#include "llm/ops/host/m_tiles_body.h"

namespace wcuda::ops::host {

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {
    Isa::kAvx512, "avx512",      find_m_tile_kernel, make_blocks, dot,
    rms_norm,     silu_multiply, gelu_multiply,      attend,      to_halves,
};

}  // namespace wcuda::ops::host
