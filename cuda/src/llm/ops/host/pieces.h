// One block of memory handed out in aligned pieces.
#pragma once

#include <cstdint>

#include "core/base/checked.h"

namespace wcuda::ops::host {

// Over a null block it counts the bytes that the same calls will need.
class Pieces {
 public:
  static constexpr uint64_t kAlignment = 256;

  explicit Pieces(void* base) : base_(static_cast<uint8_t*>(base)) {}

  template <class T>
  T* take(uint64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += align_up(count * sizeof(T), kAlignment);
    return piece;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  uint8_t* base_;
  uint64_t bytes_ = 0;
};

}  // namespace wcuda::ops::host
