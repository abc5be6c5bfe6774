#include "llm/engine/device_order.h"

#include <algorithm>
#include <map>

#include "core/backend/cuda_device.h"

namespace wcuda::engine {

std::shared_ptr<DeviceOrder> DeviceOrder::of(int device) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<DeviceOrder>> orders;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<DeviceOrder> order = orders[device].lock();
  if (order == nullptr) orders[device] = order = std::make_shared<DeviceOrder>(device);
  return order;
}

Status DeviceOrder::join(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!streams_.empty() && ended_ == nullptr) {
    WCUDA_TRY(check_cuda(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming),
                         "cudaEventCreateWithFlags", device_));
    // What the first engine has queued has recorded nothing.
    WCUDA_TRY(check_cuda(cudaEventRecord(ended_, streams_.front()), "cudaEventRecord", device_));
  }
  streams_.push_back(stream);
  return {};
}

void DeviceOrder::leave(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
  if (!streams_.empty() || ended_ == nullptr) return;
  (void)cudaEventDestroy(ended_);
  ended_ = nullptr;
}

Status DeviceOrder::run(cudaStream_t stream, const std::function<Status()>& queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended_ == nullptr) return queue();
  WCUDA_TRY(check_cuda(cudaStreamWaitEvent(stream, ended_, 0), "cudaStreamWaitEvent", device_));
  const Status status = queue();
  const Status recorded = check_cuda(cudaEventRecord(ended_, stream), "cudaEventRecord", device_);
  return status.ok() ? recorded : status;
}

Status DeviceOrder::capture(const std::function<Status()>& capture) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return capture();
}

}  // namespace wcuda::engine
