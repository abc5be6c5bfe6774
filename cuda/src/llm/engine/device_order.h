// Serializes steps with persistent fused layers on a device. The CTAs of such a kernel wait for
// each other, so two of these kernels at the same time could each occupy some SMs forever.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "core/backend/backend.h"

namespace wcuda::engine {

// One object per device, shared by the engines of all contexts. It only orders work. Thread-safe.
class DeviceOrder {
 public:
  static std::shared_ptr<DeviceOrder> of(int32_t ordinal);

  // Queues a step of `engine` (a pointer that only identifies it) on `stream`, after the last step
  // of another engine. `queue` queues the step and records `ended` after it.
  Status run(const void* engine, Backend& backend, Stream stream, Event ended,
             const std::function<Status()>& queue);
  // Must be called when the engine's steps have ended, before its events are destroyed.
  void leave(const void* engine);

 private:
  std::mutex mutex_;
  const void* last_engine_ = nullptr;
  Event last_ended_;
};

}  // namespace wcuda::engine
