// Raw addresses, and the vram_* functions of an older library over them; the checks of those are a
// C program's: compat_vram_use.c.
#include "api/base/raw.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"

// The functions of the compatibility header that need no text, for failures made by hand.
#define WCUDA_COMPAT_HOST
#include "worker_cuda_compat.h"

extern "C" int compat_vram_use_host(int has_device);
extern "C" int compat_vram_use_cuda(int has_device);

namespace wcuda::testing {
namespace {

bool has_cuda() {
  int32_t count = 0;
  return wcuda_device_count(WCUDA_BACKEND_CUDA, &count, nullptr) == WCUDA_OK;
}

TEST(CompatVram, c_program_gets_checked_memory_on_the_host) {
  EXPECT_EQ(compat_vram_use_host(1), 0);
}

TEST(CompatVram, c_program_without_a_device_gets_the_code_of_the_driver) {
  if (has_cuda()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_EQ(compat_vram_use_cuda(0), 0);
}

TEST(GpuCompatVram, c_program_gets_checked_memory_on_the_device) {
  EXPECT_EQ(compat_vram_use_cuda(1), 0);
  EXPECT_EQ(wcuda_raw_reset(WCUDA_BACKEND_CUDA, nullptr), WCUDA_OK);
}

// Raw devices that fail on demand.
class Raw : public ::testing::Test {
 protected:
  Raw() {
    device_ = open_host_backend(1 << 20, 1).take();
    faults_ = std::make_shared<FaultBackend>(device_);
    memory_ = vram::Memory::create(faults_, 0);
    reset();
    api::set_raw_opener([this](int32_t, int32_t) {
      return Result<std::shared_ptr<vram::Memory>>(std::shared_ptr<vram::Memory>(memory_));
    });
  }
  ~Raw() override {
    api::set_raw_opener(nullptr);
    reset();
  }
  static void reset() { EXPECT_EQ(wcuda_raw_reset(WCUDA_BACKEND_HOST, nullptr), WCUDA_OK); }

  std::shared_ptr<Backend> device_;
  std::shared_ptr<FaultBackend> faults_;
  std::shared_ptr<vram::Memory> memory_;
};

TEST_F(Raw, each_failing_call_has_its_code_and_gives_everything_back) {
  char data[100] = {1};
  void* ptr = data;
  faults_->fail(CallKind::kAllocate, 1);
  EXPECT_EQ(vram_malloc(&ptr, 100), VRAM_ERROR_ALLOCATION_FAILED);
  EXPECT_EQ(ptr, nullptr);
  ASSERT_EQ(vram_malloc(&ptr, 100), VRAM_SUCCESS);
  faults_->fail(CallKind::kCopy, 1);
  EXPECT_EQ(vram_memcpy_h2d(ptr, data, 100), VRAM_ERROR_MEMCPY_FAILED);
  faults_->fail(CallKind::kCopy, 1);
  EXPECT_EQ(vram_memcpy_d2h(data, ptr, 100), VRAM_ERROR_MEMCPY_FAILED);
  EXPECT_EQ(data[0], 1);
  faults_->fail(CallKind::kOther, 1);
  size_t free_bytes = 1, total = 1;
  EXPECT_EQ(vram_get_info(&free_bytes, &total), VRAM_ERROR_DRIVER);
  EXPECT_EQ(free_bytes + total, 0u);

  EXPECT_EQ(vram_free(ptr), VRAM_SUCCESS);
  EXPECT_EQ(device_->memory_info()->reserved_bytes, 0u);
  EXPECT_TRUE(memory_->ledger().rows().empty());
}

TEST_F(Raw, a_lost_device_answers_and_lets_blocks_be_freed) {
  char data[8] = {0};
  void* ptr = nullptr;
  ASSERT_EQ(vram_malloc(&ptr, 8), VRAM_SUCCESS);
  faults_->lose_device(1);
  EXPECT_EQ(vram_memcpy_h2d(ptr, data, 8), VRAM_ERROR_MEMCPY_FAILED);
  void* other = data;
  EXPECT_EQ(vram_malloc(&other, 8), VRAM_ERROR_DRIVER);
  EXPECT_EQ(vram_free(ptr), VRAM_SUCCESS);
  EXPECT_EQ(memory_->ledger().sum(WCUDA_PURPOSE_USER).lost_bytes, 8u);
}

TEST_F(Raw, reset_frees_every_block_of_its_backend) {
  void *one = nullptr, *two = nullptr;
  ASSERT_EQ(vram_malloc(&one, 300), VRAM_SUCCESS);
  ASSERT_EQ(vram_malloc(&two, 300), VRAM_SUCCESS);
  reset();
  EXPECT_EQ(device_->memory_info()->reserved_bytes, 0u);
  EXPECT_EQ(vram_free(one), VRAM_ERROR_INVALID_VALUE);
  EXPECT_EQ(wcuda_raw_reset(WCUDA_BACKEND_AUTO, nullptr), WCUDA_INVALID_ARGUMENT);
}

TEST_F(Raw, messages_state_what_is_wrong_with_an_address) {
  wcuda_error error{};
  char data[8] = {0};
  void* ptr = nullptr;
  ASSERT_EQ(wcuda_raw_allocate(WCUDA_BACKEND_HOST, 100, &ptr, &error), WCUDA_OK) << error.message;
  EXPECT_EQ(wcuda_raw_copy_to_device(static_cast<char*>(ptr) + 96, data, 8, &error),
            WCUDA_OUT_OF_RANGE);
  EXPECT_STREQ(error.message, "target: offset 96 and 8 bytes, the buffer has 100");
  EXPECT_EQ(wcuda_raw_copy_to_host(data, data, 8, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "source: the address lies in no live block");
  EXPECT_EQ(wcuda_raw_allocate(WCUDA_BACKEND_AUTO, 1, &ptr, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_raw_allocate(WCUDA_BACKEND_HOST, 0, &ptr, &error), WCUDA_INVALID_ARGUMENT);
}

TEST_F(Raw, a_device_is_chosen_among_those_there_are) {
  wcuda_error error{};
  EXPECT_EQ(wcuda_raw_device_set(WCUDA_BACKEND_HOST, 0, &error), WCUDA_OK) << error.message;
  for (const int32_t ordinal : {-1, 1}) {
    EXPECT_EQ(wcuda_raw_device_set(WCUDA_BACKEND_HOST, ordinal, &error), WCUDA_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.message), "ordinal: " + std::to_string(ordinal) + " of 1 devices");
  }
  EXPECT_EQ(wcuda_raw_device_set(WCUDA_BACKEND_AUTO, 0, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "backend: 0 is not CUDA or HOST");
}

TEST_F(Raw, memory_falls_by_a_block_and_comes_back) {
  wcuda_error error{};
  uint64_t before = 0, during = 0, after = 0, total = 0;
  void* ptr = nullptr;
  ASSERT_EQ(wcuda_raw_memory_get(WCUDA_BACKEND_HOST, &before, &total, &error), WCUDA_OK);
  EXPECT_EQ(total, 1u << 20);
  ASSERT_EQ(wcuda_raw_allocate(WCUDA_BACKEND_HOST, 4096, &ptr, &error), WCUDA_OK);
  ASSERT_EQ(wcuda_raw_memory_get(WCUDA_BACKEND_HOST, &during, &total, &error), WCUDA_OK);
  EXPECT_LE(during + 4096, before);
  EXPECT_EQ(wcuda_raw_free(static_cast<char*>(ptr) + 1, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "address: no live block begins there");
  EXPECT_EQ(wcuda_raw_free(ptr, &error), WCUDA_OK) << error.message;
  EXPECT_EQ(wcuda_raw_free(ptr, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_raw_free(nullptr, &error), WCUDA_OK);
  ASSERT_EQ(wcuda_raw_memory_get(WCUDA_BACKEND_HOST, &after, &total, &error), WCUDA_OK);
  EXPECT_EQ(after, before);
  EXPECT_EQ(wcuda_raw_memory_get(WCUDA_BACKEND_HOST, nullptr, &total, &error),
            WCUDA_INVALID_ARGUMENT);
}

TEST_F(Raw, eight_threads_allocate_copy_and_free) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number)
    threads.emplace_back([&wrong, number] {
      for (int round = 0; round < 2500; ++round) {
        const size_t bytes = 1 + static_cast<size_t>(number * 37 + round % 100);
        std::vector<char> data(bytes, static_cast<char>(number)), back(bytes);
        void* ptr = nullptr;
        wrong += vram_malloc(&ptr, bytes) != VRAM_SUCCESS;
        wrong += vram_memcpy_h2d(ptr, data.data(), bytes) != VRAM_SUCCESS;
        wrong += vram_memcpy_d2h(back.data(), ptr, bytes) != VRAM_SUCCESS;
        wrong += back != data;
        wrong += vram_free(ptr) != VRAM_SUCCESS;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(memory_->ledger().rows().empty());
}

}  // namespace
}  // namespace wcuda::testing
