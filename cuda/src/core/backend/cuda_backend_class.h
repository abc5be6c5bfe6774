// The CUDA backend's class, which two files implement: memory, copies and digests
// (cuda_backend.cpp), and what is queued: streams, events, graphs, modules and kernels
// (cuda_queue.cpp).
#pragma once

#include <map>
#include <mutex>

#include "core/backend/cuda_device.h"
#include "core/backend/cuda_module.h"
#include "core/backend/nvml.h"

namespace wcuda {

class CudaBackend final : public Backend {
 public:
  static Result<std::shared_ptr<Backend>> open(int32_t ordinal);
  ~CudaBackend() override;

  const wcuda_device_caps& caps() const override { return caps_; }
  int32_t launch_capability() const override { return launch_capability_; }
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

  Status queue(Stream stream, const std::function<Status()>& work) override;
  Result<Graph> graph_capture(Stream stream, const std::function<Status()>& work) override;
  Status graph_launch(Graph graph, Stream stream) override;
  Status graph_destroy(Graph graph) override;
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
  DeviceHealth health() override { return nvml_.health(); }

 private:
  // A stream, event or graph stays alive while a call uses it, whoever destroys it meanwhile.
  using StreamPtr = std::shared_ptr<CUstream_st>;
  using EventPtr = std::shared_ptr<CUevent_st>;
  using GraphPtr = std::shared_ptr<CUgraphExec_st>;

  CudaBackend(int device, CUcontext context, const wcuda_device_caps& caps)
      : device_(device), context_(context), caps_(caps), nvml_(caps.pci_bus_id) {}
  Status prepare();
  Status check(cudaError_t error, const char* call) const {
    return check_cuda(error, call, device_);
  }
  Status copy(void* target, const void* source, uint64_t bytes, cudaMemcpyKind kind, Stream stream);
  Result<StreamPtr> make_stream(int32_t priority);
  Result<EventPtr> make_event(unsigned flags);
  Result<StreamPtr> find_stream(Stream stream);
  Result<EventPtr> find_event(Event event);
  Result<GraphPtr> find_graph(Graph graph);
  // A kernel keeps the module it is of alive while a call uses it.
  struct LoadedKernel {
    std::shared_ptr<CudaModule> module;
    uint64_t module_id;
    cudaKernel_t kernel;
  };
  Result<std::shared_ptr<CudaModule>> find_module(Module module);
  Result<LoadedKernel> find_kernel(Kernel kernel);
  Result<void*> allocate_device(uint64_t bytes);
  Result<void*> allocate_pinned(uint64_t bytes);

  const int device_;  // CUDA's ordinal
  const CUcontext context_;
  const wcuda_device_caps caps_;
  int32_t launch_capability_ = 0;
  const NvmlDevice nvml_;
  cudaMemPool_t pool_ = nullptr;
  StreamPtr main_stream_, memory_stream_;
  void* digest_scratch_ = nullptr;  // not in the ledger: part of what a context costs, as its code
  std::mutex digest_mutex_;         // one digest at a time uses the scratch
  EventPtr order_event_;            // orders frees after streams
  std::mutex order_mutex_;

  std::mutex mutex_;  // guards what follows
  uint64_t last_id_ = 0;
  std::map<uint64_t, StreamPtr> streams_;
  std::map<uint64_t, EventPtr> events_;
  std::map<uint64_t, GraphPtr> graphs_;
  std::map<uint64_t, std::shared_ptr<CudaModule>> modules_;
  std::map<uint64_t, LoadedKernel> kernels_;
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
