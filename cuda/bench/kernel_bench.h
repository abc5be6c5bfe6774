// What the parts of kernel_bench share: device memory, checks, and the measurement of a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "bench/device_limits.h"
#include "bench/graph_seconds.h"
#include "kernels/ptx/code.h"
#include "kernels/ptx/launch.h"

namespace wcuda::bench {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "kernel_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
inline void check(bool is_right, const char* what) {
  if (is_right) return;
  std::fprintf(stderr, "kernel_bench: %s: wrong result\n", what);
  std::exit(1);
}

template <class T>
T* device_array(uint64_t count) {
  void* data = nullptr;
  check(cudaMalloc(&data, std::max<uint64_t>(count * sizeof(T), 256)), "cudaMalloc");
  check(cudaMemset(data, 0, count * sizeof(T)), "cudaMemset");
  return static_cast<T*>(data);
}
template <class T>
T* device_array(const std::vector<T>& values) {
  auto* const data = device_array<T>(values.size());
  check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return data;
}
template <class T>
std::vector<T> to_host(const T* data, uint64_t count) {
  std::vector<T> values(count);
  check(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return values;
}

class KernelBench {
 public:
  KernelBench() : limits_(device_limits()) {
    check(cudaStreamCreate(&launch_.stream), "stream");
    check(cudaDeviceGetAttribute(&launch_.sm_count, cudaDevAttrMultiProcessorCount, 0), "device");
    launch_.compute_capability = kernels::launch_capability();
    launch_.is_dependent = true;
  }

 protected:
  static constexpr int kRepeats = 11;

  // Queues body(0 … count - 1) once as a graph, which then runs kRepeats times. `flop`: of a kernel
  // that the tensor cores limit.
  void measure(const char* kernel, const char* type, uint32_t count, double bytes,
               const std::function<cudaError_t(uint32_t)>& body, double flop = 0) {
    check(body(0), kernel);
    check(cudaStreamSynchronize(launch_.stream), kernel);
    const std::vector<double> seconds = graph_seconds(
        launch_.stream, kRepeats,
        [&] {
          for (uint32_t i = 0; i < count; ++i) check(body(i), kernel);
        },
        [&](cudaError_t error) { check(error, kernel); });
    const double least = seconds[0] / count, median = seconds[seconds.size() / 2] / count;
    std::printf("%-20s %-8s %9.2f us %9.2f us", kernel, type, least * 1e6, median * 1e6);
    print_bandwidth(bytes, median, limits_);
    if (flop != 0) print_flops(flop, median, limits_);
    std::printf("\n");
    std::fflush(stdout);
  }

  const DeviceLimits limits_;
  kernels::Launch launch_;
};

// kernel_bench_heads.cpp: the kernels of draft heads and of log probabilities.
void bench_draft_heads();

}  // namespace wcuda::bench
