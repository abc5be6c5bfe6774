// When work moves from one backend to the next, and when it comes back: decisions alone, with time
// as a number, so that they are tested without waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/base/status.h"
#include "worker_cuda/backend.h"

namespace wcuda {

struct FailoverSettings {
  int32_t mode = WCUDA_FAILOVER_NONE;
  uint32_t failure_threshold = 3;  // failures within the window that make a backend one to leave
  uint64_t window_ms = 30000;
  uint64_t cooldown_ms = 60000;  // how long one that was left is not used
  uint64_t recheck_ms = 30000;   // between two probes of the first
  bool moves_when_full = false;
  size_t target_count = 0;
};

// Not thread-safe. Targets are numbered by preference; time is in milliseconds and never goes back.
class FailoverPolicy {
 public:
  explicit FailoverPolicy(const FailoverSettings& settings)
      : settings_(settings), left_at_(settings.target_count, kNever) {}

  const FailoverSettings& settings() const { return settings_; }
  size_t active() const { return active_; }
  uint64_t failure_count() const { return failure_count_; }

  // A failure on a target. The reason (WCUDA_FAILOVER_REASON_…) to leave it, or 0: mistakes of the
  // caller, source that does not compile, timeouts and slowness never are one.
  int32_t failure(size_t target, Code status, uint64_t now);
  // Where to go instead of the active one, in order: those that are not cooling down.
  std::vector<size_t> candidates(uint64_t now) const;
  // The target is not used before its cooldown has passed.
  void cool(size_t target, uint64_t now) { left_at_[target] = now; }
  // Leaves the active target for another.
  void moved(size_t target, uint64_t now);
  // The first target is to be probed: it was left, has cooled down, and was not probed lately.
  bool wants_probe(uint64_t now) const;
  // What the probe found; true when it ends with the first target active.
  bool probed(bool computes_right, uint64_t now);

 private:
  static constexpr uint64_t kNever = UINT64_MAX;
  bool is_cool(size_t target, uint64_t now) const {
    return left_at_[target] == kNever || now - left_at_[target] >= settings_.cooldown_ms;
  }

  const FailoverSettings settings_;
  size_t active_ = 0;
  uint64_t failure_count_ = 0;     // ever, of those that count
  std::deque<uint64_t> failures_;  // of the active target, within the window
  std::vector<uint64_t> left_at_;  // kNever: was not left
  uint64_t last_probe_ = 0;
};

}  // namespace wcuda
