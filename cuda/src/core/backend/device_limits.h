// What a CUDA device can do by its compute capability, and what it must be to hold resident memory.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace wcuda {

constexpr int32_t kComputeCapabilityMin = 80;  // major * 10 + minor
constexpr uint64_t kDeviceMemoryMin = uint64_t{1} << 30;

// "sm_80", and from 9.0 on with what only that device has: "sm_90a".
std::string device_architecture(int major, int minor);

// Sets every supports_… field that follows from the compute capability alone.
void set_capability_features(wcuda_device_caps* caps);

// WCUDA_UNSUPPORTED names what a CUDA device lacks. Unified addressing is no fault: every usable
// device has it. The host backend has no such needs.
Status check_device_limits(const wcuda_device_caps& caps);

}  // namespace wcuda
