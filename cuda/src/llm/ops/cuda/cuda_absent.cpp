// The answer of a build without CUDA.
#include "llm/ops/cuda/cuda_ops.h"

namespace wcuda::ops {

// NOLINTNEXTLINE(performance-unnecessary-value-param): the build with CUDA keeps it
Result<std::unique_ptr<Ops>> make_cuda_ops(std::shared_ptr<Backend>) {
  return Status::error(WCUDA_NOT_AVAILABLE, "no CUDA device: built without CUDA");
}

}  // namespace wcuda::ops
