// Reports every call of a backend to a listener, with its answer.
#pragma once

#include <functional>
#include <string>

#include "core/backend/wrapper_backend.h"

namespace wcuda {

// A call as a line of JSON, by the names of the public table:
// {"slot":"allocate","bytes":4096,"stream":0,"ns":812,"status":"WCUDA_OK"}
std::string trace_line(const Call& call, const Status& status);

class TraceBackend final : public WrapperBackend {
 public:
  // The listener runs on the calling thread, after the call, on several threads at once.
  using Listener = std::function<void(const Call&, const Status&)>;
  TraceBackend(std::shared_ptr<Backend> inner, Listener listener)
      : WrapperBackend(std::move(inner)), listener_(std::move(listener)) {}

 protected:
  void after(const Call& call, const Status& status) override { listener_(call, status); }

 private:
  Listener listener_;
};

}  // namespace wcuda
