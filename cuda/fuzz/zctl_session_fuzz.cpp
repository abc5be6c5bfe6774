// libFuzzer target: any frame and any memory of a guest, in a session of ZCTL/1.
#include <cstdio>
#include <cstdlib>

#include "fuzz/zctl_entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string wrong = wcuda::fuzz::exercise_zctl_session(data, bytes);
  if (wrong.empty()) return 0;
  std::fprintf(stderr, "%s\n", wrong.c_str());
  std::abort();
}
