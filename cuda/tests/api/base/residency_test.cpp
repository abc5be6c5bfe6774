// Section 14 of the header through the C interface, on the host backend and (Gpu…) on CUDA.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/context.h"
#include "support/fault_context.h"

namespace wcuda::testing {
namespace {

class ResidencyBase {
 protected:
  explicit ResidencyBase(int32_t backend) : backend_(backend), context_(0, backend) {}

  void everything_allocated_is_resident();
  void a_foreign_allocation_is_named();
  void a_purpose_keeps_its_budget();
  void recycled_memory_is_zero();

  wcuda_residency residency() const {
    wcuda_residency value = WCUDA_RESIDENCY_INIT;
    EXPECT_EQ(wcuda_context_residency_get(context_.handle(), &value, nullptr), WCUDA_OK);
    return value;
  }

  const int32_t backend_;
  TestContext context_;
  wcuda_error error_{};
};

void ResidencyBase::everything_allocated_is_resident() {
  const TestBuffer one(context_.handle(), 1, WCUDA_PURPOSE_WEIGHTS);
  const TestBuffer two(context_.handle(), 3000000, WCUDA_PURPOSE_KV);

  EXPECT_EQ(residency().checked_count, 2u);
  EXPECT_EQ(residency().nonresident_count, 0u);
  EXPECT_EQ(residency().first_place, 0);
  int32_t place = 0;
  EXPECT_EQ(wcuda_buffer_place_get(two.handle(), &place, nullptr), WCUDA_OK);
  EXPECT_EQ(place, WCUDA_PLACE_DEVICE);
  EXPECT_EQ(wcuda_device_check(backend_, 0, &error_), WCUDA_OK) << error_.message;
  int32_t is_enforced = 7;
  EXPECT_EQ(wcuda_context_vram_only_get(context_.handle(), &is_enforced, nullptr), WCUDA_OK);
  EXPECT_EQ(is_enforced, 0);
  EXPECT_EQ(wcuda_context_vram_only_enforce(context_.handle(), &error_), WCUDA_OK)
      << error_.message;
  EXPECT_EQ(wcuda_context_vram_only_get(context_.handle(), &is_enforced, nullptr), WCUDA_OK);
  EXPECT_EQ(is_enforced, 1);
}

void ResidencyBase::a_foreign_allocation_is_named() {
  std::vector<uint8_t> foreign(5000, 9);
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = foreign.size();
  options.tag = {"foreign", 7};
  wcuda_buffer borrowed{0};
  ASSERT_EQ(wcuda_buffer_borrow(context_.handle(), foreign.data(), &options, &borrowed, &error_),
            WCUDA_OK)
      << error_.message;

  const wcuda_residency found = residency();
  EXPECT_EQ(found.nonresident_count, 1u);
  EXPECT_EQ(found.first_place, WCUDA_PLACE_HOST);
  EXPECT_STREQ(found.first_tag, "foreign");
  EXPECT_EQ(found.first_purpose, WCUDA_PURPOSE_BORROWED);
  EXPECT_EQ(wcuda_context_vram_only_enforce(context_.handle(), &error_), WCUDA_NOT_RESIDENT);
  EXPECT_EQ(std::string(error_.message),
            "borrowed 'foreign' (#1, 5000 bytes) is host memory, not the device's own; 1 of 1 "
            "allocations are not");
  wcuda_health health = WCUDA_HEALTH_INIT;
  EXPECT_EQ(wcuda_health_get(context_.handle(), &health, nullptr), WCUDA_OK);
  EXPECT_EQ(health.state, WCUDA_HEALTH_DEGRADED);
  EXPECT_STREQ(health.message, error_.message);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_BORROWED).current_bytes, 5000u);
  void* address = nullptr;
  EXPECT_EQ(wcuda_buffer_address_get(borrowed, &address, nullptr), WCUDA_OK);
  EXPECT_EQ(address, foreign.data());

  wcuda_buffer_destroy(borrowed);
  EXPECT_EQ(foreign, std::vector<uint8_t>(5000, 9));
  EXPECT_EQ(wcuda_context_vram_only_enforce(context_.handle(), &error_), WCUDA_OK);
  wcuda_buffer refused{77};
  EXPECT_EQ(wcuda_buffer_borrow(context_.handle(), foreign.data(), &options, &refused, &error_),
            WCUDA_NOT_RESIDENT);
  EXPECT_EQ(refused.id, 77u);
}

void ResidencyBase::a_purpose_keeps_its_budget() {
  ASSERT_EQ(wcuda_context_budget_set(context_.handle(), WCUDA_PURPOSE_SCRATCH, 4096, nullptr),
            WCUDA_OK);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_SCRATCH).purpose_budget_bytes, 4096u);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_USER).purpose_budget_bytes, 0u);
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 4097;
  options.purpose = WCUDA_PURPOSE_SCRATCH;
  wcuda_buffer buffer{77};

  EXPECT_EQ(wcuda_buffer_create(context_.handle(), &options, &buffer, &error_), WCUDA_OVER_BUDGET);
  EXPECT_STREQ(error_.message,
               "scratch: needs 4097 bytes, its purpose's budget 4096, used 0, free 4096");
  EXPECT_EQ(buffer.id, 77u);
  const TestBuffer fits(context_.handle(), 4096, WCUDA_PURPOSE_SCRATCH);
  for (const int32_t purpose : {-1, WCUDA_PURPOSE_ANY, WCUDA_PURPOSE_BORROWED, 99})
    EXPECT_EQ(wcuda_context_budget_set(context_.handle(), purpose, 1, nullptr),
              WCUDA_INVALID_ARGUMENT);
}

void ResidencyBase::recycled_memory_is_zero() {
  for (const int32_t scrub : {WCUDA_SCRUB_ON_FREE, WCUDA_SCRUB_ON_ALLOC}) {
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = backend_;
    options.scrub = scrub;
    wcuda_context context{0};
    ASSERT_EQ(wcuda_context_create(&options, &context, &error_), WCUDA_OK) << error_.message;
    constexpr uint64_t kBytes = 1000003;
    std::vector<uint8_t> data(kBytes, 1);
    for (int round = 0; round < 8; ++round) {
      const TestBuffer buffer(context, kBytes);
      ASSERT_EQ(wcuda_buffer_read(buffer.handle(), 0, data.data(), kBytes, nullptr), WCUDA_OK);
      // What comes fresh from the driver is nobody's of this process.
      if (scrub == WCUDA_SCRUB_ON_ALLOC || round > 0) {
        EXPECT_EQ(data, std::vector<uint8_t>(kBytes, 0)) << "round " << round;
      }
      ASSERT_EQ(wcuda_buffer_fill(buffer.handle(), 0, kBytes, 0xaa, 1, nullptr), WCUDA_OK);
    }
    wcuda_context_destroy(context);
  }
}

class ResidencyApi : public ::testing::Test, protected ResidencyBase {
 protected:
  ResidencyApi() : ResidencyBase(WCUDA_BACKEND_HOST) {}
};
TEST_F(ResidencyApi, everything_allocated_is_resident) { everything_allocated_is_resident(); }
TEST_F(ResidencyApi, a_foreign_allocation_is_named) { a_foreign_allocation_is_named(); }
TEST_F(ResidencyApi, a_purpose_keeps_its_budget) { a_purpose_keeps_its_budget(); }

class GpuResidencyApi : public ::testing::Test, protected ResidencyBase {
 protected:
  GpuResidencyApi() : ResidencyBase(WCUDA_BACKEND_CUDA) {}
};
TEST_F(GpuResidencyApi, everything_allocated_is_resident) { everything_allocated_is_resident(); }
TEST_F(GpuResidencyApi, a_foreign_allocation_is_named) { a_foreign_allocation_is_named(); }
TEST_F(GpuResidencyApi, a_purpose_keeps_its_budget) { a_purpose_keeps_its_budget(); }
TEST_F(GpuResidencyApi, recycled_memory_is_zero) { recycled_memory_is_zero(); }

TEST_F(ResidencyApi, unknown_scrub_modes_are_refused) {
  for (const int32_t scrub : {-1, 3}) {
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = WCUDA_BACKEND_HOST;
    options.scrub = scrub;
    wcuda_context context{77};
    EXPECT_EQ(wcuda_context_create(&options, &context, nullptr), WCUDA_INVALID_ARGUMENT);
    EXPECT_EQ(context.id, 77u);
  }
}

TEST_F(ResidencyApi, a_scrubbed_context_hands_out_zeros) {
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = WCUDA_BACKEND_HOST;
  options.scrub = WCUDA_SCRUB_ON_ALLOC;
  wcuda_context context{0};
  ASSERT_EQ(wcuda_context_create(&options, &context, nullptr), WCUDA_OK);
  for (int round = 0; round < 4; ++round) {
    const TestBuffer buffer(context, 3000);
    std::vector<uint8_t> data(3000, 1);
    ASSERT_EQ(wcuda_buffer_read(buffer.handle(), 0, data.data(), 3000, nullptr), WCUDA_OK);
    EXPECT_EQ(data, std::vector<uint8_t>(3000, 0));
    ASSERT_EQ(wcuda_buffer_fill(buffer.handle(), 0, 3000, 0xaa, 1, nullptr), WCUDA_OK);
  }
  wcuda_context_destroy(context);
}

TEST_F(ResidencyApi, options_smaller_than_those_of_version_1_are_refused) {
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.struct_size = offsetof(wcuda_context_options, scrub);
  options.backend = WCUDA_BACKEND_HOST;
  wcuda_context context{77};
  EXPECT_EQ(wcuda_context_create(&options, &context, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(context.id, 77u);
}

TEST_F(ResidencyApi, null_pointers_and_stale_handles_are_refused) {
  wcuda_residency residency = WCUDA_RESIDENCY_INIT;
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 8;
  uint64_t word = 0;
  wcuda_buffer buffer{77};
  int32_t value = 77;
  void* address = &word;
  const wcuda_context stale{~uint64_t{0}};
  const wcuda_context context = context_.handle();
  EXPECT_EQ(wcuda_context_residency_get(stale, &residency, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_context_residency_get(context, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_context_vram_only_enforce(stale, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_context_vram_only_get(context, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_context_budget_set(stale, WCUDA_PURPOSE_KV, 1, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_buffer_borrow(context, nullptr, &options, &buffer, nullptr),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_borrow(context, address, nullptr, &buffer, nullptr),
            WCUDA_INVALID_ARGUMENT);
  options.purpose = WCUDA_PURPOSE_KV;
  EXPECT_EQ(wcuda_buffer_borrow(context, address, &options, &buffer, nullptr),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_place_get(buffer, &value, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_buffer_address_get(buffer, &address, nullptr), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_context_deferred_error_take(context, nullptr, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_device_check(WCUDA_BACKEND_HOST, 1, nullptr), WCUDA_NO_DEVICE);
  EXPECT_EQ(wcuda_device_check(99, 0, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(buffer.id, 77u);
  EXPECT_EQ(value, 77);
}

TEST_F(ResidencyApi, a_failure_while_destroying_can_be_taken_once) {
  const FaultContext context;
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 8;
  wcuda_buffer buffer{0};
  ASSERT_EQ(wcuda_buffer_create(context.handle(), &options, &buffer, nullptr), WCUDA_OK);
  context.faults().fail(CallKind::kOther, 1);
  wcuda_buffer_destroy(buffer);
  wcuda_error deferred{};

  ASSERT_EQ(wcuda_context_deferred_error_take(context.handle(), &deferred, nullptr), WCUDA_OK);
  EXPECT_EQ(deferred.code, WCUDA_DEVICE_ERROR);
  EXPECT_STREQ(deferred.message, "free_after: injected failure");
  ASSERT_EQ(wcuda_context_deferred_error_take(context.handle(), &deferred, nullptr), WCUDA_OK);
  EXPECT_EQ(deferred.code, WCUDA_OK);
}

TEST_F(ResidencyApi, a_context_that_goes_before_its_allocations_reports_them) {
  std::vector<std::string> records;
  const auto take = [](void* user, int32_t level, wcuda_string, wcuda_string message) {
    EXPECT_EQ(level, WCUDA_LOG_WARN);
    static_cast<std::vector<std::string>*>(user)->emplace_back(message.data, message.bytes);
  };
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = WCUDA_BACKEND_HOST;
  wcuda_context context{0};
  ASSERT_EQ(wcuda_context_create(&options, &context, nullptr), WCUDA_OK);
  {
    const TestBuffer leaks(context, 12, WCUDA_PURPOSE_USER, "forgotten");
    ASSERT_EQ(wcuda_log_set(take, &records, WCUDA_LOG_WARN, nullptr), WCUDA_OK);
    wcuda_context_destroy(context);
    ASSERT_EQ(wcuda_log_set(nullptr, nullptr, 0, nullptr), WCUDA_OK);
  }
  EXPECT_EQ(records, (std::vector<std::string>{
                         "1 allocations of 12 bytes remain after the context was destroyed",
                         "live: #1 user 'forgotten', 12 bytes"}));
}

}  // namespace
}  // namespace wcuda::testing
