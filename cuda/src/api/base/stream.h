// The objects behind wcuda_stream and wcuda_event.
#pragma once

#include <chrono>

#include "api/base/context.h"
#include "api/base/handles.h"
#include "core/vram/memory.h"

namespace wcuda::api {

// Both destroy the stream or event with the last reference.
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

template <>
struct HandleOf<wcuda_stream> : HandleTo<Kind::kStream, StreamObject> {};
template <>
struct HandleOf<wcuda_event> : HandleTo<Kind::kEvent, EventObject> {};

// WCUDA_INVALID_ARGUMENT for an invalid priority.
Result<std::shared_ptr<StreamObject>> make_stream(std::shared_ptr<vram::Memory> memory,
                                                  int32_t priority);
Result<std::shared_ptr<EventObject>> make_event(std::shared_ptr<vram::Memory> memory);

// Waits until the event is done; WCUDA_TIMEOUT after timeout_ms milliseconds (< 0: no limit).
Status wait_for(Backend& backend, Event event, int64_t timeout_ms);
// Polls until the event is done; false at the deadline.
Result<bool> wait_until(Backend& backend, Event event,
                        std::chrono::steady_clock::time_point deadline);

// Resolves a stream for work of `memory`; id 0 is the context's own. WCUDA_INVALID_ARGUMENT for a
// stream of another context. `object` keeps the stream alive while work is queued; null for id 0.
struct UsedStream {
  Stream stream;
  std::shared_ptr<StreamObject> object;
};
Result<UsedStream> use_stream(wcuda_stream stream, const vram::Memory& memory);

// Returns a range of pinned memory that work on `stream` uses. The memory then stays allocated
// until this work has ended.
Result<vram::View> use_pinned(vram::Buffer& pinned, uint64_t offset, uint64_t bytes, Stream stream);

}  // namespace wcuda::api
