// Which device code this program holds for the device it runs on: the architectures of a build may
// be older than the device, whose driver then translates what was made for them.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

// What launches may count on (major * 10 + minor), by the device's capability and that which its
// code was made for. Code from before 90 has no clusters and no dependent launches, wherever it
// runs, and must not be launched with them; it is launched as on a device of its time that has no
// more shared memory than this one.
constexpr int32_t usable_capability(int32_t device, int32_t code) {
  if (device < 90 || code >= 90) return device;
  return device < 120 ? 80 : 86;
}

// usable_capability of the current device; 0 when there is no code for it.
int32_t launch_capability();

// Whether the code for the current device, which is of capability 9.0, has its tensor-core groups
// (sm_90a). The kernels of attention_prefill_warpgroup.cu, which need them, tell.
bool has_warpgroup_code();

}  // namespace wcuda::kernels
