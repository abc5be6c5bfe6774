// Discovery, caps, the fault latch, and the few driver functions, taken from the driver at run
// time.
#include "core/backend/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "core/backend/device_limits.h"
#include "core/base/text.h"

namespace wcuda {
namespace {

std::atomic<int> fault_codes[kCudaDevicesMax];  // cudaError_t; 0: none

struct Driver {
  CUresult (*context_get)(CUcontext* context);
  CUresult (*context_set)(CUcontext context);
  CUresult (*primary_retain)(CUcontext* context, CUdevice device);
  CUresult (*primary_release)(CUdevice device);
};

template <class Function>
Status find_driver_function(const char* name, Function** function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, kCudaDriverVersionMin,
                                                             cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return Status::native_error(WCUDA_NO_DEVICE, error, "no CUDA device: the driver has no %s",
                                name);
  }
  *function = reinterpret_cast<Function*>(address);
  return {};
}

const Result<Driver>& driver() {
  static const Result<Driver> instance = []() -> Result<Driver> {
    Driver functions{};
    WCUDA_TRY(find_driver_function("cuCtxGetCurrent", &functions.context_get));
    WCUDA_TRY(find_driver_function("cuCtxSetCurrent", &functions.context_set));
    WCUDA_TRY(find_driver_function("cuDevicePrimaryCtxRetain", &functions.primary_retain));
    WCUDA_TRY(find_driver_function("cuDevicePrimaryCtxRelease", &functions.primary_release));
    return functions;
  }();
  return instance;
}

Status no_device(cudaError_t error, const char* why) {
  (void)cudaGetLastError();
  return Status::native_error(WCUDA_NO_DEVICE, error, "no CUDA device: %s", why);
}

Status check_driver_version() {
  int version = 0;
  const cudaError_t error = cudaDriverGetVersion(&version);
  if (error != cudaSuccess || version == 0) return no_device(error, "no driver");
  if (version < kCudaDriverVersionMin)
    return Status::error(WCUDA_NO_DEVICE, "no CUDA device: driver %d.%d, needs %d.%d",
                         version / 1000, version % 1000 / 10, kCudaDriverVersionMin / 1000,
                         kCudaDriverVersionMin % 1000 / 10);
  return {};
}

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, name, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return value;
}

void set_features(wcuda_device_caps& caps, int device) {
  set_capability_features(&caps);
  caps.supports_cooperative_groups &= attribute(cudaDevAttrCooperativeLaunch, device);
  caps.supports_unified_addressing = attribute(cudaDevAttrUnifiedAddressing, device);
  caps.supports_managed_memory = attribute(cudaDevAttrManagedMemory, device);
  caps.supports_concurrent_managed_access = attribute(cudaDevAttrConcurrentManagedAccess, device);
  caps.is_integrated = attribute(cudaDevAttrIntegrated, device);
  caps.ecc_enabled = attribute(cudaDevAttrEccEnabled, device);
  // Not unified addressing, which every 64-bit device has and which shares no memory.
  caps.unified_memory = caps.supports_managed_memory || caps.is_integrated;
}

}  // namespace

Result<std::vector<int>> usable_cuda_devices() {
  WCUDA_TRY(check_driver_version());
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
    return no_device(error, "the driver lists none");
  if (error != cudaSuccess) return no_device(error, cudaGetErrorString(error));
  WCUDA_TRY(driver().status());
  std::vector<int> usable;
  int best = 0;
  for (int device = 0; device < std::min(count, kCudaDevicesMax); ++device) {
    const int capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                           attribute(cudaDevAttrComputeCapabilityMinor, device);
    best = std::max(best, capability);
    if (capability >= kComputeCapabilityMin) usable.push_back(device);
  }
  if (usable.empty())
    return Status::error(WCUDA_NO_DEVICE, "no CUDA device: compute capability %d.%d, needs %d.%d",
                         best / 10, best % 10, kComputeCapabilityMin / 10,
                         kComputeCapabilityMin % 10);
  return usable;
}

Result<int> cuda_ordinal(int32_t ordinal) {
  WCUDA_ASSIGN(const std::vector<int> usable, usable_cuda_devices());
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= usable.size())
    return Status::error(WCUDA_NO_DEVICE, "no CUDA device: ordinal %d of %zu", ordinal,
                         usable.size());
  return usable[static_cast<size_t>(ordinal)];
}

Result<wcuda_device_caps> query_cuda_caps(int32_t ordinal, int device) {
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return Status::native_error(WCUDA_DEVICE_ERROR, error, "cudaGetDeviceProperties: %s",
                                cudaGetErrorString(error));
  }
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  caps.backend = WCUDA_BACKEND_CUDA;
  caps.ordinal = ordinal;
  caps.name_bytes = copy_text(properties.name, caps.name, sizeof(caps.name));
  static_assert(sizeof(properties.uuid.bytes) == sizeof(caps.uuid));
  std::memcpy(caps.uuid, properties.uuid.bytes, sizeof(caps.uuid));
  std::snprintf(caps.pci_bus_id, sizeof(caps.pci_bus_id), "%04x:%02x:%02x.0",
                static_cast<unsigned>(properties.pciDomainID) & 0xffff,
                static_cast<unsigned>(properties.pciBusID) & 0xff,
                static_cast<unsigned>(properties.pciDeviceID) & 0xff);
  caps.total_memory = properties.totalGlobalMem;
  caps.compute_capability_major = properties.major;
  caps.compute_capability_minor = properties.minor;
  (void)cudaDriverGetVersion(&caps.driver_version);
  (void)cudaRuntimeGetVersion(&caps.runtime_version);
  caps.multiprocessor_count = properties.multiProcessorCount;
  caps.warp_size = properties.warpSize;
  caps.max_threads_per_block = properties.maxThreadsPerBlock;
  caps.max_threads_per_multiprocessor = properties.maxThreadsPerMultiProcessor;
  std::copy_n(properties.maxThreadsDim, 3, caps.max_block_dims);
  std::copy_n(properties.maxGridSize, 3, caps.max_grid_dims);
  caps.shared_memory_per_block = properties.sharedMemPerBlock;
  caps.shared_memory_per_block_optin = properties.sharedMemPerBlockOptin;
  caps.shared_memory_per_multiprocessor = properties.sharedMemPerMultiprocessor;
  caps.registers_per_block = properties.regsPerBlock;
  caps.l2_cache_bytes = properties.l2CacheSize;
  caps.memory_clock_khz = attribute(cudaDevAttrMemoryClockRate, device);
  caps.memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
  caps.memory_bandwidth = uint64_t{2} * static_cast<uint64_t>(caps.memory_clock_khz) * 1000 *
                          static_cast<uint64_t>(caps.memory_bus_bits) / 8;
  caps.async_engine_count = properties.asyncEngineCount;
  set_features(caps, device);
  caps.architecture_name_bytes = copy_text(device_architecture(properties.major, properties.minor),
                                           caps.architecture_name, sizeof(caps.architecture_name));
  return caps;
}

Status cuda_fault(int device) {
  const int code = fault_codes[device].load(std::memory_order_acquire);
  if (code == 0) return {};
  const auto error = static_cast<cudaError_t>(code);
  return Status::native_error(WCUDA_DEVICE_LOST, code,
                              "device lost: %s (%s); only destroy is legal now",
                              cudaGetErrorString(error), cudaGetErrorName(error));
}

Status check_cuda(cudaError_t error, const char* call, int device) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  if (error == cudaErrorNotReady) return {};
  if (error == cudaErrorMemoryAllocation)
    return Status::native_error(WCUDA_OUT_OF_MEMORY, error, "%s: the device is full", call);
  // A sticky error answers every call, this harmless one too.
  size_t free_bytes = 0, total_bytes = 0;
  const cudaError_t again = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (again != cudaSuccess && again != cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    int none = 0;
    fault_codes[device].compare_exchange_strong(none, error);
    return cuda_fault(device);
  }
  return Status::native_error(WCUDA_DEVICE_ERROR, error, "%s: %s (%s)", call,
                              cudaGetErrorString(error), cudaGetErrorName(error));
}

CurrentContext::CurrentContext(CUcontext context) {
  const Driver& functions = *driver();  // a context exists, so its functions were found
  result_ = functions.context_get(&previous_);
  if (result_ != CUDA_SUCCESS || previous_ == context) return;
  result_ = functions.context_set(context);
  changed_ = result_ == CUDA_SUCCESS;
}

CurrentContext::~CurrentContext() {
  if (changed_) (void)(*driver()).context_set(previous_);
}

Status CurrentContext::status() const {
  if (result_ == CUDA_SUCCESS) return {};
  return Status::native_error(WCUDA_DEVICE_ERROR, result_, "cuCtxSetCurrent returned %d", result_);
}

Result<CUcontext> retain_primary_context(int device) {
  WCUDA_TRY(driver().status());
  CUcontext context = nullptr;
  const CUresult result = (*driver()).primary_retain(&context, device);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return Status::native_error(WCUDA_OUT_OF_MEMORY, result,
                                "cuDevicePrimaryCtxRetain: the device is full");
  if (result != CUDA_SUCCESS)
    return Status::native_error(WCUDA_DEVICE_ERROR, result, "cuDevicePrimaryCtxRetain returned %d",
                                result);
  return context;
}

void release_primary_context(int device) { (void)(*driver()).primary_release(device); }

}  // namespace wcuda
