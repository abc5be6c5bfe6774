// What a device must be to hold resident memory.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace wcuda {

constexpr int32_t kComputeCapabilityMin = 80;  // major * 10 + minor
constexpr uint64_t kDeviceMemoryMin = uint64_t{1} << 30;

// WCUDA_UNSUPPORTED names what a CUDA device lacks. Unified addressing is no fault: every usable
// device has it. The host backend has no such needs.
Status check_device_limits(const wcuda_device_caps& caps);

}  // namespace wcuda
