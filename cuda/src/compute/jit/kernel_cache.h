// Compiled programs kept in a folder, shared by any number of processes.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "compute/jit/cache_entry.h"
#include "compute/nvrtc/compiler.h"
#include "core/base/status.h"

namespace wcuda::jit {

struct CacheStats {  // of this object since it was opened
  uint64_t hit_count = 0;
  uint64_t miss_count = 0;
  uint64_t damaged_count = 0;  // files that were no entries; each is a miss too, and removed
  uint64_t store_count = 0;
  uint64_t store_failure_count = 0;
  uint64_t evicted_count = 0;
  uint64_t bypass_count = 0;
};

struct CacheSize {
  uint64_t entry_count = 0;
  uint64_t bytes = 0;
};

// Thread-safe. An entry appears whole or not at all: it is written to a temporary file and renamed.
class KernelCache {
 public:
  // Creates the folder (not its parents) if it is missing, for this user alone.
  // WCUDA_INVALID_ARGUMENT if the path is no folder, belongs to another user, or others can write
  // to it: they could plant code. `bytes_max` bounds all entries together.
  static Result<std::shared_ptr<KernelCache>> open(const std::string& folder, uint64_t bytes_max);
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // Returns the entry of this key and marks it as used now.
  std::optional<nvrtc::Outcome> find(const CacheKey& key);
  // Stores a compiled program, then removes the least recently used entries until all fit; an entry
  // that alone exceeds the bound is not stored. A failure to store is only counted and logged,
  // since the program itself is available.
  void store(const CacheKey& key, const nvrtc::Outcome& outcome);
  void count_bypass();

  CacheStats stats() const;
  Result<CacheSize> size() const;
  // Removes all entries.
  Status clear();

 private:
  KernelCache(int folder, uint64_t bytes_max) : folder_(folder), bytes_max_(bytes_max) {}
  Status write(const CacheKey& key, const std::vector<uint8_t>& bytes);
  Status trim(uint64_t bytes_max);

  const int folder_;  // open directory
  const uint64_t bytes_max_;
  mutable std::mutex mutex_;  // guards the members below
  CacheStats stats_;
};

}  // namespace wcuda::jit
