#include "core/base/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace wcuda {
namespace {

struct Record {
  int32_t level;
  std::string target;
  std::string message;
};

void collect(void* user, int32_t level, wcuda_string target, wcuda_string message) {
  static_cast<std::vector<Record>*>(user)->push_back(
      {level, std::string(target.data, target.bytes), std::string(message.data, message.bytes)});
}

class Log : public ::testing::Test {
 protected:
  ~Log() override { (void)wcuda_log_set(nullptr, nullptr, WCUDA_LOG_ERROR, nullptr); }
  std::vector<Record> records_;
};

TEST_F(Log, sink_gets_records_of_its_level_or_graver) {
  ASSERT_EQ(wcuda_log_set(collect, &records_, WCUDA_LOG_WARN, nullptr), WCUDA_OK);

  log(WCUDA_LOG_ERROR, "vram", "%d bytes", 7);
  log(WCUDA_LOG_WARN, "model", "slow");
  log(WCUDA_LOG_INFO, "model", "not wanted");

  ASSERT_EQ(records_.size(), 2u);
  EXPECT_EQ(records_[0].level, WCUDA_LOG_ERROR);
  EXPECT_EQ(records_[0].target, "vram");
  EXPECT_EQ(records_[0].message, "7 bytes");
  EXPECT_FALSE(log_enabled(WCUDA_LOG_INFO));
}

TEST_F(Log, removed_sink_gets_nothing) {
  ASSERT_EQ(wcuda_log_set(collect, &records_, WCUDA_LOG_TRACE, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_log_set(nullptr, nullptr, 0, nullptr), WCUDA_OK);  // the level is not looked at

  log(WCUDA_LOG_ERROR, "vram", "lost");

  EXPECT_TRUE(records_.empty());
}

TEST_F(Log, level_out_of_range_is_refused_and_keeps_the_sink) {
  ASSERT_EQ(wcuda_log_set(collect, &records_, WCUDA_LOG_TRACE, nullptr), WCUDA_OK);

  EXPECT_EQ(wcuda_log_set(collect, nullptr, 0, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_log_set(collect, nullptr, 6, nullptr), WCUDA_INVALID_ARGUMENT);
  log(WCUDA_LOG_TRACE, "vram", "still here");

  EXPECT_EQ(records_.size(), 1u);
}

TEST_F(Log, long_record_is_cut) {
  ASSERT_EQ(wcuda_log_set(collect, &records_, WCUDA_LOG_TRACE, nullptr), WCUDA_OK);

  log(WCUDA_LOG_INFO, "vram", "%s", std::string(5000, 'x').c_str());

  EXPECT_EQ(records_.at(0).message, std::string(1023, 'x'));
}

TEST_F(Log, calling_the_library_from_a_sink_is_reentrant) {
  static wcuda_status inner;
  inner = WCUDA_OK;
  const auto sink = [](void*, int32_t, wcuda_string, wcuda_string) {
    inner = wcuda_log_set(nullptr, nullptr, WCUDA_LOG_ERROR, nullptr);
  };
  ASSERT_EQ(wcuda_log_set(sink, nullptr, WCUDA_LOG_ERROR, nullptr), WCUDA_OK);

  log(WCUDA_LOG_ERROR, "vram", "x");

  EXPECT_EQ(inner, WCUDA_REENTRANT);
}

TEST_F(Log, previous_sink_never_runs_after_set_returns) {
  struct Sink {
    std::atomic<bool> removed{false};
    std::atomic<int> late{0};
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      while (!stop) log(WCUDA_LOG_ERROR, "test", "busy");
    });

  int late = 0;
  for (int i = 0; i < 200; ++i) {
    Sink sink;
    const auto callback = [](void* user, int32_t, wcuda_string, wcuda_string) {
      auto* s = static_cast<Sink*>(user);
      if (s->removed) ++s->late;
    };
    ASSERT_EQ(wcuda_log_set(callback, &sink, WCUDA_LOG_ERROR, nullptr), WCUDA_OK);
    std::this_thread::yield();
    ASSERT_EQ(wcuda_log_set(nullptr, nullptr, WCUDA_LOG_ERROR, nullptr), WCUDA_OK);
    sink.removed = true;
    late += sink.late;
  }
  stop = true;
  for (auto& thread : threads) thread.join();

  EXPECT_EQ(late, 0);
}

}  // namespace
}  // namespace wcuda
