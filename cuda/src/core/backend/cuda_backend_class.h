// The CUDA backend's class, which two files implement: memory and copies (cuda_backend.cpp),
// streams and events (cuda_queue.cpp).
#pragma once

#include <mutex>

#include "core/backend/cuda_device.h"
#include "core/backend/cuda_module.h"
#include "core/backend/handle_table.h"

namespace wcuda {

class CudaBackend final : public Backend {
 public:
  static Result<std::shared_ptr<Backend>> open(int32_t ordinal);
  ~CudaBackend() override;

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
  Modules* modules() override { return &modules_; }

  Result<Stream> stream_create(int32_t priority) override;
  Status stream_destroy(Stream stream) override;
  void* native_stream(Stream stream) override;
  Result<Stream> stream_borrow(void* native) override;
  Result<Event> event_create() override;
  Status event_destroy(Event event) override;
  Status event_record(Event event, Stream stream) override;
  Status stream_wait(Stream stream, Event event) override;
  Status event_synchronize(Event event) override;
  Result<bool> event_done(Event event) override;
  Result<double> event_elapsed_ms(Event start, Event end) override;
  Status synchronize(Stream stream) override;
  Status synchronize() override;
  Status fault() const override { return cuda_fault(device_); }
  // No stream of this backend has work; the device's context is current.
  bool is_idle() const;

 private:
  // A stream or event stays alive while a call uses it, whoever destroys it meanwhile.
  using StreamPtr = std::shared_ptr<CUstream_st>;
  using EventPtr = std::shared_ptr<CUevent_st>;
  // Of all backends of a device, whose work may wait for each other's.
  using Events = HandleTable<Event, EventPtr>;
  static std::shared_ptr<Events> events_of(int device);

  CudaBackend(int device, CUcontext context, const wcuda_device_caps& caps)
      : Backend({caps, 0, 0}), device_(device), context_(context), modules_(*this, device) {}
  Status prepare();
  Status check(cudaError_t error, const char* call) const {
    return check_cuda(error, call, device_);
  }
  Result<StreamPtr> make_stream(int32_t priority);
  Result<EventPtr> make_event(unsigned flags);
  Result<StreamPtr> find_stream(Stream stream);
  Result<void*> allocate_device(uint64_t bytes);
  Result<void*> allocate_pinned(uint64_t bytes);

  const int device_;  // CUDA's ordinal
  const CUcontext context_;
  CudaModules modules_;
  cudaMemPool_t pool_ = nullptr;
  StreamPtr main_stream_, memory_stream_;
  EventPtr order_event_;  // orders frees after streams
  std::mutex order_mutex_;
  std::shared_ptr<Events> events_ = events_of(device_);
  HandleTable<Stream, StreamPtr> streams_{"stream"};
};

// Every call begins so: the device works, and its context is current until the scope ends.
#define WCUDA_ENTER_DEVICE()               \
  WCUDA_TRY(fault());                      \
  const CurrentContext current_(context_); \
  WCUDA_TRY(current_.status())
// The same for calls that end something, which are legal on a lost device.
#define WCUDA_ENTER_LOST_DEVICE()          \
  const CurrentContext current_(context_); \
  WCUDA_TRY(current_.status())
#define WCUDA_CUDA(call) WCUDA_TRY(check((call), #call))

}  // namespace wcuda
