// The host posing as a CUDA device: what is built for memory that the host cannot see (the record
// layout, the streamed load) runs on it, where every call can be watched and made to fail.
#pragma once

#include <memory>

#include "core/backend/host_backend.h"
#include "core/backend/wrapper_backend.h"

namespace wcuda::testing {

class PretendDevice final : public WrapperBackend {
 public:
  // `reader_count`: threads that a load reads with; with one its calls come in the same order every
  // time.
  explicit PretendDevice(uint32_t reader_count, uint64_t capacity = 0)
      : WrapperBackend(open_host_backend(capacity, reader_count).take()) {
    description_.caps.backend = WCUDA_BACKEND_CUDA;
  }
};

}  // namespace wcuda::testing
