// The host operations, for a number of threads and an instruction set.
#pragma once

#include <memory>

#include "core/base/status.h"
#include "llm/ops/host/kernels.h"
#include "llm/ops/ops.h"

namespace wcuda::ops::host {

// A thread_count of 0 means all available threads. Pools and arguments are in host memory.
Result<std::unique_ptr<Ops>> make_host_ops(uint32_t thread_count, const Kernels& kernels);

}  // namespace wcuda::ops::host
