// Failing and lost devices through the C interface: outputs stay, everything is given back.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/allocation_failure.h"
#include "support/fault_context.h"

namespace wcuda::testing {
namespace {

// A caller that makes, uses and ends a few objects; stops at the first failure and cleans up.
// Outputs of a failed call must be as they were.
wcuda_status work(wcuda_context context) {
  wcuda_error error{};
  wcuda_buffer buffer{77}, other{77};
  wcuda_pinned pinned{77};
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 300;
  uint8_t data[300] = {1}, back[300], digest[32];
  std::memset(back, 0x5a, sizeof(back));
  std::memset(digest, 0x5a, sizeof(digest));
  const auto is_untouched = [](const uint8_t* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i)
      if (bytes[i] != 0x5a) return false;
    return true;
  };

  const auto steps = std::vector<std::function<wcuda_status()>>{
      [&] { return wcuda_buffer_create(context, &options, &buffer, &error); },
      [&] { return wcuda_buffer_create(context, &options, &other, &error); },
      [&] { return wcuda_pinned_create(context, 100, &pinned, &error); },
      [&] { return wcuda_buffer_write(buffer, 0, data, 300, &error); },
      [&] { return wcuda_buffer_copy(other, 0, buffer, 0, 300, &error); },
      [&] { return wcuda_buffer_fill(other, 0, 8, 0, 8, &error); },
      [&] { return wcuda_buffer_digest(other, 0, 300, digest, &error); },
      [&] { return wcuda_buffer_read(other, 0, back, 300, &error); },
      [&] { return wcuda_context_synchronize(context, &error); },
  };
  wcuda_status status = WCUDA_OK;
  for (const auto& step : steps) {
    const wcuda_buffer old_buffer = buffer, old_other = other;
    const wcuda_pinned old_pinned = pinned;
    const bool digest_untouched = is_untouched(digest, 32);
    const bool back_untouched = is_untouched(back, 300);
    status = step();
    if (status == WCUDA_OK) continue;
    EXPECT_EQ(error.code, status);
    EXPECT_GT(error.message_bytes, 0u);
    EXPECT_EQ(buffer.id, old_buffer.id);
    EXPECT_EQ(other.id, old_other.id);
    EXPECT_EQ(pinned.id, old_pinned.id);
    EXPECT_EQ(is_untouched(digest, 32), digest_untouched);
    EXPECT_EQ(is_untouched(back, 300), back_untouched);
    break;
  }
  if (buffer.id != 77) wcuda_buffer_destroy(buffer);
  if (other.id != 77) wcuda_buffer_destroy(other);
  if (pinned.id != 77) wcuda_pinned_destroy(pinned);
  return status;
}

TEST(Fault, each_failing_call_leaves_outputs_and_gives_everything_back) {
  for (const CallKind kind :
       {CallKind::kAllocate, CallKind::kCopy, CallKind::kLaunch, CallKind::kWait}) {
    uint64_t k = 0;
    for (bool failed = true; failed;) {
      const FaultContext context;
      context.faults().fail(kind, ++k);

      const wcuda_status status = work(context.handle());

      failed = status != WCUDA_OK;
      if (failed) {
        EXPECT_EQ(status, kind == CallKind::kAllocate ? WCUDA_OUT_OF_MEMORY : WCUDA_DEVICE_ERROR);
      }
      EXPECT_EQ(context.device_bytes(), 0u);
      uint64_t count = 7;
      EXPECT_EQ(wcuda_context_ledger_list(context.handle(), 0, nullptr, 0, &count, nullptr),
                WCUDA_OK);
      EXPECT_EQ(count, 0u);
      context.faults().fail(kind, 0);
      EXPECT_EQ(work(context.handle()), WCUDA_OK);  // the context is as good as before
      ASSERT_LT(k, 100u);
    }
    EXPECT_GE(k, 3u);
  }
}

TEST(Fault, a_device_lost_at_any_call_answers_lost_from_then_on) {
  for (uint64_t k = 1;; ++k) {
    const FaultContext context;
    context.faults().lose_device(k);

    const wcuda_status status = work(context.handle());
    if (context.faults().fault().ok()) break;  // k is past the last call

    if (status != WCUDA_OK) {
      EXPECT_EQ(status, WCUDA_DEVICE_LOST);
    }
    EXPECT_EQ(work(context.handle()), WCUDA_DEVICE_LOST);
    wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
    EXPECT_EQ(wcuda_context_memory_get(context.handle(), 0, &info, nullptr), WCUDA_DEVICE_LOST);
    wcuda_health health = WCUDA_HEALTH_INIT;
    ASSERT_EQ(wcuda_health_get(context.handle(), &health, nullptr), WCUDA_OK);
    EXPECT_EQ(health.state, WCUDA_HEALTH_LOST);
    EXPECT_EQ(health.sticky_code, 719);
    EXPECT_STREQ(health.message, "device lost: injected fault");
    EXPECT_EQ(health.ledger_bytes, 0u);
    EXPECT_EQ(context.device_bytes(), health.lost_bytes);  // never given back to a lost device
    ASSERT_LT(k, 100u);
  }
}

TEST(Fault, zero_bytes_on_a_lost_device_are_lost_too) {
  const FaultContext context;
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 8;
  wcuda_buffer buffer;
  ASSERT_EQ(wcuda_buffer_create(context.handle(), &options, &buffer, nullptr), WCUDA_OK);
  context.faults().lose_device(1);
  EXPECT_EQ(wcuda_context_synchronize(context.handle(), nullptr), WCUDA_DEVICE_LOST);

  EXPECT_EQ(wcuda_buffer_write(buffer, 0, nullptr, 0, nullptr), WCUDA_DEVICE_LOST);
  EXPECT_EQ(wcuda_buffer_read(buffer, 0, nullptr, 0, nullptr), WCUDA_DEVICE_LOST);
  uint64_t bytes = 0;
  EXPECT_EQ(wcuda_buffer_size_get(buffer, &bytes, nullptr), WCUDA_OK);  // asks no device
  wcuda_buffer_destroy(buffer);
}

TEST(Fault, every_call_survives_the_host_running_out_of_memory_at_every_step) {
  const FaultContext context;
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = 4096;
  options.purpose = 99;  // its refusal makes a message
  wcuda_buffer none{0};
  wcuda_context_options host = WCUDA_CONTEXT_OPTIONS_INIT;
  host.backend = WCUDA_BACKEND_AUTO;
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
  wcuda_memory_info memory = WCUDA_MEMORY_INFO_INIT;
  wcuda_health health = WCUDA_HEALTH_INIT;
  uint64_t count;
  int32_t devices;
  const auto create_and_destroy = [&] {
    wcuda_context made{0};
    const wcuda_status status = wcuda_context_create(&host, &made, nullptr);
    EXPECT_EQ(made.id != 0, status == WCUDA_OK);
    wcuda_context_destroy(made);
    return status;
  };
  const auto stale = wcuda_context{~uint64_t{0}};
  const auto calls = std::vector<std::function<wcuda_status()>>{
      create_and_destroy,
      [&] { return wcuda_context_info_get(stale, &info, nullptr); },
      [&] { return wcuda_context_memory_get(context.handle(), 0, &memory, nullptr); },
      [&] { return wcuda_context_memory_get(context.handle(), 99, &memory, nullptr); },
      [&] { return wcuda_context_ledger_list(context.handle(), 0, nullptr, 0, &count, nullptr); },
      [&] { return wcuda_health_get(context.handle(), &health, nullptr); },
      [&] { return wcuda_buffer_create(context.handle(), &options, &none, nullptr); },
      [&] { return wcuda_device_count(WCUDA_BACKEND_CUDA, &devices, nullptr); },
      [&] { return wcuda_device_caps_get(WCUDA_BACKEND_HOST, 0, &caps, nullptr); },
      [&] {
        return wcuda_log_set([](void*, int32_t, wcuda_string, wcuda_string) {}, nullptr, 77,
                             nullptr);
      },
  };
  const uint64_t live = api::live_count(api::Kind::kContext);

  for (size_t call = 0; call < calls.size(); ++call) {
    const wcuda_status usual = calls[call]();
    int64_t k = 0;
    for (bool happened = true; happened;) {
      const FailAllocation fail(++k);
      const wcuda_status status = calls[call]();
      happened = fail.happened();
      // A name of the processor that cannot be read is not a failure, nor is a log line.
      EXPECT_TRUE(status == usual || (happened && status == WCUDA_OUT_OF_HOST_MEMORY))
          << "call " << call << ", allocation " << k << ": " << wcuda_status_name(status);
      ASSERT_LT(k, 10000);
    }
  }
  EXPECT_EQ(api::live_count(api::Kind::kContext), live);
}

}  // namespace
}  // namespace wcuda::testing
