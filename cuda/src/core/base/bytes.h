// Little-endian numbers in byte sequences: loads, stores, and a reader that cannot leave its
// bounds.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace wcuda {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "host byte order must be little-endian");

// Number at `bytes`, any alignment.
template <class T>
T load_le(const void* bytes) {
  static_assert(std::is_trivially_copyable_v<T>, "plain numbers only");
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <class T>
void store_le(void* bytes, T value) {
  static_assert(std::is_trivially_copyable_v<T>, "plain numbers only");
  std::memcpy(bytes, &value, sizeof(T));
}

// Reads from borrowed bytes, front to back. A read past the end returns false, moves nothing and
// leaves its output as it was.
class ByteReader {
 public:
  ByteReader(const void* data, uint64_t bytes)
      : data_(static_cast<const uint8_t*>(data)), bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t bytes_left() const { return bytes_ - position_; }

  template <class T>
  bool read(T* value) {
    if (bytes_left() < sizeof(T)) return false;
    *value = load_le<T>(data_ + position_);
    position_ += sizeof(T);
    return true;
  }
  bool skip(uint64_t bytes) {
    if (bytes_left() < bytes) return false;
    position_ += bytes;
    return true;
  }
  // A view of the next `bytes` bytes.
  bool take(uint64_t bytes, std::string_view* view) {
    if (bytes_left() < bytes) return false;
    *view = bytes ? std::string_view(reinterpret_cast<const char*>(data_) + position_, bytes)
                  : std::string_view();
    position_ += bytes;
    return true;
  }

 private:
  const uint8_t* data_;
  uint64_t bytes_;
  uint64_t position_ = 0;
};

}  // namespace wcuda
