// Steps with persistent fused layers follow each other on a device: their CTAs wait for each other,
// and two such kernels at once could each hold a part of the multiprocessors for ever.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "core/backend/backend.h"

namespace wcuda::engine {

// One object a device, shared by its engines, whatever their contexts. It orders work and decides
// nothing else. Thread-safe.
class DeviceOrder {
 public:
  static std::shared_ptr<DeviceOrder> of(int32_t ordinal);

  // Queues a step on a stream of `engine`, which names it: after the last step of another engine.
  // `queue` queues it and records `ended` after it.
  Status run(const void* engine, Backend& backend, Stream stream, Event ended,
             const std::function<Status()>& queue);
  // The engine's steps have ended, its events are to be destroyed.
  void leave(const void* engine);

 private:
  std::mutex mutex_;
  const void* last_engine_ = nullptr;
  Event last_ended_;
};

}  // namespace wcuda::engine
