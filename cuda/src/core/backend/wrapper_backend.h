// A backend around another one, with a say before and after each call; base of the trace and the
// fault backend.
#pragma once

#include "core/backend/backend.h"

namespace wcuda {

enum class CallKind {
  kAllocate,
  kCopy,
  kLaunch,  // fill, digests, launch, queue, graph_launch
  kCompile,
  kWait,   // synchronize and its like
  kOther,  // asks, records, creates
  kEnd,    // free and destroy: legal on a lost device
};

struct Call {
  const char* name;  // of the Backend function; static text
  CallKind kind;
  uint64_t bytes = 0;
  Stream stream{};
  uint64_t ns = 0;  // after the call: how long it took
};

class WrapperBackend : public Backend {
 public:
  explicit WrapperBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  const wcuda_device_caps& caps() const override { return inner_->caps(); }
  int32_t launch_capability() const override { return inner_->launch_capability(); }
  uint32_t host_thread_count() const override { return inner_->host_thread_count(); }
  Result<MemoryInfo> memory_info() override;
  Result<void*> allocate(MemoryKind kind, uint64_t bytes) override;
  Status free(MemoryKind kind, void* address, uint64_t bytes) override;
  Status free_after(Stream stream) override;
  Result<void*> allocate_scratch(uint64_t bytes, Stream stream) override;
  Status free_scratch(void* address, uint64_t bytes, Stream stream) override;
  Result<MemoryPlace> memory_place(const void* address) override;
  Status trim() override;
  Status copy_to_device(void* target, const void* source, uint64_t bytes) override;
  Status copy_to_host(void* target, const void* source, uint64_t bytes) override;
  Status copy_to_device_async(void* target, const void* source, uint64_t bytes,
                              Stream stream) override;
  Status copy_to_host_async(void* target, const void* source, uint64_t bytes,
                            Stream stream) override;
  Status copy_on_device(void* target, const void* source, uint64_t bytes, Stream stream) override;
  Status fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
              Stream stream) override;
  Status digest(const void* data, uint64_t bytes, uint8_t result[32]) override;
  Status digest_pieces(const void* data, uint64_t bytes, uint64_t first_piece,
                       uint8_t* pieces) override;
  Status digest_async(const void* data, uint64_t bytes, void* result, void* scratch,
                      Stream stream) override;
  Status place(const Placement& placement, Stream stream) override;
  Result<Module> module_load(const void* code, uint64_t bytes) override;
  Status module_unload(Module module) override;
  Result<std::pair<void*, uint64_t>> module_global(Module module, const std::string& name) override;
  Result<Kernel> kernel_find(Module module, const std::string& name) override;
  Result<KernelAttributes> kernel_attributes(Kernel kernel) override;
  Result<Occupancy> kernel_occupancy(Kernel kernel, uint32_t block_threads,
                                     uint64_t shared_bytes) override;
  Status kernel_launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                       Stream stream) override;
  Status host_launch(Stream stream, const std::function<Status()>& work) override;
  Status compile(uint64_t source_bytes, const std::function<Status()>& work) override;
  Result<Kernel> source_compile(const std::string& source, const std::string& entry) override;
  Status source_launch(Kernel kernel, const LaunchDims& dims,
                       const std::vector<wcuda_host_argument>& arguments, Stream stream) override;
  Status source_destroy(Kernel kernel) override;
  Status queue(Stream stream, const std::function<Status()>& work) override;
  Result<Graph> graph_capture(Stream stream, const std::function<Status()>& work) override;
  Status graph_launch(Graph graph, Stream stream) override;
  Status graph_destroy(Graph graph) override;
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
  DeviceHealth health() override { return inner_->health(); }

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
