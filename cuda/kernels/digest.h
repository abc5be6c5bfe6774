// digest: BLAKE3 of device memory, the whole tree on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace wcuda::kernels {

// Device memory that a digest works in, whatever the length.
constexpr uint64_t kDigestScratchBytes = 320 * 1024;
// Longest range; beyond, the last level would not fit its block.
constexpr uint64_t kDigestBytesMax = uint64_t{1} << 40;

// Queues the digest of `bytes` bytes (at most kDigestBytesMax, any alignment) into the 32 bytes at
// `result`, aligned to 32, by way of `scratch` (kDigestScratchBytes, aligned to 32). The result may
// be the start of the scratch.
cudaError_t digest(const void* data, uint64_t bytes, void* result, void* scratch,
                   cudaStream_t stream);

}  // namespace wcuda::kernels
