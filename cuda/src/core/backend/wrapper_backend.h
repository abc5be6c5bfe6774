// A backend around another one, with a say before and after each call; base of the trace and the
// fault backend.
#pragma once

#include <chrono>

#include "core/backend/backend.h"

namespace wcuda {

class WrapperBackend : public Backend {
 public:
  explicit WrapperBackend(std::shared_ptr<Backend> inner)
      : Backend(inner->description()), inner_(std::move(inner)) {}

  Result<MemoryInfo> memory_info() override {
    return pass({"memory_info", CallKind::kOther}, [&] { return inner_->memory_info(); });
  }
  Result<void*> allocate(MemoryKind kind, uint64_t bytes) override {
    return pass({"allocate", CallKind::kAllocate, bytes},
                [&] { return inner_->allocate(kind, bytes); });
  }
  Status free(MemoryKind kind, void* address, uint64_t bytes) override {
    return pass({"free", CallKind::kEnd, bytes},
                [&] { return inner_->free(kind, address, bytes); });
  }
  Status free_after(Stream stream) override {
    return pass({"free_after", CallKind::kOther, 0, stream},
                [&] { return inner_->free_after(stream); });
  }
  Result<void*> allocate_scratch(uint64_t bytes, Stream stream) override {
    return pass({"allocate_scratch", CallKind::kAllocate, bytes, stream},
                [&] { return inner_->allocate_scratch(bytes, stream); });
  }
  Status free_scratch(void* address, uint64_t bytes, Stream stream) override {
    return pass({"free_scratch", CallKind::kEnd, bytes, stream},
                [&] { return inner_->free_scratch(address, bytes, stream); });
  }
  Result<MemoryPlace> memory_place(const void* address) override {
    return pass({"memory_place", CallKind::kOther}, [&] { return inner_->memory_place(address); });
  }
  Status trim() override {
    return pass({"trim", CallKind::kOther}, [&] { return inner_->trim(); });
  }
  Status copy(const Copy& what) override {
    return pass({name_of(what), CallKind::kCopy, what.bytes, what.stream},
                [&] { return inner_->copy(what); });
  }
  Status fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
              Stream stream) override {
    return pass({"fill", CallKind::kLaunch, bytes, stream},
                [&] { return inner_->fill(target, bytes, pattern, pattern_bytes, stream); });
  }
  Status run(const Call& call, const std::function<Status(Backend&)>& work) override {
    return pass(call, [&] { return inner_->run(call, work); });
  }
  Modules* modules() override { return inner_->modules(); }
  Result<Stream> stream_create(int32_t priority) override {
    return pass({"stream_create", CallKind::kOther},
                [&] { return inner_->stream_create(priority); });
  }
  Status stream_destroy(Stream stream) override {
    return pass({"stream_destroy", CallKind::kEnd, 0, stream},
                [&] { return inner_->stream_destroy(stream); });
  }
  Result<Stream> stream_borrow(void* native) override {
    return pass({"stream_borrow", CallKind::kOther}, [&] { return inner_->stream_borrow(native); });
  }
  void* native_stream(Stream stream) override { return inner_->native_stream(stream); }
  Result<Event> event_create() override {
    return pass({"event_create", CallKind::kOther}, [&] { return inner_->event_create(); });
  }
  Status event_destroy(Event event) override {
    return pass({"event_destroy", CallKind::kEnd}, [&] { return inner_->event_destroy(event); });
  }
  Status event_record(Event event, Stream stream) override {
    return pass({"event_record", CallKind::kOther, 0, stream},
                [&] { return inner_->event_record(event, stream); });
  }
  Status stream_wait(Stream stream, Event event) override {
    return pass({"stream_wait", CallKind::kOther, 0, stream},
                [&] { return inner_->stream_wait(stream, event); });
  }
  Status event_synchronize(Event event) override {
    return pass({"event_synchronize", CallKind::kWait},
                [&] { return inner_->event_synchronize(event); });
  }
  Result<bool> event_done(Event event) override {
    return pass({"event_done", CallKind::kOther}, [&] { return inner_->event_done(event); });
  }
  Result<double> event_elapsed_ms(Event start, Event end) override {
    return pass({"event_elapsed_ms", CallKind::kOther},
                [&] { return inner_->event_elapsed_ms(start, end); });
  }
  Status synchronize(Stream stream) override {
    return pass({"synchronize", CallKind::kWait, 0, stream},
                [&] { return inner_->synchronize(stream); });
  }
  Status synchronize() override {
    return pass({"synchronize", CallKind::kWait}, [&] { return inner_->synchronize(); });
  }
  Status fault() const override { return inner_->fault(); }

 protected:
  // A failure is the call's answer; the inner backend is not asked then.
  virtual Status before(const Call&) { return {}; }
  virtual void after(const Call&, const Status&) {}

 private:
  template <class Body>
  auto pass(Call call, Body&& body) -> decltype(body()) {
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
  static const char* name_of(const Copy& copy) {
    if (copy.direction == Copy::Direction::kOnDevice) return "copy_on_device";
    if (copy.direction == Copy::Direction::kToDevice)
      return copy.is_queued ? "copy_to_device_async" : "copy_to_device";
    return copy.is_queued ? "copy_to_host_async" : "copy_to_host";
  }

  std::shared_ptr<Backend> inner_;
};

}  // namespace wcuda
