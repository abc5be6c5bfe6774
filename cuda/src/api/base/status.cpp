// Section 1 of the header: status codes, their names, and their numbers in older lists of codes.
#include "worker_cuda/backend.h"

namespace wcuda::api {
namespace {

// Columns: numbers in WCUDA_NUMBERS_WORKER, _VRAM and _ZCTL, name in backend tables.
struct StatusRow {
  wcuda_status status;
  const char* name;
  int32_t worker, vram, zctl;
  const char* table_name;
};

#define WCUDA_ROW(status) status, #status
constexpr StatusRow kRows[] = {
    {WCUDA_ROW(WCUDA_OK), 0, 0, 0, ""},
    {WCUDA_ROW(WCUDA_INVALID_ARGUMENT), 8, 2, 7, "InvalidArgs"},
    {WCUDA_ROW(WCUDA_INVALID_HANDLE), 8, 2, 7, "InvalidPointer"},
    {WCUDA_ROW(WCUDA_INVALID_STATE), 8, 2, 7, "InvalidOperation"},
    {WCUDA_ROW(WCUDA_OUT_OF_RANGE), 8, 2, 7, "InvalidSize"},
    {WCUDA_ROW(WCUDA_BUFFER_TOO_SMALL), 8, 2, 7, "BufferTooSmall"},
    {WCUDA_ROW(WCUDA_REENTRANT), 8, 2, 7, "InvalidOperation"},
    {WCUDA_ROW(WCUDA_BUSY), 99, 4, 6, "InvalidOperation"},
    {WCUDA_ROW(WCUDA_ABI_MISMATCH), 99, 4, 2, "InvalidOperation"},
    {WCUDA_ROW(WCUDA_NOT_FOUND), 8, 2, 7, "KernelNotFound"},
    {WCUDA_ROW(WCUDA_INVALID_CONFIG), 8, 2, 7, "InvalidConfig"},
    {WCUDA_ROW(WCUDA_ARGUMENT_COUNT), 8, 2, 7, "ArgumentCountMismatch"},
    {WCUDA_ROW(WCUDA_NOT_AVAILABLE), 1, 4, 6, "BackendNotAvailable"},
    {WCUDA_ROW(WCUDA_NO_DEVICE), 1, 4, 6, "DeviceNotFound"},
    {WCUDA_ROW(WCUDA_IO), 99, 4, 6, "TransferFailed"},
    {WCUDA_ROW(WCUDA_CANCELLED), 99, 4, 6, "InvalidOperation"},
    {WCUDA_ROW(WCUDA_TIMEOUT), 5, 4, 4, "Timeout"},
    {WCUDA_ROW(WCUDA_OUT_OF_MEMORY), 2, 1, 5, "OutOfMemory"},
    {WCUDA_ROW(WCUDA_OUT_OF_HOST_MEMORY), 2, 1, 5, "OutOfMemory"},
    {WCUDA_ROW(WCUDA_OVER_BUDGET), 2, 1, 5, "OutOfMemory"},
    {WCUDA_ROW(WCUDA_QUEUE_FULL), 99, 4, 6, "InvalidOperation"},
    {WCUDA_ROW(WCUDA_OUT_OF_PAGES), 2, 1, 5, "OutOfMemory"},
    {WCUDA_ROW(WCUDA_LIMIT_EXCEEDED), 8, 2, 7, "InvalidOperation"},
    {WCUDA_ROW(WCUDA_MALFORMED), 4, 2, 1, "InvalidArgs"},
    {WCUDA_ROW(WCUDA_UNSUPPORTED), 99, 4, 2, "UnsupportedOperation"},
    {WCUDA_ROW(WCUDA_INTEGRITY), 6, 4, 6, "InvalidPointer"},
    {WCUDA_ROW(WCUDA_COMPILE_FAILED), 7, 4, 6, "CompileFailed"},
    {WCUDA_ROW(WCUDA_UNSUPPORTED_KERNEL), 99, 4, 2, "UnsupportedKernel"},
    {WCUDA_ROW(WCUDA_DEVICE_ERROR), 5, 3, 6, "TransferFailed"},
    {WCUDA_ROW(WCUDA_DEVICE_LOST), 5, 4, 6, "SynchronizationFailed"},
    {WCUDA_ROW(WCUDA_NOT_RESIDENT), 6, 4, 6, "InvalidPointer"},
    {WCUDA_ROW(WCUDA_LAUNCH_FAILED), 7, 4, 6, "LaunchFailed"},
    {WCUDA_ROW(WCUDA_INTERNAL), 99, 4, 6, "InvalidOperation"},
};
#undef WCUDA_ROW
// The row of a status that this version does not know.
constexpr StatusRow kUnknown = {0, "WCUDA_UNKNOWN", 99, 4, 6, "InvalidOperation"};

const StatusRow& row_of(wcuda_status status) {
  for (const StatusRow& row : kRows)
    if (row.status == status) return row;
  return kUnknown;
}

}  // namespace
}  // namespace wcuda::api

using wcuda::api::row_of;

const char* wcuda_status_name(wcuda_status status) { return row_of(status).name; }

const char* wcuda_backend_error_name(wcuda_status status) { return row_of(status).table_name; }

int32_t wcuda_status_number(wcuda_status status, int32_t numbers) {
  switch (numbers) {
    case WCUDA_NUMBERS_WORKER:
      return row_of(status).worker;
    case WCUDA_NUMBERS_VRAM:
      return row_of(status).vram;
    case WCUDA_NUMBERS_ZCTL:
      return row_of(status).zctl;
    default:
      return -1;
  }
}
