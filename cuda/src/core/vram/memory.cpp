// Allocation (budget first, then the driver), release after the work that uses a buffer, residency.
#include "core/vram/memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "core/backend/device_limits.h"
#include "core/base/log.h"

namespace wcuda::vram {
namespace {

constexpr size_t kDeferredErrorsMax = 16;
constexpr size_t kLeakRecordsMax = 16;
constexpr uint64_t kZerosBytesMax = uint64_t{1} << 20;  // of host memory, to copy zeros from

}  // namespace

Status Residency::status() const {
  if (nonresident_count == 0) return {};
  return Status::error(WCUDA_NOT_RESIDENT,
                       "%s '%s' (#%" PRIu64 ", %" PRIu64
                       " bytes) is %s, not the device's own; %" PRIu64 " of %" PRIu64
                       " allocations are not",
                       purpose_name(first.purpose), first.tag, first.sequence_number, first.bytes,
                       place_name(first_place), nonresident_count, checked_count);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  memory_ = std::move(other.memory_);
  kind_ = other.kind_;
  is_borrowed_ = other.is_borrowed_;
  is_scratch_ = other.is_scratch_;
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

Account& Account::operator=(Account&& other) noexcept {
  if (this == &other) return *this;
  reset();
  memory_ = std::move(other.memory_);
  row_ = std::move(other.row_);
  return *this;
}

void Account::reset() noexcept {
  if (!memory_) return;
  memory_->ledger_.release(row_, !memory_->backend_->fault().ok());
  memory_.reset();
}

std::shared_ptr<Memory> Memory::create(std::shared_ptr<Backend> backend, uint64_t budget,
                                       Scrub scrub) {
  return std::shared_ptr<Memory>(new Memory(std::move(backend), budget, scrub));
}

Result<Buffer> Memory::allocate(uint64_t bytes, int32_t purpose, std::string_view tag) {
  if (purpose == WCUDA_PURPOSE_STAGING)
    return invalid_argument("purpose: staging is pinned host memory");
  if (purpose == WCUDA_PURPOSE_BORROWED)
    return invalid_argument("purpose: borrowed memory is not allocated");
  return allocate_kind(MemoryKind::kDevice, bytes, purpose, tag);
}

Result<Buffer> Memory::allocate_zeroed(uint64_t bytes, int32_t purpose, std::string_view tag) {
  WCUDA_ASSIGN(Buffer buffer, allocate(bytes, purpose, tag));
  // The host's allocations start as zeros; scrubbed ones do everywhere.
  if (backend_->is_host() || scrub_ == Scrub::kOnAlloc) return buffer;
  const Status filled = zero(buffer, Stream{});
  if (filled.code() == WCUDA_UNSUPPORTED) {  // a caller's backend may have no fill
    WCUDA_TRY(copy_zeros(buffer));
    return buffer;
  }
  WCUDA_TRY(filled);
  WCUDA_TRY(backend_->synchronize(Stream{}));
  return buffer;
}

Result<Buffer> Memory::allocate_pinned(uint64_t bytes, std::string_view tag) {
  return allocate_kind(MemoryKind::kPinned, bytes, WCUDA_PURPOSE_STAGING, tag);
}

Memory::~Memory() {
  kept_.clear();
  end_lasting();
  close_staged_copy();
}

Status Memory::copy_to_device(void* target, const void* source, uint64_t bytes) {
  const auto by_driver = [&] { return backend_->copy_to_device(target, source, bytes); };
  if (backend_->caps().backend != WCUDA_BACKEND_CUDA || bytes < StagedCopy::kBytesMin)
    return by_driver();
  WCUDA_ASSIGN(const MemoryPlace place, backend_->memory_place(source));
  const std::unique_lock<std::mutex> lock(staged_mutex_, std::try_to_lock);
  if (place != MemoryPlace::kHost || !lock) return by_driver();
  if (!staged_copy_ && !open_staged_copy().ok()) return by_driver();
  return staged_copy_->to_device(static_cast<uint8_t*>(target), static_cast<const uint8_t*>(source),
                                 bytes);
}

Status Memory::open_staged_copy() {
  if (!staging_) {
    Buffer slots;
    WCUDA_ASSIGN(slots, allocate_pinned(StagedCopy::kStagingBytes, "copies"));
    staging_ = std::exchange(slots.data_, nullptr);  // a Buffer would hold this
    staging_row_ = std::move(slots.row_);
  }
  WCUDA_ASSIGN(staged_copy_, StagedCopy::create(*backend_, staging_));
  return {};
}

void Memory::close_staged_copy() noexcept {
  if (!staging_) return;
  staged_copy_.reset();
  const bool is_lost = !backend_->fault().ok();
  if (!is_lost)
    attempt(
        [&] { return backend_->free(MemoryKind::kPinned, staging_, StagedCopy::kStagingBytes); });
  ledger_.release(staging_row_, is_lost);
  staging_ = nullptr;
}

Status Memory::check_request(uint64_t bytes, int32_t purpose) const {
  if (purpose <= WCUDA_PURPOSE_ANY || purpose >= kPurposeCount)
    return invalid_argument("purpose: %d is not in 1 … %d", purpose, kPurposeCount - 1);
  if (bytes == 0) return invalid_argument("bytes: 0, at least 1 is needed");
  return backend_->fault();
}

Result<Buffer> Memory::borrow(void* address, uint64_t bytes, std::string_view tag) {
  WCUDA_TRY(check_request(bytes, WCUDA_PURPOSE_BORROWED));
  if (bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(address))
    return invalid_argument("bytes: %" PRIu64 " at this address wrap around", bytes);
  if (vram_only()) {
    for (const uint64_t offset : {uint64_t{0}, bytes - 1}) {
      WCUDA_ASSIGN(const MemoryPlace place,
                   backend_->memory_place(static_cast<const uint8_t*>(address) + offset));
      if (place != MemoryPlace::kDevice)
        return Status::error(WCUDA_NOT_RESIDENT, "borrowed '%.*s': %" PRIu64 " bytes of %s",
                             static_cast<int>(std::min<size_t>(tag.size(), 63)),
                             tag.data() ? tag.data() : "", bytes, place_name(place));
    }
  }
  Buffer buffer;
  buffer.is_borrowed_ = true;
  WCUDA_ASSIGN(buffer.row_, ledger_.reserve(bytes, WCUDA_PURPOSE_BORROWED, tag));
  ledger_.commit(buffer.row_, address);
  buffer.data_ = static_cast<uint8_t*>(address);
  buffer.bytes_ = bytes;
  buffer.memory_ = shared_from_this();
  return buffer;
}

// Reserves the bytes in the budgets, has `get` (a Result<void*>) allocate them, and enters the row.
template <class Get>
Result<Ledger::Row> Memory::enter(uint64_t bytes, int32_t purpose, std::string_view tag,
                                  const Get& get, void** address) {
  WCUDA_TRY(check_request(bytes, purpose));
  WCUDA_ASSIGN(Ledger::Row row, ledger_.reserve(bytes, purpose, tag));
  Result<void*> memory = Status();
  try {
    memory = get();
  } catch (...) {
    ledger_.give_up(row);
    throw;
  }
  if (!memory.ok()) {
    ledger_.give_up(row);
    return full(memory.status(), bytes, purpose, tag);
  }
  *address = *memory;
  ledger_.commit(row, *memory);
  return row;
}

Result<Account> Memory::account(uint64_t bytes, int32_t purpose, std::string_view tag,
                                const std::function<Status()>& get) {
  const auto got = [&]() -> Result<void*> {
    WCUDA_TRY(get());
    return nullptr;
  };
  void* none = nullptr;
  Account account;
  WCUDA_ASSIGN(account.row_, enter(bytes, purpose, tag, got, &none));
  account.memory_ = shared_from_this();
  return account;
}

Result<Buffer> Memory::allocate_kind(MemoryKind kind, uint64_t bytes, int32_t purpose,
                                     std::string_view tag) {
  Buffer buffer;  // owns nothing until its data is set
  void* address = nullptr;
  buffer.kind_ = kind;
  const auto get = [&] { return backend_->allocate(kind, bytes); };
  WCUDA_ASSIGN(buffer.row_, enter(bytes, purpose, tag, get, &address));
  buffer.data_ = static_cast<uint8_t*>(address);
  buffer.bytes_ = bytes;
  buffer.memory_ = shared_from_this();
  if (scrub_ == Scrub::kOnAlloc && kind == MemoryKind::kDevice) {
    WCUDA_TRY(zero(buffer, Stream{}));
    WCUDA_TRY(backend_->synchronize(Stream{}));  // any stream may use it at once
  }
  return buffer;
}

// An out-of-memory status of the backend with the request and the budget added.
Status Memory::full(const Status& status, uint64_t bytes, int32_t purpose,
                    std::string_view tag) const {
  const bool is_full =
      status.code() == WCUDA_OUT_OF_MEMORY || status.code() == WCUDA_OUT_OF_HOST_MEMORY;
  if (!is_full) return status;
  return Status::native_error(
      status.code(), status.native_code(),
      "%s%s%.*s%s: needs %" PRIu64 " bytes, budget %" PRIu64 ", used %" PRIu64 "; %s",
      purpose_name(purpose), tag.empty() ? "" : " '",
      static_cast<int>(std::min<size_t>(tag.size(), 63)), tag.data() ? tag.data() : "",
      tag.empty() ? "" : "'", bytes, ledger_.budget(), ledger_.sum(WCUDA_PURPOSE_ANY).current_bytes,
      status.message());
}

Result<Buffer> Memory::scratch(uint64_t bytes, std::string_view tag, Stream stream) {
  Buffer buffer;
  void* address = nullptr;
  buffer.is_scratch_ = true;
  buffer.streams_ = {stream};
  const auto get = [&] { return backend_->allocate_scratch(bytes, stream); };
  WCUDA_ASSIGN(buffer.row_, enter(bytes, WCUDA_PURPOSE_SCRATCH, tag, get, &address));
  buffer.data_ = static_cast<uint8_t*>(address);
  buffer.bytes_ = bytes;
  buffer.memory_ = shared_from_this();
  if (scrub_ == Scrub::kOnAlloc) WCUDA_TRY(zero(buffer, stream));
  return buffer;
}

Result<uint8_t*> Memory::lasting_scratch(uint64_t bytes, std::string_view tag) {
  const std::lock_guard<std::mutex> lock(lasting_mutex_);
  lasting_.reserve(lasting_.size() + 1);
  WCUDA_ASSIGN(Buffer buffer, allocate(bytes, WCUDA_PURPOSE_SCRATCH, tag));
  lasting_.push_back({buffer.data_, bytes, std::move(buffer.row_)});
  buffer.data_ = nullptr;  // a Buffer would hold this
  return lasting_.back().data;
}

void Memory::end_lasting() noexcept {
  for (Lasting& each : lasting_) {
    if (backend_->fault().ok())
      attempt([&] { return backend_->free_scratch(each.data, each.bytes, Stream{}); });
    ledger_.release(each.row, !backend_->fault().ok());
  }
  lasting_.clear();
}

// Queued.
Status Memory::zero(const Buffer& buffer, Stream stream) {
  return backend_->fill(buffer.data_, buffer.bytes_, 0, 1, stream);
}

Status Memory::copy_zeros(const Buffer& buffer) {
  const std::vector<uint8_t> zeros(std::min(buffer.bytes_, kZerosBytesMax));
  for (uint64_t done = 0; done < buffer.bytes_; done += zeros.size())
    WCUDA_TRY(backend_->copy_to_device(buffer.data_ + done, zeros.data(),
                                       std::min<uint64_t>(zeros.size(), buffer.bytes_ - done)));
  return {};
}

// Runs one step of a release; a failure is recorded and the other steps still run.
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
  const auto is_lost = [&] { return !backend_->fault().ok(); };
  if (buffer.is_scratch_) {
    const Stream stream = buffer.streams_.front();
    if (!is_lost()) {
      if (scrub_ == Scrub::kOnFree) attempt([&] { return zero(buffer, stream); });
      attempt([&] { return backend_->free_scratch(buffer.data_, buffer.bytes_, stream); });
    }
    return ledger_.release(buffer.row_, is_lost());
  }
  const bool is_queued = buffer.kind_ == MemoryKind::kDevice && !buffer.is_borrowed_;
  const auto pass = [&](Stream stream) {
    // Borrowed and pinned memory may be reused at once, so its work must have ended; device memory
    // is freed in stream order.
    const bool ordered = is_queued && attempt([&] { return backend_->free_after(stream); });
    if (!ordered) attempt([&] { return backend_->synchronize(stream); });
  };
  if (!is_lost()) {
    if (is_queued && scrub_ == Scrub::kOnFree) scrub_for_free(buffer);
    pass(Stream{});
    for (const Stream stream : buffer.streams_) pass(stream);
  }
  // The memory of a lost device is gone: the driver is not called.
  const bool lost = is_lost();
  if (!lost && !buffer.is_borrowed_) {
    if (buffer.kind_ == MemoryKind::kPinned && scrub_ == Scrub::kOnFree)
      std::memset(buffer.data_, 0, buffer.bytes_);
    attempt([&] { return backend_->free(buffer.kind_, buffer.data_, buffer.bytes_); });
  }
  ledger_.release(buffer.row_, lost);
}

// Zeroes on stream 0, after the work of the other streams; the free that follows is ordered after
// stream 0.
void Memory::scrub_for_free(const Buffer& buffer) noexcept {
  for (const Stream stream : buffer.streams_)
    if (!attempt([&] { return order_main_stream_after(stream); }))
      attempt([&] { return backend_->synchronize(stream); });
  attempt([&] { return zero(buffer, Stream{}); });
}

Status Memory::order_main_stream_after(Stream stream) {
  WCUDA_ASSIGN(const Event event, backend_->event_create());
  Status status = backend_->event_record(event, stream);
  if (status.ok()) status = backend_->stream_wait(Stream{}, event);
  attempt([&] { return backend_->event_destroy(event); });
  return status;
}

void Memory::defer(const Status& status) noexcept {
  // The memory of a lost device is gone; a destroyed stream has no work left.
  if (status.ok() || status.code() == WCUDA_DEVICE_LOST || status.code() == WCUDA_INVALID_HANDLE)
    return;
  ++deferred_error_count_;
  log(WCUDA_LOG_WARN, "vram", "while freeing: %s", status.message());
  const std::lock_guard<std::mutex> lock(deferred_mutex_);
  if (deferred_errors_.size() < kDeferredErrorsMax) deferred_errors_.push_back(status);
}

Status Memory::take_deferred_error() {
  const std::lock_guard<std::mutex> lock(deferred_mutex_);
  if (deferred_errors_.empty()) return {};
  Status oldest = std::move(deferred_errors_.front());
  deferred_errors_.pop_front();
  return oldest;
}

Result<uint64_t> Memory::available_bytes() const {
  WCUDA_ASSIGN(const MemoryInfo info, backend_->memory_info());
  return std::min(info.free_bytes, ledger_.left_in_budget());
}

Result<Residency> Memory::check_residency() {
  struct Finding {
    wcuda_ledger_entry entry;
    MemoryPlace place;
  };
  Residency residency;
  std::vector<Finding> findings;
  for (const LedgerRow& row : ledger_.rows()) {
    if (row.entry.purpose == WCUDA_PURPOSE_STAGING || row.address == nullptr) continue;
    ++residency.checked_count;
    WCUDA_ASSIGN(MemoryPlace place, backend_->memory_place(row.address));
    if (place == MemoryPlace::kDevice && row.entry.purpose == WCUDA_PURPOSE_BORROWED) {
      const auto* const last = static_cast<const uint8_t*>(row.address) + row.entry.bytes - 1;
      WCUDA_ASSIGN(place, backend_->memory_place(last));
    }
    if (place != MemoryPlace::kDevice) findings.push_back({row.entry, place});
  }
  if (findings.empty()) return residency;

  // An allocation that was freed meanwhile does not count.
  const std::vector<LedgerRow> live = ledger_.rows();
  for (const Finding& finding : findings) {
    const auto is_same = [&](const LedgerRow& row) {
      return row.entry.sequence_number == finding.entry.sequence_number;
    };
    if (std::none_of(live.begin(), live.end(), is_same)) continue;
    if (residency.nonresident_count++ == 0) {
      residency.first = finding.entry;
      residency.first_place = finding.place;
    }
    residency.managed_count += finding.place == MemoryPlace::kManaged;
  }
  if (residency.nonresident_count == 0) return residency;
  is_vram_only_ = false;
  log(WCUDA_LOG_ERROR, "residency", "%s", residency.status().message());
  return residency;
}

Status Memory::enforce_vram_only() {
  WCUDA_TRY(check_device_limits(backend_->caps()));
  is_vram_only_ = true;  // before the check, so that no later allocation escapes it
  Result<Residency> residency = check_residency();
  const Status status = residency.ok() ? residency->status() : residency.status();
  if (!status.ok()) is_vram_only_ = false;
  return status;
}

void Memory::log_leaks() {
  if (!log_enabled(WCUDA_LOG_WARN)) return;
  const std::lock_guard<std::mutex> lock(staged_mutex_);
  std::vector<LedgerRow> rows = ledger_.rows();
  const std::lock_guard<std::mutex> lasting_lock(lasting_mutex_);
  const auto is_ours = [this](const LedgerRow& row) {
    if (row.address == nullptr) return false;
    return row.address == staging_ ||
           std::any_of(lasting_.begin(), lasting_.end(),
                       [&](const Lasting& each) { return each.data == row.address; });
  };
  rows.erase(std::remove_if(rows.begin(), rows.end(), is_ours), rows.end());
  if (rows.empty()) return;
  uint64_t bytes = 0;
  for (const LedgerRow& row : rows) bytes += row.entry.bytes;
  log(WCUDA_LOG_WARN, "vram",
      "%zu allocations of %" PRIu64 " bytes remain after the context was destroyed", rows.size(),
      bytes);
  for (size_t i = 0; i < std::min(rows.size(), kLeakRecordsMax); ++i) {
    const wcuda_ledger_entry& entry = rows[i].entry;
    log(WCUDA_LOG_WARN, "vram", "live: #%" PRIu64 " %s '%s', %" PRIu64 " bytes",
        entry.sequence_number, purpose_name(entry.purpose), entry.tag, entry.bytes);
  }
}

}  // namespace wcuda::vram
