// What only a real device shows: real memory running out, the caller's current context, caps,
// health. Compiled only with CUDA.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/base/blake3.h"
#include "kernels/ptx/code.h"
#include "support/context.h"

namespace wcuda::testing {
namespace {

// The driver's current context of this thread, without a link to libcuda.
CUcontext current_context() {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &address, 13000, cudaEnableDefault,
                                             &found),
            cudaSuccess);
  CUcontext context = nullptr;
  EXPECT_EQ(reinterpret_cast<CUresult (*)(CUcontext*)>(address)(&context), CUDA_SUCCESS);
  return context;
}

TEST(GpuDevice, caps_are_those_of_a_real_device) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  wcuda_error error{};
  ASSERT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_CUDA, 0, &caps, &error), WCUDA_OK) << error.message;

  EXPECT_GE(caps.compute_capability_major, 8);
  EXPECT_GE(caps.driver_version, 13000);
  EXPECT_GE(caps.runtime_version, 13000);
  EXPECT_EQ(caps.warp_size, 32);
  EXPECT_GT(caps.memory_bandwidth, 100000000000u);
  EXPECT_EQ(std::strlen(caps.pci_bus_id), 12u) << caps.pci_bus_id;
  EXPECT_EQ(caps.supports_bf16, 1);
  EXPECT_EQ(caps.supports_unified_addressing, 1);
  std::printf("device: %s, %d.%d, %d multiprocessors, %.1f GiB, %.0f GB/s, driver %d\n", caps.name,
              caps.compute_capability_major, caps.compute_capability_minor,
              caps.multiprocessor_count, static_cast<double>(caps.total_memory) / (1u << 30),
              static_cast<double>(caps.memory_bandwidth) / 1e9, caps.driver_version);
}

// On a device of 9.0 code for 90a has all; code from before 90 is launched as on a device of 8.0.
TEST(GpuDevice, the_code_here_is_known_for_what_it_was_made_for) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  wcuda_build_info build = WCUDA_BUILD_INFO_INIT;
  ASSERT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_CUDA, 0, &caps, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_build_info_get(&build, nullptr), WCUDA_OK);
  const int32_t capability = caps.compute_capability_major * 10 + caps.compute_capability_minor;
  std::printf("code: %s, launched as %d\n", build.cuda_architectures, kernels::launch_capability());
  if (capability != 90 || std::strstr(build.cuda_architectures, "90a") == nullptr)
    GTEST_SKIP() << "neither a device nor code of 9.0";
  EXPECT_EQ(kernels::launch_capability(), 90);
  EXPECT_TRUE(kernels::has_warpgroup_code());
}

TEST(GpuDevice, ordinal_past_the_end_is_no_device) {
  int32_t count = 0;
  ASSERT_EQ(wcuda_device_count(WCUDA_BACKEND_CUDA, &count, nullptr), WCUDA_OK);
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  wcuda_error error{};

  EXPECT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_CUDA, count, &caps, &error), WCUDA_NO_DEVICE);
  EXPECT_EQ(std::string(error.message),
            "no CUDA device: ordinal " + std::to_string(count) + " of " + std::to_string(count));
}

TEST(GpuDevice, a_thread_without_a_context_has_none_afterwards) {
  std::thread([] {
    const CUcontext before = current_context();
    {
      const TestContext context(0, WCUDA_BACKEND_CUDA);
      const TestBuffer buffer(context.handle(), 1 << 20);
      EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), 0, 1 << 20, 0, 1, nullptr), WCUDA_OK);
      wcuda_health health = WCUDA_HEALTH_INIT;
      EXPECT_EQ(wcuda_health_get(context.handle(), &health, nullptr), WCUDA_OK);
      EXPECT_EQ(current_context(), before);
    }
    EXPECT_EQ(before, nullptr);
    EXPECT_EQ(current_context(), nullptr);
  }).join();
}

TEST(GpuDevice, the_callers_current_device_is_restored) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  for (int device = 0; device < count; ++device) {
    ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
    const CUcontext before = current_context();
    const TestContext context(0, WCUDA_BACKEND_CUDA);
    const TestBuffer buffer(context.handle(), 4096);
    uint8_t digest[32];
    EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), 0, 4096, 0, 1, nullptr), WCUDA_OK);
    EXPECT_EQ(wcuda_buffer_digest(buffer.handle(), 0, 4096, digest, nullptr), WCUDA_OK);

    int now = -1;
    EXPECT_EQ(cudaGetDevice(&now), cudaSuccess);
    EXPECT_EQ(now, device);
    EXPECT_EQ(current_context(), before);
  }
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(GpuDevice, failures_leave_nothing_in_the_runtimes_error_slot) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  (void)cudaGetLastError();
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = context.memory(0).device_total_bytes - 4096;  // asked of the driver, and refused
  wcuda_buffer buffer{7};

  EXPECT_EQ(wcuda_buffer_create(context.handle(), &options, &buffer, nullptr), WCUDA_OUT_OF_MEMORY);

  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(GpuDevice, real_memory_runs_out_and_comes_back) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  const uint64_t free_before = context.memory(0).device_free_bytes;
  const uint64_t piece = free_before / 8;
  std::vector<wcuda_buffer> buffers;
  wcuda_status status = WCUDA_OK;
  wcuda_error error{};
  for (int i = 0; i < 12; ++i) {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = piece;
    options.tag = {"piece", 5};
    wcuda_buffer buffer;
    status = wcuda_buffer_create(context.handle(), &options, &buffer, &error);
    if (status != WCUDA_OK) break;
    buffers.push_back(buffer);
  }

  EXPECT_EQ(status, WCUDA_OUT_OF_MEMORY);
  EXPECT_EQ(std::string(error.message).rfind("user 'piece': needs ", 0), 0u) << error.message;
  EXPECT_GE(buffers.size(), 6u);
  EXPECT_EQ(context.memory(0).current_bytes, buffers.size() * piece);
  const TestBuffer small(context.handle(), 4096);  // still works
  EXPECT_EQ(wcuda_buffer_fill(small.handle(), 0, 4096, 1, 1, nullptr), WCUDA_OK);

  for (const wcuda_buffer buffer : buffers) wcuda_buffer_destroy(buffer);
  const TestBuffer large(context.handle(), piece * 6);
  EXPECT_EQ(wcuda_buffer_fill(large.handle(), 0, piece * 6 / 8 * 8, 5, 8, nullptr), WCUDA_OK);
  EXPECT_EQ(context.memory(0).current_bytes, piece * 6 + 4096);
}

TEST(GpuDevice, budget_is_kept_before_the_driver_is_asked) {
  const TestContext context(1 << 20, WCUDA_BACKEND_CUDA);
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = (1 << 20) + 1;
  wcuda_buffer buffer{7};

  EXPECT_EQ(wcuda_buffer_create(context.handle(), &options, &buffer, nullptr), WCUDA_OVER_BUDGET);

  EXPECT_EQ(buffer.id, 7u);
  EXPECT_EQ(context.memory(0).peak_bytes, 0u);
}

// Past one segment of the kernel (1 GiB) and odd: the largest tree with every kind of border.
TEST(GpuDevice, digest_of_more_than_a_segment_equals_the_host) {
  constexpr uint64_t kBytes = (uint64_t{2} << 30) + 12345;
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  const TestBuffer buffer(context.handle(), kBytes + 3);
  std::vector<uint8_t> data(kBytes);
  uint64_t state = 1;
  for (uint64_t i = 0; i + 8 <= kBytes; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(&data[i], &state, 8);
  }
  ASSERT_EQ(wcuda_buffer_write(buffer.handle(), 0, data.data(), kBytes, nullptr), WCUDA_OK);

  for (const uint64_t bytes : {kBytes, uint64_t{1} << 30, (uint64_t{1} << 30) + 1,
                               uint64_t{2} << 30, (uint64_t{1} << 30) - 1}) {
    uint8_t digest[32], expected[32];
    blake3::hash(data.data(), bytes, expected);
    ASSERT_EQ(wcuda_buffer_digest(buffer.handle(), 0, bytes, digest, nullptr), WCUDA_OK);
    EXPECT_EQ(std::memcmp(digest, expected, 32), 0) << bytes << " bytes";
  }
}

TEST(GpuDevice, health_knows_temperature_and_memory) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  const TestBuffer buffer(context.handle(), 1 << 20);
  wcuda_health health = WCUDA_HEALTH_INIT;
  ASSERT_EQ(wcuda_health_get(context.handle(), &health, nullptr), WCUDA_OK);

  EXPECT_EQ(health.state, WCUDA_HEALTH_OK) << health.message;
  EXPECT_EQ(health.nonresident_count, 0u);
  EXPECT_EQ(health.ledger_bytes, uint64_t{1} << 20);
  EXPECT_GE(health.pool_used_bytes, health.ledger_bytes);
  EXPECT_GE(health.pool_reserved_bytes, health.pool_used_bytes);
  EXPECT_LT(health.pool_used_bytes, health.ledger_bytes + (uint64_t{4} << 20));
  EXPECT_GT(health.temperature_celsius, 0);
  EXPECT_LT(health.temperature_celsius, 120);
  std::printf("health: %d degrees, %lld uncorrected errors, %.3f ms\n", health.temperature_celsius,
              static_cast<long long>(health.ecc_error_count),
              static_cast<double>(health.duration_ns) / 1e6);
}

TEST(GpuDevice, context_can_be_opened_and_closed_many_times) {
  uint64_t free_after_first = 0;
  for (int i = 0; i < 20; ++i) {
    const TestContext context(0, WCUDA_BACKEND_CUDA);
    const TestBuffer buffer(context.handle(), 32 << 20);
    if (i == 1) free_after_first = context.memory(0).device_free_bytes;
    if (i == 19) {
      EXPECT_GE(context.memory(0).device_free_bytes + (uint64_t{64} << 20), free_after_first)
          << "memory is lost with each context";
    }
  }
}

}  // namespace
}  // namespace wcuda::testing
