// The CUDA backend's streams and events.
#include <algorithm>

#include "core/backend/cuda_backend_class.h"

namespace wcuda {

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
  return streams_.find(stream);
}

std::shared_ptr<CudaBackend::Events> CudaBackend::events_of(int device) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Events>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Events> events = all[device].lock();
  if (events == nullptr) all[device] = events = std::make_shared<Events>("event");
  return events;
}

Result<Stream> CudaBackend::stream_create(int32_t priority) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(StreamPtr stream, make_stream(priority));
  return streams_.add(std::move(stream));
}

Status CudaBackend::stream_destroy(Stream stream) {
  WCUDA_ENTER_LOST_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, streams_.take(stream));
  return check(cudaStreamSynchronize(found.get()), "cudaStreamSynchronize");
}

void* CudaBackend::native_stream(Stream stream) {
  const auto found = find_stream(stream);
  return found.ok() ? found->get() : nullptr;
}

bool CudaBackend::is_idle() const {
  if (!fault().ok()) return true;
  std::vector<StreamPtr> all = streams_.all();
  all.insert(all.end(), {main_stream_, memory_stream_});
  const bool is_idle = std::all_of(all.begin(), all.end(), [](const StreamPtr& stream) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
    return cudaStreamIsCapturing(stream.get(), &capture) == cudaSuccess &&
           capture == cudaStreamCaptureStatusNone && cudaStreamQuery(stream.get()) == cudaSuccess;
  });
  if (!is_idle) (void)cudaGetLastError();
  return is_idle;
}

Result<Stream> CudaBackend::stream_borrow(void* native) {
  WCUDA_ENTER_DEVICE();
  const auto stream = static_cast<cudaStream_t>(native);
  WCUDA_TRY(check(cudaStreamQuery(stream), "cudaStreamQuery"));  // busy is fine
  return streams_.add(StreamPtr(stream, [](cudaStream_t) {}));
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
  return events_->add(std::move(owned));
}

Status CudaBackend::event_destroy(Event event) { return events_->take(event).status(); }

Status CudaBackend::event_record(Event event, Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr found, events_->find(event));
  WCUDA_ASSIGN(const StreamPtr on, find_stream(stream));
  return check(cudaEventRecord(found.get(), on.get()), "cudaEventRecord");
}

Status CudaBackend::stream_wait(Stream stream, Event event) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr found, events_->find(event));
  WCUDA_ASSIGN(const StreamPtr on, find_stream(stream));
  return check(cudaStreamWaitEvent(on.get(), found.get(), 0), "cudaStreamWaitEvent");
}

Status CudaBackend::event_synchronize(Event event) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr found, events_->find(event));
  return check(cudaEventSynchronize(found.get()), "cudaEventSynchronize");
}

Result<bool> CudaBackend::event_done(Event event) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr found, events_->find(event));
  const cudaError_t error = cudaEventQuery(found.get());
  WCUDA_TRY(check(error, "cudaEventQuery"));
  return error == cudaSuccess;
}

Result<double> CudaBackend::event_elapsed_ms(Event start, Event end) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const EventPtr from, events_->find(start));
  WCUDA_ASSIGN(const EventPtr to, events_->find(end));
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
  std::vector<StreamPtr> streams = streams_.all();
  streams.insert(streams.begin(), {main_stream_, memory_stream_});
  for (const StreamPtr& stream : streams)
    if (stream) WCUDA_CUDA(cudaStreamSynchronize(stream.get()));
  return {};
}

}  // namespace wcuda
