// Linear layers of 1 to 8 tokens: each shape of three models, and all layers of a step as one
// graph. Prints GB/s of weights and the share of the memory's read speed.
//
// Type 15: the mix q4_k_m.
//
//   linear_bench layers|shapes|tune [type [tokens [model [cluster stages m_warps residency
//   early]]]] [-- …]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/device_limits.h"
#include "kernels/linear/linear_vector.h"
#include "kernels/shared/packed_tile.h"

namespace {

using namespace wcuda::kernels;
using wcuda::TensorType;
using wcuda::quant::kMTileRows;
using wcuda::quant::tile_layout;

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
  return {{"135M",
           30,
           {{"qkv", {576, 192, 192}, 576, store},
            {"o", {576}, 576, add},
            {"gate+up", {1536, 1536}, 576, gate},
            {"down", {576}, 1536, add}},
           {"output", {49152}, 576, store}},
          {"1B",
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

uint64_t matrix_bytes(uint32_t type, uint32_t rows, uint32_t cols) {
  return (rows + kMTileRows - 1) / kMTileRows * tile_layout(type).m_tile_bytes(cols);
}

// The mix q4_k_m, by the number of the file type. No matrix has the tensor type of this number,
// Q8_K.
constexpr uint32_t kQ4KM = 15;

// Type of matrix i of a shape, in layer `layer` of so many.
uint32_t type_of(uint32_t type, const Shape& shape, size_t i, uint32_t layer, uint32_t layers) {
  if (type != kQ4KM) return type;
  const bool has_more_bits =
      layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
  const std::string name = shape.name;
  if (name == "output") return TensorType::kQ6_K;
  const bool is_large = has_more_bits && (name == "down" || (name == "qkv" && i == 2));
  return is_large ? TensorType::kQ6_K : TensorType::kQ4_K;
}

uint64_t shape_bytes(uint32_t type, const Shape& shape, uint32_t layer, uint32_t layers) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < shape.rows.size(); ++i)
    bytes += matrix_bytes(type_of(type, shape, i, layer, layers), shape.rows[i], shape.cols);
  return bytes;
}

bool is_possible(uint32_t type, const Shape& shape) {
  return shape.cols % tile_layout(type_of(type, shape, 0, 0, 1)).block_elements == 0;
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

  void layers(uint32_t type, uint32_t tokens, const VectorTuning& tuning, const char* only) {
    for (const Model& model : models()) {
      if (only != nullptr && std::strcmp(only, model.name) != 0) continue;
      if (!is_possible(type, model.layer[0])) continue;
      uint64_t bytes = shape_bytes(type, model.output, 0, 1);
      for (uint32_t i = 0; i < model.layers; ++i)
        for (const Shape& shape : model.layer) bytes += shape_bytes(type, shape, i, model.layers);
      const double ms = time_graph([&] {
        uint64_t at = 0;
        for (uint32_t i = 0; i < model.layers; ++i)
          for (const Shape& shape : model.layer)
            at = add_shape(type, shape, i, model.layers, tokens, tuning, at);
        add_shape(type, model.output, 0, 1, tokens, tuning, at);
      });
      std::printf(
          "layers %-4s type %2u tokens %u cluster %u stages %u m_warps %u residency %u early %u: "
          "%8.1f steps/s %6.0f GB/s %3.0f %%\n",
          model.name, type, tokens, tuning.cluster_size, tuning.stages, tuning.m_warps,
          tuning.residency, tuning.early_stages, 1000.0 / ms, bytes / ms / 1e6,
          bytes / ms * 1e3 / limits_.read_bytes * 100.0);
    }
  }

  // Each shape of the layers alone, again and again over memory beyond L2.
  void shapes(uint32_t type, uint32_t tokens, const VectorTuning& tuning, const char* only) {
    for (const Model& model : models()) {
      if (only != nullptr && std::strcmp(only, model.name) != 0) continue;
      if (!is_possible(type, model.layer[0])) continue;
      std::vector<Shape> all = model.layer;
      all.push_back(model.output);
      for (const Shape& shape : all) {
        const uint64_t bytes = shape_bytes(type, shape, 0, 1);
        const uint32_t count = static_cast<uint32_t>(std::max<uint64_t>(8, (1ull << 30) / bytes));
        const double us = 1000.0 / count * time_graph([&] {
                            uint64_t at = 0;
                            for (uint32_t i = 0; i < count; ++i)
                              at = add_shape(type, shape, 0, 1, tokens, tuning, at);
                          });
        std::printf("shape %-4s %-8s type %2u tokens %u cluster %u: %8.2f us %6.0f GB/s %3.0f %%\n",
                    model.name, shape.name, type, tokens, tuning.cluster_size, us, bytes / us / 1e3,
                    bytes / us * 1e6 / limits_.read_bytes * 100.0);
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

  uint64_t add_shape(uint32_t type, const Shape& shape, uint32_t layer, uint32_t layers,
                     uint32_t tokens, const VectorTuning& tuning, uint64_t at) {
    LinearArgs args;
    args.tokens = tokens;
    args.x = reinterpret_cast<float*>(activations_);
    args.epilogue = shape.epilogue;
    args.matrix_count = static_cast<uint32_t>(shape.rows.size());
    args.epsilon = 1e-5f;
    if (shape.epilogue != Epilogue::kAdd)
      args.norm = reinterpret_cast<float*>(activations_ + (16 << 20));
    uint64_t out = 32 << 20;
    for (uint32_t i = 0; i < args.matrix_count; ++i) {
      const uint32_t own = type_of(type, shape, i, layer, layers);
      const uint64_t bytes = matrix_bytes(own, shape.rows[i], shape.cols);
      if (at + bytes > kWeightBytes) at = 0;
      args.matrices[i] = {weights_ + at, own, shape.rows[i], shape.cols};
      at += bytes;
      args.outputs[i] = reinterpret_cast<float*>(activations_ + out);
      out += shape.rows[i] * uint64_t{tokens} * 4;
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
  const wcuda::bench::DeviceLimits limits_ = wcuda::bench::device_limits();
  cudaStream_t stream_ = nullptr;
  Launch launch_;
  uint8_t* weights_ = nullptr;
  uint8_t* activations_ = nullptr;
};

// One measurement, as the top of this file has it.
void measure(Bench& bench, const std::vector<const char*>& words) {
  const std::string what = words.empty() ? "layers" : words[0];
  const auto number = [&](size_t i, uint32_t otherwise) {
    return words.size() > i ? static_cast<uint32_t>(std::atoi(words[i])) : otherwise;
  };
  const uint32_t type = number(1, TensorType::kQ4_K), tokens = number(2, 1);
  const char* const model =
      words.size() > 3 && std::strcmp(words[3], "all") != 0 ? words[3] : nullptr;
  const VectorTuning tuning = {number(4, 0), number(5, 0), number(6, 0), number(7, 0),
                               number(8, 0)};
  if (what == "layers") bench.layers(type, tokens, tuning, model);
  if (what == "shapes") bench.shapes(type, tokens, tuning, model);
  if (what == "tune")
    for (const char* name : {"1B", "8B"})
      for (const uint32_t residency : {1u, 2u})
        for (const uint32_t early : {1u, 6u})
          for (const uint32_t stages : {0u, 2u, 4u})
            for (const uint32_t m_warps : {0u, 2u})
              bench.layers(type, tokens, {0, stages, m_warps, residency, early}, name);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  std::vector<const char*> words;
  for (int i = 1; i <= argc; ++i) {
    if (i < argc && std::strcmp(argv[i], "--") != 0) {
      words.push_back(argv[i]);
      continue;
    }
    measure(bench, words);
    words.clear();
  }
  return 0;
}
