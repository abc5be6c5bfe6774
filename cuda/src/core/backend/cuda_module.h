// Device code loaded on one device, and what the driver knows of its kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "core/backend/backend.h"

namespace wcuda {

// A loaded library; unloaded with the object, which needs the device's context current, and no work
// of its kernels in flight. Immutable: any thread.
class CudaModule {
 public:
  // The device's context is current, as for all that follows. `device`: CUDA's ordinal.
  static Result<std::shared_ptr<CudaModule>> load(const void* code, int device);
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  Result<cudaKernel_t> find(const std::string& name) const;
  Result<std::pair<void*, uint64_t>> global(const std::string& name) const;

 private:
  CudaModule(cudaLibrary_t library, int device) : library_(library), device_(device) {}
  Result<std::vector<cudaKernel_t>> kernels() const;

  const cudaLibrary_t library_;
  const int device_;
};

// `shared_bytes_max`: what a block may have, static and dynamic, after opting in.
Result<KernelAttributes> cuda_kernel_attributes(cudaKernel_t kernel, uint64_t shared_bytes_max,
                                                int device);
Result<Occupancy> cuda_kernel_occupancy(cudaKernel_t kernel, uint32_t block_threads,
                                        uint64_t shared_bytes, uint32_t max_threads, int device);
// Lets launches of the kernel have all the shared memory there is: more than 48 KiB must be asked
// for. It costs nothing, for each launch says what it uses.
Status cuda_kernel_allow_shared(cudaKernel_t kernel, uint64_t shared_bytes_max, int device);
Status cuda_kernel_launch(cudaKernel_t kernel, const LaunchDims& dims, void* const* arguments,
                          cudaStream_t stream, int device);

}  // namespace wcuda
