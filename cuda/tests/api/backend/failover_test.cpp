// Failover: the policy with time as an argument, and whole calls over backends that fail on
// request.
#include "core/backend/failover.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/backend/failover_fixture.h"

namespace wcuda::testing {
namespace {

FailoverSettings settings(int32_t mode = WCUDA_FAILOVER_AUTOMATIC) {
  FailoverSettings s;
  s.mode = mode;
  s.target_count = 3;
  return s;
}

TEST(FailoverPolicy, three_failures_in_thirty_seconds_are_a_reason) {
  FailoverPolicy policy(settings());
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_ERROR, 1000), 0);
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_ERROR, 2000), 0);
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_ERROR, 31000), WCUDA_FAILOVER_REASON_REPEATED);
}

TEST(FailoverPolicy, older_failures_are_forgotten) {
  FailoverPolicy policy(settings());
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_ERROR, 1000), 0);
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_ERROR, 2000), 0);
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_ERROR, 31001), 0);
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_ERROR, 31002), WCUDA_FAILOVER_REASON_REPEATED);
  EXPECT_EQ(policy.failure_count(), 4u);
}

TEST(FailoverPolicy, a_lost_device_is_a_reason_at_once) {
  FailoverPolicy policy(settings());
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_LOST, 5), WCUDA_FAILOVER_REASON_DEVICE_LOST);
}

TEST(FailoverPolicy, full_memory_is_a_reason_only_when_asked_for) {
  FailoverPolicy policy(settings());
  for (uint64_t i = 0; i < 9; ++i) EXPECT_EQ(policy.failure(0, WCUDA_OUT_OF_MEMORY, i), 0);
  EXPECT_EQ(policy.failure_count(), 0u);
  FailoverSettings opted = settings();
  opted.moves_when_full = true;
  EXPECT_EQ(FailoverPolicy(opted).failure(0, WCUDA_OUT_OF_MEMORY, 5),
            WCUDA_FAILOVER_REASON_OUT_OF_MEMORY);
}

TEST(FailoverPolicy, mistakes_timeouts_and_budgets_never_are) {
  FailoverPolicy policy(settings());
  for (const Code status :
       {WCUDA_INVALID_ARGUMENT, WCUDA_INVALID_HANDLE, WCUDA_OUT_OF_RANGE, WCUDA_INVALID_CONFIG,
        WCUDA_ARGUMENT_COUNT, WCUDA_COMPILE_FAILED, WCUDA_UNSUPPORTED_KERNEL, WCUDA_TIMEOUT,
        WCUDA_CANCELLED, WCUDA_OVER_BUDGET, WCUDA_LAUNCH_FAILED, WCUDA_MALFORMED, WCUDA_BUSY})
    for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(policy.failure(0, status, i), 0) << status;
  EXPECT_EQ(policy.failure_count(), 0u);
}

TEST(FailoverPolicy, off_by_default) {
  FailoverSettings off;
  off.target_count = 2;
  FailoverPolicy policy(off);
  EXPECT_EQ(policy.failure(0, WCUDA_DEVICE_LOST, 5), 0);
  EXPECT_EQ(policy.failure_count(), 1u);
}

TEST(FailoverPolicy, the_first_is_probed_after_its_cooldown_and_every_thirty_seconds) {
  FailoverPolicy policy(settings());
  EXPECT_EQ(policy.candidates(0), (std::vector<size_t>{1, 2}));
  policy.moved(1, 1000);
  EXPECT_EQ(policy.candidates(2000), (std::vector<size_t>{2}));
  EXPECT_FALSE(policy.wants_probe(60999));
  EXPECT_TRUE(policy.wants_probe(61000));
  EXPECT_FALSE(policy.probed(false, 61000));
  EXPECT_FALSE(policy.wants_probe(90999));
  EXPECT_TRUE(policy.wants_probe(91000));
  EXPECT_TRUE(policy.probed(true, 91000));
  EXPECT_EQ(policy.active(), 0u);
  EXPECT_FALSE(policy.wants_probe(200000));
}

TEST(FailoverPolicy, a_target_that_did_not_answer_cools_down) {
  FailoverPolicy policy(settings());
  policy.cool(1, 100);
  EXPECT_EQ(policy.candidates(60099), (std::vector<size_t>{2}));
  EXPECT_EQ(policy.candidates(60100), (std::vector<size_t>{1, 2}));
}

// A backend that is the host's table until a test makes it fail.
struct Shaky {
  int32_t type = 0;
  std::atomic<wcuda_status> open_status{WCUDA_OK};
  std::atomic<bool> corrupts{false};
  std::atomic<wcuda_status> copy_status{WCUDA_OK};
  std::atomic<int> open_count{0};
};

Shaky& shaky() {
  static Shaky instance;
  return instance;
}

wcuda_status refuse(wcuda_status status, wcuda_error* error) {
  std::memset(error, 0, sizeof(*error));
  error->code = status;
  std::strcpy(error->message, "made to fail");
  return status;
}

// What an instance gave out: the library gives nothing back to a lost device, deinit ends it.
struct Held {
  std::mutex mutex;
  std::set<void*> blocks;
  ~Held() {
    for (void* const block : blocks) std::free(block);
  }
};

// Enough of a device for copies.
void register_shaky() {
  if (shaky().type != 0) return;
  wcuda_backend_vtable table = WCUDA_BACKEND_VTABLE_INIT;
  table.deinit = [](void* self) { delete static_cast<Held*>(self); };
  table.get_device_count = [](void*) -> uint32_t { return 1; };
  table.get_device_caps = [](void*, uint32_t, wcuda_device_caps* caps,
                             wcuda_error*) -> wcuda_status {
    caps->total_memory = 1 << 30;
    return WCUDA_OK;
  };
  table.allocate = [](void* self, uint64_t bytes, uint8_t, wcuda_device_memory* memory,
                      wcuda_error*) -> wcuda_status {
    auto* const held = static_cast<Held*>(self);
    void* const block = std::calloc(1, bytes);
    const std::lock_guard<std::mutex> lock(held->mutex);
    held->blocks.insert(block);
    *memory = {reinterpret_cast<uintptr_t>(block), bytes};
    return WCUDA_OK;
  };
  table.free = [](void* self, wcuda_device_memory memory, wcuda_error*) -> wcuda_status {
    auto* const held = static_cast<Held*>(self);
    void* const block = reinterpret_cast<void*>(memory.id);
    const std::lock_guard<std::mutex> lock(held->mutex);
    held->blocks.erase(block);
    std::free(block);
    return WCUDA_OK;
  };
  table.copy_to_device = [](void*, wcuda_device_memory memory, uint64_t offset, const void* source,
                            uint64_t bytes, wcuda_error* error) -> wcuda_status {
    if (shaky().copy_status != WCUDA_OK) return refuse(shaky().copy_status, error);
    std::memcpy(reinterpret_cast<char*>(memory.id) + offset, source, bytes);
    return WCUDA_OK;
  };
  table.copy_from_device = [](void*, void* target, wcuda_device_memory memory, uint64_t offset,
                              uint64_t bytes, wcuda_error* error) -> wcuda_status {
    if (shaky().copy_status != WCUDA_OK) return refuse(shaky().copy_status, error);
    std::memcpy(target, reinterpret_cast<char*>(memory.id) + offset, bytes);
    if (shaky().corrupts) static_cast<char*>(target)[bytes / 2] ^= 1;
    return WCUDA_OK;
  };
  table.synchronize = [](void*, wcuda_error*) -> wcuda_status { return WCUDA_OK; };
  wcuda_backend_registration registration = WCUDA_BACKEND_REGISTRATION_INIT;
  registration.name = {"shaky", 5};
  registration.table = &table;
  registration.open = [](void*, int32_t, void** self, wcuda_error* error) -> wcuda_status {
    ++shaky().open_count;
    if (shaky().open_status != WCUDA_OK) return refuse(shaky().open_status, error);
    *self = new Held;
    return WCUDA_OK;
  };
  wcuda_error error{};
  ASSERT_EQ(wcuda_backend_register(&registration, &shaky().type, &error), WCUDA_OK)
      << error.message;
}

class Failovers : public FailoverFixture {
 protected:
  void SetUp() override {
    register_shaky();
    shaky().open_status = shaky().copy_status = WCUDA_OK;
    shaky().corrupts = false;
    targets_ = {target(shaky().type, 0), target(WCUDA_BACKEND_HOST, 0)};
  }
};

TEST_F(Failovers, a_call_stays_where_it_works) {
  create(WCUDA_FAILOVER_AUTOMATIC);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(round_trip(), WCUDA_OK) << error_.message;
  EXPECT_EQ(type_, shaky().type);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(state().is_degraded, 0);
}

TEST_F(Failovers, a_lost_device_moves_the_whole_call) {
  create(WCUDA_FAILOVER_AUTOMATIC);
  shaky().copy_status = WCUDA_DEVICE_LOST;
  EXPECT_EQ(round_trip(), WCUDA_OK) << error_.message;
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST);
  EXPECT_EQ(event_kinds(), kMoved);
  EXPECT_EQ(events_[0].reason, WCUDA_FAILOVER_REASON_DEVICE_LOST);
  EXPECT_EQ(events_[1].from, shaky().type);
  EXPECT_EQ(events_[1].to, WCUDA_BACKEND_HOST);
  EXPECT_NE(std::strstr(events_[0].message, "made to fail"), nullptr) << events_[0].message;
  EXPECT_EQ(state().is_degraded, 1);
  EXPECT_EQ(state().move_count, 1u);
}

TEST_F(Failovers, failures_are_returned_until_the_third) {
  create(WCUDA_FAILOVER_AUTOMATIC);
  shaky().copy_status = WCUDA_DEVICE_ERROR;
  EXPECT_EQ(round_trip(), WCUDA_DEVICE_ERROR);
  EXPECT_EQ(round_trip(), WCUDA_DEVICE_ERROR);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(round_trip(), WCUDA_OK);
  EXPECT_EQ(event_kinds(), kMoved);
  EXPECT_EQ(events_[0].reason, WCUDA_FAILOVER_REASON_REPEATED);
}

TEST_F(Failovers, warn_returns_the_failure_and_moves_what_follows) {
  create(WCUDA_FAILOVER_WARN);
  shaky().copy_status = WCUDA_DEVICE_LOST;
  EXPECT_EQ(round_trip(), WCUDA_DEVICE_LOST);
  EXPECT_EQ(event_kinds(), kMoved);
  EXPECT_EQ(round_trip(), WCUDA_OK);
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST);
}

TEST_F(Failovers, off_moves_nothing) {
  create(WCUDA_FAILOVER_NONE);
  shaky().copy_status = WCUDA_DEVICE_LOST;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(round_trip(), WCUDA_DEVICE_LOST);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(wcuda_failover_trigger(failover_, &error_), WCUDA_INVALID_STATE);
  EXPECT_EQ(state().failure_count, 4u);
}

TEST_F(Failovers, mistakes_are_returned_and_move_nothing) {
  create(WCUDA_FAILOVER_AUTOMATIC);
  for (const wcuda_status status : {WCUDA_INVALID_ARGUMENT, WCUDA_COMPILE_FAILED, WCUDA_TIMEOUT,
                                    WCUDA_OUT_OF_MEMORY, WCUDA_LAUNCH_FAILED})
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(call([&](wcuda_context, wcuda_error*) { return status; }), status);
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(state().is_degraded, 0);
}

TEST_F(Failovers, full_memory_moves_when_asked_for) {
  create(WCUDA_FAILOVER_AUTOMATIC, 0, 0, WCUDA_FAILOVER_ON_OUT_OF_MEMORY);
  int runs = 0;
  EXPECT_EQ(call([&](wcuda_context, wcuda_error*) {
              return ++runs == 1 ? WCUDA_OUT_OF_MEMORY : WCUDA_OK;
            }),
            WCUDA_OK);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(events_[0].reason, WCUDA_FAILOVER_REASON_OUT_OF_MEMORY);
}

TEST_F(Failovers, by_hand) {
  create(WCUDA_FAILOVER_WARN);
  ASSERT_EQ(wcuda_failover_trigger(failover_, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(event_kinds(), kMoved);
  EXPECT_EQ(events_[0].reason, WCUDA_FAILOVER_REASON_MANUAL);
  EXPECT_EQ(wcuda_failover_trigger(failover_, &error_), WCUDA_NOT_AVAILABLE);
  EXPECT_EQ(events_.back().event, WCUDA_FAILOVER_EXHAUSTED);
  EXPECT_STREQ(events_.back().message, "no other backend is usable (requested): host to host");
  EXPECT_EQ(state().type, WCUDA_BACKEND_HOST);
}

TEST_F(Failovers, comes_back_when_a_probe_computes_right) {
  create(WCUDA_FAILOVER_AUTOMATIC, 30, 10);
  shaky().copy_status = WCUDA_DEVICE_LOST;
  ASSERT_EQ(round_trip(), WCUDA_OK);
  shaky().copy_status = WCUDA_OK;
  FakeClock::advance_ms(29);
  EXPECT_EQ(round_trip(), WCUDA_OK);
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST) << "its cooldown has not passed";
  FakeClock::advance_ms(1);

  shaky().corrupts = true;
  EXPECT_EQ(round_trip(), WCUDA_OK);
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST) << "it computes wrong";
  EXPECT_EQ(events_.back().event, WCUDA_FAILOVER_FAILED);
  EXPECT_EQ(events_.back().status, WCUDA_INTEGRITY);

  shaky().corrupts = false;
  FakeClock::advance_ms(9);
  EXPECT_EQ(round_trip(), WCUDA_OK);
  EXPECT_EQ(type_, WCUDA_BACKEND_HOST) << "it was probed 9 ms ago";
  FakeClock::advance_ms(1);
  EXPECT_EQ(round_trip(), WCUDA_OK);
  EXPECT_EQ(type_, shaky().type);
  EXPECT_EQ(events_.back().event, WCUDA_FAILOVER_RESTORED);
  EXPECT_EQ(state().is_degraded, 0);
  EXPECT_EQ(state().restore_count, 1u);
}

TEST_F(Failovers, a_next_backend_that_does_not_answer_is_passed_over) {
  targets_ = {target(WCUDA_BACKEND_HOST, 0), target(shaky().type, 0),
              target(WCUDA_BACKEND_VULKAN, 0), target(WCUDA_BACKEND_STDGPU, 0)};
  create(WCUDA_FAILOVER_AUTOMATIC);
  shaky().open_status = WCUDA_NO_DEVICE;
  ASSERT_EQ(wcuda_failover_trigger(failover_, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(event_kinds(), (Kinds{WCUDA_FAILOVER_STARTED, WCUDA_FAILOVER_FAILED,
                                  WCUDA_FAILOVER_FAILED, WCUDA_FAILOVER_COMPLETED}));
  EXPECT_EQ(events_[1].to, shaky().type);
  EXPECT_EQ(events_[2].status, WCUDA_NOT_AVAILABLE);
}

TEST_F(Failovers, without_another_usable_backend_the_failure_is_returned) {
  targets_ = {target(shaky().type, 0), target(WCUDA_BACKEND_METAL, 0)};
  create(WCUDA_FAILOVER_AUTOMATIC);
  shaky().copy_status = WCUDA_DEVICE_LOST;
  EXPECT_EQ(round_trip(), WCUDA_DEVICE_LOST);
  EXPECT_EQ(event_kinds(),
            (Kinds{WCUDA_FAILOVER_STARTED, WCUDA_FAILOVER_FAILED, WCUDA_FAILOVER_EXHAUSTED}));
  EXPECT_EQ(state().type, shaky().type);
}

TEST_F(Failovers, new_contexts_move_and_their_memory_stays) {
  create(WCUDA_FAILOVER_AUTOMATIC);
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  wcuda_context first{0}, second{0};
  ASSERT_EQ(wcuda_failover_context_create(failover_, &options, &first, &error_), WCUDA_OK);
  wcuda_buffer_options of_buffer = WCUDA_BUFFER_OPTIONS_INIT;
  of_buffer.bytes = 4;
  wcuda_buffer buffer{0};
  ASSERT_EQ(wcuda_buffer_create(first, &of_buffer, &buffer, &error_), WCUDA_OK);
  ASSERT_EQ(wcuda_buffer_write(buffer, 0, "abc", 4, &error_), WCUDA_OK);

  ASSERT_EQ(wcuda_failover_report(failover_, shaky().type, WCUDA_DEVICE_LOST, &error_), WCUDA_OK);
  ASSERT_EQ(wcuda_failover_context_create(failover_, &options, &second, &error_), WCUDA_OK);

  wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
  ASSERT_EQ(wcuda_context_info_get(second, &info, &error_), WCUDA_OK);
  EXPECT_EQ(info.backend, WCUDA_BACKEND_HOST);
  EXPECT_STREQ(info.fallback_reason,
               "failover from shaky: device lost; reported: WCUDA_DEVICE_LOST");
  ASSERT_EQ(wcuda_context_info_get(first, &info, &error_), WCUDA_OK);
  EXPECT_EQ(info.backend, shaky().type);
  char text[4] = "";
  EXPECT_EQ(wcuda_buffer_read(buffer, 0, text, 4, &error_), WCUDA_OK);
  EXPECT_STREQ(text, "abc");
  wcuda_buffer_destroy(buffer);
  wcuda_context_destroy(first);
  wcuda_context_destroy(second);
}

TEST_F(Failovers, a_backend_that_cannot_be_opened_is_left_at_the_third_time) {
  create(WCUDA_FAILOVER_WARN);
  shaky().open_status = WCUDA_NO_DEVICE;
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  wcuda_context context{0};
  EXPECT_EQ(wcuda_failover_context_create(failover_, &options, &context, &error_), WCUDA_NO_DEVICE);
  EXPECT_EQ(wcuda_failover_context_create(failover_, &options, &context, &error_), WCUDA_NO_DEVICE);
  EXPECT_EQ(wcuda_failover_context_create(failover_, &options, &context, &error_), WCUDA_OK);
  EXPECT_EQ(event_kinds(), kMoved);
  wcuda_context_destroy(context);
}

TEST_F(Failovers, options_that_make_no_sense_are_refused) {
  const auto refused = [&](const std::function<void(wcuda_failover_options&)>& change) {
    wcuda_failover_options options = WCUDA_FAILOVER_OPTIONS_INIT;
    options.targets = targets_.data();
    options.target_count = targets_.size();
    change(options);
    return wcuda_failover_create(&options, &failover_, &error_) == WCUDA_INVALID_ARGUMENT;
  };
  EXPECT_TRUE(refused([](auto& o) { o.mode = 3; }));
  EXPECT_TRUE(refused([](auto& o) { o.flags = 2; }));
  EXPECT_TRUE(refused([](auto& o) { o.targets = nullptr; }));
  EXPECT_TRUE(refused([](auto& o) { o.target_count = 0; }));
  targets_[1].type = WCUDA_BACKEND_AUTO;
  EXPECT_TRUE(refused([](auto&) {}));
  targets_[1].type = 9999;
  EXPECT_TRUE(refused([](auto&) {}));
  EXPECT_EQ(failover_.id, 0u);
}

TEST_F(Failovers, eight_threads_move_once) {
  create(WCUDA_FAILOVER_AUTOMATIC);
  shaky().copy_status = WCUDA_DEVICE_LOST;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        int32_t type = 0;
        const auto body = [](void*, wcuda_context context, wcuda_error* error) -> wcuda_status {
          wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
          options.bytes = 8;
          wcuda_buffer buffer{0};
          if (const auto status = wcuda_buffer_create(context, &options, &buffer, error))
            return status;
          const uint64_t value = 7;
          const auto status = wcuda_buffer_write(buffer, 0, &value, 8, error);
          wcuda_buffer_destroy(buffer);
          return status;
        };
        wrong += wcuda_failover_call(failover_, body, nullptr, &type, nullptr) != WCUDA_OK;
        wrong += type != WCUDA_BACKEND_HOST;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(event_kinds(), kMoved);
}

}  // namespace
}  // namespace wcuda::testing
