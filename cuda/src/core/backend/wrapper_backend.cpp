// Forwarding, call by call.
#include "core/backend/wrapper_backend.h"

#include <chrono>

namespace wcuda {
namespace {

const char* name_of(const Copy& copy) {
  if (copy.direction == Copy::Direction::kOnDevice) return "copy_on_device";
  if (copy.direction == Copy::Direction::kToDevice)
    return copy.is_queued ? "copy_to_device_async" : "copy_to_device";
  return copy.is_queued ? "copy_to_host_async" : "copy_to_host";
}

}  // namespace

template <class Body>
auto WrapperBackend::pass(Call call, Body&& body) -> decltype(body()) {
  Status refused = before(call);
  if (!refused.ok()) {
    after(call, refused);
    return refused;
  }
  const auto begin = std::chrono::steady_clock::now();
  auto answer = body();
  const auto taken = std::chrono::steady_clock::now() - begin;
  call.ns =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count());
  after(call, status_of(answer));
  return answer;
}

Result<MemoryInfo> WrapperBackend::memory_info() {
  return pass({"memory_info", CallKind::kOther}, [&] { return inner_->memory_info(); });
}

Result<void*> WrapperBackend::allocate(MemoryKind kind, uint64_t bytes) {
  return pass({"allocate", CallKind::kAllocate, bytes},
              [&] { return inner_->allocate(kind, bytes); });
}

Status WrapperBackend::free(MemoryKind kind, void* address, uint64_t bytes) {
  return pass({"free", CallKind::kEnd, bytes}, [&] { return inner_->free(kind, address, bytes); });
}

Status WrapperBackend::free_after(Stream stream) {
  return pass({"free_after", CallKind::kOther, 0, stream},
              [&] { return inner_->free_after(stream); });
}

Result<void*> WrapperBackend::allocate_scratch(uint64_t bytes, Stream stream) {
  return pass({"allocate_scratch", CallKind::kAllocate, bytes, stream},
              [&] { return inner_->allocate_scratch(bytes, stream); });
}

Status WrapperBackend::free_scratch(void* address, uint64_t bytes, Stream stream) {
  return pass({"free_scratch", CallKind::kEnd, bytes, stream},
              [&] { return inner_->free_scratch(address, bytes, stream); });
}

Result<MemoryPlace> WrapperBackend::memory_place(const void* address) {
  return pass({"memory_place", CallKind::kOther}, [&] { return inner_->memory_place(address); });
}

Status WrapperBackend::trim() {
  return pass({"trim", CallKind::kOther}, [&] { return inner_->trim(); });
}

Status WrapperBackend::copy(const Copy& what) {
  return pass({name_of(what), CallKind::kCopy, what.bytes, what.stream},
              [&] { return inner_->copy(what); });
}

Status WrapperBackend::fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
                            Stream stream) {
  return pass({"fill", CallKind::kLaunch, bytes, stream},
              [&] { return inner_->fill(target, bytes, pattern, pattern_bytes, stream); });
}

Status WrapperBackend::run(const Call& call, const std::function<Status(Backend&)>& work) {
  return pass(call, [&] { return inner_->run(call, work); });
}

Result<Stream> WrapperBackend::stream_create(int32_t priority) {
  return pass({"stream_create", CallKind::kOther}, [&] { return inner_->stream_create(priority); });
}

Status WrapperBackend::stream_destroy(Stream stream) {
  return pass({"stream_destroy", CallKind::kEnd, 0, stream},
              [&] { return inner_->stream_destroy(stream); });
}

Result<Stream> WrapperBackend::stream_borrow(void* native) {
  return pass({"stream_borrow", CallKind::kOther}, [&] { return inner_->stream_borrow(native); });
}

Result<Event> WrapperBackend::event_create() {
  return pass({"event_create", CallKind::kOther}, [&] { return inner_->event_create(); });
}

Status WrapperBackend::event_destroy(Event event) {
  return pass({"event_destroy", CallKind::kEnd}, [&] { return inner_->event_destroy(event); });
}

Status WrapperBackend::event_record(Event event, Stream stream) {
  return pass({"event_record", CallKind::kOther, 0, stream},
              [&] { return inner_->event_record(event, stream); });
}

Status WrapperBackend::stream_wait(Stream stream, Event event) {
  return pass({"stream_wait", CallKind::kOther, 0, stream},
              [&] { return inner_->stream_wait(stream, event); });
}

Status WrapperBackend::event_synchronize(Event event) {
  return pass({"event_synchronize", CallKind::kWait},
              [&] { return inner_->event_synchronize(event); });
}

Result<bool> WrapperBackend::event_done(Event event) {
  return pass({"event_done", CallKind::kOther}, [&] { return inner_->event_done(event); });
}

Result<double> WrapperBackend::event_elapsed_ms(Event start, Event end) {
  return pass({"event_elapsed_ms", CallKind::kOther},
              [&] { return inner_->event_elapsed_ms(start, end); });
}

Status WrapperBackend::synchronize(Stream stream) {
  return pass({"synchronize", CallKind::kWait, 0, stream},
              [&] { return inner_->synchronize(stream); });
}

Status WrapperBackend::synchronize() {
  return pass({"synchronize", CallKind::kWait}, [&] { return inner_->synchronize(); });
}

}  // namespace wcuda
