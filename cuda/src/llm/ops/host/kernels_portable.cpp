// The inner loops for any processor.
#include "llm/ops/host/kernels_body.h"

namespace wcuda::ops::host {
namespace {

StripKernel find_strip(uint32_t) { return {nullptr, nullptr}; }

}  // namespace

extern const Kernels kPortableKernels;
const Kernels kPortableKernels = {
    Isa::kPortable, "portable",    find_strip,    nullptr, dot,
    rms_norm,       silu_multiply, gelu_multiply, attend,
};

}  // namespace wcuda::ops::host
