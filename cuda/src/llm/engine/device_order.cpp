#include "llm/engine/device_order.h"

#include <map>

namespace wcuda::engine {

std::shared_ptr<DeviceOrder> DeviceOrder::of(int32_t ordinal) {
  static std::mutex mutex;
  static std::map<int32_t, std::weak_ptr<DeviceOrder>> orders;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<DeviceOrder> order = orders[ordinal].lock();
  if (order == nullptr) orders[ordinal] = order = std::make_shared<DeviceOrder>();
  return order;
}

Status DeviceOrder::run(const void* engine, Backend& backend, Stream stream, Event ended,
                        const std::function<Status()>& queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_engine_ != nullptr && last_engine_ != engine)
    WCUDA_TRY(backend.stream_wait(stream, last_ended_));
  Status status = queue();
  if (!status.ok()) {
    (void)backend.synchronize(stream);  // part of the step may be queued without an event after it
    return status;
  }
  last_engine_ = engine;
  last_ended_ = ended;
  return {};
}

void DeviceOrder::leave(const void* engine) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_engine_ == engine) last_engine_ = nullptr;
}

}  // namespace wcuda::engine
