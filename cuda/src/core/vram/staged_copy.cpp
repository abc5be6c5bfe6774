#include "core/vram/staged_copy.h"

#include <algorithm>
#include <cstring>

namespace wcuda::vram {
namespace {

// More threads gain little: host memory bandwidth is the limit.
constexpr uint32_t kThreadCountMax = 8;
constexpr uint64_t kPieceBytes = uint64_t{512} << 10;  // copied by one thread at a time

}  // namespace

Result<std::unique_ptr<StagedCopy>> StagedCopy::create(Backend& backend, uint8_t* staging) {
  std::unique_ptr<StagedCopy> copy(new StagedCopy(backend, staging));
  WCUDA_ASSIGN(copy->threads_,
               ThreadPool::create(std::min(kThreadCountMax, available_thread_count())));
  for (OwnedEvent& event : copy->emptied_) WCUDA_TRY(event.take(backend, backend.event_create()));
  return copy;
}

Status StagedCopy::to_device(uint8_t* target, const uint8_t* source, uint64_t bytes) {
  const Status queued = queue(target, source, bytes);
  const Status done = backend_.synchronize(Stream{});  // after a failure too: slots are in use
  return queued.ok() ? done : queued;
}

Status StagedCopy::queue(uint8_t* target, const uint8_t* source, uint64_t bytes) {
  uint64_t slot_number = 0;
  for (uint64_t done = 0; done < bytes; done += kSlotBytes, ++slot_number) {
    const uint32_t index = slot_number % kSlotCount;
    uint8_t* const slot = staging_ + index * kSlotBytes;
    const uint64_t take = std::min(kSlotBytes, bytes - done);
    if (slot_number >= kSlotCount) WCUDA_TRY(backend_.event_synchronize(emptied_[index]));
    fill(slot, source + done, take);
    WCUDA_TRY(backend_.copy_to_device_async(target + done, slot, take, Stream{}));
    WCUDA_TRY(backend_.event_record(emptied_[index], Stream{}));
  }
  return {};
}

void StagedCopy::fill(uint8_t* slot, const uint8_t* source, uint64_t bytes) {
  const auto count = static_cast<uint32_t>((bytes + kPieceBytes - 1) / kPieceBytes);
  threads_->parallel_for(count, [&](uint32_t piece, uint32_t) {
    const uint64_t offset = piece * kPieceBytes;
    std::memcpy(slot + offset, source + offset, std::min(kPieceBytes, bytes - offset));
  });
}

}  // namespace wcuda::vram
