#include "llm/engine/device_order.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/backend/fault_backend.h"
#include "core/backend/host_backend.h"
#include "core/backend/trace_backend.h"

namespace wcuda::engine {
namespace {

// Two engines of one device, and the calls that their steps make.
class EngineDeviceOrder : public ::testing::Test {
 protected:
  struct Engine {
    Stream stream;
    Event ended;
  };

  EngineDeviceOrder()
      : fault_(std::make_shared<FaultBackend>(open_host_backend(1 << 20, 1).take())),
        backend_(fault_, [this](const Call& call, const Status&) {
          calls_.push_back(std::string(call.name) + " " + name_of(call.stream));
        }) {
    for (Engine& engine : engines_) {
      engine.stream = backend_.stream_create(0).take();
      engine.ended = backend_.event_create().take();
    }
  }

  std::string name_of(Stream stream) const {
    if (stream == engines_[0].stream) return "a";
    return stream == engines_[1].stream ? "b" : "-";
  }

  Status step(Engine& engine) {
    calls_.clear();
    return order_.run(&engine, backend_, engine.stream, engine.ended, [&]() -> Status {
      WCUDA_TRY(backend_.fill(nullptr, 0, 0, 1, engine.stream));
      return backend_.event_record(engine.ended, engine.stream);
    });
  }

  using Calls = std::vector<std::string>;
  Calls calls_;
  Engine engines_[2];
  std::shared_ptr<FaultBackend> fault_;
  TraceBackend backend_;
  DeviceOrder order_;
};

TEST_F(EngineDeviceOrder, a_lone_engine_waits_for_nothing) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(step(engines_[0]).ok());
    EXPECT_EQ(calls_, (Calls{"fill a", "event_record a"}));
  }
}

TEST_F(EngineDeviceOrder, a_step_follows_the_last_step_of_another_engine) {
  ASSERT_TRUE(step(engines_[0]).ok());

  ASSERT_TRUE(step(engines_[1]).ok());
  EXPECT_EQ(calls_, (Calls{"stream_wait b", "fill b", "event_record b"}));
  ASSERT_TRUE(step(engines_[1]).ok());
  EXPECT_EQ(calls_, (Calls{"fill b", "event_record b"}));
  ASSERT_TRUE(step(engines_[0]).ok());
  EXPECT_EQ(calls_, (Calls{"stream_wait a", "fill a", "event_record a"}));
}

TEST_F(EngineDeviceOrder, nothing_waits_for_an_engine_that_left) {
  ASSERT_TRUE(step(engines_[0]).ok());
  order_.leave(&engines_[1]);
  ASSERT_TRUE(step(engines_[1]).ok());
  EXPECT_EQ(calls_.front(), "stream_wait b");

  order_.leave(&engines_[1]);
  ASSERT_TRUE(step(engines_[0]).ok());
  EXPECT_EQ(calls_, (Calls{"fill a", "event_record a"}));
}

TEST_F(EngineDeviceOrder, a_step_that_fails_has_ended_before_another_is_queued) {
  ASSERT_TRUE(step(engines_[0]).ok());
  fault_->fail(CallKind::kLaunch, 1);

  EXPECT_EQ(step(engines_[1]).code(), WCUDA_DEVICE_ERROR);
  EXPECT_EQ(calls_, (Calls{"stream_wait b", "fill b", "synchronize b"}));
  ASSERT_TRUE(step(engines_[0]).ok());
  EXPECT_EQ(calls_, (Calls{"fill a", "event_record a"}));
}

TEST_F(EngineDeviceOrder, a_wait_that_fails_queues_nothing) {
  ASSERT_TRUE(step(engines_[0]).ok());
  fault_->fail(CallKind::kOther, 1);

  EXPECT_EQ(step(engines_[1]).code(), WCUDA_DEVICE_ERROR);
  EXPECT_EQ(calls_, Calls{"stream_wait b"});
}

TEST_F(EngineDeviceOrder, engines_of_a_device_share_one_order) {
  const auto first = DeviceOrder::of(0);
  EXPECT_EQ(DeviceOrder::of(0), first);
  EXPECT_NE(DeviceOrder::of(1), first);
}

}  // namespace
}  // namespace wcuda::engine
