// The figures and conditions behind backend/failover.h.
#include "core/backend/failover.h"

namespace wcuda {

int32_t FailoverPolicy::failure(size_t target, Code status, uint64_t now) {
  const bool counts = status == WCUDA_DEVICE_LOST || status == WCUDA_DEVICE_ERROR ||
                      status == WCUDA_NO_DEVICE || status == WCUDA_NOT_AVAILABLE ||
                      (status == WCUDA_OUT_OF_MEMORY && settings_.moves_when_full);
  if (!counts) return 0;
  ++failure_count_;
  if (settings_.mode == WCUDA_FAILOVER_NONE) return 0;
  if (status == WCUDA_DEVICE_LOST) return WCUDA_FAILOVER_REASON_DEVICE_LOST;
  if (status == WCUDA_OUT_OF_MEMORY) return WCUDA_FAILOVER_REASON_OUT_OF_MEMORY;
  if (target != active_) return 0;  // it was left already
  failures_.push_back(now);
  while (now - failures_.front() > settings_.window_ms) failures_.pop_front();
  return failures_.size() >= settings_.failure_threshold ? WCUDA_FAILOVER_REASON_REPEATED : 0;
}

std::vector<size_t> FailoverPolicy::candidates(uint64_t now) const {
  std::vector<size_t> order;
  for (size_t target = 0; target < settings_.target_count; ++target)
    if (target != active_ && is_cool(target, now)) order.push_back(target);
  return order;
}

void FailoverPolicy::moved(size_t target, uint64_t now) {
  cool(active_, now);
  active_ = target;
  failures_.clear();
  last_probe_ = now;
}

bool FailoverPolicy::wants_probe(uint64_t now) const {
  return active_ != 0 && is_cool(0, now) && now - last_probe_ >= settings_.recheck_ms;
}

bool FailoverPolicy::probed(bool computes_right, uint64_t now) {
  last_probe_ = now;
  if (!computes_right) return false;
  active_ = 0;
  failures_.clear();
  return true;
}

}  // namespace wcuda
