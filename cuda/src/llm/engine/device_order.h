// Steps with persistent fused layers follow each other on a device: their CTAs wait for each other,
// and two such kernels at once could each hold a part of the multiprocessors for ever.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/status.h"

namespace wcuda::engine {

// One object a device, shared by its engines, whatever their contexts. It orders work and decides
// nothing else. Thread-safe; the device is current in each call.
class DeviceOrder {
 public:
  static std::shared_ptr<DeviceOrder> of(int device);
  explicit DeviceOrder(int device) : device_(device) {}

  // The stream of an engine that will call run().
  Status join(cudaStream_t stream);
  // Its steps have ended.
  void leave(cudaStream_t stream);
  // Calls `queue`, which queues a step on the stream: after the last step of the others.
  Status run(cudaStream_t stream, const std::function<Status()>& queue);
  // Calls `capture`, which captures what is queued on the engine's stream: nothing else may be.
  Status capture(const std::function<Status()>& capture);

 private:
  const int device_;
  std::mutex mutex_;
  std::vector<cudaStream_t> streams_;
  cudaEvent_t ended_ = nullptr;  // after the last step; null: there was never a second engine
};

}  // namespace wcuda::engine
