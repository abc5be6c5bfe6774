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

// Returns usable_capability of the current device; 0 if there is no code for it.
int32_t launch_capability();

// Returns whether the code for the current device, of capability 9.0, was compiled for sm_90a,
// which WGMMA needs. Determined from the kernels of attention_prefill_warpgroup.cu.
bool has_warpgroup_code();

}  // namespace wcuda::kernels
