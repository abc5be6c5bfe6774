// A kernel that runs until the test ends it: a device is busy for exactly as long as a test needs.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "support/context.h"
#include "worker_cuda.h"

namespace wcuda::testing {

// On a CUDA context. The destructor opens the gate and waits for the kernel.
class DeviceGate {
 public:
  explicit DeviceGate(wcuda_context context) : context_(context), flag_(context, kBytes) {
    std::ifstream file(WCUDA_TEST_DATA "/kernels/module.ptx", std::ios::binary);
    std::stringstream ptx;
    ptx << file.rdbuf();
    const std::string code = ptx.str(), name = "wait_flag";
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = {name.data(), name.size()};
    expect_ok(wcuda_module_load(context, code.data(), code.size(), &options.module, &error_));
    expect_ok(wcuda_kernel_create(context, &options, &kernel_, &error_));
    wcuda_module_unload(options.module);
    void* data = nullptr;
    uint64_t bytes = 0;
    expect_ok(wcuda_pinned_create(context, kBytes, &one_, &error_));
    expect_ok(wcuda_pinned_data_get(one_, &data, &bytes, &error_));
    expect_ok(wcuda_stream_create(context, -1, &opening_, &error_));
    const uint32_t zero = 0;
    expect_ok(wcuda_buffer_write(flag_.handle(), 0, &zero, kBytes, &error_));
    if (data) *static_cast<uint32_t*>(data) = 1;
  }
  ~DeviceGate() {
    open();
    expect_ok(wcuda_context_synchronize(context_, &error_));
    wcuda_kernel_destroy(kernel_);
    wcuda_pinned_destroy(one_);
    wcuda_stream_destroy(opening_);
  }
  DeviceGate(const DeviceGate&) = delete;
  DeviceGate& operator=(const DeviceGate&) = delete;

  // What wait_flag waits for: 0 while the gate is closed.
  const TestBuffer& flag() const { return flag_; }
  // Work queued on the stream from now on waits for open().
  void close(wcuda_stream stream) {
    wcuda_launch launch = WCUDA_LAUNCH_INIT;
    launch.stream = stream;
    wcuda_argument flag = WCUDA_ARGUMENT_INIT;
    flag.kind = WCUDA_ARG_BUFFER;
    flag.buffer = flag_.handle();
    expect_ok(wcuda_kernel_launch(kernel_, &launch, &flag, 1, &error_));
  }
  void open() {
    expect_ok(wcuda_buffer_write_async(flag_.handle(), 0, one_, 0, kBytes, opening_, &error_));
    expect_ok(wcuda_stream_synchronize(opening_, &error_));
  }

 private:
  static constexpr uint64_t kBytes = sizeof(uint32_t);
  void expect_ok(wcuda_status status) { EXPECT_EQ(status, WCUDA_OK) << error_.message; }

  wcuda_context context_;
  wcuda_error error_{};
  TestBuffer flag_;
  wcuda_kernel kernel_{0};
  wcuda_pinned one_{0};
  wcuda_stream opening_{0};
};

}  // namespace wcuda::testing
