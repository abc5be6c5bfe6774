// HeaderReader: grows the copy of the header as far as the file's size allows.
#include "llm/gguf/header_reader.h"

#include <algorithm>
#include <cinttypes>

namespace wcuda::gguf {
namespace {

constexpr uint64_t kFirstReadBytes = 64 << 10;

}  // namespace

Status HeaderReader::need(uint64_t bytes, const char* what) {
  if (bytes <= bytes_.size() - position_) return Status();
  if (bytes > bytes_left()) {
    return malformed("%s at byte %" PRIu64 " needs %" PRIu64 " bytes, %" PRIu64 " remain", what,
                     position_, bytes, bytes_left());
  }
  if (position_ > limit_ || bytes > limit_ - position_) {
    return unsupported("%s at byte %" PRIu64 " needs %" PRIu64 " bytes, headers may take %" PRIu64
                       " more in total",
                       what, position_, bytes, limit_ - std::min(limit_, position_));
  }
  // Doubling keeps the number of reads and reallocations logarithmic.
  const uint64_t have = bytes_.size();
  uint64_t want = std::max(position_ + bytes, std::max(kFirstReadBytes, have * 2));
  want = std::min({want, source_.size(), limit_});
  bytes_.resize(want);
  const Status status = source_.read_at(have, bytes_.data() + have, want - have);
  if (!status.ok()) bytes_.resize(have);
  return status;
}

}  // namespace wcuda::gguf
