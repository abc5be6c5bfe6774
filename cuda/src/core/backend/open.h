// Opening a backend: CUDA, HOST, one that is registered, or whichever of the first two AUTO finds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/backend/backend.h"

namespace wcuda {

struct OpenOptions {
  int32_t backend = WCUDA_BACKEND_AUTO;
  int32_t ordinal = 0;
  uint64_t host_capacity = 0;      // 0: the memory of the machine
  uint32_t host_thread_count = 0;  // 0: the processors this process may use
};

struct Opened {
  std::shared_ptr<Backend> backend;
  std::string fallback_reason;  // AUTO: why it is not CUDA; else empty
};

// Whether a failure to open CUDA says that there is no usable device: not built in, no driver, a
// driver that is too old, or no device. AUTO takes HOST for these alone: a device that is there and
// fails is an error.
bool means_no_device(Code code);

Result<Opened> open_backend(const OpenOptions& options);

// Of a type. No device is an error that says why, not 0. Makes no CUDA context.
Result<int32_t> device_count(int32_t backend);
Result<wcuda_device_caps> device_caps(int32_t backend, int32_t ordinal);

}  // namespace wcuda
