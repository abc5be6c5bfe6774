// libFuzzer target: many frames of ZCL1, and uses of the handles that they open, in one session.
#include <cstdio>
#include <cstdlib>

#include "fuzz/zctl_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string wrong = wcuda::fuzz::exercise_zctl_capabilities(data, bytes);
  if (wrong.empty()) return 0;
  std::fprintf(stderr, "%s\n", wrong.c_str());
  std::abort();
}
