// The host as a device: its memory, its processors.
#pragma once

#include <memory>

#include "core/backend/backend.h"

namespace wcuda {

// capacity 0: the memory of the machine; thread_count 0: the processors this process may use.
Result<std::shared_ptr<Backend>> open_host_backend(uint64_t capacity, uint32_t thread_count);

}  // namespace wcuda
