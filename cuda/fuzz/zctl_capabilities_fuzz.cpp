// libFuzzer target: many frames of ZCL1, and uses of the handles that they open, in one session.
#include "fuzz/limited.h"
#include "fuzz/zctl_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  return wcuda::fuzz::run_limited(wcuda::fuzz::exercise_zctl_capabilities, data, bytes);
}
