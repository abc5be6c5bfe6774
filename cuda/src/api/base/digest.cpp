// Section 15 of the header: digests by the MiB.
#include "core/vram/digest.h"

#include <cinttypes>

#include "api/base/buffer.h"
#include "core/base/blake3.h"

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_buffer_digest_pieces(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                                        uint64_t first_piece, uint8_t* pieces,
                                        uint64_t piece_capacity, wcuda_error* error) {
  static_assert(WCUDA_DIGEST_PIECE_BYTES == blake3::kPieceBytes);
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(buffer, "buffer"));
    WCUDA_TRY(check_not_null(pieces, "pieces"));
    if (bytes == 0) return invalid_argument("bytes: 0, at least 1 is needed");
    WCUDA_ASSIGN(const vram::View view, view_of(*object, "buffer", offset, bytes));
    const uint64_t count = blake3::piece_count(bytes);
    if (count > piece_capacity)
      return Status::error(WCUDA_BUFFER_TOO_SMALL,
                           "piece_capacity: %" PRIu64 ", %" PRIu64 " pieces are needed",
                           piece_capacity, count);
    if (first_piece > UINT64_MAX / blake3::kPieceChunks - count)
      return Status::error(WCUDA_OUT_OF_RANGE, "first_piece: %" PRIu64 " is too large",
                           first_piece);
    WCUDA_TRY(backend_of(*object).fault());
    return vram::digest_pieces(backend_of(*object), view.data, bytes, first_piece, pieces);
  });
}

wcuda_status wcuda_digest_join(const uint8_t* pieces, uint64_t piece_count, uint8_t digest[32],
                               wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(pieces, "pieces"));
    WCUDA_TRY(check_not_null(digest, "digest"));
    if (piece_count < 2)
      return invalid_argument("piece_count: %" PRIu64 ", at least 2 are joined", piece_count);
    blake3::join_pieces(pieces, piece_count, digest);
    return {};
  });
}
