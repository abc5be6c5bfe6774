// digest: BLAKE3 of device memory, the whole tree on the device; digest_pieces: its nodes over each
// MiB.
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

// Longest range of one digest_pieces.
constexpr uint64_t kDigestPiecesBytesMax = uint64_t{1} << 30;

// Queues the chaining values (ceil(bytes / 1 MiB), 32), to `pieces`, of each MiB of 1 …
// kDigestPiecesBytesMax bytes that begin at piece `first_piece` of an input. `pieces` is aligned to
// 32 and may be the start of the scratch.
cudaError_t digest_pieces(const void* data, uint64_t bytes, uint64_t first_piece, void* pieces,
                          void* scratch, cudaStream_t stream);

}  // namespace wcuda::kernels
