// Linear layers of 1 to 8 tokens: each shape of three models, and all products of a step as one
// graph. Prints GB/s of weights and the share of the memory's read speed.
//
//   linear_bench chains|shapes [type [columns]]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/linear_vector.h"
#include "kernels/records.h"
#include "kernels/vector_params.h"

namespace {

using namespace wcuda::kernels;
using wcuda::quant::record_layout;
using wcuda::quant::RecordLayout;

constexpr double kReadGBs = 4530.0;  // pure read, measured on one H200

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

struct Shape {
  const char* name;
  std::vector<uint32_t> rows;
  uint32_t cols;
  Epilogue epilogue;
};

struct Model {
  const char* name;
  uint32_t layers;
  std::vector<Shape> layer;
  Shape output;
};

std::vector<Model> models() {
  const Epilogue store = Epilogue::kStore, add = Epilogue::kAdd, gate = Epilogue::kSiluGate;
  return {{"1B",
           16,
           {{"qkv", {2048, 512, 512}, 2048, store},
            {"o", {2048}, 2048, add},
            {"gate+up", {8192, 8192}, 2048, gate},
            {"down", {2048}, 8192, add}},
           {"output", {128256}, 2048, store}},
          {"8B",
           32,
           {{"qkv", {4096, 1024, 1024}, 4096, store},
            {"o", {4096}, 4096, add},
            {"gate+up", {14336, 14336}, 4096, gate},
            {"down", {4096}, 14336, add}},
           {"output", {128256}, 4096, store}},
          {"70B",
           80,
           {{"qkv", {8192, 1024, 1024}, 8192, store},
            {"o", {8192}, 8192, add},
            {"gate+up", {28672, 28672}, 8192, gate},
            {"down", {8192}, 28672, add}},
           {"output", {128256}, 8192, store}}};
}

uint64_t matrix_bytes(const RecordLayout& layout, uint32_t rows, uint32_t cols) {
  return (rows + 15) / 16 * layout.strip_bytes(cols);
}

uint64_t shape_bytes(const RecordLayout& layout, const Shape& shape) {
  uint64_t bytes = 0;
  for (const uint32_t rows : shape.rows) bytes += matrix_bytes(layout, rows, shape.cols);
  return bytes;
}

class Bench {
 public:
  Bench() {
    check(cudaStreamCreate(&stream_), "stream");
    check(cudaDeviceGetAttribute(&launch_.sm_count, cudaDevAttrMultiProcessorCount, 0), "device");
    check(cudaMalloc(reinterpret_cast<void**>(&weights_), kWeightBytes), "weights");
    check(cudaMalloc(reinterpret_cast<void**>(&activations_), kActivationBytes), "activations");
    check(cudaMemset(activations_, 0, kActivationBytes), "activations");
    fill_weights();
    launch_.stream = stream_;
    launch_.compute_capability = 90;
    launch_.is_dependent = true;
  }

  void chains(uint32_t type, uint32_t columns, const VectorTuning& tuning, const char* only) {
    const RecordLayout layout = record_layout(type);
    for (const Model& model : models()) {
      if (only != nullptr && std::strcmp(only, model.name) != 0) continue;
      uint64_t bytes = shape_bytes(layout, model.output);
      for (const Shape& shape : model.layer) bytes += model.layers * shape_bytes(layout, shape);
      const double ms = time_graph([&] {
        uint64_t at = 0;
        for (uint32_t i = 0; i < model.layers; ++i)
          for (const Shape& shape : model.layer) at = add_shape(layout, shape, columns, tuning, at);
        add_shape(layout, model.output, columns, tuning, at);
      });
      std::printf(
          "chain %-4s type %2u T %u C %u stages %u ctas %u warps %2u: %8.1f steps/s %6.0f GB/s "
          "%3.0f %%\n",
          model.name, type, columns, tuning.cluster_size, tuning.stages, tuning.ctas_per_sm,
          kVectorWarps, 1000.0 / ms, bytes / ms / 1e6, bytes / ms / 1e6 / kReadGBs * 100.0);
    }
  }

  // Each shape of the layers alone, again and again over memory beyond L2.
  void shapes(uint32_t type, uint32_t columns, const VectorTuning& tuning, const char* only) {
    const RecordLayout layout = record_layout(type);
    for (const Model& model : models()) {
      if (only != nullptr && std::strcmp(only, model.name) != 0) continue;
      std::vector<Shape> all = model.layer;
      all.push_back(model.output);
      for (const Shape& shape : all) {
        const uint64_t bytes = shape_bytes(layout, shape);
        const uint32_t count = static_cast<uint32_t>(std::max<uint64_t>(8, (1ull << 30) / bytes));
        const double us = 1000.0 / count * time_graph([&] {
                            uint64_t at = 0;
                            for (uint32_t i = 0; i < count; ++i)
                              at = add_shape(layout, shape, columns, tuning, at);
                          });
        std::printf("shape %-4s %-8s type %2u T %u C %u: %8.2f us %6.0f GB/s %3.0f %%\n",
                    model.name, shape.name, type, columns, tuning.cluster_size, us,
                    bytes / us / 1e3, bytes / us / 1e3 / kReadGBs * 100.0);
      }
    }
  }

 private:
  static constexpr uint64_t kWeightBytes = 48ull << 30;
  static constexpr uint64_t kActivationBytes = 64 << 20;

  // Random bytes without infinite f16 values; the time of a product depends on no value.
  void fill_weights() {
    std::vector<uint64_t> words(1 << 20);
    for (uint64_t i = 0; i < words.size(); ++i) {
      uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
      z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
      words[i] = (z ^ z >> 31) & 0xbfffbfffbfffbfffu;
    }
    const uint64_t bytes = words.size() * 8;
    check(cudaMemcpy(weights_, words.data(), bytes, cudaMemcpyHostToDevice), "fill");
    for (uint64_t at = bytes; at < kWeightBytes; at += bytes)
      check(cudaMemcpy(weights_ + at, weights_, bytes, cudaMemcpyDeviceToDevice), "fill");
    check(cudaDeviceSynchronize(), "fill");
  }

  uint64_t add_shape(const RecordLayout& layout, const Shape& shape, uint32_t columns,
                     const VectorTuning& tuning, uint64_t at) {
    LinearArgs args;
    args.columns = columns;
    args.x = reinterpret_cast<float*>(activations_);
    args.epilogue = shape.epilogue;
    args.matrix_count = static_cast<uint32_t>(shape.rows.size());
    args.epsilon = 1e-5f;
    if (shape.epilogue != Epilogue::kAdd)
      args.norm = reinterpret_cast<float*>(activations_ + (16 << 20));
    uint64_t out = 32 << 20;
    for (uint32_t i = 0; i < args.matrix_count; ++i) {
      const uint64_t bytes = matrix_bytes(layout, shape.rows[i], shape.cols);
      if (at + bytes > kWeightBytes) at = 0;
      args.matrices[i] = {weights_ + at, layout.type, shape.rows[i], shape.cols};
      at += bytes;
      args.outputs[i] = reinterpret_cast<float*>(activations_ + out);
      out += shape.rows[i] * uint64_t{columns} * 4;
    }
    check(linear_vector(args, launch_, tuning), "linear_vector");
    return at;
  }

  // Median ms of a graph of what `body` launches.
  template <class Body>
  double time_graph(Body body) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    body();
    check(cudaStreamEndCapture(stream_, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaEvent_t events[kRepeats + 1];
    for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "event");
    for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(exec, stream_), "launch");
    for (int i = 0; i <= kRepeats; ++i) {
      check(cudaEventRecord(events[i], stream_), "event");
      if (i < kRepeats) check(cudaGraphLaunch(exec, stream_), "launch");
    }
    check(cudaStreamSynchronize(stream_), "run");
    std::vector<float> times(kRepeats);
    for (int i = 0; i < kRepeats; ++i)
      check(cudaEventElapsedTime(&times[i], events[i], events[i + 1]), "time");
    for (cudaEvent_t& event : events) cudaEventDestroy(event);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
    return times[kRepeats / 2];
  }

  static constexpr int kRepeats = 20;
  cudaStream_t stream_ = nullptr;
  Launch launch_;
  uint8_t* weights_ = nullptr;
  uint8_t* activations_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "chains";
  const uint32_t type = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 12;
  const uint32_t columns = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 1;
  Bench bench;
  VectorTuning tuning;
  if (what == "chains") bench.chains(type, columns, tuning, nullptr);
  if (what == "shapes") bench.shapes(type, columns, tuning, nullptr);
  if (what == "tune")
    for (const uint32_t ctas : {16 / kVectorWarps, 32 / kVectorWarps})
      for (const uint32_t stages : {0u, 2u, 3u, 4u, 5u})
        for (const uint32_t cluster : {1u, 2u, 4u}) {
          tuning = {cluster, ctas, stages};
          bench.chains(type, columns, tuning, "8B");
        }
  return 0;
}
