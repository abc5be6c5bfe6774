// The answers of a build without CUDA.
#include "core/vram/digest.h"

namespace wcuda::vram {
namespace {

Status absent() { return Status::error(WCUDA_NOT_AVAILABLE, "built without CUDA"); }

}  // namespace

Status digest_on_cuda(Backend&, const void*, uint64_t, uint8_t[32]) { return absent(); }
Status digest_pieces_on_cuda(Backend&, const void*, uint64_t, uint64_t, uint8_t*) {
  return absent();
}
Status digest_async_on_cuda(Backend&, const void*, uint64_t, void*, void*, Stream) {
  return absent();
}

}  // namespace wcuda::vram
