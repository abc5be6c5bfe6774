// Strings and kernel arguments, as calls of the C interface take them.
#pragma once

#include <string>

#include "worker_cuda.h"

namespace wcuda::testing {

inline wcuda_string text(const char* value) {
  return {value, std::char_traits<char>::length(value)};
}
// `value` must outlive the result.
inline wcuda_string text(const std::string& value) { return {value.data(), value.size()}; }

inline wcuda_argument scalar(int32_t kind, const void* data) {
  wcuda_argument argument = WCUDA_ARGUMENT_INIT;
  argument.kind = kind;
  argument.data = data;
  return argument;
}

}  // namespace wcuda::testing
