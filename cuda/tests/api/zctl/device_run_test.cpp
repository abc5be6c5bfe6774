// Runs of ZCTL/1 on a device: staged copies, runs that pass their budget, and failures of each
// call. On the host posing as a device, and (Gpu…) on one.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/context.h"
#include "support/fault_context.h"
#include "support/module_device.h"
#include "support/zctl_guest.h"

namespace wcuda::testing {
namespace {

constexpr uint32_t kValues = ZctlGuest::kData;

// Adds 1 to n floats, after `delay` nanoseconds.
std::string add_one_after(const std::string& delay) {
  return ".version 7.0\n.target sm_80\n.address_size 64\n"
         ".visible .entry add_one(.param .u64 x, .param .u32 n) {\n"
         "  .reg .pred %p, %q; .reg .b32 %r<5>; .reg .b64 %d<7>; .reg .f32 %f;\n"
         "  mov.u64 %d4, %globaltimer;\n"
         "wait:\n  mov.u64 %d5, %globaltimer;\n  sub.u64 %d6, %d5, %d4;\n"
         "  setp.lt.u64 %q, %d6, " +
         delay +
         ";\n  @%q bra wait;\n"
         "  ld.param.u64 %d0, [x];\n  ld.param.u32 %r0, [n];\n"
         "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mov.u32 %r3, %tid.x;\n"
         "  mad.lo.s32 %r4, %r1, %r2, %r3;\n"
         "  setp.ge.u32 %p, %r4, %r0;\n  @%p bra done;\n"
         "  cvta.to.global.u64 %d1, %d0;\n  mul.wide.u32 %d2, %r4, 4;\n  add.s64 %d3, %d1, %d2;\n"
         "  ld.global.f32 %f, [%d3];\n  add.f32 %f, %f, 0f3F800000;\n  st.global.f32 [%d3], %f;\n"
         "done:\n  ret;\n}\n";
}

// A registry with add_one alone, of id 3.
class AddOne {
 public:
  explicit AddOne(wcuda_context context, const std::string& delay = "0") {
    if (::testing::Test::IsSkipped()) return;
    wcuda_error error{};
    const std::string code = add_one_after(delay);
    EXPECT_EQ(wcuda_registry_create(context, &registry_, &error), WCUDA_OK) << error.message;
    wcuda_module module{0};
    wcuda_kernel kernel{0};
    EXPECT_EQ(wcuda_module_load(context, code.data(), code.size(), &module, &error), WCUDA_OK)
        << error.message;
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = {"add_one", 7};
    options.module = module;
    EXPECT_EQ(wcuda_kernel_create(context, &options, &kernel, &error), WCUDA_OK) << error.message;
    wcuda_parameter parameters[2] = {WCUDA_PARAMETER_INIT, WCUDA_PARAMETER_INIT};
    parameters[0].name = {"x", 1};
    parameters[0].kind = WCUDA_ARG_BUFFER;
    parameters[0].dtype = WCUDA_ARG_F32;
    parameters[0].shape = {"n", 1};
    parameters[1].name = {"n", 1};
    parameters[1].kind = WCUDA_ARG_U32;
    wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
    descriptor.name = {"add_one", 7};
    descriptor.kernel = kernel;
    descriptor.parameters = parameters;
    descriptor.parameter_count = 2;
    descriptor.threads = {"n", 1};
    EXPECT_EQ(wcuda_registry_add(registry_, &descriptor, nullptr, &error), WCUDA_OK)
        << error.message;
    wcuda_kernel_destroy(kernel);
    wcuda_module_unload(module);
  }
  ~AddOne() { wcuda_registry_destroy(registry_); }
  wcuda_registry handle() const { return registry_; }

 private:
  wcuda_registry registry_{0};
};

ZctlAnswer add_one(ZctlGuest* guest, uint32_t timeout_ms = 0) {
  guest->write<float>(kValues, {1, 2, 3});
  return guest->run(zctl_run(3, {{10, kValues, 12, 0}, {2, 3, 0, 0}}, 0, timeout_ms));
}
const std::vector<float> kBefore = {1, 2, 3}, kAfter = {2, 3, 4};

// A run passes its budget; others are refused until `release` lets it end.
template <class Release>
void late_run(wcuda_registry registry, uint32_t budget_ms, const Release& release) {
  ZctlGuest guest(registry), other(registry);
  const ZctlAnswer late = add_one(&guest, budget_ms);
  EXPECT_EQ(late.status, 4u);
  EXPECT_EQ(late.code, 4u);
  EXPECT_EQ(late.message, "budget of " + std::to_string(budget_ms) + " ms is over");
  EXPECT_EQ(guest.read<float>(kValues, 3), kBefore);
  for (ZctlGuest* const each : {&guest, &other}) {
    const ZctlAnswer refused = add_one(each);
    EXPECT_EQ(refused.status, 0u);
    EXPECT_EQ(refused.code, 6u);
    EXPECT_EQ(refused.message, "a run is still at work");
    EXPECT_GT(each->answer(zctl_frame(0x0101, {})).size(), 36u);
  }
  release();
  ZctlAnswer next = add_one(&other);
  while (next.message == "a run is still at work") {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    next = add_one(&other);
  }
  EXPECT_EQ(next.ok, 1u) << next.message;
  EXPECT_EQ(other.read<float>(kValues, 3), kAfter);
  EXPECT_EQ(add_one(&guest).ok, 1u);
  EXPECT_EQ(guest.read<float>(kValues, 3), kAfter);
}

TEST(ZctlDevice, a_run_uploads_and_downloads_its_buffers) {
  const FaultContext context(std::make_shared<ModuleDevice>());
  const AddOne kernels(context.handle());
  ZctlGuest guest(kernels.handle());
  EXPECT_EQ(add_one(&guest).ok, 1u);
  EXPECT_EQ(guest.read<float>(kValues, 3), kAfter);
  guest.write<float>(kValues, {1, 0, 2, 0, 3});
  const auto strided = guest.tensor(kValues + 100, kValues, 20, {3}, {2});
  EXPECT_EQ(guest.run(3, {strided, {2, 3, 0, 0}}).ok, 1u);
  EXPECT_EQ(guest.read<float>(kValues, 5), (std::vector<float>{2, 0, 3, 0, 4}));
}

TEST(ZctlDevice, the_ledger_shows_the_memory_of_a_session_until_it_ends) {
  const FaultContext context(std::make_shared<ModuleDevice>());
  const AddOne kernels(context.handle());
  const auto held = [&](int32_t purpose) {
    wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
    EXPECT_EQ(wcuda_context_memory_get(context.handle(), purpose, &info, nullptr), WCUDA_OK);
    return info.current_bytes;
  };
  {
    ZctlGuest guest(kernels.handle());
    EXPECT_EQ(held(WCUDA_PURPOSE_SCRATCH), 0u);
    EXPECT_EQ(add_one(&guest).ok, 1u);
    EXPECT_GE(held(WCUDA_PURPOSE_SCRATCH), 12u);
    EXPECT_GE(held(WCUDA_PURPOSE_STAGING), 12u);
  }
  EXPECT_EQ(held(WCUDA_PURPOSE_SCRATCH), 0u);
  EXPECT_EQ(held(WCUDA_PURPOSE_STAGING), 0u);
}

TEST(ZctlDevice, a_late_run_holds_the_device_until_it_ends) {
  const auto device = std::make_shared<ModuleDevice>();
  const FaultContext context(device);
  {
    const AddOne kernels(context.handle());
    device->hold_events(true);
    late_run(kernels.handle(), 2, [&] { device->hold_events(false); });
  }
  EXPECT_EQ(context.device_bytes(), 0u);
}

TEST(ZctlDevice, a_session_destroyed_after_a_late_run_frees_the_device) {
  const auto device = std::make_shared<ModuleDevice>();
  const FaultContext context(device);
  const AddOne kernels(context.handle());
  device->hold_events(true);
  {
    ZctlGuest guest(kernels.handle());
    EXPECT_EQ(add_one(&guest, 2).code, 4u);
  }
  // Its event is forgotten: nothing is at work for those that follow.
  device->hold_events(false);
  ZctlGuest guest(kernels.handle());
  EXPECT_EQ(add_one(&guest).ok, 1u);
}

TEST(GpuZctlDevice, a_late_run_holds_the_device_until_it_ends) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  const AddOne kernels(context.handle(), "3000000000");
  {
    // A first launch loads the module, which may outlast a budget before anything is queued.
    ZctlGuest first(kernels.handle());
    EXPECT_EQ(add_one(&first).ok, 1u);
  }
  late_run(kernels.handle(), 500, [] {});
}

TEST(ZctlDevice, failure_of_each_call_is_answered_and_leaves_the_memory) {
  for (const CallKind kind : {CallKind::kAllocate, CallKind::kCopy, CallKind::kLaunch,
                              CallKind::kWait, CallKind::kOther, CallKind::kEnd}) {
    const bool loses = kind == CallKind::kEnd;  // of which none can fail
    bool is_over = false;
    for (uint64_t k = 1; !is_over; ++k) {
      ASSERT_LT(k, 60u);
      FaultContext context(std::make_shared<ModuleDevice>());
      {
        const AddOne kernels(context.handle());
        ZctlGuest guest(kernels.handle());
        if (loses)
          context.faults().lose_device(k);
        else
          context.faults().fail(kind, k);
        const ZctlAnswer answer = add_one(&guest);
        is_over = answer.ok == 1;
        if (!is_over) {
          const bool is_full = kind == CallKind::kAllocate;
          EXPECT_EQ(answer.code, is_full ? 5u : 6u) << answer.message;
          EXPECT_EQ(guest.read<float>(kValues, 3), kBefore);
          if (!loses) {
            context.faults().fail(kind, 0);
            EXPECT_EQ(add_one(&guest).ok, 1u);
          } else {
            EXPECT_EQ(add_one(&guest).code, 6u);
          }
        }
        EXPECT_EQ(guest.read<float>(kValues, 3), is_over || !loses ? kAfter : kBefore);
      }
      EXPECT_TRUE(loses || context.device_bytes() == 0);
    }
  }
}

// Of several uploads and downloads.
constexpr uint32_t kLargeBytes = 9u << 20;
constexpr uint32_t kLarge = kValues + 12;  // at no boundary of a cache line

ZctlAnswer add_one_to_many(ZctlGuest* guest, uint32_t timeout_ms = 0) {
  guest->write(kLarge, std::vector<float>(kLargeBytes / 4, 1.0f));
  return guest->run(
      zctl_run(3, {{10, kLarge, kLargeBytes, 0}, {2, kLargeBytes / 4, 0, 0}}, 0, timeout_ms));
}
bool are_all(const ZctlGuest& guest, float value) {
  return guest.read<float>(kLarge, kLargeBytes / 4) == std::vector<float>(kLargeBytes / 4, value);
}

// kOther: events, of which each piece of the output has one.
TEST(ZctlDevice, each_copy_and_each_event_of_a_large_run_can_fail) {
  for (const CallKind kind : {CallKind::kCopy, CallKind::kOther}) {
    uint64_t k = 0;
    for (bool is_over = false; !is_over;) {
      ASSERT_LT(++k, 60u);
      FaultContext context(std::make_shared<ModuleDevice>());
      {
        const AddOne kernels(context.handle());
        ZctlGuest guest(kernels.handle(), 2 * kLargeBytes);
        context.faults().fail(kind, k);
        const ZctlAnswer answer = add_one_to_many(&guest);
        is_over = answer.ok == 1;
        EXPECT_EQ(answer.code, is_over ? 0u : 6u) << answer.message;
        EXPECT_TRUE(are_all(guest, is_over ? 2 : 1));
        context.faults().fail(kind, 0);
        EXPECT_EQ(add_one_to_many(&guest).ok, 1u);
        EXPECT_TRUE(are_all(guest, 2));
      }
      EXPECT_EQ(context.device_bytes(), 0u);
    }
    EXPECT_GT(k, 4u);
  }
}

TEST(ZctlDevice, a_large_run_that_is_late_leaves_the_memory) {
  const auto device = std::make_shared<ModuleDevice>();
  const FaultContext context(device);
  const AddOne kernels(context.handle());
  ZctlGuest guest(kernels.handle(), 2 * kLargeBytes);
  // Two events are done, of the first pieces; the third is not.
  device->hold_events(true, 2);
  EXPECT_EQ(add_one_to_many(&guest, 1000).code, 4u);
  EXPECT_TRUE(are_all(guest, 1));
  device->hold_events(false);
  EXPECT_EQ(add_one_to_many(&guest).ok, 1u);
  EXPECT_TRUE(are_all(guest, 2));
}

TEST(GpuZctlDevice, large_runs_of_two_sessions_arrive_whole) {
  const TestContext context(0, WCUDA_BACKEND_CUDA);
  const AddOne kernels(context.handle());
  const auto run = [&] {
    ZctlGuest guest(kernels.handle(), 2 * kLargeBytes);
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(add_one_to_many(&guest).ok, 1u);
      EXPECT_TRUE(are_all(guest, 2));
    }
  };
  std::thread other(run);
  run();
  other.join();
}

}  // namespace
}  // namespace wcuda::testing
