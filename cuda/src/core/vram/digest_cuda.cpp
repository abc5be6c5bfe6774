// Digests by the kernels of kernels/memory/digest.cu.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/backend/cuda_launch.h"
#include "core/base/blake3.h"
#include "core/vram/digest.h"
#include "kernels/memory/digest.h"

namespace wcuda::vram {
namespace {

static_assert(kDigestScratchBytes >= kernels::kDigestScratchBytes);

Status check_length(uint64_t bytes) {
  if (bytes <= kernels::kDigestBytesMax) return {};
  return Status::error(WCUDA_OUT_OF_RANGE, "digest of %" PRIu64 " bytes, at most %" PRIu64, bytes,
                       kernels::kDigestBytesMax);
}

// Calls queue(scratch, stream) with the scratch of the device, which one digest at a time uses, and
// waits for stream 0.
template <class Queue>
Status with_own_scratch(Backend& device, const char* call, const Queue& queue) {
  static std::mutex mutexes[kCudaDevicesMax];
  const std::lock_guard<std::mutex> lock(mutexes[device.caps().ordinal]);
  return cuda_launch(device, Stream{}, call, [&](cudaStream_t stream) {
    void* scratch = nullptr;
    cudaError_t error = kernels::digest_scratch(&scratch);
    if (error == cudaSuccess) error = queue(scratch, stream);
    return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
  });
}

}  // namespace

Status digest_on_cuda(Backend& device, const void* data, uint64_t bytes, uint8_t result[32]) {
  WCUDA_TRY(check_length(bytes));
  uint8_t digest[32];
  WCUDA_TRY(with_own_scratch(device, "digest", [&](void* scratch, cudaStream_t stream) {
    const cudaError_t error = kernels::digest(data, bytes, scratch, scratch, stream);
    if (error != cudaSuccess) return error;
    return cudaMemcpyAsync(digest, scratch, 32, cudaMemcpyDeviceToHost, stream);
  }));
  std::memcpy(result, digest, 32);
  return {};
}

Status digest_pieces_on_cuda(Backend& device, const void* data, uint64_t bytes,
                             uint64_t first_piece, uint8_t* pieces) {
  // All of a range's chaining values, so that a failure leaves the caller's memory as it was.
  std::vector<uint8_t> chains(blake3::piece_count(bytes) * blake3::kDigestBytes);
  WCUDA_TRY(with_own_scratch(device, "digest_pieces", [&](void* scratch, cudaStream_t stream) {
    for (uint64_t offset = 0; offset < bytes; offset += kernels::kDigestPiecesBytesMax) {
      const uint64_t take = std::min(bytes - offset, kernels::kDigestPiecesBytesMax);
      const uint64_t piece = offset / blake3::kPieceBytes;
      cudaError_t error = kernels::digest_pieces(static_cast<const uint8_t*>(data) + offset, take,
                                                 first_piece + piece, scratch, scratch, stream);
      if (error == cudaSuccess)
        error = cudaMemcpyAsync(chains.data() + piece * blake3::kDigestBytes, scratch,
                                blake3::piece_count(take) * blake3::kDigestBytes,
                                cudaMemcpyDeviceToHost, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }));
  std::memcpy(pieces, chains.data(), chains.size());
  return {};
}

Status digest_async_on_cuda(Backend& device, const void* data, uint64_t bytes, void* result,
                            void* scratch, Stream stream) {
  WCUDA_TRY(check_length(bytes));
  return cuda_launch(device, stream, "digest", [&](cudaStream_t on) {
    return kernels::digest(data, bytes, result, scratch, on);
  });
}

}  // namespace wcuda::vram
