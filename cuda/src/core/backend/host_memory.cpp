// Memory limits by sysconf, /proc and cgroups, versions 1 and 2.
#include "core/backend/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace wcuda {
namespace {

constexpr char kCgroupMount[] = "/sys/fs/cgroup";

// Files of one group. The reclaimable bytes are a field of memory.stat.
struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;
};
constexpr CgroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file"};
constexpr CgroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A text that begins with a number; UINT64_MAX for "max", for "" and for anything else.
uint64_t number_of(const std::string& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return UINT64_MAX;
  return std::strtoull(text.c_str(), nullptr, 10);
}

// The number after `name` in lines such as "MemAvailable:   123 kB"; `otherwise` without one.
uint64_t field_of(const std::string& text, const std::string& name, uint64_t otherwise) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (first == name && number_of(second) != UINT64_MAX) return number_of(second);
  }
  return otherwise;
}

// Calls visit(folder, files) for each group of the memory controller, from the process's own up to
// the root.
template <class Visit>
void for_each_group(const std::string& self_cgroup, const std::string& mount, const Visit& visit) {
  std::istringstream lines(self_cgroup);
  for (std::string line; std::getline(lines, line);) {  // "id:controllers:/group"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_version_2 = controllers == ",,";
    if (!is_version_2 && controllers.find(",memory,") == std::string::npos) continue;
    const std::string root = is_version_2 ? mount : mount + "/memory";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    for (;;) {
      visit(root + group, is_version_2 ? kVersion2 : kVersion1);
      const size_t slash = group.rfind('/');
      if (slash == std::string::npos) break;
      group.resize(slash);
    }
  }
}

}  // namespace

uint64_t cgroup_memory_limit(const std::string& self_cgroup, const std::string& mount) {
  uint64_t limit = UINT64_MAX;
  for_each_group(self_cgroup, mount, [&](const std::string& folder, const CgroupFiles& files) {
    limit = std::min(limit, number_of(read_file(folder + "/" + files.limit)));
  });
  return limit;
}

uint64_t available_bytes(const ReadText& read) {
  const uint64_t kibibytes = field_of(read("/proc/meminfo"), "MemAvailable:", UINT64_MAX);
  uint64_t available = kibibytes > UINT64_MAX / 1024 ? UINT64_MAX : kibibytes * 1024;
  const auto bound = [&](const std::string& folder, const CgroupFiles& files) {
    const uint64_t limit = number_of(read(folder + "/" + files.limit));
    const uint64_t usage = number_of(read(folder + "/" + files.usage));
    if (limit == UINT64_MAX || usage == UINT64_MAX) return;
    const uint64_t cache = field_of(read(folder + "/memory.stat"), files.reclaimable, 0);
    const uint64_t held = usage - std::min(usage, cache);
    available = std::min(available, limit - std::min(limit, held));
  };
  for_each_group(read("/proc/self/cgroup"), kCgroupMount, bound);
  return available;
}

uint64_t host_available_bytes() { return available_bytes(read_file); }

uint64_t host_memory_bytes() {
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min(pages * page_bytes,
                  cgroup_memory_limit(read_file("/proc/self/cgroup"), kCgroupMount));
}

}  // namespace wcuda
