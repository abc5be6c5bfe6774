#include "core/backend/device_limits.h"

#include <cinttypes>

namespace wcuda {

std::string device_architecture(int major, int minor) {
  return "sm_" + std::to_string(major * 10 + minor) + (major >= 9 ? "a" : "");
}

void set_capability_features(wcuda_device_caps* caps) {
  const int32_t capability = caps->compute_capability_major * 10 + caps->compute_capability_minor;
  caps->supports_fp64 = 1;
  caps->supports_atomics = 1;
  caps->supports_dynamic_parallelism = capability >= 35;
  caps->supports_fp16 = capability >= 53;
  caps->supports_cooperative_groups = capability >= 60;
  caps->supports_int8 = capability >= 61;
  caps->supports_tensor_cores = capability >= 70;
  caps->supports_int8_tensor_cores = capability >= 72;
  caps->supports_bf16 = capability >= 80;
  caps->supports_tf32 = capability >= 80;
  caps->supports_async_copy = capability >= 80;
  caps->supports_fp8 = capability >= 89;
}

Status check_device_limits(const wcuda_device_caps& caps) {
  if (caps.backend != WCUDA_BACKEND_CUDA) return {};
  const int32_t capability = caps.compute_capability_major * 10 + caps.compute_capability_minor;
  if (capability < kComputeCapabilityMin)
    return unsupported("'%s': compute capability %d.%d, needs %d.%d", caps.name,
                       caps.compute_capability_major, caps.compute_capability_minor,
                       kComputeCapabilityMin / 10, kComputeCapabilityMin % 10);
  if (caps.total_memory < kDeviceMemoryMin)
    return unsupported("'%s': %" PRIu64 " bytes of memory, needs %" PRIu64, caps.name,
                       caps.total_memory, kDeviceMemoryMin);
  return {};
}

}  // namespace wcuda
