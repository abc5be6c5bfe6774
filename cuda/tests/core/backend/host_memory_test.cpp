#include "core/backend/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace wcuda {
namespace {

class HostMemory : public ::testing::Test {
 protected:
  HostMemory()
      : mount_(std::filesystem::temp_directory_path() /
               ("wcuda_cgroup_" + std::to_string(::getpid()))) {}
  ~HostMemory() override { std::filesystem::remove_all(mount_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((mount_ / path).parent_path());
    std::ofstream(mount_ / path) << text << "\n";
  }
  std::filesystem::path mount_;
};

TEST_F(HostMemory, is_what_the_machine_has_at_most) {
  EXPECT_GT(host_memory_bytes(), uint64_t{1} << 28);
  EXPECT_LT(host_memory_bytes(), uint64_t{1} << 50);
}

TEST_F(HostMemory, lowest_limit_up_the_tree_counts) {
  write("memory.max", "max");
  write("a/memory.max", "5000");
  write("a/b/memory.max", "7000");

  EXPECT_EQ(cgroup_memory_limit("0::/a/b\n", mount_), 5000u);
  EXPECT_EQ(cgroup_memory_limit("0::/\n", mount_), UINT64_MAX);
}

TEST_F(HostMemory, version_1_hierarchies_are_read_too) {
  write("memory/g/memory.limit_in_bytes", "1234");

  EXPECT_EQ(cgroup_memory_limit("5:cpu:/g\n4:memory:/g\n", mount_), 1234u);
}

TEST_F(HostMemory, nonsense_is_no_limit) {
  write("a/memory.max", "many");

  for (const char* text : {"", "0", "0::", "0:::/a", "0::/a", "::", "\n\n"})
    EXPECT_EQ(cgroup_memory_limit(text, mount_), UINT64_MAX) << text;
}

// The files of a machine, as texts.
uint64_t available(const std::map<std::string, std::string>& files) {
  return available_bytes([&](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::string() : found->second;
  });
}

constexpr char kMeminfo[] =
    "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n";

TEST(AvailableMemory, is_the_kernels_estimate) {
  EXPECT_EQ(available({{"/proc/meminfo", kMeminfo}}), 9000u * 1024);
  EXPECT_EQ(available({}), UINT64_MAX);
  EXPECT_EQ(available({{"/proc/meminfo", "MemAvailable: many kB\n"}}), UINT64_MAX);
}

TEST(AvailableMemory, is_bounded_by_what_each_cgroup_leaves) {
  std::map<std::string, std::string> files = {
      {"/proc/meminfo", kMeminfo},
      {"/proc/self/cgroup", "0::/a/b\n"},
      {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
      {"/sys/fs/cgroup/a/b/memory.current", "100\n"},
      {"/sys/fs/cgroup/a/memory.max", "5000\n"},
      {"/sys/fs/cgroup/a/memory.current", "4000\n"},
      {"/sys/fs/cgroup/a/memory.stat", "anon 3300\nactive_file 1\ninactive_file 700\n"}};

  EXPECT_EQ(available(files), 5000u - (4000 - 700));
  files["/sys/fs/cgroup/a/memory.stat"] = "";
  EXPECT_EQ(available(files), 1000u);
  files["/sys/fs/cgroup/a/memory.current"] = "6000\n";
  EXPECT_EQ(available(files), 0u);
  files["/sys/fs/cgroup/a/memory.max"] = "99999999999\n";
  EXPECT_EQ(available(files), 9000u * 1024) << "the machine has less";
}

TEST(AvailableMemory, reads_version_1_hierarchies) {
  EXPECT_EQ(available({{"/proc/meminfo", kMeminfo},
                       {"/proc/self/cgroup", "5:cpu:/g\n4:memory:/g\n"},
                       {"/sys/fs/cgroup/memory/g/memory.limit_in_bytes", "1234\n"},
                       {"/sys/fs/cgroup/memory/g/memory.usage_in_bytes", "1000\n"},
                       {"/sys/fs/cgroup/memory/g/memory.stat",
                        "inactive_file 7\ntotal_inactive_file 100\n"}}),
            334u);
}

TEST(AvailableMemory, of_this_machine_is_some_and_no_more_than_all) {
  EXPECT_GT(host_available_bytes(), 0u);
  EXPECT_LT(host_available_bytes(), uint64_t{1} << 50);
}

}  // namespace
}  // namespace wcuda
