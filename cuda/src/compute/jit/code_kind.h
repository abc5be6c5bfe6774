// Recognises device code by its header or first token, and checks that it is complete: the driver
// takes an address without a length and reads as far as the headers say.
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

// Reads nothing past `bytes`. WCUDA_MALFORMED for code that is none of the three or is truncated;
// the message says so if it looks like C++ source.
Result<CodeKind> code_kind(const void* code, uint64_t bytes);

}  // namespace wcuda::jit
