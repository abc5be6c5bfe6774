// Memory limits by sysconf and cgroups, versions 1 and 2.
#include "core/backend/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace wcuda {
namespace {

// A file that holds one number; UINT64_MAX for "max", for none and for anything else.
uint64_t read_limit(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text) || text.empty() || text[0] < '0' || text[0] > '9') return UINT64_MAX;
  return std::strtoull(text.c_str(), nullptr, 10);
}

// The lowest limit from a group up to the root of its hierarchy.
uint64_t lowest_limit(const std::string& root, std::string group, const char* file) {
  uint64_t limit = UINT64_MAX;
  for (;;) {
    limit = std::min(limit, read_limit(root + group + "/" + file));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return limit;
    group.resize(slash);
  }
}

}  // namespace

uint64_t cgroup_memory_limit(const std::string& self_cgroup, const std::string& mount) {
  uint64_t limit = UINT64_MAX;
  std::istringstream lines(self_cgroup);
  for (std::string line; std::getline(lines, line);) {  // "id:controllers:/group"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,")
      limit = std::min(limit, lowest_limit(mount, group, "memory.max"));
    else if (controllers.find(",memory,") != std::string::npos)
      limit = std::min(limit, lowest_limit(mount + "/memory", group, "memory.limit_in_bytes"));
  }
  return limit;
}

uint64_t host_memory_bytes() {
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::ifstream file("/proc/self/cgroup");
  std::stringstream text;
  text << file.rdbuf();
  return std::min(pages * page_bytes, cgroup_memory_limit(text.str(), "/sys/fs/cgroup"));
}

}  // namespace wcuda
