// Streams and events that end with their owner.
#pragma once

#include <utility>

#include "core/backend/backend.h"

namespace wcuda {

// Nothing until it has taken one. The backend outlives it; a stream's work is waited for.
template <class Handle, Status (Backend::*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept
      : backend_(std::exchange(other.backend_, nullptr)), handle_(other.handle_) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (backend_ != nullptr) (void)(backend_->*kDestroy)(handle_);
  }
  // What the backend created. Once only.
  Status take(Backend& backend, const Result<Handle>& created) {
    WCUDA_TRY(Status(created.status()));
    handle_ = *created;
    backend_ = &backend;
    return {};
  }
  operator Handle() const { return handle_; }  // NOLINT: used as one

 private:
  Backend* backend_ = nullptr;
  Handle handle_;
};
using OwnedStream = Owned<Stream, &Backend::stream_destroy>;
using OwnedEvent = Owned<Event, &Backend::event_destroy>;

}  // namespace wcuda
