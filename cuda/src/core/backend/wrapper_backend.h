// A backend around another one, with a say before and after each call; base of the trace and the
// fault backend.
#pragma once

#include "core/backend/backend.h"

namespace wcuda {

class WrapperBackend : public Backend {
 public:
  explicit WrapperBackend(std::shared_ptr<Backend> inner)
      : Backend(inner->description()), inner_(std::move(inner)) {}

  Result<MemoryInfo> memory_info() override;
  Result<void*> allocate(MemoryKind kind, uint64_t bytes) override;
  Status free(MemoryKind kind, void* address, uint64_t bytes) override;
  Status free_after(Stream stream) override;
  Result<void*> allocate_scratch(uint64_t bytes, Stream stream) override;
  Status free_scratch(void* address, uint64_t bytes, Stream stream) override;
  Result<MemoryPlace> memory_place(const void* address) override;
  Status trim() override;
  Status copy(const Copy& what) override;
  Status fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
              Stream stream) override;
  Status run(const Call& call, const std::function<Status(Backend&)>& work) override;
  Modules* modules() override { return inner_->modules(); }
  Result<Stream> stream_create(int32_t priority) override;
  Status stream_destroy(Stream stream) override;
  Result<Stream> stream_borrow(void* native) override;
  void* native_stream(Stream stream) override { return inner_->native_stream(stream); }
  Result<Event> event_create() override;
  Status event_destroy(Event event) override;
  Status event_record(Event event, Stream stream) override;
  Status stream_wait(Stream stream, Event event) override;
  Status event_synchronize(Event event) override;
  Result<bool> event_done(Event event) override;
  Result<double> event_elapsed_ms(Event start, Event end) override;
  Status synchronize(Stream stream) override;
  Status synchronize() override;
  Status fault() const override { return inner_->fault(); }

 protected:
  // A failure is the call's answer; the inner backend is not asked then.
  virtual Status before(const Call&) { return {}; }
  virtual void after(const Call&, const Status&) {}

 private:
  template <class Body>
  auto pass(Call call, Body&& body) -> decltype(body());

  std::shared_ptr<Backend> inner_;
};

}  // namespace wcuda
