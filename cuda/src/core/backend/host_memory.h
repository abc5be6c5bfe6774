// How much memory this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace wcuda {

// Memory of the machine, or the lowest limit of the cgroups this process is in, if that is less.
uint64_t host_memory_bytes();

// The limit alone, UINT64_MAX where there is none. `self_cgroup` is the text of /proc/self/cgroup,
// `mount` the folder where the cgroup file systems are mounted.
uint64_t cgroup_memory_limit(const std::string& self_cgroup, const std::string& mount);

}  // namespace wcuda
