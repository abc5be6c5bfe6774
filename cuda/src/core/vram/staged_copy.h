// StagedCopy: large copies from pageable host memory to a device. Threads fill pinned slots while
// the copy engine empties others. The driver's copy uses one thread (H200: 10 GB/s, the bus 55
// GB/s).
#pragma once

#include <cstdint>
#include <memory>

#include "core/backend/owned.h"
#include "core/base/status.h"
#include "core/base/thread_pool.h"

namespace wcuda::vram {

// One copy at a time.
class StagedCopy {
 public:
  static constexpr uint64_t kSlotBytes = uint64_t{8} << 20;
  static constexpr uint32_t kSlotCount = 3;
  static constexpr uint64_t kStagingBytes = kSlotBytes * kSlotCount;
  // Shorter copies are left to the driver.
  static constexpr uint64_t kBytesMin = uint64_t{4} << 20;

  // `staging`: kStagingBytes of pinned memory; it and the backend outlive this object.
  static Result<std::unique_ptr<StagedCopy>> create(Backend& backend, uint8_t* staging);

  // As Backend::copy_to_device: ordered after the work on stream 0; returns when complete.
  Status to_device(uint8_t* target, const uint8_t* source, uint64_t bytes);

 private:
  StagedCopy(Backend& backend, uint8_t* staging) : backend_(backend), staging_(staging) {}
  Status queue(uint8_t* target, const uint8_t* source, uint64_t bytes);
  void fill(uint8_t* slot, const uint8_t* source, uint64_t bytes);

  Backend& backend_;
  uint8_t* const staging_;
  std::unique_ptr<ThreadPool> threads_;
  OwnedEvent emptied_[kSlotCount];  // recorded behind the copy out of a slot
};

}  // namespace wcuda::vram
