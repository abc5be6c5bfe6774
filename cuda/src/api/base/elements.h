// Reads and writes arrays of structs that can grow, with the caller's struct_size as the stride.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "api/base/guard.h"

namespace wcuda::api {

namespace detail {
inline uint32_t size_of_element(const void* element) {
  uint32_t bytes;
  std::memcpy(&bytes, element, sizeof(bytes));
  return bytes;
}
// "rows[3]", for messages.
inline std::string element_name(const char* argument, uint64_t index) {
  return std::string(argument) + '[' + std::to_string(index) + ']';
}
// Checks that the stride keeps every element aligned.
template <class T>
Status check_stride(uint32_t stride, const char* argument) {
  if (stride % alignof(T) == 0) return {};
  return invalid_argument("%s: struct_size %u is no multiple of %zu", argument, stride, alignof(T));
}
}  // namespace detail

// Checks each element of a caller's array and calls take(element, index) with it, at this
// version's size. NULL is legal with count 0. The caller checks first that `count` is plausible.
template <class T, class Take>
Status for_each_element(const T* data, uint64_t count, const char* argument, Take&& take) {
  if (count == 0) return {};
  WCUDA_TRY(check_not_null(data, argument));
  const uint32_t stride = detail::size_of_element(data);
  WCUDA_TRY(detail::check_stride<T>(stride, argument));
  for (uint64_t i = 0; i < count; ++i) {
    const auto* const element =
        reinterpret_cast<const T*>(reinterpret_cast<const char*>(data) + i * stride);
    if (detail::size_of_element(element) != stride)
      return invalid_argument("%s: struct_size %u, that of the first element is %u",
                              detail::element_name(argument, i).c_str(),
                              detail::size_of_element(element), stride);
    const Result<T> value = read_struct(element, argument);
    if (!value.ok())
      return read_struct(element, detail::element_name(argument, i).c_str()).status();
    WCUDA_TRY(take(*value, i));
  }
  return {};
}

// Returns a copy of the elements.
template <class T>
Result<std::vector<T>> read_elements(const T* data, uint64_t count, const char* argument) {
  std::vector<T> result;
  if (data != nullptr) result.reserve(count);
  WCUDA_TRY(for_each_element(data, count, argument, [&](const T& element, uint64_t) {
    result.push_back(element);
    return Status();
  }));
  return result;
}

// An array that the library writes. The caller sets only the struct_size of the first element,
// which applies to all.
template <class T>
struct OutputArray {
  T* data;
  uint64_t capacity;
  const char* argument;

  // Call before anything is written. `count`: elements to write, 0 to capacity.
  Status check(uint64_t count) const {
    if (capacity != 0) WCUDA_TRY(check_not_null(data, argument));
    if (count == 0) return {};
    WCUDA_TRY(detail::check_stride<T>(detail::size_of_element(data), argument));
    return check_struct(data, argument);
  }

  // Call after check; cannot fail. Fields of a newer caller's element that this version does not
  // know become zero.
  void write(uint64_t index, const T& value) const noexcept {
    const uint32_t stride = detail::size_of_element(data);
    char* const target = reinterpret_cast<char*>(data) + index * stride;
    if (stride > sizeof(T)) std::memset(target + sizeof(T), 0, stride - sizeof(T));
    std::memcpy(target, &value, std::min<size_t>(stride, sizeof(T)));
    std::memcpy(target, &stride, sizeof(stride));
  }
};

// The body of a …_list function: writes elements first … of a list of `total`, created by
// make(index).
template <class T, class Make>
Status write_list(const OutputArray<T>& target, uint64_t first, uint64_t total, uint64_t* count,
                  Make&& make) {
  WCUDA_TRY(check_not_null(count, "count"));
  if (first > total)
    return Status::error(WCUDA_OUT_OF_RANGE, "first: %llu of %llu entries",
                         static_cast<unsigned long long>(first),
                         static_cast<unsigned long long>(total));
  const uint64_t written = std::min(target.capacity, total - first);
  WCUDA_TRY(target.check(written));
  for (uint64_t i = 0; i < written; ++i) target.write(i, make(first + i));
  *count = total;
  return {};
}

}  // namespace wcuda::api
