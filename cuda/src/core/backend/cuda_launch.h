// Kernels of this library on a CUDA backend.
#pragma once

#include "core/backend/backend.h"
#include "core/backend/cuda_device.h"

namespace wcuda {

// In Backend::run or Backend::queue: launch(stream), which queues kernels and answers an error of
// the runtime. `call` names it.
template <class Launch>
Status cuda_launch(Backend& device, Stream stream, const char* call, const Launch& launch) {
  int ordinal = 0;  // CUDA's, of the backend: its device is current
  WCUDA_TRY(check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice", ordinal));
  return check_cuda(launch(static_cast<cudaStream_t>(device.native_stream(stream))), call, ordinal);
}

}  // namespace wcuda
