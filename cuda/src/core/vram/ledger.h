// Ledger: the allocations of a context by purpose, their sums and peaks, and the budgets that
// limit them.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace wcuda::vram {

constexpr int32_t kPurposeCount = WCUDA_PURPOSE_BORROWED + 1;
// "weights"; "" for what is no purpose.
const char* purpose_name(int32_t purpose);

struct LedgerSum {
  uint64_t current_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t allocation_count = 0;        // live
  uint64_t total_allocation_count = 0;  // live and freed
  uint64_t lost_bytes = 0;              // of rows closed as lost
  uint64_t lost_count = 0;
};

// A live allocation.
struct LedgerRow {
  wcuda_ledger_entry entry{};
  const void* address = nullptr;
};

// Thread-safe. Bytes are reserved before the driver allocates, then committed or given up. Reserved
// bytes count against the budget, but in no sum.
class Ledger {
 public:
  using Rows = std::list<LedgerRow>;
  // Kept by the owner of an allocation. Ends with `release` or `give_up`.
  struct Row {
    Rows node;  // one element until committed, then empty
    Rows::iterator position;
  };

  // budget 0: none. It covers device memory that the context allocates, not staging, which is host
  // memory, nor borrowed memory.
  explicit Ledger(uint64_t budget) : budget_(budget) {}

  // Limit for one purpose, in addition to the budget of all; 0: none.
  void set_budget(int32_t purpose, uint64_t bytes) noexcept;
  // WCUDA_OVER_BUDGET with the bytes needed, the budget, the bytes used and free.
  Result<Row> reserve(uint64_t bytes, int32_t purpose, std::string_view tag);
  void give_up(Row& row) noexcept;
  void commit(Row& row, const void* address) noexcept;
  // `is_lost`: the device is lost, and the memory was not freed on it.
  void release(Row& row, bool is_lost = false) noexcept;

  // Sums of one purpose; WCUDA_PURPOSE_ANY: of all that the budget covers.
  LedgerSum sum(int32_t purpose) const;
  // Live rows, oldest first.
  std::vector<LedgerRow> rows() const;
  uint64_t budget() const { return budget_; }
  // The budget of one purpose; 0: none.
  uint64_t budget(int32_t purpose) const;
  // Bytes that the budget still allows; UINT64_MAX without one.
  uint64_t left_in_budget() const;

 private:
  // Bytes current and reserved; WCUDA_PURPOSE_ANY: of all that the budget covers.
  uint64_t held(int32_t purpose) const;
  Status check_budget(uint64_t budget, const char* whose, int32_t of,
                      const wcuda_ledger_entry& entry) const;

  const uint64_t budget_;
  mutable std::mutex mutex_;
  // Each [WCUDA_PURPOSE_ANY]: of all that the budget covers.
  uint64_t budgets_[kPurposeCount] = {};
  uint64_t reserved_bytes_[kPurposeCount] = {};  // reserved, not committed
  uint64_t last_sequence_number_ = 0;
  LedgerSum sums_[kPurposeCount];
  Rows rows_;
};

}  // namespace wcuda::vram
