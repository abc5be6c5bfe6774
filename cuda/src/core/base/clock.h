// The monotonic clock of cooldowns, host events and run times; tests can replace it.
#pragma once

#include <atomic>
#include <chrono>

namespace wcuda {

using Clock = std::chrono::steady_clock;

// For tests: while it is not null, clock_now() calls it.
inline std::atomic<Clock::time_point (*)()> clock_override{nullptr};

// Any thread.
inline Clock::time_point clock_now() {
  const auto now = clock_override.load(std::memory_order_relaxed);
  return now ? now() : Clock::now();
}

}  // namespace wcuda
