// Work of a CUDA stream that was recorded once and is launched as a whole.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "core/backend/backend.h"

namespace wcuda {

// Must be destroyed before its backend, and after its last launch has finished.
class CudaGraph {
 public:
  // Records what `work` queues on the stream, by this thread; nothing of it runs. `work` may
  // neither allocate nor wait; its failure is the answer.
  static Result<std::unique_ptr<CudaGraph>> capture(Backend& backend, Stream stream,
                                                    const std::function<Status()>& work);
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Queued. One stream at a time runs a graph.
  Status launch(Stream stream);

 private:
  explicit CudaGraph(Backend& backend) : backend_(backend) {}

  Backend& backend_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace wcuda
