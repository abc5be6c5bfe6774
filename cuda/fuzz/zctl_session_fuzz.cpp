// libFuzzer target: any frame and any memory of a guest, in a session of ZCTL/1.
#include "fuzz/limited.h"
#include "fuzz/zctl_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  return wcuda::fuzz::run_limited(wcuda::fuzz::exercise_zctl_session, data, bytes);
}
