// The objects behind a backend's streams, events, modules and kernels.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace wcuda {

// Objects by handle, a struct around an id that is never used twice. Thread-safe.
template <class Handle, class Object>
class HandleTable {
 public:
  // `kind`: "stream"; static text.
  explicit HandleTable(const char* kind) : kind_(kind) {}

  Handle add(Object object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.emplace(last_id_ + 1, std::move(object));
    return Handle{++last_id_};
  }
  // WCUDA_INVALID_HANDLE for a handle that is not in the table.
  Result<Object> find(Handle handle) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle.id);
    if (found == objects_.end()) return unknown(handle);
    return Object(found->second);
  }
  Status set(Handle handle, Object object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle.id);
    if (found == objects_.end()) return unknown(handle);
    found->second = std::move(object);
    return {};
  }
  // Removes it.
  Result<Object> take(Handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle.id);
    if (found == objects_.end()) return unknown(handle);
    Object object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  std::vector<Object> all() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Object> objects;
    for (const auto& [id, object] : objects_) objects.push_back(object);
    return objects;
  }
  template <class Predicate>
  void remove_if(const Predicate& predicate) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = objects_.begin(); it != objects_.end();)
      it = predicate(it->second) ? objects_.erase(it) : std::next(it);
  }

 private:
  Status unknown(Handle handle) const {
    return Status::error(WCUDA_INVALID_HANDLE, "%s %" PRIu64 " is not one of this backend", kind_,
                         handle.id);
  }

  const char* const kind_;
  mutable std::mutex mutex_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Object> objects_;
};

}  // namespace wcuda
