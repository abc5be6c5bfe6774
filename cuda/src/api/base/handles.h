// The table behind every handle of the C interface: a 64-bit id to a shared object.
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

// Registers an object; the table holds one reference until `remove`. The id is never 0 and never
// comes back after its removal. Any thread, as everything here.
template <class T>
Result<uint64_t> insert(Kind kind, std::shared_ptr<T> object) {
  return detail::insert(kind, std::move(object), &detail::type_tag<T>);
}

// The object behind an id; WCUDA_INVALID_HANDLE naming the argument and what is wrong with the id.
template <class T>
Result<std::shared_ptr<T>> resolve(Kind kind, uint64_t id, const char* argument) {
  auto object = detail::resolve(kind, id, argument, &detail::type_tag<T>);
  if (!object.ok()) return object.status();
  return std::static_pointer_cast<T>(object.take());
}

// Ends an id and returns the table's reference, null if the id was not a live one of this kind.
std::shared_ptr<void> remove(Kind kind, uint64_t id) noexcept;

// Live ids of a kind; for tests and leak reports.
uint64_t live_count(Kind kind) noexcept;

}  // namespace wcuda::api
