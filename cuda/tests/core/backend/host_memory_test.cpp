#include "core/backend/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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

}  // namespace
}  // namespace wcuda
