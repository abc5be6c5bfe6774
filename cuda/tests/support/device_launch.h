// How tests launch kernels on the current device.
#pragma once

#include "kernels/linear.h"

namespace wcuda::testing {

// On the default stream; zeros where there is no device.
inline kernels::Launch device_launch() {
  int device = 0, major = 0, minor = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  kernels::Launch launch;
  launch.sm_count = processors;
  launch.compute_capability = major * 10 + minor;
  return launch;
}

}  // namespace wcuda::testing
