// HeaderReader: reads a header front to back into a copy and never requests more than the file
// has.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "llm/gguf/source.h"

namespace wcuda::gguf {

// Only the copy is parsed and kept: later changes of the file have no effect.
class HeaderReader {
 public:
  // Appends to `bytes`, which is empty; reads at most `limit` bytes of the source.
  HeaderReader(const Source& source, uint64_t limit, std::vector<uint8_t>* bytes)
      : source_(source), limit_(limit), bytes_(*bytes) {}

  uint64_t position() const { return position_; }
  // Bytes of the file that follow.
  uint64_t bytes_left() const { return source_.size() - position_; }

  // Reads until the copy holds the next `bytes` bytes. `what` names them in the message.
  Status need(uint64_t bytes, const char* what);

  template <class T>
  Status read(T* value, const char* what) {
    WCUDA_TRY(need(sizeof(T), what));
    *value = load_le<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return Status();
  }
  // The next `bytes` bytes, which must be in the copy; valid until the next call of need or read.
  std::string_view take(uint64_t bytes) {
    const std::string_view view(reinterpret_cast<const char*>(bytes_.data()) + position_, bytes);
    position_ += bytes;
    return view;
  }

 private:
  const Source& source_;
  uint64_t limit_;
  std::vector<uint8_t>& bytes_;
  uint64_t position_ = 0;
};

}  // namespace wcuda::gguf
