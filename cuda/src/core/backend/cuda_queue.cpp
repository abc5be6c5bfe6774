// What the CUDA backend queues: streams, events, graphs, modules and kernels.
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

Result<CudaBackend::EventPtr> CudaBackend::find_event(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = events_.find(event.id);
  if (found == events_.end()) return unknown("event", event.id);
  return EventPtr(found->second);
}

Result<CudaBackend::GraphPtr> CudaBackend::find_graph(Graph graph) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = graphs_.find(graph.id);
  if (found == graphs_.end()) return unknown("graph", graph.id);
  return GraphPtr(found->second);
}

Result<std::shared_ptr<CudaModule>> CudaBackend::find_module(Module module) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = modules_.find(module.id);
  if (found == modules_.end()) return unknown("module", module.id);
  return std::shared_ptr<CudaModule>(found->second);
}

Result<CudaBackend::LoadedKernel> CudaBackend::find_kernel(Kernel kernel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = kernels_.find(kernel.id);
  if (found == kernels_.end()) return unknown("kernel", kernel.id);
  return LoadedKernel(found->second);
}

Result<Module> CudaBackend::module_load(const void* code, uint64_t) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(auto module, CudaModule::load(code, device_));
  const std::lock_guard<std::mutex> lock(mutex_);
  modules_.emplace(last_id_ + 1, std::move(module));
  return Module{++last_id_};
}

Status CudaBackend::module_unload(Module module) {
  WCUDA_ENTER_LOST_DEVICE();
  WCUDA_ASSIGN(const auto found, find_module(module));  // unloaded when this goes
  if (fault().ok()) WCUDA_TRY(synchronize());
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = kernels_.begin(); it != kernels_.end();)
    it = it->second.module_id == module.id ? kernels_.erase(it) : std::next(it);
  modules_.erase(module.id);
  return {};
}

Result<std::pair<void*, uint64_t>> CudaBackend::module_global(Module module,
                                                              const std::string& name) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const auto found, find_module(module));
  return found->global(name);
}

Result<Kernel> CudaBackend::kernel_find(Module module, const std::string& name) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(auto found, find_module(module));
  WCUDA_ASSIGN(const cudaKernel_t kernel, found->find(name));
  WCUDA_TRY(cuda_kernel_allow_shared(kernel, caps_.shared_memory_per_block_optin, device_));
  const std::lock_guard<std::mutex> lock(mutex_);
  kernels_.emplace(last_id_ + 1, LoadedKernel{std::move(found), module.id, kernel});
  return Kernel{++last_id_};
}

Result<KernelAttributes> CudaBackend::kernel_attributes(Kernel kernel) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const LoadedKernel found, find_kernel(kernel));
  return cuda_kernel_attributes(found.kernel, caps_.shared_memory_per_block_optin, device_);
}

Result<Occupancy> CudaBackend::kernel_occupancy(Kernel kernel, uint32_t block_threads,
                                                uint64_t shared_bytes) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const KernelAttributes attributes, kernel_attributes(kernel));
  WCUDA_ASSIGN(const LoadedKernel found, find_kernel(kernel));
  return cuda_kernel_occupancy(found.kernel, block_threads, shared_bytes,
                               attributes.max_threads_per_block, device_);
}

Status CudaBackend::kernel_launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                                  Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const LoadedKernel found, find_kernel(kernel));
  WCUDA_ASSIGN(const StreamPtr on, find_stream(stream));
  return cuda_kernel_launch(found.kernel, dims, arguments, on.get(), device_);
}

Status CudaBackend::queue(Stream stream, const std::function<Status()>& work) {
  WCUDA_ENTER_DEVICE();
  WCUDA_TRY(find_stream(stream).status());
  return work();
}

Result<Graph> CudaBackend::graph_capture(Stream stream, const std::function<Status()>& work) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr on, find_stream(stream));
  // Thread-local: what other threads do meanwhile neither joins nor breaks the capture.
  WCUDA_CUDA(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeThreadLocal));
  const Status recorded = work();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(on.get(), &graph);
  const std::unique_ptr<CUgraph_st, void (*)(cudaGraph_t)> owned(
      graph, [](cudaGraph_t last) { (void)cudaGraphDestroy(last); });
  if (!recorded.ok()) {
    (void)cudaGetLastError();
    return recorded;
  }
  WCUDA_TRY(check(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t exec = nullptr;
  WCUDA_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  const CUcontext context = context_;
  GraphPtr ready(exec, [context](cudaGraphExec_t last) {
    const CurrentContext current(context);
    (void)cudaGraphExecDestroy(last);
    (void)cudaGetLastError();
  });
  WCUDA_CUDA(cudaGraphUpload(exec, on.get()));
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_.emplace(last_id_ + 1, std::move(ready));
  return Graph{++last_id_};
}

Status CudaBackend::graph_launch(Graph graph, Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const GraphPtr found, find_graph(graph));
  WCUDA_ASSIGN(const StreamPtr on, find_stream(stream));
  return check(cudaGraphLaunch(found.get(), on.get()), "cudaGraphLaunch");
}

Status CudaBackend::graph_destroy(Graph graph) {
  WCUDA_ASSIGN(const GraphPtr found, find_graph(graph));  // destroyed when this goes
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_.erase(graph.id);
  return {};
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
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.emplace(last_id_ + 1, std::move(owned));
  return Event{++last_id_};
}

Status CudaBackend::event_destroy(Event event) {
  WCUDA_ASSIGN(const EventPtr found, find_event(event));  // destroyed when this goes
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.erase(event.id);
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
