// Which implementation of Ops belongs to a backend.
#include "llm/ops/ops.h"

#include "llm/ops/cuda/cuda_ops.h"
#include "llm/ops/host/host_ops.h"

namespace wcuda::ops {

Result<std::unique_ptr<Ops>> make_ops(std::shared_ptr<Backend> backend) {
  if (!backend->is_host()) return make_cuda_ops(std::move(backend));
  return host::make_host_ops(backend->host_thread_count(), host::best_kernels());
}

}  // namespace wcuda::ops
