// Delivery of log records.
#include "core/base/log.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "core/base/callback.h"

namespace wcuda {
namespace {

struct Sink {
  std::shared_mutex mutex;  // shared while the callback runs, exclusive to change it
  wcuda_log_callback callback = nullptr;
  void* user = nullptr;
  std::atomic<int32_t> level{0};  // 0: nothing wanted
};

// Never destroyed: threads may log while static objects are destroyed.
Sink& sink() {
  static Sink* const instance = new Sink;
  return *instance;
}

}  // namespace

bool log_enabled(int32_t level) noexcept {
  return level <= sink().level.load(std::memory_order_acquire) && !InCallback::active();
}

void log(int32_t level, const char* target, const char* format, ...) noexcept {
  if (!log_enabled(level)) return;
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  if (length < 0) return;
  const size_t bytes = std::min<size_t>(static_cast<size_t>(length), sizeof(line) - 1);

  Sink& to = sink();
  std::shared_lock<std::shared_mutex> lock(to.mutex);
  if (!to.callback || level > to.level.load(std::memory_order_relaxed)) return;
  const InCallback in_callback;
  to.callback(to.user, level, {target, std::strlen(target)}, {line, bytes});
}

Status set_log_sink(wcuda_log_callback callback, void* user, int32_t level) {
  if (callback && (level < WCUDA_LOG_ERROR || level > WCUDA_LOG_TRACE))
    return invalid_argument("level: %d is not in %d … %d", level, WCUDA_LOG_ERROR, WCUDA_LOG_TRACE);
  Sink& to = sink();
  // Threads that log without pause would keep the shared lock held: stop them first.
  to.level.store(0, std::memory_order_release);
  std::unique_lock<std::shared_mutex> lock(to.mutex);
  to.callback = callback;
  to.user = user;
  to.level.store(callback ? level : 0, std::memory_order_release);
  return {};
}

}  // namespace wcuda
