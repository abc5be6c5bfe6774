// digest: BLAKE3 of device memory, computed on the device. digest_pieces: the chaining value of
// each MiB.
//
//   bytes      1 KiB  1 KiB  1 KiB  …                   a chunk per thread
//                └──┬───┘      │
//                   └────┬─────┘                        neighbours are joined level by level
//   128 KiB         chaining value                      a block: 128 chunks
//   32 MiB          chaining value                      a block: 256 values of the level above
//   1 GiB …         chaining value ─→ digest            segments of 1 GiB, then their values
//
// digest_pieces stops at 1 MiB: 8 values of 128 KiB each.
//
// Bytes moved: the data once, and 1/4096 of it as chaining values.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace wcuda::kernels {

// Bytes of scratch memory for a digest of any length.
constexpr uint64_t kDigestScratchBytes = 320 * 1024;
// Returns such memory on the current device. It is a variable of this library's device code, and
// only one digest may use it at a time.
cudaError_t digest_scratch(void** address);
// The longest range, because the last level must fit into one block.
constexpr uint64_t kDigestBytesMax = uint64_t{1} << 40;

// Queues the digest of `bytes` bytes (at most kDigestBytesMax, any alignment) into the 32 bytes at
// `result`, aligned to 32. `scratch` has kDigestScratchBytes, aligned to 32; `result` may be its
// start.
cudaError_t digest(const void* data, uint64_t bytes, void* result, void* scratch,
                   cudaStream_t stream);

// The longest range of one call of digest_pieces.
constexpr uint64_t kDigestPiecesBytesMax = uint64_t{1} << 30;

// Queues the chaining value of each MiB of `bytes` bytes (1 … kDigestPiecesBytesMax), hashed as if
// they began at piece `first_piece` of a longer input, to pieces (ceil(bytes / 1 MiB), 32).
// `pieces` is aligned to 32 and may be the start of the scratch.
cudaError_t digest_pieces(const void* data, uint64_t bytes, uint64_t first_piece, void* pieces,
                          void* scratch, cudaStream_t stream);

}  // namespace wcuda::kernels
