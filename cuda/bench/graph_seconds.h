// The time that queued work takes as a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

namespace wcuda::bench {

// Captures what `queue` puts on the stream and replays it, once and then `repeats` times. Returns
// the seconds of these, in ascending order. `check` gets the status of every call.
template <class Queue, class Check>
std::vector<double> graph_seconds(cudaStream_t stream, int repeats, const Queue& queue,
                                  const Check& check) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  queue();
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int i = 0; i < repeats + 1; ++i) {
    check(cudaEventRecord(begin, stream));
    check(cudaGraphLaunch(exec, stream));
    check(cudaEventRecord(end, stream));
    check(cudaStreamSynchronize(stream));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) seconds.push_back(ms * 1e-3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

}  // namespace wcuda::bench
