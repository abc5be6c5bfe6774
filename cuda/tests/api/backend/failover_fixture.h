// A failover with its events, and whole calls of it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "support/fake_clock.h"
#include "worker_cuda.h"

namespace wcuda::testing {

using Kinds = std::vector<int32_t>;
inline const Kinds kMoved{WCUDA_FAILOVER_STARTED, WCUDA_FAILOVER_COMPLETED};

class FailoverFixture : public ::testing::Test {
 protected:
  using Body = std::function<wcuda_status(wcuda_context, wcuda_error*)>;

  void TearDown() override { wcuda_failover_destroy(failover_); }

  void create(int32_t mode, uint64_t cooldown_ms = 0, uint64_t recheck_ms = 0, uint32_t flags = 0) {
    wcuda_failover_options options = WCUDA_FAILOVER_OPTIONS_INIT;
    options.mode = mode;
    options.flags = flags;
    options.cooldown_ms = cooldown_ms;
    options.recheck_ms = recheck_ms;
    options.targets = targets_.data();
    options.target_count = targets_.size();
    options.callback = [](void* user, const wcuda_failover_event* event) {
      static_cast<std::vector<wcuda_failover_event>*>(user)->push_back(*event);
    };
    options.user = &events_;
    ASSERT_EQ(wcuda_failover_create(&options, &failover_, &error_), WCUDA_OK) << error_.message;
  }
  wcuda_status call(Body body) {
    type_ = 0;
    return wcuda_failover_call(
        failover_,
        [](void* user, wcuda_context context, wcuda_error* error) -> wcuda_status {
          return (*static_cast<Body*>(user))(context, error);
        },
        &body, &type_, &error_);
  }
  static wcuda_failover_target target(int32_t type, int32_t ordinal) {
    wcuda_failover_target target = WCUDA_FAILOVER_TARGET_INIT;
    target.type = type;
    target.ordinal = ordinal;
    return target;
  }
  // Bytes to the device and back.
  static wcuda_status there_and_back(wcuda_context context, wcuda_error* error) {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = 64;
    wcuda_buffer buffer{0};
    if (const auto status = wcuda_buffer_create(context, &options, &buffer, error)) return status;
    std::vector<uint8_t> data(64, 5), back(64);
    wcuda_status status = wcuda_buffer_write(buffer, 0, data.data(), 64, error);
    if (status == WCUDA_OK) status = wcuda_buffer_read(buffer, 0, back.data(), 64, error);
    wcuda_buffer_destroy(buffer);
    EXPECT_TRUE(status != WCUDA_OK || back == data);
    return status;
  }
  wcuda_status round_trip() { return call(there_and_back); }
  Kinds event_kinds() const {
    Kinds kinds;
    for (const auto& event : events_) kinds.push_back(event.event);
    return kinds;
  }
  wcuda_failover_state state() {
    wcuda_failover_state state = WCUDA_FAILOVER_STATE_INIT;
    EXPECT_EQ(wcuda_failover_state_get(failover_, &state, &error_), WCUDA_OK);
    return state;
  }

  FakeClock clock_;  // no window or cooldown ends on a slow machine
  std::vector<wcuda_failover_target> targets_;
  std::vector<wcuda_failover_event> events_;
  wcuda_failover failover_{0};
  wcuda_error error_{};
  int32_t type_ = 0;
};

}  // namespace wcuda::testing
