// Forwarding, call by call.
#include "core/backend/wrapper_backend.h"

#include <chrono>

namespace wcuda {
namespace {

const Status& status_of(const Status& status) { return status; }
template <class T>
const Status& status_of(const Result<T>& result) {
  return result.status();
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

Status WrapperBackend::copy_to_device(void* target, const void* source, uint64_t bytes) {
  return pass({"copy_to_device", CallKind::kCopy, bytes},
              [&] { return inner_->copy_to_device(target, source, bytes); });
}

Status WrapperBackend::copy_to_host(void* target, const void* source, uint64_t bytes) {
  return pass({"copy_to_host", CallKind::kCopy, bytes},
              [&] { return inner_->copy_to_host(target, source, bytes); });
}

Status WrapperBackend::copy_to_device_async(void* target, const void* source, uint64_t bytes,
                                            Stream stream) {
  return pass({"copy_to_device_async", CallKind::kCopy, bytes, stream},
              [&] { return inner_->copy_to_device_async(target, source, bytes, stream); });
}

Status WrapperBackend::copy_to_host_async(void* target, const void* source, uint64_t bytes,
                                          Stream stream) {
  return pass({"copy_to_host_async", CallKind::kCopy, bytes, stream},
              [&] { return inner_->copy_to_host_async(target, source, bytes, stream); });
}

Status WrapperBackend::copy_on_device(void* target, const void* source, uint64_t bytes,
                                      Stream stream) {
  return pass({"copy_on_device", CallKind::kCopy, bytes, stream},
              [&] { return inner_->copy_on_device(target, source, bytes, stream); });
}

Status WrapperBackend::fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
                            Stream stream) {
  return pass({"fill", CallKind::kLaunch, bytes, stream},
              [&] { return inner_->fill(target, bytes, pattern, pattern_bytes, stream); });
}

Status WrapperBackend::digest(const void* data, uint64_t bytes, uint8_t result[32]) {
  return pass({"digest", CallKind::kLaunch, bytes},
              [&] { return inner_->digest(data, bytes, result); });
}

Status WrapperBackend::digest_pieces(const void* data, uint64_t bytes, uint64_t first_piece,
                                     uint8_t* pieces) {
  return pass({"digest_pieces", CallKind::kLaunch, bytes},
              [&] { return inner_->digest_pieces(data, bytes, first_piece, pieces); });
}

Status WrapperBackend::digest_async(const void* data, uint64_t bytes, void* result, void* scratch,
                                    Stream stream) {
  return pass({"digest_async", CallKind::kLaunch, bytes, stream},
              [&] { return inner_->digest_async(data, bytes, result, scratch, stream); });
}

Status WrapperBackend::place(const Placement& placement, Stream stream) {
  return pass({"place", CallKind::kLaunch, 0, stream},
              [&] { return inner_->place(placement, stream); });
}

Result<Module> WrapperBackend::module_load(const void* code, uint64_t bytes) {
  return pass({"module_load", CallKind::kAllocate, bytes},
              [&] { return inner_->module_load(code, bytes); });
}

Status WrapperBackend::module_unload(Module module) {
  return pass({"module_unload", CallKind::kEnd}, [&] { return inner_->module_unload(module); });
}

Result<std::pair<void*, uint64_t>> WrapperBackend::module_global(Module module,
                                                                 const std::string& name) {
  return pass({"module_global", CallKind::kOther},
              [&] { return inner_->module_global(module, name); });
}

Result<Kernel> WrapperBackend::kernel_find(Module module, const std::string& name) {
  return pass({"kernel_find", CallKind::kOther}, [&] { return inner_->kernel_find(module, name); });
}

Result<KernelAttributes> WrapperBackend::kernel_attributes(Kernel kernel) {
  return pass({"kernel_attributes", CallKind::kOther},
              [&] { return inner_->kernel_attributes(kernel); });
}

Result<Occupancy> WrapperBackend::kernel_occupancy(Kernel kernel, uint32_t block_threads,
                                                   uint64_t shared_bytes) {
  return pass({"kernel_occupancy", CallKind::kOther},
              [&] { return inner_->kernel_occupancy(kernel, block_threads, shared_bytes); });
}

Status WrapperBackend::kernel_launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                                     Stream stream) {
  return pass({"kernel_launch", CallKind::kLaunch, 0, stream},
              [&] { return inner_->kernel_launch(kernel, dims, arguments, stream); });
}

Status WrapperBackend::host_launch(Stream stream, const std::function<Status()>& work) {
  return pass({"host_launch", CallKind::kLaunch, 0, stream},
              [&] { return inner_->host_launch(stream, work); });
}

Status WrapperBackend::compile(uint64_t source_bytes, const std::function<Status()>& work) {
  return pass({"compile_kernel", CallKind::kCompile, source_bytes},
              [&] { return inner_->compile(source_bytes, work); });
}

// Part of a compile that has been told already.
Result<Kernel> WrapperBackend::source_compile(const std::string& source, const std::string& entry) {
  return inner_->source_compile(source, entry);
}

Status WrapperBackend::source_launch(Kernel kernel, const LaunchDims& dims,
                                     const std::vector<wcuda_host_argument>& arguments,
                                     Stream stream) {
  return pass({"kernel_launch", CallKind::kLaunch, 0, stream},
              [&] { return inner_->source_launch(kernel, dims, arguments, stream); });
}

Status WrapperBackend::source_destroy(Kernel kernel) {
  return pass({"destroy_kernel", CallKind::kEnd}, [&] { return inner_->source_destroy(kernel); });
}

Status WrapperBackend::queue(Stream stream, const std::function<Status()>& work) {
  return pass({"queue", CallKind::kLaunch, 0, stream}, [&] { return inner_->queue(stream, work); });
}

Result<Graph> WrapperBackend::graph_capture(Stream stream, const std::function<Status()>& work) {
  return pass({"graph_capture", CallKind::kOther, 0, stream},
              [&] { return inner_->graph_capture(stream, work); });
}

Status WrapperBackend::graph_launch(Graph graph, Stream stream) {
  return pass({"graph_launch", CallKind::kLaunch, 0, stream},
              [&] { return inner_->graph_launch(graph, stream); });
}

Status WrapperBackend::graph_destroy(Graph graph) {
  return pass({"graph_destroy", CallKind::kEnd}, [&] { return inner_->graph_destroy(graph); });
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
