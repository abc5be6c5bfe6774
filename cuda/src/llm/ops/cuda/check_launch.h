// The status of a kernel's launch or of another call of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "core/base/status.h"

namespace wcuda::ops {

// WCUDA_DEVICE_ERROR with the call's name and the runtime's text, unless it succeeded.
inline Status check_launch(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  return Status::native_error(WCUDA_DEVICE_ERROR, error, "%s: %s", call, cudaGetErrorString(error));
}

}  // namespace wcuda::ops
