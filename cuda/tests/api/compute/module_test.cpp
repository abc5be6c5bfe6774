// Modules in the ledger, failures at every step of loading and launching, and many threads at it.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/context.h"
#include "support/fault_context.h"
#include "support/module_device.h"

namespace wcuda::testing {
namespace {

// x[i] += 1 for i < n, a thread each.
constexpr char kAddOne[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry add_one(.param .u64 x, .param .u32 n) {\n"
    "  .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<4>; .reg .f32 %f;\n"
    "  ld.param.u64 %d0, [x];\n  ld.param.u32 %r0, [n];\n"
    "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mov.u32 %r3, %tid.x;\n"
    "  mad.lo.s32 %r4, %r1, %r2, %r3;\n"
    "  setp.ge.u32 %p, %r4, %r0;\n  @%p bra done;\n"
    "  cvta.to.global.u64 %d1, %d0;\n  mul.wide.u32 %d2, %r4, 4;\n  add.s64 %d3, %d1, %d2;\n"
    "  ld.global.f32 %f, [%d3];\n  add.f32 %f, %f, 0f3F800000;\n  st.global.f32 [%d3], %f;\n"
    "done:\n  ret;\n}\n";
constexpr uint64_t kCodeBytes = sizeof(kAddOne) - 1;
constexpr uint32_t kCount = 1000;

// The ledger's, which a lost device has too.
vram::LedgerSum module_memory(wcuda_context context) {
  return (*api::resolve(context, "context"))->memory->ledger().sum(WCUDA_PURPOSE_MODULE);
}

uint64_t all_bytes(wcuda_context context) {
  return (*api::resolve(context, "context"))->memory->ledger().sum(WCUDA_PURPOSE_ANY).current_bytes;
}

wcuda_kernel_options options_of(wcuda_module module) {
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  options.name = {"add_one", 7};
  options.module = module;
  return options;
}

wcuda_status launch(wcuda_kernel kernel, wcuda_buffer buffer, wcuda_stream stream,
                    wcuda_error* error) {
  wcuda_argument arguments[2];
  for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
  arguments[0].kind = WCUDA_ARG_BUFFER;
  arguments[0].buffer = buffer;
  arguments[1].kind = WCUDA_ARG_U32;
  arguments[1].data = &kCount;
  wcuda_launch shape = WCUDA_LAUNCH_INIT;
  shape.grid[0] = 4;
  shape.stream = stream;
  return wcuda_kernel_launch(kernel, &shape, arguments, 2, error);
}

void rows_of_modules(wcuda_context context) {
  wcuda_error error{};
  wcuda_module module{0};
  wcuda_kernel kernel{0};
  ASSERT_EQ(wcuda_module_load(context, kAddOne, kCodeBytes, &module, &error), WCUDA_OK)
      << error.message;
  const wcuda_kernel_options options = options_of(module);
  ASSERT_EQ(wcuda_kernel_create(context, &options, &kernel, &error), WCUDA_OK) << error.message;
  EXPECT_EQ(module_memory(context).current_bytes, kCodeBytes);
  EXPECT_EQ(module_memory(context).allocation_count, 1u);
  EXPECT_EQ(all_bytes(context), kCodeBytes) << "the budget covers it";
  wcuda_residency residency = WCUDA_RESIDENCY_INIT;
  EXPECT_EQ(wcuda_context_residency_get(context, &residency, &error), WCUDA_OK) << error.message;
  EXPECT_EQ(residency.checked_count, 0u) << "its place is the driver's affair";

  wcuda_module_unload(module);
  EXPECT_EQ(module_memory(context).current_bytes, kCodeBytes) << "the kernel keeps it";
  wcuda_kernel_destroy(kernel);
  EXPECT_EQ(module_memory(context).current_bytes, 0u);

  ASSERT_EQ(wcuda_context_budget_set(context, WCUDA_PURPOSE_MODULE, kCodeBytes - 1, &error),
            WCUDA_OK);
  EXPECT_EQ(wcuda_module_load(context, kAddOne, kCodeBytes, &module, &error), WCUDA_OVER_BUDGET);
  EXPECT_NE(std::string(error.message).find("module"), std::string::npos) << error.message;
  EXPECT_EQ(all_bytes(context), 0u);
}

TEST(Modules, are_in_the_ledger_while_loaded) {
  const auto device = std::make_shared<ModuleDevice>();
  const FaultContext context(device);
  rows_of_modules(context.handle());
  EXPECT_EQ(device->live_modules(), 0);
}

TEST(GpuModules, are_in_the_ledger_while_loaded) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  rows_of_modules(context.handle());
}

// Loads, finds, launches on a stream and reads; the first failure ends it.
wcuda_status whole_run(wcuda_context context, wcuda_buffer buffer, std::vector<float>* values) {
  wcuda_module module{0};
  wcuda_kernel kernel{0};
  wcuda_stream stream{0};
  wcuda_status status = wcuda_module_load(context, kAddOne, kCodeBytes, &module, nullptr);
  const wcuda_kernel_options options = options_of(module);
  if (status == WCUDA_OK) status = wcuda_kernel_create(context, &options, &kernel, nullptr);
  if (status == WCUDA_OK) status = wcuda_stream_create(context, 0, &stream, nullptr);
  if (status == WCUDA_OK) status = launch(kernel, buffer, stream, nullptr);
  if (status == WCUDA_OK) status = wcuda_stream_synchronize(stream, nullptr);
  if (status == WCUDA_OK)
    status = wcuda_buffer_read(buffer, 0, values->data(), 4 * kCount, nullptr);
  wcuda_stream_destroy(stream);
  wcuda_kernel_destroy(kernel);
  wcuda_module_unload(module);
  return status;
}

// Every call of one kind, and every call after which the device is lost.
TEST(ModuleFaults, failure_at_every_step_gives_an_error_and_leaves_nothing) {
  for (const CallKind kind : {CallKind::kAllocate, CallKind::kCopy, CallKind::kLaunch,
                              CallKind::kWait, CallKind::kOther, CallKind::kEnd}) {
    const bool loses = kind == CallKind::kEnd;  // of which none can fail
    uint64_t k = 1;
    for (;; ++k) {
      ASSERT_LT(k, 100u);
      const auto device = std::make_shared<ModuleDevice>();
      const FaultContext context(device);
      {
        const TestBuffer buffer(context.handle(), 4 * kCount);
        std::vector<float> values(kCount, 5.0f);
        ASSERT_EQ(wcuda_buffer_write(buffer.handle(), 0, values.data(), 4 * kCount, nullptr),
                  WCUDA_OK);
        loses ? context.faults().lose_device(k) : context.faults().fail(kind, k);
        std::vector<float> found(kCount, -1.0f);
        const wcuda_status status = whole_run(context.handle(), buffer.handle(), &found);
        if (status == WCUDA_OK) {
          EXPECT_EQ(found, std::vector<float>(kCount, 6.0f));
          break;
        }
        EXPECT_EQ(status == WCUDA_DEVICE_LOST, loses);
        EXPECT_EQ(found, std::vector<float>(kCount, -1.0f)) << "an output of a failed call";
        EXPECT_EQ(module_memory(context.handle()).current_bytes, 0u);
        context.faults().fail(CallKind::kOther, 0);
        if (kind == CallKind::kAllocate || (kind == CallKind::kLaunch && k == 1)) {
          ASSERT_EQ(wcuda_buffer_read(buffer.handle(), 0, found.data(), 4 * kCount, nullptr),
                    WCUDA_OK);
          EXPECT_EQ(found, values) << "nothing has run";
        }
      }
      EXPECT_EQ(all_bytes(context.handle()), 0u);
      EXPECT_EQ(device->live_modules(), 0);
    }
    EXPECT_GT(k, 1u) << "calls of kind " << static_cast<int>(kind);
  }
}

// Eight threads, 10,000 operations each, on one context: buffers, launches and events of their own,
// a module and a kernel that all share.
void eight_threads(wcuda_context context, int operations) {
  wcuda_module module{0};
  wcuda_kernel kernel{0};
  ASSERT_EQ(wcuda_module_load(context, kAddOne, kCodeBytes, &module, nullptr), WCUDA_OK);
  const wcuda_kernel_options options = options_of(module);
  ASSERT_EQ(wcuda_kernel_create(context, &options, &kernel, nullptr), WCUDA_OK);
  const auto work = [&](int thread) {
    wcuda_stream stream{0};
    wcuda_event event{0};
    EXPECT_EQ(wcuda_stream_create(context, 0, &stream, nullptr), WCUDA_OK);
    EXPECT_EQ(wcuda_event_create(context, &event, nullptr), WCUDA_OK);
    for (int done = 0; done < operations; done += 10) {
      const TestBuffer buffer(context, 4 * kCount);  // 1
      const auto value = static_cast<float>(thread);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      std::vector<float> found(kCount);
      EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), 0, 4 * kCount, bits, 4, nullptr), WCUDA_OK);
      EXPECT_EQ(launch(kernel, buffer.handle(), stream, nullptr), WCUDA_OK);
      EXPECT_EQ(launch(kernel, buffer.handle(), stream, nullptr), WCUDA_OK);
      EXPECT_EQ(wcuda_event_record(event, stream, nullptr), WCUDA_OK);
      EXPECT_EQ(wcuda_event_order(event, {0}, nullptr), WCUDA_OK);
      EXPECT_EQ(wcuda_event_wait(event, -1, nullptr), WCUDA_OK);
      EXPECT_EQ(wcuda_buffer_read(buffer.handle(), 0, found.data(), 4 * kCount, nullptr), WCUDA_OK);
      EXPECT_EQ(module_memory(context).allocation_count, 1u);  // 9, and the buffer's end
      if (found != std::vector<float>(kCount, value + 2.0f)) ADD_FAILURE() << thread;
    }
    wcuda_event_destroy(event);
    wcuda_stream_destroy(stream);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  wcuda_kernel_destroy(kernel);
  wcuda_module_unload(module);
  EXPECT_EQ(all_bytes(context), 0u);
}

TEST(Modules, eight_threads_launch_ten_thousand_operations_each) {
  const FaultContext context(std::make_shared<ModuleDevice>());
  eight_threads(context.handle(), 10000);
}

TEST(GpuModules, eight_threads_launch_ten_thousand_operations_each) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  eight_threads(context.handle(), 10000);
}

// The device is really full: an error with the numbers, and existing buffers keep working.
TEST(GpuModules, a_full_device_is_an_error_and_stays_usable) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  const wcuda_memory_info before = context.memory(WCUDA_PURPOSE_ANY);
  std::vector<wcuda_buffer> buffers;
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  wcuda_error error{};
  for (options.bytes = before.device_free_bytes / 2; options.bytes >= 1 << 20; options.bytes /= 2) {
    wcuda_buffer buffer{0};
    while (wcuda_buffer_create(context.handle(), &options, &buffer, &error) == WCUDA_OK)
      buffers.push_back(buffer);
    EXPECT_EQ(error.code, WCUDA_OUT_OF_MEMORY) << error.message;
    EXPECT_NE(std::string(error.message).find(std::to_string(options.bytes)), std::string::npos)
        << error.message;
  }
  EXPECT_GT(context.memory(WCUDA_PURPOSE_ANY).current_bytes, before.device_free_bytes / 10 * 9);
  ASSERT_FALSE(buffers.empty());
  const uint32_t pattern = 0x40a00000;  // 5.0f
  EXPECT_EQ(wcuda_buffer_fill(buffers.back(), 0, 4 * kCount, pattern, 4, &error), WCUDA_OK);
  std::vector<float> found(kCount);
  EXPECT_EQ(wcuda_buffer_read(buffers.back(), 0, found.data(), 4 * kCount, &error), WCUDA_OK);
  EXPECT_EQ(found, std::vector<float>(kCount, 5.0f));
  for (const wcuda_buffer buffer : buffers) wcuda_buffer_destroy(buffer);
  EXPECT_EQ(context.memory(WCUDA_PURPOSE_ANY).current_bytes, 0u);
  const TestBuffer again(context.handle(), 1 << 30);
}

}  // namespace
}  // namespace wcuda::testing
