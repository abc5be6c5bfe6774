// The process's log sink: the library's records go to the caller's callback if there is one.
#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace wcuda {

// Passes one line to the sink if the sink takes this level (WCUDA_LOG_…); `target` names the
// component. Never fails and never waits for anything but the sink; a line longer than 1023 bytes
// is cut. The arguments are evaluated either way: keep them cheap. `format` is printf's.
__attribute__((format(printf, 3, 4))) void log(int32_t level, const char* target,
                                               const char* format, ...) noexcept;

// True when a record of this level would reach a sink; for records that are expensive to format.
bool log_enabled(int32_t level) noexcept;

// Installs a sink for records of `level` or more severe; null removes it. On return the previous
// sink runs on no thread and never will again. Must not be called from inside a sink.
Status set_log_sink(wcuda_log_callback callback, void* user, int32_t level);

}  // namespace wcuda
