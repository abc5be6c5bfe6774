// Rows and sums of the ledger. Nothing after `reserve` can fail: a row's memory is made there.
#include "vram/ledger.h"

#include <algorithm>
#include <cinttypes>

#include "base/text.h"

namespace wcuda::vram {
namespace {

bool is_device(int32_t purpose) { return purpose != WCUDA_PURPOSE_STAGING; }

}  // namespace

const char* purpose_name(int32_t purpose) {
  switch (purpose) {
    case WCUDA_PURPOSE_WEIGHTS:
      return "weights";
    case WCUDA_PURPOSE_KV:
      return "kv";
    case WCUDA_PURPOSE_SCRATCH:
      return "scratch";
    case WCUDA_PURPOSE_MODULE:
      return "module";
    case WCUDA_PURPOSE_STAGING:
      return "staging";
    case WCUDA_PURPOSE_USER:
      return "user";
    default:
      return "";
  }
}

uint64_t Ledger::held() const { return sums_[WCUDA_PURPOSE_ANY].current_bytes + reserved_bytes_; }

Result<Ledger::Row> Ledger::reserve(uint64_t bytes, int32_t purpose, std::string_view tag) {
  WCUDA_CHECK(purpose > WCUDA_PURPOSE_ANY && purpose < kPurposeCount);
  Row row;
  row.node.emplace_back();
  row.position = row.node.begin();
  wcuda_ledger_entry& entry = row.position->entry;
  entry.bytes = bytes;
  entry.purpose = purpose;
  entry.tag_bytes = copy_text(tag, entry.tag, sizeof(entry.tag));

  if (is_device(purpose)) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t used = held();
    const uint64_t limit = budget_ ? budget_ : UINT64_MAX;
    if (used > limit || bytes > limit - used)
      return Status::error(WCUDA_OVER_BUDGET,
                           "%s '%s': needs %" PRIu64 " bytes, budget %" PRIu64 ", used %" PRIu64
                           ", free %" PRIu64,
                           purpose_name(purpose), entry.tag, bytes, budget_, used, limit - used);
    reserved_bytes_ += bytes;
  }
  return row;
}

void Ledger::give_up(Row& row) noexcept {
  if (!is_device(row.position->entry.purpose)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  reserved_bytes_ -= row.position->entry.bytes;
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
  if (is_device(entry.purpose)) {
    reserved_bytes_ -= entry.bytes;
    add(sums_[WCUDA_PURPOSE_ANY]);
  }
  rows_.splice(rows_.end(), row.node);
}

void Ledger::release(Row& row) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  const wcuda_ledger_entry& entry = row.position->entry;
  const auto subtract = [&entry](LedgerSum& sum) {
    sum.current_bytes -= entry.bytes;
    --sum.allocation_count;
  };
  subtract(sums_[entry.purpose]);
  if (is_device(entry.purpose)) subtract(sums_[WCUDA_PURPOSE_ANY]);
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

uint64_t Ledger::left_in_budget() const {
  if (!budget_) return UINT64_MAX;
  std::lock_guard<std::mutex> lock(mutex_);
  return budget_ - std::min(budget_, held());
}

}  // namespace wcuda::vram
