// The name of a suite's parameter where it is a backend: "host" or "cuda".
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "worker_cuda.h"

namespace wcuda::testing {

inline std::string backend_name(const ::testing::TestParamInfo<int32_t>& info) {
  return info.param == WCUDA_BACKEND_CUDA ? "cuda" : "host";
}

}  // namespace wcuda::testing
