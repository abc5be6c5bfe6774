// Section 3 of the header: the log sink.
#include "core/base/log.h"

#include "api/base/guard.h"

wcuda_status wcuda_log_set(wcuda_log_callback callback, void* user, int32_t level,
                           wcuda_error* error) {
  return wcuda::api::guarded(error, [&] { return wcuda::set_log_sink(callback, user, level); });
}
