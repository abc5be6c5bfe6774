// BLAKE3 of device memory: on CUDA and HOST by the device itself, of a caller's table on the host,
// of what is copied back MiB by MiB.
#pragma once

#include "core/backend/backend.h"

namespace wcuda::vram {

// Device memory that a queued digest works in, whatever the length; aligned to 32.
constexpr uint64_t kDigestScratchBytes = 320 * 1024;

// Of a range of device memory, after the work on stream 0; waits.
Status digest(Backend& backend, const void* data, uint64_t bytes, uint8_t result[32]);
// Chaining values (ceil(bytes / 1 MiB), 32), in host memory, of each MiB of a range of at least one
// byte that begins at piece `first_piece` of its input (base/blake3.h); after the work on stream 0;
// waits.
Status digest_pieces(Backend& backend, const void* data, uint64_t bytes, uint64_t first_piece,
                     uint8_t* pieces);
// Queued: the digest into 32 bytes of device memory, aligned to 32. Digests that share scratch
// share a stream. WCUDA_UNSUPPORTED on a caller's table.
Status digest_async(Backend& backend, const void* data, uint64_t bytes, void* result, void* scratch,
                    Stream stream);

// The same on a CUDA device, which is current.
Status digest_on_cuda(Backend& device, const void* data, uint64_t bytes, uint8_t result[32]);
Status digest_pieces_on_cuda(Backend& device, const void* data, uint64_t bytes,
                             uint64_t first_piece, uint8_t* pieces);
Status digest_async_on_cuda(Backend& device, const void* data, uint64_t bytes, void* result,
                            void* scratch, Stream stream);

}  // namespace wcuda::vram
