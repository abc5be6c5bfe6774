// libFuzzer target: any bytes as a launch.
#include <cstdio>
#include <cstdlib>

#include "fuzz/jit_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string wrong = wcuda::fuzz::exercise_launch(data, bytes);
  if (!wrong.empty()) {
    std::fprintf(stderr, "launch_fuzz: %s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}
