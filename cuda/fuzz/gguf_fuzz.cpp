// libFuzzer target: any bytes as a GGUF file.
#include <cstdio>
#include <cstdlib>

#include "fuzz/gguf_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string wrong = wcuda::fuzz::exercise_gguf(data, bytes);
  if (!wrong.empty()) {
    std::fprintf(stderr, "gguf_fuzz: %s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}
