// The hand-made GGUF files: what each must be answered with, and the fuzzer's first inputs.
#pragma once

#include <string>
#include <vector>

#include "worker_cuda.h"

namespace wcuda::testing {

struct GgufCase {
  std::string name;  // also of its file in cuda/fuzz/corpus/gguf
  std::string bytes;
  wcuda_status status;
  std::string message;  // part of it; "" when it opens
};

// Well-formed files; malformed ones, wrong in one place each; and for each known family of
// vulnerabilities of other loaders, named by its CVE or advisory, an input that has its shape.
std::vector<GgufCase> gguf_cases();

}  // namespace wcuda::testing
