// Handles of the C interface that destroy themselves, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "worker_cuda.h"

namespace wcuda::testing {

class TestContext {
 public:
  explicit TestContext(uint64_t budget = 0, int32_t backend = WCUDA_BACKEND_HOST) {
    if (::testing::Test::IsSkipped()) return;  // a Gpu… suite without a device, see gpu_suites.cpp
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = backend;
    options.memory_budget = budget;
    wcuda_error error{};
    EXPECT_EQ(wcuda_context_create(&options, &context_, &error), WCUDA_OK) << error.message;
  }
  ~TestContext() { wcuda_context_destroy(context_); }
  TestContext(const TestContext&) = delete;
  TestContext& operator=(const TestContext&) = delete;

  wcuda_context handle() const { return context_; }
  wcuda_memory_info memory(int32_t purpose) const {
    wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
    EXPECT_EQ(wcuda_context_memory_get(context_, purpose, &info, nullptr), WCUDA_OK);
    return info;
  }

 private:
  wcuda_context context_{0};
};

class TestBuffer {
 public:
  TestBuffer(wcuda_context context, uint64_t bytes, int32_t purpose = 0,
             const std::string& tag = "") {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = bytes;
    options.purpose = purpose;
    options.tag = {tag.data(), tag.size()};
    wcuda_error error{};
    EXPECT_EQ(wcuda_buffer_create(context, &options, &buffer_, &error), WCUDA_OK) << error.message;
  }
  ~TestBuffer() { wcuda_buffer_destroy(buffer_); }
  TestBuffer(const TestBuffer&) = delete;
  TestBuffer& operator=(const TestBuffer&) = delete;

  wcuda_buffer handle() const { return buffer_; }

 private:
  wcuda_buffer buffer_{0};
};

}  // namespace wcuda::testing
