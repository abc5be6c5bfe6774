// Two devices of one process: both compute, neither takes what is the other's, and choosing among
// them works. Skipped where there is one.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/backend/failover_fixture.h"
#include "support/context.h"
#include "worker_cuda_compat.h"

namespace wcuda::testing {
namespace {

constexpr char kIdle[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry idle(.param .u64 x) {\n  ret;\n}\n";

class GpuTwoDevices : public FailoverFixture {
 protected:
  void SetUp() override {
    if (IsSkipped()) return;
    int32_t count = 0;
    ASSERT_EQ(wcuda_device_count(WCUDA_BACKEND_CUDA, &count, &error_), WCUDA_OK);
    if (count < 2) GTEST_SKIP() << "one device";
    for (int32_t ordinal = 0; ordinal < 2; ++ordinal) {
      wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
      options.backend = WCUDA_BACKEND_CUDA;
      options.ordinal = ordinal;
      ASSERT_EQ(wcuda_context_create(&options, &contexts_[ordinal], &error_), WCUDA_OK)
          << error_.message;
    }
  }
  void TearDown() override {
    FailoverFixture::TearDown();
    for (const wcuda_context context : contexts_) wcuda_context_destroy(context);
  }
  wcuda_kernel make_kernel(wcuda_context context, wcuda_module* module) {
    wcuda_kernel kernel{0};
    EXPECT_EQ(wcuda_module_load(context, kIdle, sizeof(kIdle) - 1, module, &error_), WCUDA_OK)
        << error_.message;
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = {"idle", 4};
    options.module = *module;
    EXPECT_EQ(wcuda_kernel_create(context, &options, &kernel, &error_), WCUDA_OK) << error_.message;
    return kernel;
  }
  void expect_refused(wcuda_status status, const char* message) {
    EXPECT_EQ(status, WCUDA_INVALID_ARGUMENT) << message;
    EXPECT_NE(std::string(error_.message).find(message), std::string::npos) << error_.message;
  }

  wcuda_context contexts_[2] = {{0}, {0}};
};

TEST_F(GpuTwoDevices, each_is_itself) {
  wcuda_device_caps caps[2] = {WCUDA_DEVICE_CAPS_INIT, WCUDA_DEVICE_CAPS_INIT};
  for (int32_t ordinal = 0; ordinal < 2; ++ordinal) {
    ASSERT_EQ(wcuda_device_caps_get(WCUDA_BACKEND_CUDA, ordinal, &caps[ordinal], &error_),
              WCUDA_OK);
    EXPECT_EQ(caps[ordinal].ordinal, ordinal);
    wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
    ASSERT_EQ(wcuda_context_info_get(contexts_[ordinal], &info, &error_), WCUDA_OK);
    EXPECT_EQ(info.ordinal, ordinal);
  }
  EXPECT_STRNE(caps[0].pci_bus_id, caps[1].pci_bus_id);
  int32_t count = 0;
  ASSERT_EQ(wcuda_device_count(WCUDA_BACKEND_CUDA, &count, &error_), WCUDA_OK);
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = WCUDA_BACKEND_CUDA;
  options.ordinal = count;
  wcuda_context none{7};
  EXPECT_EQ(wcuda_context_create(&options, &none, &error_), WCUDA_NO_DEVICE) << error_.message;
  EXPECT_EQ(none.id, 7u);
}

TEST_F(GpuTwoDevices, both_compute_at_once_and_hold_their_own) {
  std::atomic<int> wrong{0};
  const auto work = [&](int ordinal) {
    const wcuda_context context = contexts_[ordinal];
    const float begin = ordinal == 0 ? 1.0f : 100.0f;
    for (int turn = 0; turn < 50; ++turn) {
      const TestBuffer a(context, 4096), b(context, 4096), c(context, 4096);
      const std::vector<float> values(1024, begin + static_cast<float>(turn));
      std::vector<float> sums(1024);
      wrong += wcuda_buffer_write(a.handle(), 0, values.data(), 4096, nullptr) != WCUDA_OK;
      wrong += wcuda_buffer_copy(b.handle(), 0, a.handle(), 0, 4096, nullptr) != WCUDA_OK;
      const int64_t n = 1024;
      wcuda_argument arguments[4];
      for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
      const wcuda_buffer buffers[] = {a.handle(), b.handle(), c.handle()};
      for (int i = 0; i < 3; ++i) {
        arguments[i].kind = WCUDA_ARG_BUFFER;
        arguments[i].buffer = buffers[i];
      }
      arguments[3].kind = WCUDA_ARG_I64;
      arguments[3].data = &n;
      wrong += wcuda_catalogue_run(context, {"vector_add", 10}, WCUDA_ARG_F32, arguments, 4, {0},
                                   nullptr) != WCUDA_OK;
      wrong += wcuda_buffer_read(c.handle(), 0, sums.data(), 4096, nullptr) != WCUDA_OK;
      wrong += sums != std::vector<float>(1024, 2 * (begin + static_cast<float>(turn)));
    }
    wcuda_residency residency = WCUDA_RESIDENCY_INIT;
    const TestBuffer one(context, 1 << 20);
    wrong += wcuda_context_residency_get(context, &residency, nullptr) != WCUDA_OK;
    wrong += residency.checked_count == 0 || residency.nonresident_count != 0;
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  EXPECT_EQ(wrong, 0);
  for (const wcuda_context context : contexts_) {
    wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
    ASSERT_EQ(wcuda_context_memory_get(context, WCUDA_PURPOSE_USER, &info, nullptr), WCUDA_OK);
    EXPECT_EQ(info.current_bytes, 0u);
  }
}

TEST_F(GpuTwoDevices, what_is_of_one_is_refused_by_the_other) {
  const TestBuffer own(contexts_[0], 64), foreign(contexts_[1], 64);
  expect_refused(wcuda_buffer_copy(own.handle(), 0, foreign.handle(), 0, 64, &error_),
                 "target and source are of different contexts");

  wcuda_module modules[2] = {{0}, {0}};
  const wcuda_kernel kernels[2] = {make_kernel(contexts_[0], &modules[0]),
                                   make_kernel(contexts_[1], &modules[1])};
  wcuda_argument argument = WCUDA_ARGUMENT_INIT;
  argument.kind = WCUDA_ARG_BUFFER;
  argument.buffer = foreign.handle();
  const wcuda_launch plain = WCUDA_LAUNCH_INIT;
  expect_refused(wcuda_kernel_launch(kernels[0], &plain, &argument, 1, &error_),
                 "the buffer is of another context");
  argument.buffer = own.handle();
  wcuda_stream stream{0};
  ASSERT_EQ(wcuda_stream_create(contexts_[1], 0, &stream, &error_), WCUDA_OK);
  wcuda_launch on_foreign = plain;
  on_foreign.stream = stream;
  expect_refused(wcuda_kernel_launch(kernels[0], &on_foreign, &argument, 1, &error_),
                 "stream: is of another context");
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  options.name = {"idle", 4};
  options.module = modules[1];
  wcuda_kernel none{0};
  expect_refused(wcuda_kernel_create(contexts_[0], &options, &none, &error_),
                 "module: is of another context");
  wcuda_event events[2] = {{0}, {0}};
  double milliseconds = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(wcuda_event_create(contexts_[i], &events[i], &error_), WCUDA_OK);
    ASSERT_EQ(wcuda_event_record(events[i], {0}, &error_), WCUDA_OK);
  }
  expect_refused(wcuda_event_elapsed_get(events[0], events[1], &milliseconds, &error_),
                 "different contexts");
  expect_refused(wcuda_event_record(events[0], stream, &error_), "stream: is of another context");
  EXPECT_EQ(wcuda_kernel_launch(kernels[0], &plain, &argument, 1, &error_), WCUDA_OK)
      << error_.message;
  EXPECT_EQ(wcuda_context_synchronize(contexts_[0], &error_), WCUDA_OK);

  for (int i = 0; i < 2; ++i) {
    wcuda_event_destroy(events[i]);
    wcuda_kernel_destroy(kernels[i]);
    wcuda_module_unload(modules[i]);
  }
  wcuda_stream_destroy(stream);
}

// Slots with memory and streams of a backend on the other device.
TEST_F(GpuTwoDevices, tables_refuse_each_others_handles_and_know_both) {
  wcuda_backend backends[2] = {{0}, {0}};
  const wcuda_backend_vtable* table = nullptr;
  void* selves[2] = {nullptr, nullptr};
  for (int32_t ordinal = 0; ordinal < 2; ++ordinal) {
    wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
    options.type = WCUDA_BACKEND_CUDA;
    options.ordinal = ordinal;
    ASSERT_EQ(wcuda_backend_open(&options, &backends[ordinal], &error_), WCUDA_OK)
        << error_.message;
    ASSERT_EQ(wcuda_backend_table_get(backends[ordinal], &table, &selves[ordinal], &error_),
              WCUDA_OK);
    EXPECT_GE(table->get_device_count(selves[ordinal]), 2u);
    for (uint32_t device = 0; device < 2; ++device) {
      wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
      EXPECT_EQ(table->get_device_caps(selves[ordinal], device, &caps, &error_), WCUDA_OK);
      EXPECT_EQ(caps.ordinal, static_cast<int32_t>(device));
    }
  }
  wcuda_device_memory first{0, 0}, second{0, 0};
  ASSERT_EQ(table->allocate(selves[0], 64, 0, &first, &error_), WCUDA_OK);
  ASSERT_EQ(table->allocate(selves[1], 64, 0, &second, &error_), WCUDA_OK);
  uint8_t data[64] = {1};
  EXPECT_EQ(table->copy_to_device(selves[1], first, 0, data, 64, &error_), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(table->copy_on_device(selves[0], first, 0, second, 0, 64, {0}, &error_),
            WCUDA_INVALID_HANDLE);
  EXPECT_EQ(table->free(selves[0], second, &error_), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(table->copy_to_device(selves[0], first, 0, data, 64, &error_), WCUDA_OK);
  for (const wcuda_backend backend : backends) wcuda_backend_close(backend);
}

TEST_F(GpuTwoDevices, the_best_is_a_device_of_cuda_and_either_can_be_opened) {
  const wcuda_selection_options options = WCUDA_SELECTION_OPTIONS_INIT;
  wcuda_selection selection = WCUDA_SELECTION_INIT;
  ASSERT_EQ(wcuda_backend_select(&options, &selection, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(selection.type, WCUDA_BACKEND_CUDA);
  EXPECT_EQ(selection.ordinal, 0);
  for (int32_t ordinal = 0; ordinal < 2; ++ordinal) {
    wcuda_backend_options open = WCUDA_BACKEND_OPTIONS_INIT;
    open.type = WCUDA_BACKEND_AUTO;
    open.ordinal = ordinal;
    wcuda_backend backend{0};
    ASSERT_EQ(wcuda_backend_open(&open, &backend, &error_), WCUDA_OK) << error_.message;
    wcuda_backend_info info = WCUDA_BACKEND_INFO_INIT;
    ASSERT_EQ(wcuda_backend_info_get(backend, &info, &error_), WCUDA_OK);
    EXPECT_EQ(info.type, WCUDA_BACKEND_CUDA);
    EXPECT_EQ(info.ordinal, ordinal);
    wcuda_backend_close(backend);
  }
}

TEST_F(GpuTwoDevices, failover_goes_from_one_device_to_the_other) {
  wcuda_failover_target first = WCUDA_FAILOVER_TARGET_INIT;
  first.type = WCUDA_BACKEND_CUDA;
  wcuda_failover_target second = first;
  second.ordinal = 1;
  targets_ = {first, second};
  create(WCUDA_FAILOVER_AUTOMATIC);
  ASSERT_EQ(round_trip(), WCUDA_OK) << error_.message;
  EXPECT_EQ(state().ordinal, 0);
  ASSERT_EQ(wcuda_failover_trigger(failover_, &error_), WCUDA_OK) << error_.message;
  ASSERT_EQ(round_trip(), WCUDA_OK) << error_.message;
  EXPECT_EQ(type_, WCUDA_BACKEND_CUDA);
  EXPECT_EQ(state().ordinal, 1);
  EXPECT_EQ(event_kinds(), kMoved);
}

// The older vram_* functions: a device a thread, and blocks that know theirs.
TEST_F(GpuTwoDevices, each_thread_has_a_device_of_its_own) {
  std::atomic<int> wrong{0};
  void* blocks[2] = {nullptr, nullptr};
  const uint64_t bytes = uint64_t{64} << 20;
  const auto work = [&](int device) {
    std::vector<char> data(1000, static_cast<char>(device + 1)), back(1000);
    if (device != 0) wrong += vram_set_device(device) != VRAM_SUCCESS;
    wrong += vram_malloc(&blocks[device], bytes) != VRAM_SUCCESS;
    wrong += vram_memcpy_h2d(blocks[device], data.data(), 1000) != VRAM_SUCCESS;
    wrong += vram_memcpy_d2h(back.data(), blocks[device], 1000) != VRAM_SUCCESS;
    wrong += back != data;
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  ASSERT_EQ(wrong, 0);

  // This thread has device 0: it may use and free the other's block.
  char byte = 0;
  EXPECT_EQ(vram_memcpy_d2h(&byte, blocks[1], 1), VRAM_SUCCESS);
  EXPECT_EQ(byte, 2);
  wcuda_buffer_options piece = WCUDA_BUFFER_OPTIONS_INIT;
  piece.bytes = 4096;
  for (int device = 0; device < 2; ++device) {
    // A context of each device reports where a block is.
    wcuda_buffer borrowed{0};
    EXPECT_EQ(wcuda_buffer_borrow(contexts_[device], blocks[device], &piece, &borrowed, &error_),
              WCUDA_OK)
        << error_.message;
    EXPECT_EQ(wcuda_context_vram_only_enforce(contexts_[device], &error_), WCUDA_OK)
        << error_.message;
    wcuda_buffer_destroy(borrowed);
    wcuda_buffer none{0};
    EXPECT_EQ(wcuda_buffer_borrow(contexts_[device], blocks[1 - device], &piece, &none, &error_),
              WCUDA_NOT_RESIDENT)
        << "it is the other device's";
  }
  for (void* const block : blocks) EXPECT_EQ(vram_free(block), VRAM_SUCCESS);
  EXPECT_EQ(vram_free(blocks[1]), VRAM_ERROR_INVALID_VALUE);
  vram_reset_mock_state();
}

}  // namespace
}  // namespace wcuda::testing
