// How tests launch kernels on the current device.
#pragma once

#include "kernels/ptx/code.h"
#include "kernels/ptx/launch.h"

namespace wcuda::testing {

// On the default stream; zeros where there is no device.
inline kernels::Launch device_launch() {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  kernels::Launch launch;
  launch.sm_count = processors;
  launch.compute_capability = kernels::launch_capability();
  return launch;
}

}  // namespace wcuda::testing
