// The CUDA backend's runner: steps as captured graphs, results through pinned memory.
#pragma once

#include "llm/engine/runner.h"

namespace wcuda::engine {

// The CUDA implementations of runner_bytes (pure) and make_runner.
uint64_t cuda_runner_bytes(const Limits& limits, const model::Config& config);
// Returns WCUDA_NOT_AVAILABLE in a build without CUDA.
Result<std::unique_ptr<Runner>> make_cuda_runner(const Machine& machine);

}  // namespace wcuda::engine
