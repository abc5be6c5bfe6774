// The inner loops for any processor.
#include "llm/ops/host/kernels_body.h"

namespace wcuda::ops::host {
namespace {

MTileKernel find_m_tile_kernel(uint32_t) { return {nullptr, nullptr}; }

}  // namespace

extern const Kernels kPortableKernels;
const Kernels kPortableKernels = {
    Isa::kPortable, "portable",    find_m_tile_kernel, nullptr, dot,
    rms_norm,       silu_multiply, gelu_multiply,      attend,  nullptr,
};

}  // namespace wcuda::ops::host
