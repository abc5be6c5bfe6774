// Status: how every fallible function of the library reports success or failure.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker_cuda/base.h"

namespace wcuda {

// One of the WCUDA_… status codes of worker_cuda.h.
using Code = int32_t;

// The outcome of an operation: ok, or a code with a one-line message and, where the driver or the
// operating system reported the failure, its code. An ok Status is a null pointer: free to return.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  Status(const Status& other)
      : detail_(other.detail_ ? std::make_unique<Detail>(*other.detail_) : nullptr) {}
  Status& operator=(const Status& other) { return *this = Status(other); }

  // A failure; `format` is printf's and yields one line without a final newline.
  __attribute__((format(printf, 2, 3))) static Status error(Code code, const char* format, ...);
  // The same with the code of the driver or of errno.
  __attribute__((format(printf, 3, 4))) static Status native_error(Code code, int32_t native_code,
                                                                   const char* format, ...);
  static Status make(Code code, int32_t native_code, const char* format, va_list arguments);

  bool ok() const { return detail_ == nullptr; }
  Code code() const { return detail_ ? detail_->code : WCUDA_OK; }
  int32_t native_code() const { return detail_ ? detail_->native_code : 0; }
  const char* message() const { return detail_ ? detail_->message.c_str() : ""; }

 private:
  struct Detail {
    Code code;
    int32_t native_code;
    std::string message;
  };
  std::unique_ptr<Detail> detail_;
};

// Status::error of the most frequent codes.
__attribute__((format(printf, 1, 2))) Status invalid_argument(const char* format, ...);
__attribute__((format(printf, 1, 2))) Status malformed(const char* format, ...);
__attribute__((format(printf, 1, 2))) Status unsupported(const char* format, ...);

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT
    if (status_.ok()) status_ = Status::error(WCUDA_INTERNAL, "a Result without value or error");
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

// The Status of either.
inline const Status& status_of(const Status& status) { return status; }
template <class T>
const Status& status_of(const Result<T>& result) {
  return result.status();
}

}  // namespace wcuda

// Returns from the enclosing function when `expression` (a Status) is a failure.
#define WCUDA_TRY(expression)                      \
  do {                                             \
    ::wcuda::Status wcuda_status_ = (expression);  \
    if (!wcuda_status_.ok()) return wcuda_status_; \
  } while (0)

#define WCUDA_CONCAT_(a, b) a##b
#define WCUDA_CONCAT(a, b) WCUDA_CONCAT_(a, b)
// `target = *expression` for an expression that is a Result; returns its Status on failure. Several
// statements: as the body of an if or a loop it needs braces.
#define WCUDA_ASSIGN(target, expression) \
  WCUDA_ASSIGN_(WCUDA_CONCAT(wcuda_result_, __LINE__), target, expression)
#define WCUDA_ASSIGN_(result, target, expression) \
  auto result = (expression);                     \
  if (!result.ok()) return result.status();       \
  target = result.take()

// Our own mistakes: always checked, ends the call with an internal-error status, never aborts.
#define WCUDA_CHECK(condition)                                                           \
  do {                                                                                   \
    if (!(condition))                                                                    \
      return ::wcuda::Status::error(WCUDA_INTERNAL, "internal check failed: %s (%s:%d)", \
                                    #condition, ::wcuda::file_name(__FILE__), __LINE__); \
  } while (0)

namespace wcuda {
// The last component of a path: messages never show where the library was built.
constexpr const char* file_name(const char* path) {
  const char* name = path;
  for (const char* p = path; *p; ++p)
    if (*p == '/') name = p + 1;
  return name;
}
}  // namespace wcuda
