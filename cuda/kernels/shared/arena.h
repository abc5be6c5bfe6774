// The layout of one block of memory: consecutive regions, each at a multiple of one alignment.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace wcuda {

// Hands out regions of a block in order. Over a null base it only measures: take() returns null,
// and bytes() is what a block for the same calls needs. Owns nothing and checks no capacity.
class Arena {
 public:
  static constexpr uint64_t kDefaultAlignment = 256;
  static constexpr uint64_t kBytesMax = uint64_t{1} << 62;

  // alignment: a power of two; the base must be aligned to it.
  explicit Arena(void* base = nullptr, uint64_t alignment = kDefaultAlignment)
      : base_(static_cast<uint8_t*>(base)), alignment_(alignment) {}

  // Offset of a region of as many bytes as the product of the factors.
  uint64_t reserve(std::initializer_list<uint64_t> factors) {
    uint64_t bytes = 1;
    for (const uint64_t factor : factors)
      ok_ = !__builtin_mul_overflow(bytes, factor, &bytes) && ok_;
    const uint64_t offset = bytes_;
    ok_ = !__builtin_add_overflow(bytes_, bytes, &bytes_) && ok_;
    ok_ = !__builtin_add_overflow(bytes_, alignment_ - 1, &bytes_) && ok_;
    bytes_ &= ~(alignment_ - 1);
    return offset;
  }
  uint64_t reserve(uint64_t bytes) { return reserve({bytes}); }

  // A region of `count` elements.
  template <class T>
  T* take(uint64_t count) {
    const uint64_t offset = reserve({count, sizeof(T)});
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  // Bytes of all regions so far, a multiple of the alignment.
  uint64_t bytes() const { return bytes_; }
  // True if no size overflowed and bytes() is at most kBytesMax.
  bool ok() const { return ok_ && bytes_ <= kBytesMax; }

 private:
  uint8_t* base_;
  uint64_t alignment_;
  uint64_t bytes_ = 0;
  bool ok_ = true;
};

}  // namespace wcuda
