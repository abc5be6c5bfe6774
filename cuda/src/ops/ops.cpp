// Which implementation of Ops, and which weight layout, belongs to a backend.
#include "ops/ops.h"

#include "ops/cuda/cuda_ops.h"
#include "ops/host/host_ops.h"

namespace wcuda::ops {

Result<LayoutChoice> weight_layout(const Backend& backend, uint32_t type, uint32_t rows,
                                   uint32_t cols, bool) {
  if (!backend.is_host())
    return Status::error(WCUDA_NOT_AVAILABLE, "inference on CUDA is not available yet");
  return host::host_weight_layout(host::best_kernels(), type, rows, cols);
}

Result<std::unique_ptr<Ops>> make_ops(std::shared_ptr<Backend> backend) {
  if (!backend->is_host()) return cuda::make_cuda_ops(std::move(backend));
  return host::make_host_ops(backend->host_thread_count(), host::best_kernels());
}

}  // namespace wcuda::ops
