// The ledger of a context: which allocation holds how many bytes, for what, and how many may be
// held.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace wcuda::vram {

constexpr int32_t kPurposeCount = WCUDA_PURPOSE_USER + 1;
// "weights"; "" for what is no purpose.
const char* purpose_name(int32_t purpose);

struct LedgerSum {
  uint64_t current_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t allocation_count = 0;        // live
  uint64_t total_allocation_count = 0;  // ever made
};

// A live allocation.
struct LedgerRow {
  wcuda_ledger_entry entry{};
  const void* address = nullptr;
};

// Thread-safe. An allocation is reserved before the driver is asked, then committed or given up:
// bytes reserved count against the budget, and in no sum.
class Ledger {
 public:
  using Rows = std::list<LedgerRow>;
  // What the owner of an allocation keeps. Ends with `release` or `give_up`.
  struct Row {
    Rows node;  // one element until committed, then empty
    Rows::iterator position;
  };

  // budget 0: none. It covers device memory; staging is host memory and not in it.
  explicit Ledger(uint64_t budget) : budget_(budget) {}

  // WCUDA_OVER_BUDGET with the bytes needed, the budget, the bytes used and free.
  Result<Row> reserve(uint64_t bytes, int32_t purpose, std::string_view tag);
  void give_up(Row& row) noexcept;
  void commit(Row& row, const void* address) noexcept;
  void release(Row& row) noexcept;

  // Of one purpose; WCUDA_PURPOSE_ANY: of all but staging.
  LedgerSum sum(int32_t purpose) const;
  // Live rows, oldest first.
  std::vector<LedgerRow> rows() const;
  uint64_t budget() const { return budget_; }
  // Bytes that the budget still allows; UINT64_MAX without one.
  uint64_t left_in_budget() const;

 private:
  uint64_t held() const;  // device bytes current and reserved

  const uint64_t budget_;
  mutable std::mutex mutex_;
  uint64_t reserved_bytes_ = 0;  // device bytes reserved, not committed
  uint64_t last_sequence_number_ = 0;
  LedgerSum sums_[kPurposeCount];  // [WCUDA_PURPOSE_ANY]: all but staging
  Rows rows_;
};

}  // namespace wcuda::vram
