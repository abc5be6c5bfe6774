// The answer of a build without CUDA.
#include "llm/engine/cuda_runner.h"

namespace wcuda::engine {

uint64_t cuda_runner_bytes(const Limits&, const model::Config&) { return 0; }
Result<std::unique_ptr<Runner>> make_cuda_runner(const Machine&) {
  return Status::error(WCUDA_NOT_AVAILABLE, "no CUDA device: built without CUDA");
}

}  // namespace wcuda::engine
