// The inner loops for AVX2 with FMA and F16C.
#include "ops/host/kernels_body.h"

namespace wcuda::ops::host {
namespace {

StripKernel find_strip(uint32_t) { return {nullptr, nullptr}; }

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {
    Isa::kAvx2, "avx2", find_strip, nullptr, dot, rms_norm, silu_multiply, gelu_multiply, attend,
};

}  // namespace wcuda::ops::host
