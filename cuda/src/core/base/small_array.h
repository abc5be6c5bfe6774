// An array for one call: of up to N elements without memory from the heap.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace wcuda {

template <class T, size_t N>
class SmallArray {
 public:
  // Elements begin as T{}.
  explicit SmallArray(size_t count) : count_(count) {
    if (count > N) many_.resize(count);
  }

  T* data() { return count_ > N ? many_.data() : few_.data(); }
  const T* data() const { return count_ > N ? many_.data() : few_.data(); }
  size_t size() const { return count_; }
  T& operator[](size_t index) { return data()[index]; }
  const T& operator[](size_t index) const { return data()[index]; }

 private:
  size_t count_;
  std::array<T, N> few_{};
  std::vector<T> many_;
};

}  // namespace wcuda
