// Which device code this program holds for the device it runs on. The architectures of a build may
// be older than the device; the driver then compiles their PTX for it.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

// The capability (major * 10 + minor) that launches may rely on, by the device's and by that of its
// code. Code older than 90 has no clusters and no dependent launches on any device; it is launched
// as on a device of its generation with no more shared memory than this one.
constexpr int32_t usable_capability(int32_t device, int32_t code) {
  if (device < 90 || code >= 90) return device;
  return device < 120 ? 80 : 86;
}

// usable_capability of the current device; 0 when there is no code for it.
int32_t launch_capability();

// Whether the code for the current device, of capability 9.0, was compiled for sm_90a, which wgmma
// needs. Asks the kernels of attention_prefill_warpgroup.cu.
bool has_warpgroup_code();

}  // namespace wcuda::kernels
