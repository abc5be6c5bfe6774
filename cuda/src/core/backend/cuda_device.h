// CUDA devices: which are usable, what they can do, whether they are lost, and being current.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "core/base/status.h"

namespace wcuda {

// Oldest driver that is used; for devices see device_limits.h.
constexpr int kCudaDriverVersionMin = 13000;
constexpr int kCudaDevicesMax = 256;

// CUDA's ordinals of the usable devices: index = ordinal of this library. WCUDA_NO_DEVICE "no CUDA
// device: …" when there is none. Creates no context.
Result<std::vector<int>> usable_cuda_devices();
// The CUDA ordinal behind one of ours.
Result<int> cuda_ordinal(int32_t ordinal);
Result<wcuda_device_caps> query_cuda_caps(int32_t ordinal, int cuda_ordinal);

// The latch of a device's fault, by CUDA ordinal: process-wide, set once, never cleared.
Status cuda_fault(int cuda_ordinal);

// Turns an answer of the runtime into a Status: success and "not ready" are ok, memory is
// WCUDA_OUT_OF_MEMORY, a sticky error latches the fault, the rest is WCUDA_DEVICE_ERROR. Takes the
// error out of the runtime's last-error slot. The device's context is current.
Status check_cuda(cudaError_t error, const char* call, int cuda_ordinal);

// Makes a context current for a scope and restores what was, "none" too. Through the driver:
// cudaSetDevice would create a context on the device it restores.
class CurrentContext {
 public:
  explicit CurrentContext(CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  Status status() const;

 private:
  CUcontext previous_ = nullptr;
  bool changed_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

// The device's primary context, retained until given back.
Result<CUcontext> retain_primary_context(int cuda_ordinal);
void release_primary_context(int cuda_ordinal);

}  // namespace wcuda
