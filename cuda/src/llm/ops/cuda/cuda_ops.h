// The CUDA implementation of Ops.
#pragma once

#include <memory>

#include "core/backend/backend.h"
#include "llm/ops/ops.h"

namespace wcuda::ops {

// Returns WCUDA_NOT_AVAILABLE in a build without CUDA.
Result<std::unique_ptr<Ops>> make_cuda_ops(std::shared_ptr<Backend> backend);

}  // namespace wcuda::ops
