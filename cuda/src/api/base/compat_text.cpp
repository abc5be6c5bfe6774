// The text functions of worker_cuda_compat.h: one set a process.
#include <mutex>

#include "worker_cuda_compat.h"

namespace {

std::mutex mutex;
wcuda_compat_text installed{};

}  // namespace

extern "C" void wcuda_compat_set_text(wcuda_compat_encode encode, wcuda_compat_decode decode,
                                      void* user) {
  const std::lock_guard<std::mutex> lock(mutex);
  installed = {encode, decode, user};
}

extern "C" wcuda_compat_text wcuda_compat_text_get(void) {
  const std::lock_guard<std::mutex> lock(mutex);
  return installed;
}
