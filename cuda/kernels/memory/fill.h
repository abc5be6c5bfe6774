// fill: target[i] = byte i % 8 of a pattern. Bytes moved: the target is written once.
//
//   target   | head, bytes | 16-byte vectors, one per thread …          | tail, bytes |
//                          16-byte boundary                  16-byte boundary
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace wcuda::kernels {

// Queues a fill of `bytes` bytes of device memory of any alignment with the 8 bytes of `pattern`,
// little-endian. Writes each byte once.
cudaError_t fill(void* target, uint64_t bytes, uint64_t pattern, cudaStream_t stream);

}  // namespace wcuda::kernels
