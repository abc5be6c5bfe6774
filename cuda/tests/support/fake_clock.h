// Time that passes only when a test says so.
#pragma once

#include <atomic>

#include "core/base/clock.h"

namespace wcuda::testing {

// Replaces the library's clock while it lives; at most one at a time.
class FakeClock {
 public:
  FakeClock() {
    now_ns = 1000000000;
    clock_override = [] { return Clock::time_point(std::chrono::nanoseconds(now_ns)); };
  }
  ~FakeClock() { clock_override = nullptr; }
  FakeClock(const FakeClock&) = delete;
  FakeClock& operator=(const FakeClock&) = delete;

  static void advance_ms(int64_t ms) { now_ns += ms * 1000000; }

 private:
  static inline std::atomic<int64_t> now_ns{0};
};

}  // namespace wcuda::testing
