// Failover from a real device to the host: by hand and back, after repeated failures, with its
// memory full, and (in a process of its own) after a trap.
#include <cstring>
#include <string>

#include "api/backend/failover_fixture.h"
#include "support/own_program.h"

namespace wcuda::testing {
namespace {

class GpuFailover : public FailoverFixture {
 protected:
  void SetUp() override {
    targets_ = {target(WCUDA_BACKEND_CUDA, 0), target(WCUDA_BACKEND_HOST, 0)};
  }

  static bool is_cuda(wcuda_context context) {
    wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
    EXPECT_EQ(wcuda_context_info_get(context, &info, nullptr), WCUDA_OK);
    return info.backend == WCUDA_BACKEND_CUDA;
  }
  wcuda_context new_context() {
    const wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    wcuda_context context{0};
    EXPECT_EQ(wcuda_failover_context_create(failover_, &options, &context, &error_), WCUDA_OK)
        << error_.message;
    return context;
  }
  wcuda_buffer text_buffer(wcuda_context context) {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = 4;
    wcuda_buffer buffer{0};
    EXPECT_EQ(wcuda_buffer_create(context, &options, &buffer, &error_), WCUDA_OK);
    EXPECT_EQ(wcuda_buffer_write(buffer, 0, "abc", 4, &error_), WCUDA_OK);
    return buffer;
  }
};

TEST_F(GpuFailover, by_hand_and_back_when_the_device_computes_right) {
  create(WCUDA_FAILOVER_AUTOMATIC, 30, 10);
  ASSERT_EQ(round_trip(), WCUDA_OK) << error_.message;
  EXPECT_EQ(type_, WCUDA_BACKEND_CUDA);
  const wcuda_context resident = new_context();
  const wcuda_buffer buffer = text_buffer(resident);

  ASSERT_EQ(wcuda_failover_trigger(failover_, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(event_kinds(), kMoved);
  EXPECT_EQ(events_[0].reason, WCUDA_FAILOVER_REASON_MANUAL);
  ASSERT_EQ(round_trip(), WCUDA_OK) << error_.message;
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST);
  const wcuda_context moved = new_context();
  EXPECT_FALSE(is_cuda(moved));
  EXPECT_TRUE(is_cuda(resident));
  char text[4] = "";
  EXPECT_EQ(wcuda_buffer_read(buffer, 0, text, 4, &error_), WCUDA_OK) << "it stays where it is";
  EXPECT_STREQ(text, "abc");

  FakeClock::advance_ms(50);
  ASSERT_EQ(round_trip(), WCUDA_OK) << error_.message;
  EXPECT_EQ(type_, WCUDA_BACKEND_CUDA);
  EXPECT_EQ(events_.back().event, WCUDA_FAILOVER_RESTORED);
  EXPECT_EQ(state().is_degraded, 0);
  EXPECT_EQ(state().restore_count, 1u);
  wcuda_buffer_destroy(buffer);
  wcuda_context_destroy(resident);
  wcuda_context_destroy(moved);
}

TEST_F(GpuFailover, the_third_failure_of_the_device_moves_the_call) {
  create(WCUDA_FAILOVER_AUTOMATIC);
  int runs = 0;
  const auto failing = [&](wcuda_context context, wcuda_error* error) -> wcuda_status {
    ++runs;
    const wcuda_status status = there_and_back(context, error);
    return status == WCUDA_OK && is_cuda(context) ? WCUDA_DEVICE_ERROR : status;
  };
  EXPECT_EQ(call(failing), WCUDA_DEVICE_ERROR);
  EXPECT_EQ(call(failing), WCUDA_DEVICE_ERROR);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(call(failing), WCUDA_OK) << error_.message;
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST);
  EXPECT_EQ(event_kinds(), kMoved);
  EXPECT_EQ(events_[0].reason, WCUDA_FAILOVER_REASON_REPEATED);
}

TEST_F(GpuFailover, a_full_device_moves_the_call_only_when_asked_for) {
  // All memory of the device, of which some is always taken; 64 bytes on the host.
  const auto filling = [](wcuda_context context, wcuda_error* error) -> wcuda_status {
    if (!is_cuda(context)) return there_and_back(context, error);
    wcuda_memory_info memory = WCUDA_MEMORY_INFO_INIT;
    EXPECT_EQ(wcuda_context_memory_get(context, WCUDA_PURPOSE_ANY, &memory, nullptr), WCUDA_OK);
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = memory.device_total_bytes;
    wcuda_buffer buffer{0};
    return wcuda_buffer_create(context, &options, &buffer, error);
  };
  create(WCUDA_FAILOVER_AUTOMATIC);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(call(filling), WCUDA_OUT_OF_MEMORY);
  EXPECT_NE(std::strstr(error_.message, "bytes free"), nullptr) << error_.message;
  EXPECT_TRUE(events_.empty());
  wcuda_failover_destroy(failover_);

  create(WCUDA_FAILOVER_AUTOMATIC, 0, 0, WCUDA_FAILOVER_ON_OUT_OF_MEMORY);
  EXPECT_EQ(call(filling), WCUDA_OK) << error_.message;
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST);
  EXPECT_EQ(event_kinds(), kMoved);
  EXPECT_EQ(events_[0].reason, WCUDA_FAILOVER_REASON_OUT_OF_MEMORY);
}

TEST_F(GpuFailover, a_trap_moves_what_follows) {
  const OwnRun run = run_again("GpuFailoverTrap.*");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_NE(run.output.find("[       OK ] GpuFailoverTrap"), std::string::npos) << run.output;
}

using GpuFailoverTrap = GpuFailover;

// Takes the device from its process, and is therefore disabled: a_trap_moves_what_follows runs it
// in a process of its own.
TEST_F(GpuFailoverTrap, DISABLED_the_call_moves_and_what_is_resident_is_lost) {
  create(WCUDA_FAILOVER_AUTOMATIC, 30, 10);
  const wcuda_context resident = new_context();
  const wcuda_buffer buffer = text_buffer(resident);
  int runs = 0;
  const auto trapping = [&](wcuda_context context, wcuda_error* error) -> wcuda_status {
    ++runs;
    if (!is_cuda(context)) return there_and_back(context, error);
    constexpr char kTrap[] =
        ".version 7.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry trap_kernel() {\n  trap;\n  ret;\n}\n";
    wcuda_module module{0};
    wcuda_kernel kernel{0};
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    EXPECT_EQ(wcuda_module_load(context, kTrap, sizeof(kTrap) - 1, &module, error), WCUDA_OK);
    options.name = {"trap_kernel", 11};
    options.module = module;
    EXPECT_EQ(wcuda_kernel_create(context, &options, &kernel, error), WCUDA_OK);
    const wcuda_launch launch = WCUDA_LAUNCH_INIT;
    EXPECT_EQ(wcuda_kernel_launch(kernel, &launch, nullptr, 0, error), WCUDA_OK);
    const wcuda_status status = wcuda_context_synchronize(context, error);
    wcuda_kernel_destroy(kernel);
    wcuda_module_unload(module);
    return status;
  };

  ASSERT_EQ(call(trapping), WCUDA_OK) << error_.message;

  EXPECT_EQ(runs, 2);
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST);
  EXPECT_EQ(event_kinds(), kMoved);
  EXPECT_EQ(events_[0].reason, WCUDA_FAILOVER_REASON_DEVICE_LOST);
  EXPECT_EQ(events_[0].from, WCUDA_BACKEND_CUDA);
  EXPECT_STRNE(events_[0].message, "");
  char text[4] = "xyz";
  EXPECT_EQ(wcuda_buffer_read(buffer, 0, text, 4, &error_), WCUDA_DEVICE_LOST);
  EXPECT_STREQ(text, "xyz");
  const wcuda_context moved = new_context();
  EXPECT_FALSE(is_cuda(moved));
  // No way back: the probe finds the device lost.
  FakeClock::advance_ms(50);
  EXPECT_EQ(round_trip(), WCUDA_OK) << error_.message;
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST);
  EXPECT_EQ(events_.back().event, WCUDA_FAILOVER_FAILED);
  EXPECT_EQ(events_.back().status, WCUDA_DEVICE_LOST) << events_.back().message;
  EXPECT_EQ(state().is_degraded, 1);
  wcuda_buffer_destroy(buffer);
  wcuda_context_destroy(resident);
  wcuda_context_destroy(moved);
}

}  // namespace
}  // namespace wcuda::testing
