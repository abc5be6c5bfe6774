// Formatting of failure messages.
#include "core/base/status.h"

#include <cstdarg>
#include <cstdio>

namespace wcuda {
namespace {

std::string format_line(const char* format, va_list arguments) {
  char buffer[512];
  va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  std::string line;
  if (length >= 0 && static_cast<size_t>(length) < sizeof(buffer)) {
    line.assign(buffer, static_cast<size_t>(length));
  } else if (length > 0) {
    line.resize(static_cast<size_t>(length) + 1);
    std::vsnprintf(line.data(), line.size(), format, again);
    line.resize(static_cast<size_t>(length));
  }
  va_end(again);
  return line;
}

}  // namespace

Status Status::make(Code code, int32_t native_code, const char* format, va_list arguments) {
  Status status;
  status.detail_ =
      std::make_unique<Detail>(Detail{code, native_code, format_line(format, arguments)});
  return status;
}

// The body of a function that formats: nothing else can pass its `...` on.
#define WCUDA_FORMAT(code, native_code)                               \
  va_list arguments;                                                  \
  va_start(arguments, format);                                        \
  Status status = Status::make(code, native_code, format, arguments); \
  va_end(arguments);                                                  \
  return status

Status Status::error(Code code, const char* format, ...) { WCUDA_FORMAT(code, 0); }
Status Status::native_error(Code code, int32_t native_code, const char* format, ...) {
  WCUDA_FORMAT(code, native_code);
}
Status invalid_argument(const char* format, ...) { WCUDA_FORMAT(WCUDA_INVALID_ARGUMENT, 0); }
Status malformed(const char* format, ...) { WCUDA_FORMAT(WCUDA_MALFORMED, 0); }
Status unsupported(const char* format, ...) { WCUDA_FORMAT(WCUDA_UNSUPPORTED, 0); }

}  // namespace wcuda
