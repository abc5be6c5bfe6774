// Section 17 of the header: streams, events, copies that do not wait.
#include "api/base/stream.h"

#include <chrono>
#include <mutex>
#include <thread>

#include "api/base/buffer.h"
#include "api/base/guard.h"

namespace wcuda::api {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr auto kSleepTime = std::chrono::microseconds(50);
constexpr int64_t kTimeoutMsMax = int64_t{1}
                                  << 40;  // 35 years, so that adding it to a time does not overflow

// Copies from pinned memory to a buffer with `into_buffer`, else from the buffer.
Status copy_async(wcuda_buffer buffer, uint64_t offset, wcuda_pinned pinned, uint64_t pinned_offset,
                  uint64_t bytes, wcuda_stream stream, bool into_buffer) {
  WCUDA_ASSIGN(const auto object, resolve(buffer, "buffer"));
  WCUDA_ASSIGN(const auto host, resolve(pinned, "pinned"));
  vram::Memory& memory = object->buffer.memory();
  if (&host->memory() != &memory)
    return invalid_argument("buffer and pinned are of different contexts");
  WCUDA_ASSIGN(const vram::View device, object->buffer.view(offset, bytes));
  WCUDA_TRY(host->view(pinned_offset, bytes).status());
  WCUDA_ASSIGN(const UsedStream on, use_stream(stream, memory));
  WCUDA_ASSIGN(const auto use, ExclusiveUse::acquire(object->exclusive, "buffer"));
  Backend& backend = memory.backend();
  WCUDA_TRY(backend.fault());
  if (bytes == 0) return {};
  object->buffer.used_on(on.stream);
  WCUDA_ASSIGN(const vram::View pinned_view, use_pinned(*host, pinned_offset, bytes, on.stream));
  return into_buffer ? backend.copy_to_device_async(device.data, pinned_view.data, bytes, on.stream)
                     : backend.copy_to_host_async(pinned_view.data, device.data, bytes, on.stream);
}

}  // namespace

Result<vram::View> use_pinned(vram::Buffer& pinned, uint64_t offset, uint64_t bytes,
                              Stream stream) {
  static std::mutex mutex;  // the streams that use pinned memory are recorded only here
  WCUDA_ASSIGN(const vram::View view, pinned.view(offset, bytes));
  const std::lock_guard<std::mutex> lock(mutex);
  pinned.used_on(stream);
  return view;
}

Status wait_for(Backend& backend, Event event, int64_t timeout_ms) {
  if (timeout_ms < 0) return backend.event_synchronize(event);
  const auto deadline =
      Clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kTimeoutMsMax));
  WCUDA_ASSIGN(const bool is_done, wait_until(backend, event, deadline));
  if (is_done) return {};
  return Status::error(WCUDA_TIMEOUT, "event: not done after %lld ms",
                       static_cast<long long>(timeout_ms));
}

Result<bool> wait_until(Backend& backend, Event event, Clock::time_point deadline) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    WCUDA_ASSIGN(const bool done, backend.event_done(event));
    if (done) return true;
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return false;
    if (now - begin > kSpinTime) std::this_thread::sleep_for(kSleepTime);
  }
}

// A failure to destroy a stream or an event of a lost device has no caller to report to.
StreamObject::~StreamObject() {
  if (stream.id != 0) (void)memory->backend().stream_destroy(stream);
}

EventObject::~EventObject() {
  if (event.id != 0) (void)memory->backend().event_destroy(event);
}

Result<std::shared_ptr<StreamObject>> make_stream(std::shared_ptr<vram::Memory> memory,
                                                  int32_t priority) {
  if (priority != 0 && priority != -1)
    return invalid_argument("priority: %d is not 0 or -1", priority);
  auto object = std::make_shared<StreamObject>();
  object->memory = std::move(memory);
  WCUDA_ASSIGN(object->stream, object->memory->backend().stream_create(priority));
  return object;
}

Result<std::shared_ptr<EventObject>> make_event(std::shared_ptr<vram::Memory> memory) {
  auto object = std::make_shared<EventObject>();
  object->memory = std::move(memory);
  WCUDA_ASSIGN(object->event, object->memory->backend().event_create());
  return object;
}

Result<UsedStream> use_stream(wcuda_stream stream, const vram::Memory& memory) {
  if (stream.id == 0) return UsedStream{};
  WCUDA_ASSIGN(auto object, resolve(stream, "stream"));
  if (object->memory.get() != &memory) return invalid_argument("stream: is of another context");
  return UsedStream{object->stream, std::move(object)};
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_stream_create(wcuda_context context, int32_t priority, wcuda_stream* stream,
                                 wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_TRY(check_not_null(stream, "stream"));
    WCUDA_ASSIGN(auto object, make_stream(parent->memory, priority));
    return insert(std::move(object), stream);
  });
}

void wcuda_stream_destroy(wcuda_stream stream) { destroy(__func__, stream); }

wcuda_status wcuda_stream_synchronize(wcuda_stream stream, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(stream, "stream"));
    return object->memory->backend().synchronize(object->stream);
  });
}

wcuda_status wcuda_stream_native_get(wcuda_context context, wcuda_stream stream, void** native,
                                     wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_TRY(check_not_null(static_cast<const void*>(native), "native"));
    WCUDA_ASSIGN(const UsedStream on, use_stream(stream, *parent->memory));
    void* const found = parent->memory->backend().native_stream(on.stream);
    if (found == nullptr) return unsupported("this backend's streams are not a driver's");
    *native = found;
    return {};
  });
}

wcuda_status wcuda_stream_borrow(wcuda_context context, void* native, wcuda_stream* stream,
                                 wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_TRY(check_not_null(native, "native"));
    WCUDA_TRY(check_not_null(stream, "stream"));
    auto object = std::make_shared<StreamObject>();
    object->memory = parent->memory;
    WCUDA_ASSIGN(object->stream, parent->memory->backend().stream_borrow(native));
    return insert(std::move(object), stream);
  });
}

wcuda_status wcuda_event_create(wcuda_context context, wcuda_event* event, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_TRY(check_not_null(event, "event"));
    WCUDA_ASSIGN(auto object, make_event(parent->memory));
    return insert(std::move(object), event);
  });
}

void wcuda_event_destroy(wcuda_event event) { destroy(__func__, event); }

wcuda_status wcuda_event_record(wcuda_event event, wcuda_stream stream, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(event, "event"));
    WCUDA_ASSIGN(const UsedStream on, use_stream(stream, *object->memory));
    return object->memory->backend().event_record(object->event, on.stream);
  });
}

wcuda_status wcuda_event_order(wcuda_event event, wcuda_stream stream, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(event, "event"));
    WCUDA_ASSIGN(const UsedStream on, use_stream(stream, *object->memory));
    return object->memory->backend().stream_wait(on.stream, object->event);
  });
}

wcuda_status wcuda_event_wait(wcuda_event event, int64_t timeout_ms, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(event, "event"));
    return wait_for(object->memory->backend(), object->event, timeout_ms);
  });
}

wcuda_status wcuda_event_done_get(wcuda_event event, int32_t* done, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(event, "event"));
    WCUDA_TRY(check_not_null(done, "done"));
    WCUDA_ASSIGN(const bool is_done, object->memory->backend().event_done(object->event));
    *done = is_done;
    return {};
  });
}

wcuda_status wcuda_event_elapsed_get(wcuda_event start, wcuda_event end, double* milliseconds,
                                     wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto from, resolve(start, "start"));
    WCUDA_ASSIGN(const auto to, resolve(end, "end"));
    WCUDA_TRY(check_not_null(milliseconds, "milliseconds"));
    if (from->memory != to->memory)
      return invalid_argument("start and end are of different contexts");
    WCUDA_ASSIGN(*milliseconds, from->memory->backend().event_elapsed_ms(from->event, to->event));
    return {};
  });
}

wcuda_status wcuda_buffer_write_async(wcuda_buffer buffer, uint64_t offset, wcuda_pinned source,
                                      uint64_t source_offset, uint64_t bytes, wcuda_stream stream,
                                      wcuda_error* error) {
  return guarded(error, [&] {
    return copy_async(buffer, offset, source, source_offset, bytes, stream, true);
  });
}

wcuda_status wcuda_buffer_read_async(wcuda_buffer buffer, uint64_t offset, wcuda_pinned target,
                                     uint64_t target_offset, uint64_t bytes, wcuda_stream stream,
                                     wcuda_error* error) {
  return guarded(error, [&] {
    return copy_async(buffer, offset, target, target_offset, bytes, stream, false);
  });
}
