// libFuzzer target: any bytes as a model to plan and to load on the host.
#include <cstdio>
#include <cstdlib>

#include "fuzz/model_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string wrong = wcuda::fuzz::exercise_model(data, bytes);
  if (!wrong.empty()) {
    std::fprintf(stderr, "model_fuzz: %s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}
