// Section 6 of the header: the ledger.
#include "api/base/context.h"
#include "api/base/elements.h"

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_context_memory_get(wcuda_context context, int32_t purpose,
                                      wcuda_memory_info* info, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    if (purpose < 0 || purpose >= vram::kPurposeCount)
      return invalid_argument("purpose: %d is not in 0 … %d", purpose, vram::kPurposeCount - 1);
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
    return write_struct(value, info, "info");
  });
}

wcuda_status wcuda_context_ledger_list(wcuda_context context, uint64_t first,
                                       wcuda_ledger_entry* entries, uint64_t capacity,
                                       uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    const auto rows = object->memory->ledger().rows();
    return write_list<wcuda_ledger_entry>({entries, capacity, "entries"}, first, rows.size(), count,
                                          [&](uint64_t index) { return rows[index].entry; });
  });
}
