// Where memory is, and what is said of memory that is elsewhere, on backends that pretend.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/device_limits.h"
#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"
#include "core/base/log.h"
#include "core/health/report.h"
#include "core/vram/memory.h"
#include "kernels/ptx/code.h"
#include "support/pretend_device.h"

namespace wcuda::vram {
namespace {

// Says of some addresses that they are elsewhere.
class MisplacedBackend final : public WrapperBackend {
 public:
  MisplacedBackend() : WrapperBackend(open_host_backend(1 << 20, 1).take()) {}
  Result<MemoryPlace> memory_place(const void* address) override {
    const auto found = places.find(address);
    if (found != places.end()) return MemoryPlace(found->second);
    return WrapperBackend::memory_place(address);
  }
  std::map<const void*, MemoryPlace> places;
};

// The error records logged while it lives.
class ErrorLog {
 public:
  ErrorLog() { EXPECT_TRUE(set_log_sink(take, this, WCUDA_LOG_WARN).ok()); }
  ~ErrorLog() { EXPECT_TRUE(set_log_sink(nullptr, nullptr, 0).ok()); }
  std::vector<std::string> records;

 private:
  static void take(void* user, int32_t, wcuda_string target, wcuda_string message) {
    static_cast<ErrorLog*>(user)->records.push_back(std::string(target.data, target.bytes) + ": " +
                                                    std::string(message.data, message.bytes));
  }
};

TEST(Residency, all_allocations_are_checked_but_staging) {
  const auto memory = Memory::create(open_host_backend(1 << 20, 1).take(), 0);
  const auto one = memory->allocate(100, WCUDA_PURPOSE_WEIGHTS, "w");
  const auto two = memory->allocate(100, WCUDA_PURPOSE_KV, "kv");
  const auto staging = memory->allocate_pinned(100, "s");

  const auto residency = memory->check_residency();

  ASSERT_TRUE(residency.ok());
  EXPECT_EQ(residency->checked_count, 2u);
  EXPECT_EQ(residency->nonresident_count, 0u);
  EXPECT_TRUE(residency->status().ok());
}

TEST(Residency, each_wrong_place_is_named_in_error_event_and_health) {
  const std::map<MemoryPlace, std::string> names = {
      {MemoryPlace::kOtherDevice, "memory of another device"},
      {MemoryPlace::kManaged, "managed memory"},
      {MemoryPlace::kPinned, "pinned host memory"},
      {MemoryPlace::kMapped, "mapped host memory"},
      {MemoryPlace::kHost, "host memory"}};
  for (const auto& [place, name] : names) {
    const auto device = std::make_shared<MisplacedBackend>();
    const auto memory = Memory::create(device, 0);
    const auto good = memory->allocate(100, WCUDA_PURPOSE_USER, "good");
    std::vector<uint8_t> foreign(64);
    const auto bad = memory->borrow(foreign.data(), 64, "bad");
    ASSERT_TRUE(bad.ok()) << bad.status().message();
    device->places[foreign.data()] = place;
    ErrorLog log;

    const Status status = memory->enforce_vram_only();

    const std::string message = "borrowed 'bad' (#2, 64 bytes) is " + name +
                                ", not the device's own; 1 of 2 allocations are not";
    EXPECT_EQ(status.code(), WCUDA_NOT_RESIDENT);
    EXPECT_EQ(status.message(), message);
    EXPECT_FALSE(memory->vram_only());
    EXPECT_EQ(log.records, (std::vector<std::string>{"residency: " + message}));
    const wcuda_health health = health::report(*memory);
    EXPECT_EQ(health.state, WCUDA_HEALTH_DEGRADED);
    EXPECT_EQ(health.nonresident_count, 1u);
    EXPECT_EQ(health.message, message);
    EXPECT_EQ(memory->check_residency()->managed_count, place == MemoryPlace::kManaged ? 1u : 0u);
  }
}

TEST(Residency, borrowed_memory_is_checked_at_both_ends) {
  const auto device = std::make_shared<MisplacedBackend>();
  const auto memory = Memory::create(device, 0);
  std::vector<uint8_t> foreign(64);
  const auto borrowed = memory->borrow(foreign.data(), 64, "half");
  device->places[foreign.data()] = MemoryPlace::kDevice;
  device->places[foreign.data() + 63] = MemoryPlace::kManaged;
  EXPECT_EQ(memory->check_residency()->nonresident_count, 1u);

  device->places[foreign.data() + 63] = MemoryPlace::kDevice;
  EXPECT_EQ(memory->check_residency()->nonresident_count, 0u);
}

TEST(Residency, an_enforced_rule_refuses_foreign_memory_until_it_is_broken) {
  const auto device = std::make_shared<MisplacedBackend>();
  const auto memory = Memory::create(device, 0);
  auto owned = memory->allocate(100, WCUDA_PURPOSE_USER, "owned");
  std::vector<uint8_t> foreign(64);
  EXPECT_FALSE(memory->vram_only());
  EXPECT_TRUE(memory->enforce_vram_only().ok());
  EXPECT_TRUE(memory->vram_only());

  const auto refused = memory->borrow(foreign.data(), 64, "bad");
  EXPECT_EQ(refused.status().code(), WCUDA_NOT_RESIDENT);
  EXPECT_STREQ(refused.status().message(), "borrowed 'bad': 64 bytes of host memory");
  const auto long_tag = memory->borrow(foreign.data(), 64, std::string(70, 'x'));
  EXPECT_EQ(long_tag.status().message(),
            "borrowed '" + std::string(63, 'x') + "': 64 bytes of host memory");
  EXPECT_EQ(memory->ledger().rows().size(), 1u);

  device->places[owned->data()] = MemoryPlace::kManaged;
  EXPECT_EQ(memory->check_residency()->first_place, MemoryPlace::kManaged);
  EXPECT_FALSE(memory->vram_only());
}

TEST(Residency, a_driver_that_does_not_answer_is_no_finding) {
  const auto faulty = std::make_shared<FaultBackend>(open_host_backend(1 << 20, 1).take());
  const auto memory = Memory::create(faulty, 0);
  const auto buffer = memory->allocate(100, WCUDA_PURPOSE_USER, "");
  faulty->fail(CallKind::kOther, 1);
  EXPECT_EQ(memory->enforce_vram_only().code(), WCUDA_DEVICE_ERROR);
  EXPECT_FALSE(memory->vram_only());
  EXPECT_TRUE(memory->enforce_vram_only().ok());
}

TEST(Borrow, counts_apart_and_frees_nothing) {
  std::vector<std::string> calls;
  const auto device = open_host_backend(1 << 20, 1).take();
  const auto memory = Memory::create(device, 100);
  std::vector<uint8_t> foreign(5000, 3);
  auto borrowed = memory->borrow(foreign.data(), 5000, "foreign");
  ASSERT_TRUE(borrowed.ok()) << borrowed.status().message();  // no budget counts it

  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_BORROWED).current_bytes, 5000u);
  EXPECT_EQ(memory->ledger().sum(WCUDA_PURPOSE_ANY).current_bytes, 0u);
  EXPECT_EQ(*memory->available_bytes(), 100u);
  EXPECT_EQ(borrowed->data(), foreign.data());

  borrowed->reset();
  EXPECT_TRUE(memory->ledger().rows().empty());
  EXPECT_EQ(foreign, std::vector<uint8_t>(5000, 3));
  EXPECT_EQ(memory->deferred_error_count(), 0u);
}

TEST(Borrow, refuses_nothing_and_ranges_that_wrap) {
  const auto memory = Memory::create(open_host_backend(1 << 20, 1).take(), 0);
  uint8_t byte;
  EXPECT_EQ(memory->borrow(&byte, 0, "").status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(memory->borrow(&byte, UINT64_MAX, "").status().code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(memory->allocate(1, WCUDA_PURPOSE_BORROWED, "").status().code(),
            WCUDA_INVALID_ARGUMENT);
}

TEST(Leaks, live_allocations_are_logged_one_by_one) {
  const auto memory = Memory::create(open_host_backend(1 << 20, 1).take(), 0);
  ErrorLog log;
  memory->log_leaks();
  EXPECT_TRUE(log.records.empty());
  const auto one = memory->allocate(100, WCUDA_PURPOSE_WEIGHTS, "w");
  const auto two = memory->allocate_pinned(30, "s");

  memory->log_leaks();

  EXPECT_EQ(log.records,
            (std::vector<std::string>{
                "vram: 2 allocations of 130 bytes remain after the context was destroyed",
                "vram: live: #1 weights 'w', 100 bytes", "vram: live: #2 staging 's', 30 bytes"}));
}

TEST(Leaks, what_the_memory_keeps_for_its_own_use_is_none) {
  const auto memory = Memory::create(std::make_shared<wcuda::testing::PretendDevice>(1), 0);
  const std::vector<uint8_t> source(StagedCopy::kBytesMin);
  const auto buffer = memory->allocate(source.size(), WCUDA_PURPOSE_USER, "mine");
  ASSERT_TRUE(memory->copy_to_device(buffer->data(), source.data(), source.size()).ok());
  ASSERT_TRUE(memory->lasting_scratch(100, "workspace").ok());
  ASSERT_EQ(memory->ledger().rows().size(), 3u);
  // One below and one above every address that was allocated.
  const auto low = memory->borrow(reinterpret_cast<void*>(uintptr_t{64}), 1, "low");
  const auto high = memory->borrow(reinterpret_cast<void*>(UINTPTR_MAX - 64), 1, "high");
  ErrorLog log;

  memory->log_leaks();

  ASSERT_EQ(log.records.size(), 4u);
  EXPECT_EQ(log.records[0], "vram: 3 allocations of " + std::to_string(source.size() + 2) +
                                " bytes remain after the context was destroyed");
  EXPECT_EQ(log.records[2], "vram: live: #4 borrowed 'low', 1 bytes");
  EXPECT_EQ(log.records[3], "vram: live: #5 borrowed 'high', 1 bytes");
}

// Each threshold, and the capability just below it.
TEST(DeviceLimits, features_begin_at_their_capability) {
  const auto features = [](int32_t capability) {
    wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
    caps.compute_capability_major = capability / 10;
    caps.compute_capability_minor = capability % 10;
    set_capability_features(&caps);
    return caps;
  };
  const std::pair<int32_t wcuda_device_caps::*, int32_t> thresholds[] = {
      {&wcuda_device_caps::supports_fp64, 0},
      {&wcuda_device_caps::supports_atomics, 0},
      {&wcuda_device_caps::supports_dynamic_parallelism, 35},
      {&wcuda_device_caps::supports_fp16, 53},
      {&wcuda_device_caps::supports_cooperative_groups, 60},
      {&wcuda_device_caps::supports_int8, 61},
      {&wcuda_device_caps::supports_tensor_cores, 70},
      {&wcuda_device_caps::supports_int8_tensor_cores, 72},
      {&wcuda_device_caps::supports_bf16, 80},
      {&wcuda_device_caps::supports_tf32, 80},
      {&wcuda_device_caps::supports_async_copy, 80},
      {&wcuda_device_caps::supports_fp8, 89}};
  for (const auto& [field, threshold] : thresholds) {
    EXPECT_EQ(features(threshold).*field, 1) << threshold;
    EXPECT_EQ(features(120).*field, 1) << threshold;
    if (threshold > 0) {
      EXPECT_EQ(features(threshold - 1).*field, 0) << threshold;
    }
  }
}

TEST(DeviceLimits, older_code_is_launched_as_on_a_device_of_its_time) {
  using kernels::usable_capability;
  EXPECT_EQ(usable_capability(90, 90), 90);
  EXPECT_EQ(usable_capability(103, 100), 103);
  EXPECT_EQ(usable_capability(86, 80), 86);  // what it has is the device's
  EXPECT_EQ(usable_capability(90, 80), 80);
  EXPECT_EQ(usable_capability(100, 89), 80);
  EXPECT_EQ(usable_capability(120, 89), 86);  // has no more shared memory than that
}

// A full device, or one that fails, is not one without code.
TEST(DeviceLimits, few_errors_mean_that_there_is_no_code) {
  using kernels::means_no_code;
  constexpr int32_t kSuccess = 0, kMemoryAllocation = 2, kNoKernelImageForDevice = 209,
                    kIllegalAddress = 700;
  EXPECT_TRUE(means_no_code(kNoKernelImageForDevice));
  for (const int32_t error : {kSuccess, kMemoryAllocation, kIllegalAddress})
    EXPECT_FALSE(means_no_code(error)) << error;
}

TEST(DeviceLimits, a_cuda_device_needs_capability_and_memory) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  caps.backend = WCUDA_BACKEND_CUDA;
  caps.compute_capability_major = 8;
  caps.total_memory = uint64_t{1} << 30;
  EXPECT_TRUE(check_device_limits(caps).ok());
  caps.supports_unified_addressing = 1;  // every modern device has it
  EXPECT_TRUE(check_device_limits(caps).ok());

  caps.total_memory -= 1;
  EXPECT_EQ(check_device_limits(caps).code(), WCUDA_UNSUPPORTED);
  EXPECT_STREQ(check_device_limits(caps).message(),
               "'': 1073741823 bytes of memory, needs 1073741824");
  caps.compute_capability_major = 7;
  caps.compute_capability_minor = 5;
  EXPECT_STREQ(check_device_limits(caps).message(), "'': compute capability 7.5, needs 8.0");
  caps.backend = WCUDA_BACKEND_HOST;
  EXPECT_TRUE(check_device_limits(caps).ok());
}

}  // namespace
}  // namespace wcuda::vram
