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
  // The failure of the lowest piece is kept.
  void note(uint32_t piece, Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    happened_ = true;
    if (piece >= piece_) return;
    piece_ = piece;
    status_ = std::move(status);
  }
  // An exception can only mean that memory ran out.
  void note_exception() { threw_ = happened_ = true; }
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
