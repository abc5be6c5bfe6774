#include "core/backend/cuda_graph.h"

#include "core/backend/cuda_launch.h"

namespace wcuda {
namespace {

// Records `work` as a graph that can be launched.
Status record(Backend& device, Stream stream, const std::function<Status()>& work,
              cudaGraphExec_t* exec) {
  // Thread-local: what other threads do meanwhile neither joins nor breaks the capture.
  WCUDA_TRY(cuda_launch(device, stream, "cudaStreamBeginCapture", [](cudaStream_t on) {
    return cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal);
  }));
  const Status recorded = work();
  cudaGraph_t graph = nullptr;
  const Status ended = cuda_launch(device, stream, "cudaStreamEndCapture", [&](cudaStream_t on) {
    return cudaStreamEndCapture(on, &graph);
  });
  const std::unique_ptr<CUgraph_st, void (*)(cudaGraph_t)> owned(
      graph, [](cudaGraph_t last) { (void)cudaGraphDestroy(last); });
  if (!recorded.ok()) {
    (void)cudaGetLastError();
    return recorded;
  }
  WCUDA_TRY(Status(ended));
  WCUDA_TRY(cuda_launch(device, stream, "cudaGraphInstantiate",
                        [&](cudaStream_t) { return cudaGraphInstantiate(exec, graph, 0); }));
  return cuda_launch(device, stream, "cudaGraphUpload",
                     [&](cudaStream_t on) { return cudaGraphUpload(*exec, on); });
}

}  // namespace

Result<std::unique_ptr<CudaGraph>> CudaGraph::capture(Backend& backend, Stream stream,
                                                      const std::function<Status()>& work) {
  std::unique_ptr<CudaGraph> graph(new CudaGraph(backend));
  WCUDA_TRY(backend.run({"graph_capture", CallKind::kOther, 0, stream}, [&](Backend& device) {
    return record(device, stream, work, &graph->exec_);
  }));
  return graph;
}

CudaGraph::~CudaGraph() {
  if (exec_ == nullptr) return;
  (void)backend_.run({"graph_destroy", CallKind::kEnd}, [&](Backend&) -> Status {
    (void)cudaGraphExecDestroy(exec_);
    (void)cudaGetLastError();
    return {};
  });
}

Status CudaGraph::launch(Stream stream) {
  return backend_.run({"graph_launch", CallKind::kLaunch, 0, stream}, [&](Backend& device) {
    return cuda_launch(device, stream, "cudaGraphLaunch",
                       [&](cudaStream_t on) { return cudaGraphLaunch(exec_, on); });
  });
}

}  // namespace wcuda
