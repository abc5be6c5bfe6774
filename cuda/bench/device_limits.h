// What a device can do at most: the rates that benches print shares of.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string_view>

#include "llm/ops/step_cost.h"

namespace wcuda::bench {

struct DeviceLimits {
  double read_bytes = 0;  // a second
  double flop = 0;        // a second, dense products of f16 and bf16; 0: not known
  double flop_f32 = 0;    // a second, products of f32 without tensor cores, by the attributes
};

// The measured rates of the table in step_cost.cpp, else the read rate of the device's attributes,
// which no kernel reaches.
inline DeviceLimits device_limits() {
  cudaDeviceProp properties{};
  int device = 0, clock_khz = 0, width_bits = 0, memory_clock_khz = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess)
    return {};
  cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device);
  const int lanes = properties.major == 8 && properties.minor == 0 ? 64 : 128;  // of an SM
  const double flop_f32 = 2.0 * clock_khz * 1e3 * lanes * properties.multiProcessorCount;
  const std::string_view name = properties.name;
  if (const ops::DeviceRates* const rates =
          ops::find_device_rates(name.substr(name.rfind(' ') + 1)))
    return {rates->bytes_per_second, rates->flops_per_second, flop_f32};
  cudaDeviceGetAttribute(&memory_clock_khz, cudaDevAttrMemoryClockRate, device);
  cudaDeviceGetAttribute(&width_bits, cudaDevAttrGlobalMemoryBusWidth, device);
  return {2.0 * memory_clock_khz * 1e3 * width_bits / 8, 0, flop_f32};
}

// "  1234 GB/s  56.7 %"; the share is left out where the limit is not known.
inline void print_bandwidth(double bytes, double seconds, const DeviceLimits& limits) {
  std::printf(" %6.0f GB/s", bytes / seconds * 1e-9);
  if (limits.read_bytes > 0) std::printf(" %5.1f %%", bytes / seconds / limits.read_bytes * 100);
}
inline void print_flops(double flop, double seconds, const DeviceLimits& limits) {
  std::printf(" %6.1f TFLOP/s", flop / seconds * 1e-12);
  if (limits.flop > 0) std::printf(" %5.1f %%", flop / seconds / limits.flop * 100);
}

}  // namespace wcuda::bench
