// Rows and sums of the ledger. Only `reserve` can fail: it allocates the row's memory.
#include "core/vram/ledger.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>

#include "core/base/text.h"

namespace wcuda::vram {
namespace {

// Whether the context's budget covers it.
bool is_owned_device(int32_t purpose) {
  return purpose != WCUDA_PURPOSE_STAGING && purpose != WCUDA_PURPOSE_BORROWED;
}

}  // namespace

const char* purpose_name(int32_t purpose) {
  constexpr const char* kNames[] = {"",       "weights", "kv",   "scratch",
                                    "module", "staging", "user", "borrowed"};
  static_assert(std::size(kNames) == kPurposeCount && WCUDA_PURPOSE_STAGING == 5);
  return purpose >= 0 && purpose < kPurposeCount ? kNames[purpose] : "";
}

uint64_t Ledger::held(int32_t purpose) const {
  return sums_[purpose].current_bytes + reserved_bytes_[purpose];
}

// `of`: the purpose whose bytes the budget covers.
Status Ledger::check_budget(uint64_t budget, const char* whose, int32_t of,
                            const wcuda_ledger_entry& entry) const {
  const uint64_t used = held(of);
  const uint64_t free_bytes = budget - std::min(budget, used);
  if (budget == 0 || entry.bytes <= free_bytes) return {};
  return Status::error(WCUDA_OVER_BUDGET,
                       "%s%s%s%s: needs %" PRIu64 " bytes, %sbudget %" PRIu64 ", used %" PRIu64
                       ", free %" PRIu64,
                       purpose_name(entry.purpose), entry.tag[0] ? " '" : "", entry.tag,
                       entry.tag[0] ? "'" : "", entry.bytes, whose, budget, used, free_bytes);
}

void Ledger::set_budget(int32_t purpose, uint64_t bytes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  budgets_[purpose] = bytes;
}

Result<Ledger::Row> Ledger::reserve(uint64_t bytes, int32_t purpose, std::string_view tag) {
  WCUDA_CHECK(purpose > WCUDA_PURPOSE_ANY && purpose < kPurposeCount);
  Row row;
  row.node.emplace_back();
  row.position = row.node.begin();
  wcuda_ledger_entry& entry = row.position->entry;
  entry.bytes = bytes;
  entry.purpose = purpose;
  entry.tag_bytes = copy_text(tag, entry.tag, sizeof(entry.tag));

  std::lock_guard<std::mutex> lock(mutex_);
  WCUDA_TRY(check_budget(budgets_[purpose], "its purpose's ", purpose, entry));
  if (is_owned_device(purpose)) {
    WCUDA_TRY(check_budget(budget_, "", WCUDA_PURPOSE_ANY, entry));
    reserved_bytes_[WCUDA_PURPOSE_ANY] += bytes;
  }
  reserved_bytes_[purpose] += bytes;
  return row;
}

void Ledger::give_up(Row& row) noexcept {
  const wcuda_ledger_entry& entry = row.position->entry;
  std::lock_guard<std::mutex> lock(mutex_);
  reserved_bytes_[entry.purpose] -= entry.bytes;
  if (is_owned_device(entry.purpose)) reserved_bytes_[WCUDA_PURPOSE_ANY] -= entry.bytes;
}

void Ledger::commit(Row& row, const void* address) noexcept {
  wcuda_ledger_entry& entry = row.position->entry;
  row.position->address = address;
  std::lock_guard<std::mutex> lock(mutex_);
  entry.sequence_number = ++last_sequence_number_;
  const auto add = [&entry](LedgerSum& sum) {
    sum.current_bytes += entry.bytes;
    sum.peak_bytes = std::max(sum.peak_bytes, sum.current_bytes);
    ++sum.allocation_count;
    ++sum.total_allocation_count;
  };
  add(sums_[entry.purpose]);
  reserved_bytes_[entry.purpose] -= entry.bytes;
  if (is_owned_device(entry.purpose)) {
    reserved_bytes_[WCUDA_PURPOSE_ANY] -= entry.bytes;
    add(sums_[WCUDA_PURPOSE_ANY]);
  }
  rows_.splice(rows_.end(), row.node);
}

void Ledger::release(Row& row, bool is_lost) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  const wcuda_ledger_entry& entry = row.position->entry;
  const auto subtract = [&entry, is_lost](LedgerSum& sum) {
    sum.current_bytes -= entry.bytes;
    --sum.allocation_count;
    sum.lost_bytes += is_lost ? entry.bytes : 0;
    sum.lost_count += is_lost;
  };
  subtract(sums_[entry.purpose]);
  if (is_owned_device(entry.purpose)) subtract(sums_[WCUDA_PURPOSE_ANY]);
  rows_.erase(row.position);
}

LedgerSum Ledger::sum(int32_t purpose) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return purpose >= 0 && purpose < kPurposeCount ? sums_[purpose] : LedgerSum();
}

std::vector<LedgerRow> Ledger::rows() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::vector<LedgerRow>(rows_.begin(), rows_.end());
}

uint64_t Ledger::budget(int32_t purpose) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return budgets_[purpose];
}

uint64_t Ledger::left_in_budget() const {
  if (!budget_) return UINT64_MAX;
  std::lock_guard<std::mutex> lock(mutex_);
  return budget_ - std::min(budget_, held(WCUDA_PURPOSE_ANY));
}

}  // namespace wcuda::vram
