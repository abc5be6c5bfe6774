// Memory: allocates and frees all device memory of a context and enters it in the ledger; Buffer
// and View: bounds-checked access to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/backend/backend.h"
#include "core/base/status.h"
#include "core/vram/ledger.h"
#include "core/vram/staged_copy.h"

namespace wcuda::vram {

class Memory;

// A range of a buffer; valid as long as the buffer.
struct View {
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

// When device memory is zeroed; numbered as WCUDA_SCRUB_….
enum class Scrub : int32_t {
  kNone = WCUDA_SCRUB_NONE,
  kOnFree = WCUDA_SCRUB_ON_FREE,
  kOnAlloc = WCUDA_SCRUB_ON_ALLOC,
};

// The result of a residency check: where the allocations of a ledger are.
struct Residency {
  uint64_t checked_count = 0;
  uint64_t nonresident_count = 0;
  uint64_t managed_count = 0;  // of these, managed
  MemoryPlace first_place{};   // of the first that is not resident
  wcuda_ledger_entry first{};

  // Ok when all are device memory; WCUDA_NOT_RESIDENT names the first that is not.
  Status status() const;
};

// An allocation; its destructor frees it after the work of every stream it was used on. Movable,
// not thread-safe.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  bool empty() const { return data_ == nullptr; }
  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  // Not of an empty buffer.
  Memory& memory() const { return *memory_; }
  // WCUDA_OUT_OF_RANGE with the numbers when the range does not lie within.
  Result<View> view(uint64_t offset, uint64_t bytes) const;
  // Remembers that work on this stream uses the buffer. Stream 0 is always remembered.
  void used_on(Stream stream);
  // Frees now.
  void reset() noexcept;

 private:
  friend class Memory;
  std::shared_ptr<Memory> memory_;
  MemoryKind kind_ = MemoryKind::kDevice;
  bool is_borrowed_ = false;  // the caller frees it
  bool is_scratch_ = false;   // freed in the order of its one stream
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
  Ledger::Row row_;
  std::vector<Stream> streams_;
};

// A ledger row for memory that the driver allocates without reporting an address, such as a loaded
// module. Movable.
class Account {
 public:
  Account() = default;
  Account(Account&& other) noexcept { *this = std::move(other); }
  Account& operator=(Account&& other) noexcept;
  ~Account() { reset(); }
  void reset() noexcept;

 private:
  friend class Memory;
  std::shared_ptr<Memory> memory_;  // null: empty
  Ledger::Row row_;
};

// The memory of one context. Thread-safe.
class Memory : public std::enable_shared_from_this<Memory> {
 public:
  // budget 0: none.
  static std::shared_ptr<Memory> create(std::shared_ptr<Backend> backend, uint64_t budget,
                                        Scrub scrub = Scrub::kNone);
  ~Memory();

  // Device memory, aligned to 256 bytes, contents undefined unless scrubbed; bytes at least 1. The
  // ledger counts the requested bytes. WCUDA_OVER_BUDGET and WCUDA_OUT_OF_MEMORY name the bytes
  // needed, the budget, the bytes used and free, and change nothing.
  Result<Buffer> allocate(uint64_t bytes, int32_t purpose, std::string_view tag);
  // As allocate, with every byte 0 for later work on any stream.
  Result<Buffer> allocate_zeroed(uint64_t bytes, int32_t purpose, std::string_view tag);
  // As allocate, for work on one stream, of purpose WCUDA_PURPOSE_SCRATCH; does not wait for other
  // work, and is freed in the order of the stream.
  Result<Buffer> scratch(uint64_t bytes, std::string_view tag, Stream stream);
  // Scratch on stream 0 that lives as long as this object; in the ledger, but never reported as a
  // leak.
  Result<uint8_t*> lasting_scratch(uint64_t bytes, std::string_view tag);
  // Pinned host memory, zeroed, aligned to 4096 bytes, of purpose WCUDA_PURPOSE_STAGING.
  Result<Buffer> allocate_pinned(uint64_t bytes, std::string_view tag);
  // Wraps memory that the caller owns as a buffer of purpose WCUDA_PURPOSE_BORROWED, which never
  // frees it. While vram_only() holds, WCUDA_NOT_RESIDENT for memory that is not this device's.
  Result<Buffer> borrow(void* address, uint64_t bytes, std::string_view tag);

  // Reserves bytes in the budgets, calls `get`, which allocates them in the driver and returns a
  // Status, and enters a row if it succeeds. WCUDA_OVER_BUDGET is returned without calling `get`.
  Result<Account> account(uint64_t bytes, int32_t purpose, std::string_view tag,
                          const std::function<Status()>& get);

  // As Backend::copy_to_device, but large copies from pageable memory go through pinned staging
  // buffers, which the first such copy allocates (StagedCopy::kStagingBytes) and the destructor
  // frees.
  Status copy_to_device(void* target, const void* source, uint64_t bytes);

  Backend& backend() const { return *backend_; }
  const std::shared_ptr<Backend>& shared_backend() const { return backend_; }
  const Ledger& ledger() const { return ledger_; }
  // See Ledger::set_budget.
  void set_budget(int32_t purpose, uint64_t bytes) noexcept { ledger_.set_budget(purpose, bytes); }
  // Bytes that can still be allocated: the smaller of the device's free bytes and the budget's.
  Result<uint64_t> available_bytes() const;
  // Asks where every live or borrowed allocation is. A finding is logged as an error and ends
  // vram_only().
  Result<Residency> check_residency();
  // Checks the device and every allocation; WCUDA_NOT_RESIDENT names the first that is elsewhere.
  Status enforce_vram_only();
  // The last enforcement succeeded, and no later check found memory elsewhere.
  bool vram_only() const { return is_vram_only_; }
  // Failures that no call could return: how many, and the oldest not yet taken (ok: none).
  uint64_t deferred_error_count() const { return deferred_error_count_; }
  Status take_deferred_error();
  // Logs each live allocation as a warning; called when the context's handle is destroyed.
  void log_leaks();

  // One object of type T that a layer above keeps per context. The first call creates it with
  // `make`, which returns a std::shared_ptr<T> without a reference to this. Destroyed before the
  // backend.
  template <class T, class Make>
  std::shared_ptr<T> kept(const Make& make) {
    const std::lock_guard<std::mutex> lock(kept_mutex_);
    for (const auto& [tag, object] : kept_)
      if (tag == &kept_tag<T>) return std::static_pointer_cast<T>(object);
    std::shared_ptr<T> object = make();
    kept_.emplace_back(&kept_tag<T>, object);
    return object;
  }

 private:
  friend class Account;
  friend class Buffer;
  Memory(std::shared_ptr<Backend> backend, uint64_t budget, Scrub scrub)
      : backend_(std::move(backend)), scrub_(scrub), ledger_(budget) {}
  Status open_staged_copy();
  void close_staged_copy() noexcept;
  Status check_request(uint64_t bytes, int32_t purpose) const;
  Status full(const Status& status, uint64_t bytes, int32_t purpose, std::string_view tag) const;
  template <class Get>
  Result<Ledger::Row> enter(uint64_t bytes, int32_t purpose, std::string_view tag, const Get& get,
                            void** address);
  Result<Buffer> allocate_kind(MemoryKind kind, uint64_t bytes, int32_t purpose,
                               std::string_view tag);
  Status zero(const Buffer& buffer, Stream stream);
  Status copy_zeros(const Buffer& buffer);
  void release(Buffer& buffer) noexcept;
  void scrub_for_free(const Buffer& buffer) noexcept;
  Status order_main_stream_after(Stream stream);
  template <class Step>
  bool attempt(Step&& step) noexcept;
  void defer(const Status& status) noexcept;

  std::shared_ptr<Backend> backend_;
  const Scrub scrub_;
  Ledger ledger_;
  std::atomic<bool> is_vram_only_{false};
  std::atomic<uint64_t> deferred_error_count_{0};
  std::mutex deferred_mutex_;  // guards what follows
  std::deque<Status> deferred_errors_;
  std::mutex staged_mutex_;  // guards what follows
  uint8_t* staging_ = nullptr;
  Ledger::Row staging_row_;
  std::unique_ptr<StagedCopy> staged_copy_;

  struct Lasting {
    uint8_t* data;
    uint64_t bytes;
    Ledger::Row row;
  };
  void end_lasting() noexcept;
  mutable std::mutex lasting_mutex_;  // guards what follows
  std::vector<Lasting> lasting_;

  template <class T>
  static inline const char kept_tag = 0;
  std::mutex kept_mutex_;  // guards what follows
  std::vector<std::pair<const void*, std::shared_ptr<void>>> kept_;
};

}  // namespace wcuda::vram
