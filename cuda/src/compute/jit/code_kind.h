// What device code is, by its header or first token, and whether it is all there: the driver takes
// a bare address and reads as far as the headers say.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "worker_cuda/compute.h"

namespace wcuda::jit {

enum class CodeKind : int32_t {
  kPtx = WCUDA_CODE_PTX,
  kCubin = WCUDA_CODE_CUBIN,
  kFatbin = WCUDA_CODE_FATBIN,
};

// Reads nothing past `bytes`. WCUDA_MALFORMED for what is none of the three or is cut short; says
// so when it looks like C++ source.
Result<CodeKind> code_kind(const void* code, uint64_t bytes);

}  // namespace wcuda::jit
