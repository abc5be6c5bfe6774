// Which implementation of Ops, and which weight layout, belongs to a backend.
#include "llm/ops/ops.h"

#include "llm/ops/cuda/cuda_ops.h"
#include "llm/ops/host/host_ops.h"
#include "llm/quant/layout_gpu.h"

namespace wcuda::ops {

Result<LayoutChoice> weight_layout(const Backend& backend, uint32_t type, uint32_t rows,
                                   uint32_t cols, bool) {
  if (!backend.is_host()) {
    WCUDA_ASSIGN(const uint64_t bytes, quant::gpu_layout_bytes(type, rows, cols));
    return LayoutChoice{Layout::kGpu16, bytes};
  }
  return host::host_weight_layout(host::best_kernels(), type, rows, cols);
}

Result<std::unique_ptr<Ops>> make_ops(std::shared_ptr<Backend> backend) {
  if (!backend->is_host()) return make_cuda_ops(std::move(backend));
  return host::make_host_ops(backend->host_thread_count(), host::best_kernels());
}

}  // namespace wcuda::ops
