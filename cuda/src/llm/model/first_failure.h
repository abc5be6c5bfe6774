// FirstFailure: the first failure among pieces of work that run concurrently.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "core/base/status.h"

namespace wcuda::model {

// Thread-safe, except `take`.
class FirstFailure {
 public:
  // Runs a piece of work and returns false if it fails. Catches exceptions, which pool threads must
  // not throw; they can only mean that memory ran out. The failure of the lowest piece is kept.
  template <class Work>
  bool run(uint32_t piece, const Work& work) noexcept {
    try {
      Status status = work();
      if (status.ok()) return true;
      const std::lock_guard<std::mutex> lock(mutex_);
      happened_ = true;
      if (piece >= piece_) return false;
      piece_ = piece;
      status_ = std::move(status);
    } catch (...) {
      threw_ = happened_ = true;
    }
    return false;
  }
  bool happened() const { return happened_; }
  // Call after all pieces have ended.
  Status take() {
    if (status_.ok() && threw_)
      return Status::error(WCUDA_OUT_OF_HOST_MEMORY, "the host is out of memory");
    return std::move(status_);
  }

 private:
  std::atomic<bool> happened_{false}, threw_{false};
  std::mutex mutex_;
  uint32_t piece_ = UINT32_MAX;
  Status status_;
};

}  // namespace wcuda::model
