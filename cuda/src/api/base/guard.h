// The frame of every function of the C interface: turns exceptions into statuses, fills
// wcuda_error, reads and writes structs by their struct_size, and refuses overlapping use.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/base/handles.h"
#include "core/base/callback.h"
#include "core/base/status.h"
#include "worker_cuda.h"

namespace wcuda::api {

// Writes a failure into the caller's struct, if there is one. The message is one line of valid
// UTF-8 (invalid bytes and control characters become '?'), cut between characters. Allocates
// nothing.
void fill_error(wcuda_error* error, Code code, int32_t native_code, const char* message) noexcept;

// At the end of a call, runs the destroys that its callbacks have deferred.
struct RunDeferred {
  ~RunDeferred() { run_deferred(); }
};

// Runs `body`, a callable that returns Status, and turns its result or exception into a status
// code. For functions that are legal inside a callback; all others use `guarded`.
template <class Body>
wcuda_status guarded_anywhere(wcuda_error* error, Body&& body) noexcept {
  const RunDeferred at_end;
  static_assert(std::is_same_v<decltype(body()), Status>, "the body returns a Status");
  try {
    const Status status = body();
    if (status.ok()) return WCUDA_OK;
    fill_error(error, status.code(), status.native_code(), status.message());
    return status.code();
  } catch (const std::bad_alloc&) {
    fill_error(error, WCUDA_OUT_OF_HOST_MEMORY, 0, "the host is out of memory");
    return WCUDA_OUT_OF_HOST_MEMORY;
  } catch (const std::exception& exception) {
    fill_error(error, WCUDA_INTERNAL, 0, exception.what());
  } catch (...) {
    fill_error(error, WCUDA_INTERNAL, 0, "an exception of unknown type");
  }
  return WCUDA_INTERNAL;
}

// The same, but returns WCUDA_REENTRANT inside a callback.
template <class Body>
wcuda_status guarded(wcuda_error* error, Body&& body) noexcept {
  if (InCallback::active()) {
    fill_error(error, WCUDA_REENTRANT, 0,
               "called from inside a callback of the library; only wcuda_cancel_trigger may be");
    return WCUDA_REENTRANT;
  }
  return guarded_anywhere(error, std::forward<Body>(body));
}

// For the …_destroy functions, which return nothing. Id 0 is ignored, and a failure is logged as a
// warning. Inside a callback the handle stays valid until the call that runs the callback returns,
// and is destroyed then. `destroy` captures nothing, since it may run later.
void guarded_destroy(const char* function, uint64_t id, Status (*destroy)(uint64_t id)) noexcept;
void log_dropped(const char* function, const char* message) noexcept;

// Removes a handle for a …_destroy function. Id 0 is ignored; any other must be live.
Status remove_live(Kind kind, uint64_t id);
// The body of a …_destroy function that only drops the table's reference.
template <class Handle>
void destroy(const char* function, Handle handle) noexcept {
  guarded_destroy(function, handle.id,
                  [](uint64_t id) { return remove_live(HandleOf<Handle>::kind, id); });
}

// The size with which a struct was first published; 0 for types other than structs that can grow.
template <class T>
inline constexpr uint32_t kFirstBytes = 0;
#define WCUDA_FIRST_BYTES(type, bytes)                 \
  template <>                                          \
  inline constexpr uint32_t kFirstBytes<type> = bytes; \
  static_assert(bytes <= sizeof(type), "a struct never shrinks");
#include "api/base/abi_first_bytes.inc"
#undef WCUDA_FIRST_BYTES

namespace detail {
Status check_struct(const void* data, const char* argument, uint32_t first_bytes,
                    uint32_t known_bytes);
Status check_reserved(uint32_t reserved, const char* argument);

template <class T, class = void>
struct has_reserved : std::false_type {};
template <class T>
struct has_reserved<T, std::void_t<decltype(T::reserved)>> : std::true_type {};
}  // namespace detail

// Checks a caller's struct: not null, not shorter than when it was first published, and only zeros
// past the size of this version.
template <class T>
Status check_struct(const T* data, const char* argument) {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(kFirstBytes<T> != 0, "T begins with struct_size");
  return detail::check_struct(data, argument, kFirstBytes<T>, sizeof(T));
}

// Returns an input struct at this version's size. Fields that the caller's version lacks are zero;
// `reserved` must be zero.
template <class T>
Result<T> read_struct(const T* data, const char* argument) {
  WCUDA_TRY(check_struct(data, argument));
  T value;
  std::memset(static_cast<void*>(&value), 0, sizeof(T));
  const uint32_t bytes = std::min<uint32_t>(data->struct_size, sizeof(T));
  std::memcpy(static_cast<void*>(&value), data, bytes);
  if constexpr (detail::has_reserved<T>::value)
    WCUDA_TRY(detail::check_reserved(value.reserved, argument));
  return value;
}

// The same for a struct that may be NULL, which means `defaults`.
template <class T>
Result<T> read_struct_or(const T& defaults, const T* data, const char* argument) {
  if (data == nullptr) return T(defaults);
  return read_struct(data, argument);
}

// Writes the fields of an output struct that the caller's version has, and keeps its struct_size.
// Call check_struct first: it can fail, this cannot.
template <class T>
void write_struct(const T& value, T* target) noexcept {
  const uint32_t caller_bytes = target->struct_size;
  std::memcpy(static_cast<void*>(target), &value, std::min<uint32_t>(caller_bytes, sizeof(T)));
  target->struct_size = caller_bytes;
}

// Checks and writes an output struct: for values that take nothing to compute.
template <class T>
Status write_struct(const T& value, T* target, const char* argument) {
  WCUDA_TRY(check_struct(target, argument));
  write_struct(value, target);
  return {};
}

Status check_not_null(const void* pointer, const char* argument);
// Refuses bits that are not in `known`.
Status check_flags(uint64_t flags, uint64_t known, const char* argument);
// Checks a wcuda_string: null only with length 0, and a plausible length.
Status check_string(const wcuda_string& string, const char* argument);
// Returns the text of a checked string, whose data is never null.
Result<std::string_view> read_string(const wcuda_string& string, const char* argument);

// Member of an object on which calls must not overlap.
class Exclusive {
 public:
  Exclusive() = default;

 private:
  friend class ExclusiveUse;
  std::atomic<bool> busy_{false};
};

// Holds an Exclusive during a call. Never waits: if it is taken, acquire returns WCUDA_BUSY.
class ExclusiveUse {
 public:
  static Result<ExclusiveUse> acquire(Exclusive& exclusive, const char* object_name);
  ExclusiveUse(ExclusiveUse&& other) noexcept
      : exclusive_(std::exchange(other.exclusive_, nullptr)) {}
  ExclusiveUse& operator=(ExclusiveUse&&) = delete;
  ~ExclusiveUse() {
    if (exclusive_) exclusive_->busy_.store(false, std::memory_order_release);
  }

 private:
  explicit ExclusiveUse(Exclusive* exclusive) : exclusive_(exclusive) {}
  Exclusive* exclusive_;
};

// An object that a call uses alone, by its member `exclusive`.
template <class T>
struct Used {
  std::shared_ptr<T> object;
  ExclusiveUse use;
  T* operator->() const { return object.get(); }
  T& operator*() const { return *object; }
};
template <class Handle, class Object = typename HandleOf<Handle>::Object>
Result<Used<Object>> use(Handle handle, const char* argument) {
  WCUDA_ASSIGN(auto object, resolve(handle, argument));
  WCUDA_ASSIGN(auto alone, ExclusiveUse::acquire(object->exclusive, argument));
  return Used<Object>{std::move(object), std::move(alone)};
}

}  // namespace wcuda::api
