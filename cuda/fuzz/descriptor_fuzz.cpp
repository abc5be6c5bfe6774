// libFuzzer target: any bytes as a descriptor of a kernel and a call of it.
#include <cstdio>
#include <cstdlib>

#include "fuzz/descriptor_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string wrong = wcuda::fuzz::exercise_descriptor(data, bytes);
  if (wrong.empty()) return 0;
  std::fprintf(stderr, "%s\n", wrong.c_str());
  std::abort();
}
