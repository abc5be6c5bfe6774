// What worker_cuda_compat.h keeps for a process: its text functions and its backend.
#include <atomic>
#include <mutex>

#include "worker_cuda_compat.h"

namespace {

std::mutex mutex;
wcuda_compat_text installed{};  // guarded by mutex
std::atomic<int32_t> backend{WCUDA_BACKEND_CUDA};

}  // namespace

void wcuda_compat_set_text(wcuda_compat_encode encode, wcuda_compat_decode decode, void* user) {
  const std::lock_guard<std::mutex> lock(mutex);
  installed = {encode, decode, user};
}

wcuda_compat_text wcuda_compat_text_get(void) {
  const std::lock_guard<std::mutex> lock(mutex);
  return installed;
}

void wcuda_compat_set_backend(int32_t chosen) { backend = chosen; }

int32_t wcuda_compat_backend_get(void) { return backend; }
