// The CUDA backend's streams and events.
#include <cinttypes>

#include "core/backend/cuda_backend_class.h"

namespace wcuda {
namespace {

Status unknown(const char* what, uint64_t id) {
  return Status::error(WCUDA_INVALID_HANDLE, "%s %" PRIu64 " is not one of this backend", what, id);
}

}  // namespace

Result<CudaBackend::StreamPtr> CudaBackend::make_stream(int32_t priority) {
  cudaStream_t stream = nullptr;
  WCUDA_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
  const CUcontext context = context_;
  return StreamPtr(stream, [context](cudaStream_t last) {
    const CurrentContext current(context);
    (void)cudaStreamDestroy(last);
    (void)cudaGetLastError();
  });
}

Result<CudaBackend::StreamPtr> CudaBackend::find_stream(Stream stream) {
  if (stream.id == 0) return StreamPtr(main_stream_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(stream.id);
  if (found == streams_.end()) return unknown("stream", stream.id);
  return StreamPtr(found->second);
}

std::shared_ptr<CudaBackend::DeviceEvents> CudaBackend::DeviceEvents::of(int device) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<DeviceEvents>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<DeviceEvents> events = all[device].lock();
  if (events == nullptr) all[device] = events = std::make_shared<DeviceEvents>();
  return events;
}

Result<CudaBackend::EventPtr> CudaBackend::find_event(Event event) {
  const std::lock_guard<std::mutex> lock(events_->mutex);
  const auto found = events_->events.find(event.id);
  if (found == events_->events.end()) return unknown("event", event.id);
  return EventPtr(found->second);
}

Result<Stream> CudaBackend::stream_create(int32_t priority) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(StreamPtr stream, make_stream(priority));
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.emplace(last_id_ + 1, std::move(stream));
  return Stream{++last_id_};
}

Status CudaBackend::stream_destroy(Stream stream) {
  WCUDA_ENTER_LOST_DEVICE();
  if (stream.id == 0) return unknown("stream", stream.id);
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.erase(stream.id);
  }
  return check(cudaStreamSynchronize(found.get()), "cudaStreamSynchronize");
}

void* CudaBackend::native_stream(Stream stream) {
  const auto found = find_stream(stream);
  return found.ok() ? found->get() : nullptr;
}

Result<Stream> CudaBackend::stream_borrow(void* native) {
  WCUDA_ENTER_DEVICE();
  const auto stream = static_cast<cudaStream_t>(native);
  WCUDA_TRY(check(cudaStreamQuery(stream), "cudaStreamQuery"));  // busy is fine
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.emplace(last_id_ + 1, StreamPtr(stream, [](cudaStream_t) {}));
  return Stream{++last_id_};
}

Result<CudaBackend::EventPtr> CudaBackend::make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  WCUDA_CUDA(cudaEventCreateWithFlags(&event, flags));
  const CUcontext context = context_;
  return EventPtr(event, [context](cudaEvent_t last) {
    const CurrentContext current(context);
    (void)cudaEventDestroy(last);
    (void)cudaGetLastError();
  });
}

Result<Event> CudaBackend::event_create() {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(EventPtr owned, make_event(cudaEventDefault));
  const std::lock_guard<std::mutex> lock(events_->mutex);
  events_->events.emplace(events_->last_id + 1, std::move(owned));
  return Event{++events_->last_id};
}

Status CudaBackend::event_destroy(Event event) {
  WCUDA_ASSIGN(const EventPtr found, find_event(event));  // destroyed when this goes
  const std::lock_guard<std::mutex> lock(events_->mutex);
  events_->events.erase(event.id);
  return {};
}

Status CudaBackend::event_record(Event event, Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr found, find_event(event));
  WCUDA_ASSIGN(const StreamPtr on, find_stream(stream));
  return check(cudaEventRecord(found.get(), on.get()), "cudaEventRecord");
}

Status CudaBackend::stream_wait(Stream stream, Event event) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr found, find_event(event));
  WCUDA_ASSIGN(const StreamPtr on, find_stream(stream));
  return check(cudaStreamWaitEvent(on.get(), found.get(), 0), "cudaStreamWaitEvent");
}

Status CudaBackend::event_synchronize(Event event) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr found, find_event(event));
  return check(cudaEventSynchronize(found.get()), "cudaEventSynchronize");
}

Result<bool> CudaBackend::event_done(Event event) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr found, find_event(event));
  const cudaError_t error = cudaEventQuery(found.get());
  WCUDA_TRY(check(error, "cudaEventQuery"));
  return error == cudaSuccess;
}

Result<double> CudaBackend::event_elapsed_ms(Event start, Event end) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr from, find_event(start));
  WCUDA_ASSIGN(const EventPtr to, find_event(end));
  float milliseconds = 0.0f;
  const cudaError_t error = cudaEventElapsedTime(&milliseconds, from.get(), to.get());
  if (error == cudaErrorNotReady || error == cudaErrorInvalidResourceHandle) {
    (void)cudaGetLastError();
    return Status::native_error(WCUDA_INVALID_STATE, error,
                                "an event that was never recorded or is not done has no time");
  }
  WCUDA_TRY(check(error, "cudaEventElapsedTime"));
  return double{milliseconds};
}

Status CudaBackend::synchronize(Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  return check(cudaStreamSynchronize(found.get()), "cudaStreamSynchronize");
}

Status CudaBackend::synchronize() {
  WCUDA_ENTER_DEVICE();
  std::vector<StreamPtr> streams{main_stream_, memory_stream_};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, stream] : streams_) streams.push_back(stream);
  }
  for (const StreamPtr& stream : streams)
    if (stream) WCUDA_CUDA(cudaStreamSynchronize(stream.get()));
  return {};
}

}  // namespace wcuda
