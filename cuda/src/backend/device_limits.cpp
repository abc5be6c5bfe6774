#include "backend/device_limits.h"

#include <cinttypes>

namespace wcuda {

Status check_device_limits(const wcuda_device_caps& caps) {
  if (caps.backend != WCUDA_BACKEND_CUDA) return {};
  const int32_t capability = caps.compute_capability_major * 10 + caps.compute_capability_minor;
  if (capability < kComputeCapabilityMin)
    return Status::error(WCUDA_UNSUPPORTED, "'%s': compute capability %d.%d, needs %d.%d",
                         caps.name, caps.compute_capability_major, caps.compute_capability_minor,
                         kComputeCapabilityMin / 10, kComputeCapabilityMin % 10);
  if (caps.total_memory < kDeviceMemoryMin)
    return Status::error(WCUDA_UNSUPPORTED, "'%s': %" PRIu64 " bytes of memory, needs %" PRIu64,
                         caps.name, caps.total_memory, kDeviceMemoryMin);
  return {};
}

}  // namespace wcuda
