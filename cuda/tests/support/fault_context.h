// A context of the C interface whose device fails on demand.
#pragma once

#include <memory>

#include "api/base/context.h"
#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"

namespace wcuda::testing {

class FaultContext {
 public:
  explicit FaultContext(uint64_t capacity = uint64_t{64} << 20, uint64_t budget = 0)
      : FaultContext(open_host_backend(capacity, 1).take(), budget) {}
  explicit FaultContext(std::shared_ptr<Backend> device, uint64_t budget = 0)
      : device_(std::move(device)) {
    faulty_ = std::make_shared<FaultBackend>(device_);
    auto object = std::make_shared<api::Context>();
    object->info = WCUDA_CONTEXT_INFO_INIT;
    object->info.backend = device_->caps().backend;
    object->info.host_thread_count = 1;
    object->memory = vram::Memory::create(faulty_, budget);
    context_.id = *api::insert(api::Kind::kContext, std::move(object));
  }
  ~FaultContext() { wcuda_context_destroy(context_); }
  FaultContext(const FaultContext&) = delete;
  FaultContext& operator=(const FaultContext&) = delete;

  wcuda_context handle() const { return context_; }
  FaultBackend& faults() const { return *faulty_; }
  // Bytes the device holds, asked past the faults.
  uint64_t device_bytes() const { return device_->memory_info()->reserved_bytes; }

 private:
  std::shared_ptr<Backend> device_;
  std::shared_ptr<FaultBackend> faulty_;
  wcuda_context context_{0};
};

}  // namespace wcuda::testing
