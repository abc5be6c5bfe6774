// Where tests find NVRTC: in the folder that the environment's WCUDA_TEST_NVRTC names, else where
// the system's loader looks. A test without it is skipped with the reason, or fails under
// WCUDA_REQUIRE_NVRTC=1.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace wcuda::testing {

inline std::string nvrtc_folder() {
  const char* const folder = std::getenv("WCUDA_TEST_NVRTC");
  return folder ? folder : "";
}

inline bool nvrtc_is_required() {
  const char* const required = std::getenv("WCUDA_REQUIRE_NVRTC");
  return required && std::string(required) == "1";
}

}  // namespace wcuda::testing

// Ends the test unless `condition` holds: NVRTC could be opened.
#define WCUDA_NEEDS_NVRTC(condition, reason)                       \
  do {                                                             \
    if (condition) break;                                          \
    if (::wcuda::testing::nvrtc_is_required()) FAIL() << (reason); \
    GTEST_SKIP() << (reason);                                      \
  } while (0)
