#include "core/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace wcuda {
namespace {

TEST(ThreadPool, runs_each_chunk_once) {
  for (uint32_t threads : {1u, 2u, 3u, 8u}) {
    auto pool = ThreadPool::create(threads);
    ASSERT_TRUE(pool.ok());
    EXPECT_EQ((*pool)->thread_count(), threads);
    for (uint32_t chunks : {0u, 1u, 2u, 7u, 1000u}) {
      std::vector<int> calls(chunks, 0);

      (*pool)->parallel_for(chunks, [&](uint32_t chunk, uint32_t) { ++calls[chunk]; });

      EXPECT_EQ(calls, std::vector<int>(chunks, 1)) << threads << " threads";
    }
  }
}

TEST(ThreadPool, gives_each_concurrent_call_its_own_thread_number) {
  auto pool = ThreadPool::create(4);
  ASSERT_TRUE(pool.ok());
  std::atomic<int> users[4] = {};
  std::atomic<int> clashes{0};

  for (int loop = 0; loop < 200; ++loop)
    (*pool)->parallel_for(64, [&](uint32_t, uint32_t thread) {
      if (thread >= 4 || users[thread].fetch_add(1) != 0) ++clashes;
      users[thread].fetch_sub(1);
    });

  EXPECT_EQ(clashes.load(), 0);
}

// Many short loops of changing size: a chunk taken from a loop that is over, or lost, shows here.
TEST(ThreadPool, survives_many_short_loops) {
  auto pool = ThreadPool::create(3);
  ASSERT_TRUE(pool.ok());
  std::vector<uint32_t> sums(16);

  for (uint32_t loop = 0; loop < 20000; ++loop) {
    const uint32_t chunks = 2 + loop % 13;
    std::vector<uint32_t> seen(chunks, 0);
    (*pool)->parallel_for(chunks, [&](uint32_t chunk, uint32_t) { seen[chunk] += loop + 1; });
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) ASSERT_EQ(seen[chunk], loop + 1);
  }
}

// A thread may still be on its way out of the loop when the pool ends.
TEST(ThreadPool, ends_right_after_a_loop) {
  for (int i = 0; i < 20000; ++i) {
    auto pool = ThreadPool::create(2);
    ASSERT_TRUE(pool.ok());
    (*pool)->parallel_for(2, [](uint32_t, uint32_t) {});
  }
}

TEST(ThreadPool, wakes_threads_that_sleep) {
  auto pool = ThreadPool::create(2);
  ASSERT_TRUE(pool.ok());
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::microseconds(50 * ThreadPool::kSpinMicroseconds / 10));
    std::atomic<int> arrived{0};

    // Ends only if two threads are in the loop at once.
    (*pool)->parallel_for(2, [&](uint32_t, uint32_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });

    EXPECT_EQ(arrived.load(), 2);
  }
}

TEST(ThreadPool, caller_sleeps_until_a_slow_chunk_ends) {
  auto pool = ThreadPool::create(2);
  ASSERT_TRUE(pool.ok());
  std::atomic<int> ended{0};

  (*pool)->parallel_for(2, [&](uint32_t, uint32_t thread) {
    if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++ended;
  });

  EXPECT_EQ(ended.load(), 2);
}

TEST(ThreadPool, refuses_too_many_threads) {
  const auto pool = ThreadPool::create(ThreadPool::kThreadCountMax + 1);

  EXPECT_EQ(pool.status().code(), WCUDA_INVALID_ARGUMENT);
}

TEST(ThreadPool, has_at_least_one_thread_available) { EXPECT_GE(available_thread_count(), 1u); }

class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/wcuda_cgroup_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    root_ = pattern;
  }
  void TearDown() override {
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) std::remove(path->c_str());
    std::remove(root_.c_str());
  }
  void write(const std::string& path, const std::string& text) {
    for (size_t i = 1; (i = path.find('/', i)) != std::string::npos; ++i)
      if (mkdir((root_ + path.substr(0, i)).c_str(), 0700) == 0)
        made_.push_back(root_ + path.substr(0, i));
    std::FILE* file = std::fopen((root_ + path).c_str(), "w");
    ASSERT_NE(file, nullptr);
    std::fputs(text.c_str(), file);
    std::fclose(file);
    made_.push_back(root_ + path);
  }
  std::string root_;
  std::vector<std::string> made_;
};

TEST_F(CgroupTest, no_quota_is_zero) {
  write("/cpu.max", "max 100000\n");

  EXPECT_EQ(cgroup_thread_limit("0::/\n", root_), 0u);
  EXPECT_EQ(cgroup_thread_limit("0::/none\n", root_), 0u);
  EXPECT_EQ(cgroup_thread_limit("", root_), 0u);
  EXPECT_EQ(cgroup_thread_limit("nonsense\n:\n", root_), 0u);
}

TEST_F(CgroupTest, version_2_rounds_up_and_takes_the_smallest_of_the_parents) {
  write("/a/cpu.max", "250000 100000\n");
  write("/a/b/cpu.max", "800000 100000\n");

  EXPECT_EQ(cgroup_thread_limit("0::/a/b\n", root_), 3u);
  EXPECT_EQ(cgroup_thread_limit("0::/a\n", root_), 3u);
}

TEST_F(CgroupTest, version_1_reads_the_cpu_controller) {
  write("/cpu/box/cpu.cfs_quota_us", "150000\n");
  write("/cpu/box/cpu.cfs_period_us", "100000\n");
  write("/cpu/cpu.cfs_quota_us", "-1\n");
  write("/cpu/cpu.cfs_period_us", "100000\n");

  EXPECT_EQ(cgroup_thread_limit("5:cpu,cpuacct:/box\n3:cpuset:/x\n", root_), 2u);
  EXPECT_EQ(cgroup_thread_limit("3:cpuset:/box\n", root_), 0u);
}

TEST_F(CgroupTest, a_container_sees_its_quota_at_the_root) {
  write("/cpu.max", "400000 100000\n");

  EXPECT_EQ(cgroup_thread_limit("0::/docker/0123\n", root_), 4u);
}

}  // namespace
}  // namespace wcuda
