// How much memory this process may use.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace wcuda {

// Reads a file of /proc or of a cgroup file system whole; "" where there is none.
using ReadText = std::function<std::string(const std::string& path)>;

// Memory of the machine, or the lowest limit of the cgroups this process is in, if that is less.
uint64_t host_memory_bytes();

// What could still be allocated without swapping: what the kernel estimates for the machine, or
// what the limit of a cgroup leaves, if that is less.
uint64_t host_available_bytes();

// The same from the files that `read` gives: MemAvailable of /proc/meminfo, and the limit, the
// usage and the reclaimable file cache of each cgroup named in /proc/self/cgroup, version 1 or 2,
// up to the root. UINT64_MAX where they hold no number.
uint64_t available_bytes(const ReadText& read);

// The limit alone, UINT64_MAX where there is none. `self_cgroup` is the text of /proc/self/cgroup,
// `mount` the folder where the cgroup file systems are mounted.
uint64_t cgroup_memory_limit(const std::string& self_cgroup, const std::string& mount);

}  // namespace wcuda
