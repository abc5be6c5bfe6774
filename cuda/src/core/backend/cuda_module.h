// Device code loaded on one device, and what the driver knows of its kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/backend/handle_table.h"

namespace wcuda {

class CudaBackend;

// A loaded library; unloaded with the object, which needs the device's context current, and no work
// of its kernels in flight. Any thread.
class CudaModule {
 public:
  // The device's context is current, as for all that follows. `device`: CUDA's ordinal.
  static Result<std::shared_ptr<CudaModule>> load(const void* code, int device);
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  Result<cudaKernel_t> find(const std::string& name) const;
  Result<std::pair<void*, uint64_t>> global(const std::string& name) const;

  // Work of the module is queued on the stream; with its variables, perhaps on any.
  void used_on(Stream stream) {
    uint64_t known = kNoStream;
    if (!stream_.compare_exchange_strong(known, stream.id) && known != stream.id)
      stream_ = kAnyStream;
  }
  void used_anywhere() { stream_ = kAnyStream; }
  // Waits for that work, and for no other where it was on one stream.
  Status wait(Backend& backend) const;

 private:
  static constexpr uint64_t kNoStream = UINT64_MAX, kAnyStream = UINT64_MAX - 1;

  CudaModule(cudaLibrary_t library, int device) : library_(library), device_(device) {}
  Result<std::vector<cudaKernel_t>> kernels() const;

  const cudaLibrary_t library_;
  const int device_;
  std::atomic<uint64_t> stream_{kNoStream};
};

// The modules of a backend, in Backend::run.
class CudaModules final : public Modules {
 public:
  CudaModules(CudaBackend& backend, int device) : backend_(backend), device_(device) {}
  void clear();

  Result<Module> load(const void* code, uint64_t bytes) override;
  Status unload(Module module) override;
  Result<std::pair<void*, uint64_t>> global(Module module, const std::string& name) override;
  Result<Kernel> find(Module module, const std::string& name) override;
  Result<KernelAttributes> attributes(Kernel kernel) override;
  Result<Occupancy> occupancy(Kernel kernel, uint32_t block_threads,
                              uint64_t shared_bytes) override;
  Status launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                Stream stream) override;

 private:
  // A kernel keeps the module it is of alive while a call uses it.
  struct LoadedKernel {
    std::shared_ptr<CudaModule> module;
    cudaKernel_t kernel;
  };
  uint64_t shared_bytes_max() const;
  // The driver's unload waits for all work of the context: an ended module is kept until there is
  // none, or until there are many.
  void unload_ended();

  CudaBackend& backend_;
  const int device_;
  HandleTable<Module, std::shared_ptr<CudaModule>> modules_{"module"};
  HandleTable<Kernel, LoadedKernel> kernels_{"kernel"};
  std::mutex ended_mutex_;
  std::vector<std::shared_ptr<CudaModule>> ended_;
};

}  // namespace wcuda
