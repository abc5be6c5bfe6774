// Modules through the runtime's libraries (cudaLibrary…), which are loaded in every context of the
// device they are used on; the handles of their kernels serve every call that takes a function.
#include "core/backend/cuda_module.h"

#include <cinttypes>
#include <cstdint>

#include "core/backend/cuda_backend_class.h"

namespace wcuda {
namespace {

constexpr size_t kLinkLogBytes = 4096;
constexpr size_t kNamesShown = 8;
constexpr size_t kEndedModulesMax = 64;

const void* function_of(cudaKernel_t kernel) { return reinterpret_cast<const void*>(kernel); }

std::string first_line(const char* text) {
  const std::string all(text);
  return all.substr(0, all.find('\n'));
}

// What loading answers: the code is to blame, or the device.
Status check_load(cudaError_t error, const char* log, int device) {
  if (error == cudaSuccess) return {};
  Code code = WCUDA_OK;
  switch (error) {
    case cudaErrorInvalidPtx:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidSource:
    case cudaErrorInvalidValue:
      code = WCUDA_MALFORMED;
      break;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSharedObjectSymbolNotFound:
      code = WCUDA_UNSUPPORTED;
      break;
    case cudaErrorJitCompilerNotFound:
      code = WCUDA_NOT_AVAILABLE;
      break;
    default:
      return check_cuda(error, "loading a module", device);
  }
  (void)cudaGetLastError();
  const std::string line = first_line(log);
  return Status::native_error(code, error, "module: %s (%s)%s%s", cudaGetErrorString(error),
                              cudaGetErrorName(error), line.empty() ? "" : ": ", line.c_str());
}

const char* name_of(cudaKernel_t kernel) {
  const char* name = nullptr;
  if (cudaFuncGetName(&name, function_of(kernel)) == cudaSuccess && name) return name;
  (void)cudaGetLastError();
  return "";
}

}  // namespace

Result<std::shared_ptr<CudaModule>> CudaModule::load(const void* code, int device) {
  char log[kLinkLogBytes] = "";
  cudaJitOption options[] = {cudaJitErrorLogBuffer, cudaJitErrorLogBufferSizeBytes};
  void* values[] = {log, reinterpret_cast<void*>(uintptr_t{sizeof(log)})};
  cudaLibrary_t library = nullptr;
  WCUDA_TRY(check_load(cudaLibraryLoadData(&library, code, options, values, 2, nullptr, nullptr, 0),
                       log, device));
  std::shared_ptr<CudaModule> module(new CudaModule(library, device));
  // A driver that loads lazily finds out what is wrong with the code when it is first used.
  WCUDA_ASSIGN(const auto kernels, module->kernels());
  cudaFuncAttributes attributes{};
  if (kernels.empty()) {
    void* address = nullptr;
    size_t bytes = 0;
    const cudaError_t error = cudaLibraryGetGlobal(&address, &bytes, library, "no such name");
    if (error != cudaErrorSymbolNotFound) WCUDA_TRY(check_load(error, log, device));
    (void)cudaGetLastError();
  }
  for (const cudaKernel_t kernel : kernels)
    WCUDA_TRY(check_load(cudaFuncGetAttributes(&attributes, function_of(kernel)), log, device));
  return module;
}

Status CudaModule::wait(Backend& backend) const {
  const uint64_t id = stream_;
  if (id == kAnyStream) return backend.synchronize();
  // A stream that is no more has been waited for.
  if (id == kNoStream || (id != 0 && !backend.native_stream({id}))) return {};
  return backend.synchronize(Stream{id});
}

CudaModule::~CudaModule() {
  if (cudaLibraryUnload(library_) != cudaSuccess) (void)cudaGetLastError();
}

Result<std::vector<cudaKernel_t>> CudaModule::kernels() const {
  unsigned count = 0;
  WCUDA_TRY(check_load(cudaLibraryGetKernelCount(&count, library_), "", device_));
  std::vector<cudaKernel_t> kernels(count);
  if (count != 0)
    WCUDA_TRY(
        check_load(cudaLibraryEnumerateKernels(kernels.data(), count, library_), "", device_));
  return kernels;
}

Result<cudaKernel_t> CudaModule::find(const std::string& name) const {
  cudaKernel_t kernel = nullptr;
  const cudaError_t error = cudaLibraryGetKernel(&kernel, library_, name.c_str());
  if (error == cudaSuccess) return cudaKernel_t(kernel);
  if (error != cudaErrorSymbolNotFound && error != cudaErrorInvalidDeviceFunction)
    return check_cuda(error, "cudaLibraryGetKernel", device_);
  (void)cudaGetLastError();
  WCUDA_ASSIGN(const auto all, kernels());
  std::string names;
  for (size_t i = 0; i < all.size() && i < kNamesShown; ++i)
    names += (i ? ", " : "") + std::string(name_of(all[i]));
  if (all.size() > kNamesShown) names += ", …";
  return Status::error(WCUDA_NOT_FOUND, "kernel '%s': the module has %zu: %s", name.c_str(),
                       all.size(), names.c_str());
}

Result<std::pair<void*, uint64_t>> CudaModule::global(const std::string& name) const {
  void* address = nullptr;
  size_t bytes = 0;
  const cudaError_t error = cudaLibraryGetGlobal(&address, &bytes, library_, name.c_str());
  if (error == cudaErrorSymbolNotFound || error == cudaErrorInvalidSymbol) {
    (void)cudaGetLastError();
    return Status::error(WCUDA_NOT_FOUND, "global '%s': is not in the module", name.c_str());
  }
  WCUDA_TRY(check_cuda(error, "cudaLibraryGetGlobal", device_));
  return std::pair<void*, uint64_t>(address, bytes);
}

namespace {

// `shared_bytes_max`: what a block may have, static and dynamic, after opting in.
Result<KernelAttributes> attributes_of(cudaKernel_t kernel, uint64_t shared_bytes_max, int device) {
  cudaFuncAttributes from{};
  WCUDA_TRY(check_cuda(cudaFuncGetAttributes(&from, function_of(kernel)), "cudaFuncGetAttributes",
                       device));
  KernelAttributes to;
  to.name = name_of(kernel);
  to.max_threads_per_block = static_cast<uint32_t>(from.maxThreadsPerBlock);
  to.register_count = static_cast<uint32_t>(from.numRegs);
  to.static_shared_bytes = from.sharedSizeBytes;
  to.dynamic_shared_bytes_max =
      shared_bytes_max > from.sharedSizeBytes ? shared_bytes_max - from.sharedSizeBytes : 0;
  to.local_bytes = from.localSizeBytes;
  to.constant_bytes = from.constSizeBytes;
  to.required_cluster[0] = static_cast<uint32_t>(from.requiredClusterWidth);
  to.required_cluster[1] = static_cast<uint32_t>(from.requiredClusterHeight);
  to.required_cluster[2] = static_cast<uint32_t>(from.requiredClusterDepth);
  to.ptx_version = from.ptxVersion;
  to.binary_version = from.binaryVersion;
  for (size_t index = 0;; ++index) {
    size_t offset = 0, bytes = 0;
    const cudaError_t error = cudaFuncGetParamInfo(function_of(kernel), index, &offset, &bytes);
    if (error == cudaErrorInvalidValue) {  // past the last one
      (void)cudaGetLastError();
      return to;
    }
    WCUDA_TRY(check_cuda(error, "cudaFuncGetParamInfo", device));
    to.parameters.push_back({offset, bytes});
  }
}

// Lets launches of the kernel have all the shared memory there is: more than 48 KiB must be asked
// for. It costs nothing, for each launch says what it uses.
Status allow_shared(cudaKernel_t kernel, uint64_t shared_bytes_max, int device) {
  WCUDA_ASSIGN(const KernelAttributes attributes, attributes_of(kernel, shared_bytes_max, device));
  if (attributes.dynamic_shared_bytes_max == 0) return {};
  return check_cuda(cudaKernelSetAttributeForDevice(
                        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        static_cast<int>(attributes.dynamic_shared_bytes_max), device),
                    "cudaFuncAttributeMaxDynamicSharedMemorySize", device);
}

// A launch in clusters, or one whose blocks wait for each other.
cudaLaunchConfig_t config_of(const LaunchDims& dims, dim3 grid, dim3 block, cudaStream_t stream,
                             cudaLaunchAttribute attributes[2]) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = dims.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (dims.cluster[0] != 0) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = dims.cluster[0];
    attribute.val.clusterDim.y = dims.cluster[1];
    attribute.val.clusterDim.z = dims.cluster[2];
  }
  if (dims.is_cooperative) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  return config;
}

}  // namespace

void CudaModules::clear() {
  kernels_.remove_if([](const LoadedKernel&) { return true; });
  modules_.remove_if([](const std::shared_ptr<CudaModule>&) { return true; });
  ended_.clear();
}

uint64_t CudaModules::shared_bytes_max() const {
  return backend_.caps().shared_memory_per_block_optin;
}

void CudaModules::unload_ended() {
  std::vector<std::shared_ptr<CudaModule>> gone;  // unloaded without the lock
  const std::lock_guard<std::mutex> lock(ended_mutex_);
  if (ended_.size() > kEndedModulesMax || (!ended_.empty() && backend_.is_idle()))
    gone.swap(ended_);
}

Result<Module> CudaModules::load(const void* code, uint64_t) {
  unload_ended();
  WCUDA_ASSIGN(auto module, CudaModule::load(code, device_));
  return modules_.add(std::move(module));
}

Status CudaModules::unload(Module module) {
  WCUDA_ASSIGN(const auto found, modules_.find(module));
  if (backend_.fault().ok()) WCUDA_TRY(found->wait(backend_));
  kernels_.remove_if([&](const LoadedKernel& kernel) { return kernel.module == found; });
  WCUDA_ASSIGN(auto ended, modules_.take(module));
  {
    const std::lock_guard<std::mutex> lock(ended_mutex_);
    ended_.push_back(std::move(ended));
  }
  unload_ended();
  return {};
}

Result<std::pair<void*, uint64_t>> CudaModules::global(Module module, const std::string& name) {
  WCUDA_ASSIGN(const auto found, modules_.find(module));
  found->used_anywhere();
  return found->global(name);
}

Result<Kernel> CudaModules::find(Module module, const std::string& name) {
  WCUDA_ASSIGN(auto found, modules_.find(module));
  WCUDA_ASSIGN(const cudaKernel_t kernel, found->find(name));
  WCUDA_TRY(allow_shared(kernel, shared_bytes_max(), device_));
  return kernels_.add({std::move(found), kernel});
}

Result<KernelAttributes> CudaModules::attributes(Kernel kernel) {
  WCUDA_ASSIGN(const LoadedKernel found, kernels_.find(kernel));
  return attributes_of(found.kernel, shared_bytes_max(), device_);
}

Result<Occupancy> CudaModules::occupancy(Kernel kernel, uint32_t block_threads,
                                         uint64_t shared_bytes) {
  WCUDA_ASSIGN(const KernelAttributes known, attributes(kernel));
  WCUDA_ASSIGN(const LoadedKernel found, kernels_.find(kernel));
  const auto blocks_of = [&](uint32_t threads) -> Result<uint32_t> {
    int blocks = 0;
    WCUDA_TRY(
        check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                       &blocks, function_of(found.kernel), static_cast<int>(threads), shared_bytes),
                   "cudaOccupancyMaxActiveBlocksPerMultiprocessor", device_));
    return static_cast<uint32_t>(blocks);
  };
  Occupancy occupancy{0, 0};
  WCUDA_ASSIGN(occupancy.blocks_per_multiprocessor, blocks_of(block_threads));
  uint32_t most = 0;
  for (uint32_t threads = known.max_threads_per_block / 32 * 32; threads >= 32; threads -= 32) {
    WCUDA_ASSIGN(const uint32_t blocks, blocks_of(threads));
    if (blocks * threads <= most) continue;
    most = blocks * threads;
    occupancy.best_block_threads = threads;
  }
  return occupancy;
}

Status CudaModules::launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                           Stream stream) {
  WCUDA_ASSIGN(const LoadedKernel found, kernels_.find(kernel));
  found.module->used_on(stream);
  const void* const function = function_of(found.kernel);
  const auto on = static_cast<cudaStream_t>(backend_.native_stream(stream));
  const dim3 grid(dims.grid[0], dims.grid[1], dims.grid[2]);
  const dim3 block(dims.block[0], dims.block[1], dims.block[2]);
  auto** const values = const_cast<void**>(arguments);
  cudaError_t error = cudaSuccess;
  if (dims.cluster[0] == 0 && !dims.is_cooperative) {  // the shorter way
    error = cudaLaunchKernel(function, grid, block, values, dims.shared_bytes, on);
  } else {
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config = config_of(dims, grid, block, on, attributes);
    error = cudaLaunchKernelExC(&config, function, values);
  }
  if (error == cudaSuccess) return {};
  // A fault of earlier work may be reported here; that is no failure of this launch.
  const Status status = check_cuda(error, "cudaLaunchKernel", device_);
  if (status.code() == WCUDA_DEVICE_LOST) return status;
  return Status::native_error(WCUDA_LAUNCH_FAILED, error, "the launch of '%s' failed: %s (%s)",
                              name_of(found.kernel), cudaGetErrorString(error),
                              cudaGetErrorName(error));
}

}  // namespace wcuda
