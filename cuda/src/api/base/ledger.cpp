// Section 6 of the header: the ledger.
#include <algorithm>

#include "api/base/context.h"
#include "api/base/guard.h"

using namespace wcuda;
using namespace wcuda::api;

extern "C" wcuda_status wcuda_context_memory_get(wcuda_context context, int32_t purpose,
                                                 wcuda_memory_info* info, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve_context(context));
    if (purpose < 0 || purpose >= vram::kPurposeCount)
      return Status::error(WCUDA_INVALID_ARGUMENT, "purpose: %d is not in 0 … %d", purpose,
                           vram::kPurposeCount - 1);
    WCUDA_TRY(check_struct(info, "info"));
    WCUDA_ASSIGN(const MemoryInfo device, object->memory->backend().memory_info());
    const vram::LedgerSum sum = object->memory->ledger().sum(purpose);
    wcuda_memory_info value = WCUDA_MEMORY_INFO_INIT;
    value.purpose = purpose;
    value.current_bytes = sum.current_bytes;
    value.peak_bytes = sum.peak_bytes;
    value.allocation_count = sum.allocation_count;
    value.total_allocation_count = sum.total_allocation_count;
    value.budget_bytes = object->memory->ledger().budget();
    value.device_free_bytes = device.free_bytes;
    value.device_total_bytes = device.total_bytes;
    value.purpose_budget_bytes = object->memory->ledger().budget(purpose);
    write_struct(value, info);
    return {};
  });
}

extern "C" wcuda_status wcuda_context_ledger_list(wcuda_context context,
                                                  wcuda_ledger_entry* entries, uint64_t capacity,
                                                  uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve_context(context));
    if (capacity != 0) WCUDA_TRY(check_not_null(entries, "entries"));
    WCUDA_TRY(check_not_null(count, "count"));
    const auto rows = object->memory->ledger().rows();
    const uint64_t written = std::min<uint64_t>(capacity, rows.size());
    for (uint64_t i = 0; i < written; ++i) entries[i] = rows[i].entry;
    *count = rows.size();
    return {};
  });
}
