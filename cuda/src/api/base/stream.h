// What stands behind wcuda_stream and wcuda_event.
#pragma once

#include "api/base/context.h"
#include "api/base/handles.h"
#include "core/vram/memory.h"

namespace wcuda::api {

// Both end what they stand for when the last reference goes.
struct StreamObject {
  std::shared_ptr<vram::Memory> memory;
  Stream stream;
  ~StreamObject();
};

struct EventObject {
  std::shared_ptr<vram::Memory> memory;
  Event event;
  ~EventObject();
};

// WCUDA_INVALID_ARGUMENT for a priority that is none.
Result<std::shared_ptr<StreamObject>> make_stream(std::shared_ptr<vram::Memory> memory,
                                                  int32_t priority);
Result<std::shared_ptr<EventObject>> make_event(std::shared_ptr<vram::Memory> memory);

// Waits until the event is done; WCUDA_TIMEOUT after so many milliseconds, below 0 never.
Status wait_for(Backend& backend, Event event, int64_t timeout_ms);

// The stream behind a handle for work of `memory`; id 0 is its own. WCUDA_INVALID_ARGUMENT for one
// of another context. The reference keeps the stream while work is given to it; null for id 0.
struct UsedStream {
  Stream stream;
  std::shared_ptr<StreamObject> object;
};
Result<UsedStream> use_stream(wcuda_stream stream, const vram::Memory& memory);

}  // namespace wcuda::api
