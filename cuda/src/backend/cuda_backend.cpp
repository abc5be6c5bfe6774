// The CUDA backend.
//
// Device memory comes from a pool of the backend's own (cudaMallocFromPoolAsync), not from
// cudaMalloc: a free is queued after the work that uses the block instead of waiting for the whole
// device, and the pools of the host program stay as they are. All allocations and frees go through
// one stream.
#include "backend/cuda_backend.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "backend/cuda_device.h"
#include "backend/cuda_module.h"
#include "backend/device_limits.h"
#include "backend/nvml.h"
#include "base/blake3.h"
#include "base/checked.h"
#include "base/log.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/repack.h"

namespace wcuda {
namespace {

// What the pool keeps for reuse at most; the rest goes back to the driver at the next
// synchronization.
constexpr uint64_t kPoolKeepBytes = uint64_t{64} << 20;
constexpr uint64_t kPageBytes = 4096;

class CudaBackend final : public Backend {
 public:
  static Result<std::shared_ptr<Backend>> open(int32_t ordinal);
  ~CudaBackend() override;

  const wcuda_device_caps& caps() const override { return caps_; }
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

Status unknown(const char* what, uint64_t id) {
  return Status::error(WCUDA_INVALID_HANDLE, "%s %" PRIu64 " is not one of this backend", what, id);
}

Status too_long_to_digest(uint64_t bytes) {
  return Status::error(WCUDA_OUT_OF_RANGE, "digest of %" PRIu64 " bytes, at most %" PRIu64, bytes,
                       kernels::kDigestBytesMax);
}

Result<std::shared_ptr<Backend>> CudaBackend::open(int32_t ordinal) {
  WCUDA_ASSIGN(const int device, cuda_ordinal(ordinal));
  WCUDA_TRY(cuda_fault(device));
  WCUDA_ASSIGN(const wcuda_device_caps caps, query_cuda_caps(ordinal, device));
  WCUDA_TRY(check_device_limits(caps));
  WCUDA_ASSIGN(const CUcontext context, retain_primary_context(device));
  std::shared_ptr<CudaBackend> backend;
  try {
    backend.reset(new CudaBackend(device, context, caps));
  } catch (...) {
    release_primary_context(device);
    throw;
  }
  WCUDA_TRY(backend->prepare());
  return std::shared_ptr<Backend>(backend);
}

Status CudaBackend::prepare() {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(main_stream_, make_stream(0));
  WCUDA_ASSIGN(memory_stream_, make_stream(0));
  WCUDA_ASSIGN(order_event_, make_event(cudaEventDisableTiming));
  int has_pools = 0;
  WCUDA_CUDA(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device_));
  if (!has_pools)
    return Status::error(WCUDA_NO_DEVICE, "no CUDA device: '%s' has no memory pools", caps_.name);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;  // in place on the device: never moved
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device_;
  WCUDA_CUDA(cudaMemPoolCreate(&pool_, &properties));
  uint64_t keep = kPoolKeepBytes;
  WCUDA_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
  return check(cudaMalloc(&digest_scratch_, kernels::kDigestScratchBytes), "cudaMalloc");
}

CudaBackend::~CudaBackend() {
  {
    const CurrentContext current(context_);
    (void)synchronize();
    graphs_.clear();
    kernels_.clear();
    modules_.clear();
    streams_.clear();
    events_.clear();
    if (memory_stream_) (void)cudaStreamSynchronize(memory_stream_.get());
    if (digest_scratch_) (void)cudaFree(digest_scratch_);
    if (pool_) (void)cudaMemPoolDestroy(pool_);
    order_event_.reset();
    main_stream_.reset();
    memory_stream_.reset();
    (void)cudaGetLastError();
  }
  release_primary_context(device_);
}

Result<MemoryInfo> CudaBackend::memory_info() {
  WCUDA_ENTER_DEVICE();
  size_t free_bytes = 0, total_bytes = 0;
  WCUDA_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  uint64_t reserved = 0, used = 0;
  WCUDA_CUDA(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
  WCUDA_CUDA(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used));
  const uint64_t kept = reserved > used ? reserved - used : 0;
  return MemoryInfo{free_bytes + kept, total_bytes, reserved, used};
}

Result<void*> CudaBackend::allocate(MemoryKind kind, uint64_t bytes) {
  WCUDA_CHECK(bytes > 0);
  WCUDA_ENTER_DEVICE();
  return kind == MemoryKind::kDevice ? allocate_device(bytes) : allocate_pinned(bytes);
}

Result<void*> CudaBackend::allocate_device(uint64_t bytes) {
  void* address = nullptr;
  const cudaStream_t stream = memory_stream_.get();
  cudaError_t error = cudaErrorMemoryAllocation;  // more than there is need not be asked for
  if (bytes <= caps_.total_memory) {
    error = cudaMallocFromPoolAsync(&address, bytes, pool_, stream);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      WCUDA_CUDA(cudaStreamSynchronize(stream));  // frees that are queued
      WCUDA_CUDA(cudaMemPoolTrimTo(pool_, 0));
      error = cudaMallocFromPoolAsync(&address, bytes, pool_, stream);
    }
  }
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    WCUDA_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    return Status::native_error(WCUDA_OUT_OF_MEMORY, error, "the device has %zu of %zu bytes free",
                                free_bytes, total_bytes);
  }
  WCUDA_TRY(check(error, "cudaMallocFromPoolAsync"));
  // After this any stream may use it. The stream has seldom anything left to do, and asking it
  // costs less than waiting for it.
  if (cudaStreamQuery(stream) == cudaSuccess) return address;
  (void)cudaGetLastError();
  const Status ready = check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  if (!ready.ok()) {
    (void)cudaFreeAsync(address, stream);
    return ready;
  }
  return address;
}

Result<void*> CudaBackend::allocate_pinned(uint64_t bytes) {
  uint64_t rounded = 0;
  void* address = nullptr;
  cudaError_t error = cudaErrorMemoryAllocation;
  if (checked_align_up(bytes, kPageBytes, &rounded) && rounded < (uint64_t{1} << 60))
    error = cudaHostAlloc(&address, rounded, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return Status::native_error(WCUDA_OUT_OF_HOST_MEMORY, error,
                                "the driver refused %" PRIu64 " bytes of pinned memory", bytes);
  }
  WCUDA_TRY(check(error, "cudaHostAlloc"));
  std::memset(address, 0, bytes);
  return address;
}

Status CudaBackend::free(MemoryKind kind, void* address, uint64_t) {
  WCUDA_ENTER_LOST_DEVICE();
  if (kind == MemoryKind::kPinned) return check(cudaFreeHost(address), "cudaFreeHost");
  return check(cudaFreeAsync(address, memory_stream_.get()), "cudaFreeAsync");
}

Status CudaBackend::free_after(Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  const cudaError_t state = cudaStreamQuery(found.get());
  if (state == cudaSuccess) return {};  // nothing to wait for
  WCUDA_TRY(check(state, "cudaStreamQuery"));
  // One event serves all: a wait is for what was recorded when it was queued.
  const std::lock_guard<std::mutex> lock(order_mutex_);
  WCUDA_CUDA(cudaEventRecord(order_event_.get(), found.get()));
  return check(cudaStreamWaitEvent(memory_stream_.get(), order_event_.get(), 0),
               "cudaStreamWaitEvent");
}

Result<void*> CudaBackend::allocate_scratch(uint64_t bytes, Stream stream) {
  WCUDA_CHECK(bytes > 0);
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  void* address = nullptr;
  const cudaError_t error = cudaMallocFromPoolAsync(&address, bytes, pool_, found.get());
  if (error == cudaSuccess) return address;
  (void)cudaGetLastError();
  return allocate_device(bytes);  // which gives back what is kept, and says what is missing
}

Status CudaBackend::free_scratch(void* address, uint64_t, Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  return check(cudaFreeAsync(address, found.get()), "cudaFreeAsync");
}

Result<MemoryPlace> CudaBackend::memory_place(const void* address) {
  WCUDA_ENTER_DEVICE();
  cudaPointerAttributes attributes{};
  WCUDA_CUDA(cudaPointerGetAttributes(&attributes, address));
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
      if (attributes.hostPointer) return MemoryPlace::kMapped;
      return attributes.device == device_ ? MemoryPlace::kDevice : MemoryPlace::kOtherDevice;
    case cudaMemoryTypeManaged:
      return MemoryPlace::kManaged;
    case cudaMemoryTypeHost: {
      unsigned flags = 0;
      const cudaError_t error = cudaHostGetFlags(&flags, const_cast<void*>(address));
      if (error != cudaSuccess) (void)cudaGetLastError();
      const bool is_mapped = error == cudaSuccess && (flags & cudaHostAllocMapped) != 0;
      return is_mapped ? MemoryPlace::kMapped : MemoryPlace::kPinned;
    }
    default:
      return MemoryPlace::kHost;
  }
}

Status CudaBackend::trim() {
  WCUDA_ENTER_DEVICE();
  WCUDA_CUDA(cudaStreamSynchronize(memory_stream_.get()));
  return check(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo");
}

Status CudaBackend::copy(void* target, const void* source, uint64_t bytes, cudaMemcpyKind kind,
                         Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  if (bytes == 0) return {};
  return check(cudaMemcpyAsync(target, source, bytes, kind, found.get()), "cudaMemcpyAsync");
}

Status CudaBackend::copy_to_device(void* target, const void* source, uint64_t bytes) {
  WCUDA_TRY(copy(target, source, bytes, cudaMemcpyHostToDevice, Stream{}));
  return synchronize(Stream{});
}

Status CudaBackend::copy_to_host(void* target, const void* source, uint64_t bytes) {
  WCUDA_TRY(copy(target, source, bytes, cudaMemcpyDeviceToHost, Stream{}));
  return synchronize(Stream{});
}

Status CudaBackend::copy_to_device_async(void* target, const void* source, uint64_t bytes,
                                         Stream stream) {
  return copy(target, source, bytes, cudaMemcpyHostToDevice, stream);
}

Status CudaBackend::copy_to_host_async(void* target, const void* source, uint64_t bytes,
                                       Stream stream) {
  return copy(target, source, bytes, cudaMemcpyDeviceToHost, stream);
}

Status CudaBackend::copy_on_device(void* target, const void* source, uint64_t bytes,
                                   Stream stream) {
  return copy(target, source, bytes, cudaMemcpyDeviceToDevice, stream);
}

Status CudaBackend::fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
                         Stream stream) {
  WCUDA_CHECK(pattern_bytes == 1 || pattern_bytes == 2 || pattern_bytes == 4 || pattern_bytes == 8);
  WCUDA_CHECK(bytes % pattern_bytes == 0);
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  for (uint32_t width = pattern_bytes; width < 8; width *= 2) {
    const uint64_t low = pattern & ((uint64_t{1} << (8 * width)) - 1);
    pattern = low | low << (8 * width);
  }
  return check(kernels::fill(target, bytes, pattern, found.get()), "fill");
}

Status CudaBackend::digest(const void* data, uint64_t bytes, uint8_t result[32]) {
  if (bytes > kernels::kDigestBytesMax) return too_long_to_digest(bytes);
  WCUDA_ENTER_DEVICE();
  const std::lock_guard<std::mutex> lock(digest_mutex_);
  const cudaStream_t stream = main_stream_.get();
  WCUDA_TRY(
      check(kernels::digest(data, bytes, digest_scratch_, digest_scratch_, stream), "digest"));
  uint8_t digest[32];
  WCUDA_CUDA(cudaMemcpyAsync(digest, digest_scratch_, 32, cudaMemcpyDeviceToHost, stream));
  WCUDA_CUDA(cudaStreamSynchronize(stream));
  std::memcpy(result, digest, 32);
  return {};
}

Status CudaBackend::digest_pieces(const void* data, uint64_t bytes, uint64_t first_piece,
                                  uint8_t* pieces) {
  WCUDA_CHECK(bytes > 0);
  WCUDA_ENTER_DEVICE();
  const std::lock_guard<std::mutex> lock(digest_mutex_);
  const cudaStream_t stream = main_stream_.get();
  // All of a range's chaining values, so that a failure leaves the caller's memory as it was.
  std::vector<uint8_t> chains(blake3::piece_count(bytes) * blake3::kDigestBytes);
  for (uint64_t offset = 0; offset < bytes; offset += kernels::kDigestPiecesBytesMax) {
    const uint64_t take = std::min(bytes - offset, kernels::kDigestPiecesBytesMax);
    const uint64_t piece = offset / blake3::kPieceBytes;
    WCUDA_TRY(
        check(kernels::digest_pieces(static_cast<const uint8_t*>(data) + offset, take,
                                     first_piece + piece, digest_scratch_, digest_scratch_, stream),
              "digest_pieces"));
    WCUDA_CUDA(cudaMemcpyAsync(chains.data() + piece * blake3::kDigestBytes, digest_scratch_,
                               blake3::piece_count(take) * blake3::kDigestBytes,
                               cudaMemcpyDeviceToHost, stream));
  }
  WCUDA_CUDA(cudaStreamSynchronize(stream));
  std::memcpy(pieces, chains.data(), chains.size());
  return {};
}

Status CudaBackend::digest_async(const void* data, uint64_t bytes, void* result, void* scratch,
                                 Stream stream) {
  static_assert(kDigestScratchBytes >= kernels::kDigestScratchBytes);
  if (bytes > kernels::kDigestBytesMax) return too_long_to_digest(bytes);
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  return check(kernels::digest(data, bytes, result, scratch, found.get()), "digest");
}

Status CudaBackend::place(const Placement& placement, Stream stream) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(stream));
  const auto* const source = static_cast<const uint8_t*>(placement.source);
  const cudaError_t error =
      placement.is_vector
          ? kernels::expand_vector(placement.type, placement.rows, source,
                                   static_cast<float*>(placement.target), found.get())
          : kernels::repack(placement.type, placement.rows, placement.cols, 0, placement.rows,
                            source, static_cast<uint8_t*>(placement.target), found.get());
  if (error == cudaErrorInvalidValue)
    return Status::error(WCUDA_INVALID_ARGUMENT,
                         "no order on the device for tensor type %u, %u rows of %u", placement.type,
                         placement.rows, placement.cols);
  return check(error, "repack");
}

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

}  // namespace

Result<int32_t> cuda_device_count() {
  WCUDA_ASSIGN(const std::vector<int> usable, usable_cuda_devices());
  return static_cast<int32_t>(usable.size());
}

Result<wcuda_device_caps> cuda_device_caps(int32_t ordinal) {
  WCUDA_ASSIGN(const int device, cuda_ordinal(ordinal));
  return query_cuda_caps(ordinal, device);
}

Result<std::shared_ptr<Backend>> open_cuda_backend(int32_t ordinal) {
  return CudaBackend::open(ordinal);
}

}  // namespace wcuda
