// The architecture of the device code that this program has for the current device. The
// architectures of a build may be older than the device; the driver then compiles their PTX.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

// Returns the capability (major * 10 + minor) that launches may rely on, given the device's and
// that of the code. Code older than 90 uses neither clusters nor dependent launches on any device;
// it is launched as on a device of its generation that has no more shared memory than this one.
constexpr int32_t usable_capability(int32_t device, int32_t code) {
  if (device < 90 || code >= 90) return device;
  return device < 120 ? 80 : 86;
}

// Returns whether an error of the CUDA runtime means that the program has no code for the device.
// Other errors, for example cudaErrorMemoryAllocation on a full device, leave that open.
constexpr bool means_no_code(int32_t error) {
  return error == 98       // cudaErrorInvalidDeviceFunction
         || error == 209   // cudaErrorNoKernelImageForDevice
         || error == 221   // cudaErrorJitCompilerNotFound
         || error == 222   // cudaErrorUnsupportedPtxVersion
         || error == 223;  // cudaErrorJitCompilationDisabled
}

// Returns usable_capability of the current device; 0 if there is no code for it or the driver
// fails. *error, if it is given, receives the error of the CUDA runtime in the latter case,
// otherwise 0.
int32_t launch_capability(int32_t* error = nullptr);

// Returns whether the code for the current device, of capability 9.0, was compiled for sm_90a,
// which WGMMA needs. Determined from the kernels of attention_prefill_warpgroup.cu. *error as in
// launch_capability; after an error, the next call asks the driver again.
bool has_warpgroup_code(int32_t* error = nullptr);

}  // namespace wcuda::kernels
