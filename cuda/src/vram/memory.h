// Device memory, accounted for: the only place that the model, the engine and the buffers of the C
// interface get it from.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "vram/ledger.h"

namespace wcuda::vram {

class Memory;

// A window into a buffer; valid as long as the buffer.
struct View {
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

// An allocation; freed when it goes, after the work of every stream it was used on. Movable, not
// thread-safe.
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
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
  Ledger::Row row_;
  std::vector<Stream> streams_;
};

// The memory of one context. Thread-safe.
class Memory : public std::enable_shared_from_this<Memory> {
 public:
  // budget 0: none.
  static std::shared_ptr<Memory> create(std::shared_ptr<Backend> backend, uint64_t budget);

  // Device memory, aligned to 256 bytes, contents undefined; bytes at least 1. The ledger counts
  // the bytes as asked for. WCUDA_OVER_BUDGET or WCUDA_OUT_OF_MEMORY name the bytes needed, the
  // budget, the bytes used and free; nothing has changed then.
  Result<Buffer> allocate(uint64_t bytes, int32_t purpose, std::string_view tag);
  // Pinned host memory, zeroed, aligned to 4096 bytes, of purpose WCUDA_PURPOSE_STAGING.
  Result<Buffer> allocate_pinned(uint64_t bytes, std::string_view tag);

  Backend& backend() const { return *backend_; }
  const std::shared_ptr<Backend>& shared_backend() const { return backend_; }
  const Ledger& ledger() const { return ledger_; }
  // What could still be allocated: the lesser of what the device has free and the budget allows.
  Result<uint64_t> available_bytes() const;
  // Live device allocations that are not device memory after all; 0 unless something is very wrong.
  Result<uint64_t> nonresident_count() const;
  // Failures met where nobody could be told.
  uint64_t deferred_error_count() const { return deferred_error_count_; }

 private:
  friend class Buffer;
  Memory(std::shared_ptr<Backend> backend, uint64_t budget)
      : backend_(std::move(backend)), ledger_(budget) {}
  Result<Buffer> allocate_kind(MemoryKind kind, uint64_t bytes, int32_t purpose,
                               std::string_view tag);
  void release(Buffer& buffer) noexcept;
  Status order_free_after(Stream stream);
  template <class Step>
  bool attempt(Step&& step) noexcept;
  void defer(const Status& status) noexcept;

  std::shared_ptr<Backend> backend_;
  Ledger ledger_;
  std::atomic<uint64_t> deferred_error_count_{0};
};

}  // namespace wcuda::vram
