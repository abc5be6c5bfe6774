// Buffers: budget first, then the driver; freed after the work that uses them.
#include "vram/memory.h"

#include <algorithm>
#include <cinttypes>

#include "base/log.h"

namespace wcuda::vram {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  memory_ = std::move(other.memory_);
  kind_ = other.kind_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  row_ = std::move(other.row_);
  streams_ = std::move(other.streams_);
  return *this;
}

Result<View> Buffer::view(uint64_t offset, uint64_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset)
    return Status::error(WCUDA_OUT_OF_RANGE,
                         "offset %" PRIu64 " and %" PRIu64 " bytes, the buffer has %" PRIu64,
                         offset, bytes, bytes_);
  return View{data_ + offset, bytes};
}

void Buffer::used_on(Stream stream) {
  if (stream.id == 0) return;
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end())
    streams_.push_back(stream);
}

void Buffer::reset() noexcept {
  if (!data_) return;
  memory_->release(*this);
  data_ = nullptr;
  bytes_ = 0;
  streams_.clear();
  memory_.reset();
}

std::shared_ptr<Memory> Memory::create(std::shared_ptr<Backend> backend, uint64_t budget) {
  return std::shared_ptr<Memory>(new Memory(std::move(backend), budget));
}

Result<Buffer> Memory::allocate(uint64_t bytes, int32_t purpose, std::string_view tag) {
  if (purpose == WCUDA_PURPOSE_STAGING)
    return Status::error(WCUDA_INVALID_ARGUMENT, "purpose: staging is pinned host memory");
  return allocate_kind(MemoryKind::kDevice, bytes, purpose, tag);
}

Result<Buffer> Memory::allocate_pinned(uint64_t bytes, std::string_view tag) {
  return allocate_kind(MemoryKind::kPinned, bytes, WCUDA_PURPOSE_STAGING, tag);
}

Result<Buffer> Memory::allocate_kind(MemoryKind kind, uint64_t bytes, int32_t purpose,
                                     std::string_view tag) {
  if (purpose <= WCUDA_PURPOSE_ANY || purpose >= kPurposeCount)
    return Status::error(WCUDA_INVALID_ARGUMENT, "purpose: %d is not in 1 … %d", purpose,
                         kPurposeCount - 1);
  if (bytes == 0) return Status::error(WCUDA_INVALID_ARGUMENT, "bytes: 0, at least 1 is needed");
  WCUDA_TRY(backend_->fault());

  Buffer buffer;  // owns nothing until its data is set
  buffer.kind_ = kind;
  WCUDA_ASSIGN(buffer.row_, ledger_.reserve(bytes, purpose, tag));
  Result<void*> memory = Status();
  try {
    memory = backend_->allocate(kind, bytes);
  } catch (...) {
    ledger_.give_up(buffer.row_);
    throw;
  }
  if (!memory.ok()) {
    ledger_.give_up(buffer.row_);
    const Status& status = memory.status();
    const bool is_full =
        status.code() == WCUDA_OUT_OF_MEMORY || status.code() == WCUDA_OUT_OF_HOST_MEMORY;
    if (!is_full) return status;
    return Status::native_error(
        status.code(), status.native_code(),
        "%s '%.*s': needs %" PRIu64 " bytes, budget %" PRIu64 ", used %" PRIu64 "; %s",
        purpose_name(purpose), static_cast<int>(std::min<size_t>(tag.size(), 63)),
        tag.data() ? tag.data() : "", bytes, ledger_.budget(),
        ledger_.sum(WCUDA_PURPOSE_ANY).current_bytes, status.message());
  }
  ledger_.commit(buffer.row_, *memory);
  buffer.data_ = static_cast<uint8_t*>(*memory);
  buffer.bytes_ = bytes;
  buffer.memory_ = shared_from_this();
  return buffer;
}

// Runs one step of a release; its failure keeps no other step from running.
template <class Step>
bool Memory::attempt(Step&& step) noexcept {
  try {
    const Status status = step();
    defer(status);
    return status.ok();
  } catch (const std::exception& exception) {
    ++deferred_error_count_;
    log(WCUDA_LOG_WARN, "vram", "while freeing: %s", exception.what());
    return false;
  }
}

void Memory::release(Buffer& buffer) noexcept {
  const auto pass = [&](Stream stream) {
    // Pinned memory goes at once, so its work must be over; device memory is given to a queue.
    const bool ordered =
        buffer.kind_ == MemoryKind::kDevice && attempt([&] { return order_free_after(stream); });
    if (!ordered) attempt([&] { return backend_->synchronize(stream); });
  };
  pass(Stream{});
  for (const Stream stream : buffer.streams_) pass(stream);
  attempt([&] { return backend_->free(buffer.kind_, buffer.data_, buffer.bytes_); });
  ledger_.release(buffer.row_);
}

Status Memory::order_free_after(Stream stream) {
  WCUDA_ASSIGN(const Event event, backend_->event_create());
  Status status = backend_->event_record(event, stream);
  if (status.ok()) status = backend_->free_after(event);
  attempt([&] { return backend_->event_destroy(event); });
  return status;
}

void Memory::defer(const Status& status) noexcept {
  // A lost device has taken its memory with it; a stream that is gone has no work left.
  if (status.ok() || status.code() == WCUDA_DEVICE_LOST || status.code() == WCUDA_INVALID_HANDLE)
    return;
  ++deferred_error_count_;
  log(WCUDA_LOG_WARN, "vram", "while freeing: %s", status.message());
}

Result<uint64_t> Memory::available_bytes() const {
  WCUDA_ASSIGN(const MemoryInfo info, backend_->memory_info());
  return std::min(info.free_bytes, ledger_.left_in_budget());
}

Result<uint64_t> Memory::nonresident_count() const {
  std::vector<uint64_t> suspects;
  for (const LedgerRow& row : ledger_.rows()) {
    if (row.entry.purpose == WCUDA_PURPOSE_STAGING) continue;
    WCUDA_ASSIGN(const bool resident, backend_->is_device_memory(row.address));
    if (!resident) suspects.push_back(row.entry.sequence_number);
  }
  if (suspects.empty()) return uint64_t{0};
  // One that was freed meanwhile is not a finding.
  uint64_t count = 0;
  for (const LedgerRow& row : ledger_.rows())
    count += std::binary_search(suspects.begin(), suspects.end(), row.entry.sequence_number);
  return count;
}

}  // namespace wcuda::vram
