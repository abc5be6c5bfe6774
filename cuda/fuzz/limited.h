// What an input of a fuzz target may cost.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace wcuda::fuzz {

constexpr double kInputMsMax = 100;  // of processor time, with the sanitizers

inline double thread_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Ends the program if the input shows a mistake, or takes too long. Others use the machine too: of
// three tries the fastest counts.
inline int run_limited(std::string (*exercise)(const uint8_t*, size_t), const uint8_t* data,
                       size_t bytes) {
  double ms = 0;
  for (int tries_left = 3; tries_left > 0; --tries_left) {
    const double begin = thread_ms();
    const std::string wrong = exercise(data, bytes);
    ms = thread_ms() - begin;
    if (!wrong.empty()) {
      std::fprintf(stderr, "%s\n", wrong.c_str());
      std::abort();
    }
    if (ms <= kInputMsMax) return 0;
  }
  std::fprintf(stderr, "%.0f ms, at most %.0f\n", ms, kInputMsMax);
  std::abort();
}

}  // namespace wcuda::fuzz
