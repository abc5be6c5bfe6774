// Suites named Gpu… need a CUDA device: without one each of their tests is skipped with the reason;
// with WCUDA_REQUIRE_GPU=1 in the environment it fails instead.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "worker_cuda.h"

namespace {

class SkipWithoutDevice : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    // "GpuBuffer", and "Prefix/GpuBuffer" of a parameterised suite.
    const char* name = test.test_suite_name();
    if (const char* slash = std::strrchr(name, '/')) {
      if (std::strncmp(slash + 1, "Gpu", 3) == 0) name = slash + 1;
    }
    if (std::strncmp(name, "Gpu", 3) != 0) return;

    int32_t count = 0;
    wcuda_error error{};
    if (wcuda_device_count(WCUDA_BACKEND_CUDA, &count, &error) == WCUDA_OK) return;
    const char* required = std::getenv("WCUDA_REQUIRE_GPU");
    if (required != nullptr && std::strcmp(required, "1") == 0) {
      GTEST_FAIL() << error.message;
    }
    GTEST_SKIP() << error.message;
  }
};

[[maybe_unused]] const bool installed = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SkipWithoutDevice);
  return true;
}();

}  // namespace
