// NVIDIA devices through the CUDA Runtime. In a build without CUDA every function says so.
#pragma once

#include <memory>

#include "core/backend/backend.h"

namespace wcuda {

// WCUDA_NO_DEVICE "no CUDA device: …" with the reason; WCUDA_NOT_AVAILABLE when built without CUDA.
Result<int32_t> cuda_device_count();
Result<wcuda_device_caps> cuda_device_caps(int32_t ordinal);

// Opens the device's primary context. Backends of one device share the latch of its faults.
Result<std::shared_ptr<Backend>> open_cuda_backend(int32_t ordinal);

}  // namespace wcuda
