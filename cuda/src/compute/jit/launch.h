// What a launch must be like before a driver sees it: its dimensions, and the number, sizes and
// kinds of its arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "core/backend/backend.h"
#include "core/base/status.h"

namespace wcuda::jit {

// Of a device, and of one kernel where it has less.
struct LaunchLimits {
  uint64_t grid[3];
  uint64_t block[3];
  uint64_t block_threads;
  uint64_t shared_bytes;    // dynamic
  uint64_t cluster_blocks;  // 1: no clusters
};

// Of a device; the host has those of compute capability 9.0.
LaunchLimits device_limits(const wcuda_device_caps& caps);
// The same with what the kernel allows.
LaunchLimits kernel_limits(const wcuda_device_caps& caps, const KernelAttributes& attributes);

// WCUDA_INVALID_CONFIG with the value and the limit.
Status check_dims(const LaunchDims& dims, const LaunchLimits& limits);

// Bytes of a WCUDA_ARG_… scalar; 0 for buffers, bytes and what is no kind.
uint32_t scalar_bytes(int32_t kind);
// "i32", "buffer"; "" for what is no kind.
const char* kind_name(int32_t kind);

// What one argument is.
struct ArgumentShape {
  int32_t kind;
  uint32_t access;  // of a buffer, that the caller grants: WCUDA_ACCESS_… bits; 0: both
  uint64_t bytes;   // of a buffer's range, of bytes, of a scalar
};

// Arguments by the sizes that the code states; a buffer is an address. WCUDA_ARGUMENT_COUNT when
// the numbers differ; WCUDA_INVALID_ARGUMENT with the argument's index and both sizes.
Status check_parameters(const std::vector<KernelParameter>& parameters,
                        const std::vector<ArgumentShape>& arguments);

}  // namespace wcuda::jit
