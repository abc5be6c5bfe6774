// Section 4 of the header: devices.
#include "api/base/guard.h"
#include "core/backend/open.h"

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_device_count(int32_t backend, int32_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(count, "count"));
    WCUDA_ASSIGN(*count, device_count(backend));
    return {};
  });
}

wcuda_status wcuda_device_caps_get(int32_t backend, int32_t ordinal, wcuda_device_caps* caps,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(caps, "caps"));
    WCUDA_ASSIGN(const wcuda_device_caps found, device_caps(backend, ordinal));
    return write_struct(found, caps, "caps");
  });
}
