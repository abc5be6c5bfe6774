#include "core/vram/digest.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/blake3.h"

namespace wcuda::vram {
namespace {

Status copied_pieces(Backend& device, const void* data, uint64_t bytes, uint64_t first_piece,
                     uint8_t* pieces) {
  std::vector<uint8_t> piece(std::min(bytes, blake3::kPieceBytes));
  std::vector<uint8_t> chains(blake3::piece_count(bytes) * blake3::kDigestBytes);
  for (uint64_t offset = 0; offset < bytes; offset += blake3::kPieceBytes) {
    const uint64_t take = std::min(bytes - offset, blake3::kPieceBytes);
    const uint64_t index = offset / blake3::kPieceBytes;
    WCUDA_TRY(device.copy_to_host(piece.data(), static_cast<const uint8_t*>(data) + offset, take));
    blake3::hash_pieces(piece.data(), take, first_piece + index,
                        chains.data() + index * blake3::kDigestBytes);
  }
  std::memcpy(pieces, chains.data(), chains.size());
  return {};
}

Status copied_digest(Backend& device, const void* data, uint64_t bytes, uint8_t result[32]) {
  if (bytes <= blake3::kPieceBytes) {
    std::vector<uint8_t> whole(bytes);
    WCUDA_TRY(device.copy_to_host(whole.data(), data, bytes));
    blake3::hash(whole.data(), bytes, result);
    return {};
  }
  std::vector<uint8_t> pieces(blake3::piece_count(bytes) * blake3::kDigestBytes);
  WCUDA_TRY(copied_pieces(device, data, bytes, 0, pieces.data()));
  blake3::join_pieces(pieces.data(), blake3::piece_count(bytes), result);
  return {};
}

}  // namespace

Status digest(Backend& backend, const void* data, uint64_t bytes, uint8_t result[32]) {
  return backend.run({"digest", CallKind::kLaunch, bytes}, [&](Backend& device) -> Status {
    if (device.is_registered()) return copied_digest(device, data, bytes, result);
    if (!device.is_host()) return digest_on_cuda(device, data, bytes, result);
    blake3::hash(data, bytes, result);
    return {};
  });
}

Status digest_pieces(Backend& backend, const void* data, uint64_t bytes, uint64_t first_piece,
                     uint8_t* pieces) {
  WCUDA_CHECK(bytes > 0);
  return backend.run({"digest_pieces", CallKind::kLaunch, bytes}, [&](Backend& device) -> Status {
    if (device.is_registered()) return copied_pieces(device, data, bytes, first_piece, pieces);
    if (!device.is_host()) return digest_pieces_on_cuda(device, data, bytes, first_piece, pieces);
    blake3::hash_pieces(data, bytes, first_piece, pieces);
    return {};
  });
}

Status digest_async(Backend& backend, const void* data, uint64_t bytes, void* result, void* scratch,
                    Stream stream) {
  return backend.run({"digest_async", CallKind::kLaunch, bytes, stream},
                     [&](Backend& device) -> Status {
                       if (device.is_registered())
                         return unsupported("this backend has no queued digests");
                       if (!device.is_host())
                         return digest_async_on_cuda(device, data, bytes, result, scratch, stream);
                       blake3::hash(data, bytes, static_cast<uint8_t*>(result));
                       return {};
                     });
}

}  // namespace wcuda::vram
