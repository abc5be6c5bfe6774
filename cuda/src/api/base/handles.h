// The handle table of the C interface: maps a 64-bit id to a shared object.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"

namespace wcuda::api {

enum class Kind : uint8_t {
  kContext = 1,
  kBuffer,
  kPinned,
  kGguf,
  kCancel,
  kModel,
  kEngine,
  kSequence,
  kProgram,
  kModule,
  kKernel,
  kStream,
  kEvent,
  kKernelCache,
  kRegistry,
  kBackend,
  kBackendKernel,
  kFailover,
  kZctlSession,
};
const char* kind_name(Kind kind);

namespace detail {
// Its address identifies the type, so that insert and resolve must mean the same T.
template <class T>
inline constexpr char type_tag = 0;

Result<uint64_t> insert(Kind kind, std::shared_ptr<void> object, const void* tag);
Result<std::shared_ptr<void>> resolve(Kind kind, uint64_t id, const char* argument,
                                      const void* tag);
}  // namespace detail

// Registers an object; the table holds one reference until `remove`. The id is never 0 and is never
// used again. All functions here are thread-safe.
template <class T>
Result<uint64_t> insert(Kind kind, std::shared_ptr<T> object) {
  return detail::insert(kind, std::move(object), &detail::type_tag<T>);
}

// Returns the object of an id; WCUDA_INVALID_HANDLE names the argument and what is wrong with the
// id.
template <class T>
Result<std::shared_ptr<T>> resolve(Kind kind, uint64_t id, const char* argument) {
  auto object = detail::resolve(kind, id, argument, &detail::type_tag<T>);
  if (!object.ok()) return object.status();
  return std::static_pointer_cast<T>(object.take());
}

// The kind and the object of a handle type; specialised as a HandleTo next to each object.
template <class Handle>
struct HandleOf;
template <Kind kKind, class T>
struct HandleTo {
  static constexpr Kind kind = kKind;
  using Object = T;
};

// The same by the type of the handle.
template <class Handle, class Object = typename HandleOf<Handle>::Object>
Result<std::shared_ptr<Object>> resolve(Handle handle, const char* argument) {
  return resolve<Object>(HandleOf<Handle>::kind, handle.id, argument);
}
template <class Handle>
Status insert(std::shared_ptr<typename HandleOf<Handle>::Object> object, Handle* handle) {
  WCUDA_ASSIGN(handle->id, insert(HandleOf<Handle>::kind, std::move(object)));
  return {};
}

// Removes an id and returns the table's reference; null if the id is not live or of another kind.
std::shared_ptr<void> remove(Kind kind, uint64_t id) noexcept;

// Returns the number of live ids of a kind, for tests and leak reports.
uint64_t live_count(Kind kind) noexcept;

}  // namespace wcuda::api
