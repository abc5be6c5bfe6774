// libFuzzer target: any bytes as an entry of the kernel cache.
#include <cstdio>
#include <cstdlib>

#include "fuzz/jit_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string wrong = wcuda::fuzz::exercise_cache(data, bytes);
  if (!wrong.empty()) {
    std::fprintf(stderr, "cache_fuzz: %s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}
