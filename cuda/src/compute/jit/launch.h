// Checks a launch before a driver sees it: dimensions, and number, sizes and kinds of arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/backend/backend.h"
#include "core/base/status.h"

namespace wcuda::jit {

constexpr uint32_t kBothAccess = WCUDA_ACCESS_READ | WCUDA_ACCESS_WRITE;
constexpr const char* kAxis[3] = {"x", "y", "z"};

// The limits of a device, or of a kernel if those are lower.
struct LaunchLimits {
  uint64_t grid[3];
  uint64_t block[3];
  uint64_t block_threads;
  uint64_t shared_bytes;    // dynamic
  uint64_t cluster_blocks;  // 1: no clusters
};

// Returns the limits of a device; those of the host are those of compute capability 9.0.
LaunchLimits device_limits(const wcuda_device_caps& caps);
// The same, lowered to what the kernel allows.
LaunchLimits kernel_limits(const wcuda_device_caps& caps, const KernelAttributes& attributes);

// WCUDA_INVALID_CONFIG with the value and the limit.
Status check_dims(const LaunchDims& dims, const LaunchLimits& limits);

// Returns the bytes of a WCUDA_ARG_… scalar; 0 for buffers, bytes and invalid kinds.
uint32_t scalar_bytes(int32_t kind);
// Returns "i32", "buffer", …; "" for an invalid kind.
const char* kind_name(int32_t kind);

// Whether a WCUDA_ARG_… is an integer, and the value of one; nothing for 2^63 and above.
bool is_integer(int32_t kind);
std::optional<int64_t> integer_at(int32_t kind, const void* data);

// Kind and size of one argument.
struct ArgumentShape {
  int32_t kind;
  uint32_t access;  // of a buffer, that the caller grants: WCUDA_ACCESS_… bits; 0: both
  uint64_t bytes;   // of a buffer's range, of bytes, of a scalar
};

// Checks arguments against the sizes that the code states; a buffer is an address.
// WCUDA_ARGUMENT_COUNT if the numbers differ; WCUDA_INVALID_ARGUMENT with the argument's index and
// both sizes.
Status check_parameters(const std::vector<KernelParameter>& parameters,
                        const std::vector<ArgumentShape>& arguments);

}  // namespace wcuda::jit
