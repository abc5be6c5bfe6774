// The CUDA backend.
//
// Device memory comes from a pool of the backend's own (cudaMallocFromPoolAsync), not from
// cudaMalloc: a free is queued after the work that uses the block instead of waiting for the whole
// device, and the pools of the host program stay as they are. All allocations and frees go through
// one stream.
#include "core/backend/cuda_backend.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <vector>

#include "core/backend/cuda_backend_class.h"
#include "core/backend/device_limits.h"
#include "core/backend/nvml.h"
#include "core/base/checked.h"
#include "kernels/memory/fill.h"
#include "kernels/ptx/code.h"

namespace wcuda {
namespace {

// What the pool keeps for reuse at most; the rest goes back to the driver at the next
// synchronization.
constexpr uint64_t kPoolKeepBytes = uint64_t{64} << 20;
constexpr uint64_t kPageBytes = 4096;

}  // namespace

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
  // A device that fails here, for example because it is full, must not be taken for one without
  // code: the host would take its place.
  int32_t error = cudaSuccess;
  description_.launch_capability = kernels::launch_capability(&error);
  WCUDA_TRY(check(static_cast<cudaError_t>(error), "cudaFuncGetAttributes"));
  if (launch_capability() == 0)
    return Status::error(
        WCUDA_NO_DEVICE, "no CUDA device: this build has no code for '%s' (capability %d.%d)",
        caps().name, caps().compute_capability_major, caps().compute_capability_minor);
  (void)nvml_health(caps().pci_bus_id);       // opened now: the first report is as fast as others
  (void)kernels::has_warpgroup_code(&error);  // asked while the device is current, and kept
  WCUDA_TRY(check(static_cast<cudaError_t>(error), "cudaFuncGetAttributes"));
  WCUDA_ASSIGN(main_stream_, make_stream(0));
  WCUDA_ASSIGN(memory_stream_, make_stream(0));
  WCUDA_ASSIGN(order_event_, make_event(cudaEventDisableTiming));
  int has_pools = 0;
  WCUDA_CUDA(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device_));
  if (!has_pools)
    return Status::error(WCUDA_NO_DEVICE, "no CUDA device: '%s' has no memory pools", caps().name);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;  // in place on the device: never moved
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device_;
  WCUDA_CUDA(cudaMemPoolCreate(&pool_, &properties));
  uint64_t keep = kPoolKeepBytes;
  return check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
               "cudaMemPoolSetAttribute");
}

CudaBackend::~CudaBackend() {
  {
    const CurrentContext current(context_);
    (void)synchronize();
    modules_.clear();
    streams_.remove_if([](const StreamPtr&) { return true; });
    events_.reset();
    if (memory_stream_) (void)cudaStreamSynchronize(memory_stream_.get());
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
  if (bytes <= caps().total_memory) {
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

Status CudaBackend::copy(const Copy& what) {
  WCUDA_ENTER_DEVICE();
  WCUDA_ASSIGN(const StreamPtr found, find_stream(what.stream));
  constexpr cudaMemcpyKind kKinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                       cudaMemcpyDeviceToDevice};
  static_assert(static_cast<int>(Copy::Direction::kOnDevice) == 2);
  if (what.bytes != 0)
    WCUDA_CUDA(cudaMemcpyAsync(what.target, what.source, what.bytes,
                               kKinds[static_cast<int>(what.direction)], found.get()));
  return what.is_queued ? Status() : synchronize(what.stream);
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

Status CudaBackend::run(const Call& call, const std::function<Status(Backend&)>& work) {
  if (call.kind != CallKind::kEnd) WCUDA_TRY(fault());
  WCUDA_ENTER_LOST_DEVICE();
  WCUDA_TRY(find_stream(call.stream).status());
  return work(*this);
}

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
