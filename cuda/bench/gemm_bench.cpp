// Linear layers on a device: the products of a model's layers, each product of all layers in one
// CUDA graph with dependent launches. Random bytes for weights; results are checked by the tests of
// GpuLinear.
//
//   gemm_bench [-m 8b|1b|135m|30b-a3b] [-t type] [-b max] [--batch-invariant] [tokens …]
//
// -m: shapes of 8B and 1B in Q4_K_M as usual (Q4_K, and Q6_K for the output and in half of the
// layers for values and down), or of SmolLM2-135M in Q4_1. -t: all weights of this type instead,
// as Q8_0. -b: linear_batch computes layers of up to so many tokens, packed_gemm those of more;
// without it, each layer has the kernel that an engine would choose.
//
// 30b-a3b: only the 128 experts of Qwen3-30B-A3B, of which each token uses 8 at random, by
// packed_gemm_grouped; then each expert by a launch of packed_gemm of its own.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "bench/device_limits.h"
#include "kernels/linear/packed_gemm.h"
#include "kernels/ptx/code.h"
#include "kernels/shared/packed_tile.h"
#include "llm/ops/cuda/linear.h"
#include "llm/quant/format.h"

namespace wcuda {
namespace {

using kernels::Epilogue;
using kernels::LinearArgs;
using kernels::Matrix;

using namespace tensor_type;

struct Shape {
  const char* name;
  uint32_t layers, dim, kv_dim, feed_forward, vocabulary, head_length;
  uint32_t type, large_type;
  uint32_t experts = 0, used_experts = 0;
};
constexpr Shape kShapes[] = {
    {"8b", 32, 4096, 1024, 14336, 128256, 128, kQ4_K, kQ6_K},
    {"1b", 16, 2048, 512, 8192, 128256, 64, kQ4_K, kQ6_K},
    {"135m", 30, 576, 192, 1536, 49152, 64, kQ4_1, kQ4_1},
    {"30b-a3b", 48, 2048, 512, 768, 151936, 128, kQ4_K, kQ6_K, 128, 8},
};

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}
void check(const Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.message());
  std::exit(1);
}
template <class T>
T* allocate(uint64_t count) {
  T* data = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)), "cudaMalloc");
  return data;
}

uint64_t matrix_bytes(uint32_t type, uint32_t rows, uint32_t cols) {
  for (const quant::TileLayout& layout : quant::kTileLayouts)
    if (layout.type == type)
      return (rows + quant::kMTileRows - 1) / quant::kMTileRows * layout.m_tile_bytes(cols);
  return 0;
}

// Fills device memory with repeats of 16 MB that `make` gives word by word.
template <class T, class Make>
void fill(T* target, uint64_t count, Make&& make) {
  std::vector<T> part((16u << 20) / sizeof(T));
  for (uint64_t i = 0; i < part.size(); ++i) part[i] = make(i);
  for (uint64_t at = 0; at < count; at += part.size())
    check(
        cudaMemcpy(target + at, part.data(),
                   std::min<uint64_t>(part.size(), count - at) * sizeof(T), cudaMemcpyHostToDevice),
        "copy");
}
uint32_t random_word(uint64_t i) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  return static_cast<uint32_t>(z >> 32);
}

// As a step's plan would have it.
ops::Node node_of(const LinearArgs& args, const ops::Limits& limits, const kernels::Launch& launch,
                  uint32_t batch_max) {
  ops::Node node;
  if (batch_max != 0) {
    node.kernel = args.tokens <= batch_max ? ops::Kernel::kLinearBatch : ops::Kernel::kPackedGemm;
    return node;
  }
  ops::LinearShape shape{args.tokens, args.matrix_count, {}, {}, args.matrices[0].cols};
  for (uint32_t m = 0; m < args.matrix_count; ++m) {
    shape.types[m] = args.matrices[m].type;
    shape.rows[m] = args.matrices[m].rows;
  }
  shape.is_gate = args.epilogue >= Epilogue::kSiluGate;
  ops::DeviceTraits device;
  device.is_host = false;
  device.compute_capability = launch.compute_capability;
  device.has_warpgroup_code = launch.compute_capability == 90 && kernels::has_warpgroup_code();
  node.kernel = ops::linear_kernel(shape, limits, device);
  return node;
}

// The layers of one kind, one after the other.
struct Product {
  std::string name;
  std::vector<LinearArgs> layers;
  uint64_t weights = 0;
  uint64_t bytes = 0;
};

struct Model {
  const Shape& shape;
  uint8_t* pool = nullptr;
  uint64_t used = 0;
  float *x = nullptr, *out[3] = {}, *norm = nullptr;

  Matrix matrix(uint32_t type, uint32_t rows, uint32_t cols, Product* product) {
    // Without a pool this only counts its bytes.
    const Matrix matrix{pool != nullptr ? pool + used : nullptr, type, rows, cols, 8.0f};
    const uint64_t bytes = matrix_bytes(type, rows, cols);
    used += bytes;
    product->bytes += bytes;
    product->weights += uint64_t{rows} * cols;
    return matrix;
  }
  LinearArgs layer(std::vector<Matrix> matrices, Epilogue epilogue, bool has_norm) const {
    LinearArgs args;
    args.x = x;
    if (has_norm) args.norm = norm;
    args.epsilon = 1e-5f;
    args.epilogue = epilogue;
    args.matrix_count = static_cast<uint32_t>(matrices.size());
    for (size_t m = 0; m < matrices.size(); ++m) {
      args.matrices[m] = matrices[m];
      args.outputs[m] = out[m];
    }
    return args;
  }
  std::vector<Product> products() {
    Product qkv{"qkv", {}}, o{"o", {}}, gate_up{"gate+up", {}}, down{"down", {}},
        head{"output", {}};
    const uint32_t dim = shape.dim, feed_forward = shape.feed_forward;
    for (uint32_t i = 0; i < shape.layers; ++i) {
      const uint32_t type = i % 2 == 0 ? shape.large_type : shape.type;
      const Matrix q = matrix(shape.type, dim, dim, &qkv);
      const Matrix k = matrix(shape.type, shape.kv_dim, dim, &qkv);
      const Matrix v = matrix(type, shape.kv_dim, dim, &qkv);
      qkv.layers.push_back(layer({q, k, v}, Epilogue::kStore, true));
      o.layers.push_back(layer({matrix(shape.type, dim, dim, &o)}, Epilogue::kAdd, false));
      const Matrix gate = matrix(shape.type, feed_forward, dim, &gate_up);
      const Matrix up = matrix(shape.type, feed_forward, dim, &gate_up);
      gate_up.layers.push_back(layer({gate, up}, Epilogue::kSiluGate, true));
      down.layers.push_back(layer({matrix(type, dim, feed_forward, &down)}, Epilogue::kAdd, false));
    }
    head.layers.push_back(
        layer({matrix(shape.large_type, shape.vocabulary, dim, &head)}, Epilogue::kStore, true));
    return {qkv, o, gate_up, down, head};
  }
};

// Seconds of one replay, the least of several.
double seconds_of(cudaStream_t stream, const std::function<void()>& queue) {
  queue();  // what is chosen once is chosen before the capture
  check(cudaStreamSynchronize(stream), "first run");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  queue();
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  float best = 1e9f;
  for (int i = 0; i < 6; ++i) {
    check(cudaEventRecord(begin, stream), "packed_tile");
    check(cudaGraphLaunch(executable, stream), "launch");
    check(cudaEventRecord(end, stream), "packed_tile");
    check(cudaStreamSynchronize(stream), "replay");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i > 0) best = std::min(best, ms);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return best / 1e3;
}

kernels::Launch bench_launch() {
  kernels::Launch launch;
  check(cudaDeviceGetAttribute(&launch.sm_count, cudaDevAttrMultiProcessorCount, 0), "device");
  launch.compute_capability = kernels::launch_capability();
  launch.is_dependent = true;
  check(cudaStreamCreate(&launch.stream), "stream");
  return launch;
}

// An f16 of it is 2^-7 to 2^-5: scales differ as little as those of a model. Their factor is 8.
uint32_t weight_word(uint64_t i) { return (random_word(i) & 0x87FF87FFu) | 0x20002000u; }
float random_unit(uint64_t i) { return static_cast<float>(random_word(i)) * 0x1p-32f - 0.5f; }

// The experts of all layers: gate and up, and down.
int run_experts(const Shape& shape, const std::vector<uint32_t>& token_counts) {
  const uint32_t tokens_max = *std::max_element(token_counts.begin(), token_counts.end());
  const uint32_t slots_max = tokens_max * shape.used_experts;
  kernels::Launch launch = bench_launch();
  const uint64_t gate_bytes = matrix_bytes(shape.type, shape.feed_forward, shape.dim);
  const uint64_t down_bytes = matrix_bytes(shape.type, shape.dim, shape.feed_forward);
  const uint64_t layer_bytes = shape.experts * (2 * gate_bytes + down_bytes);
  auto* const weights = allocate<uint8_t>(layer_bytes * shape.layers);
  fill(reinterpret_cast<uint32_t*>(weights), layer_bytes * shape.layers / 4, weight_word);
  auto* const x = allocate<float>(uint64_t{slots_max} * shape.dim);
  fill(x, uint64_t{slots_max} * shape.dim, random_unit);
  auto* const hidden = allocate<float>(uint64_t{slots_max} * shape.feed_forward);
  auto* const out = allocate<float>(uint64_t{slots_max} * shape.dim);
  auto* const x_rows = allocate<uint32_t>(slots_max);
  auto* const begins = allocate<uint32_t>(shape.experts + 1);
  auto* const input = allocate<uint8_t>(
      kernels::packed_gemm_grouped_input_bytes(shape.dim, slots_max, shape.experts));
  launch.scratch_bytes = kernels::packed_gemm_scratch_bytes(launch);
  launch.scratch = allocate<uint8_t>(launch.scratch_bytes);
  check(cudaMemset(launch.scratch, 0, launch.scratch_bytes), "scratch");

  const auto layer_of = [&](uint32_t i, bool is_down) {
    LinearArgs args;
    const uint8_t* const first = weights + i * layer_bytes;
    if (is_down) {
      args.x = hidden;
      args.matrix_count = 1;
      args.matrices[0] = {first + 2 * shape.experts * gate_bytes, shape.type, shape.dim,
                          shape.feed_forward, 8.0f};
      args.outputs[0] = out;
      return args;
    }
    args.x = x;
    args.x_rows = x_rows;
    args.matrix_count = 2;
    for (uint32_t m = 0; m < 2; ++m)
      args.matrices[m] = {first + m * shape.experts * gate_bytes, shape.type, shape.feed_forward,
                          shape.dim, 8.0f};
    args.outputs[0] = hidden;
    args.epilogue = Epilogue::kSiluGate;
    return args;
  };

  const bench::DeviceLimits peaks = bench::device_limits();
  std::printf(" tokens  product  launches  us/layer  GB/s (share)   TFLOP/s (share)\n");
  for (const uint32_t tokens : token_counts) {
    // Each token uses other experts, all at the same rate.
    std::vector<std::vector<uint32_t>> tokens_of(shape.experts);
    for (uint32_t t = 0; t < tokens; ++t)
      for (uint32_t k = 0, next = 0; k < shape.used_experts; ++next) {
        std::vector<uint32_t>& mine =
            tokens_of[random_word(uint64_t{t} << 16 | next) % shape.experts];
        if (!mine.empty() && mine.back() == t) continue;
        mine.push_back(t);
        ++k;
      }
    std::vector<uint32_t> host_begins = {0}, host_rows;
    uint32_t used = 0;
    for (const std::vector<uint32_t>& mine : tokens_of) {
      host_rows.insert(host_rows.end(), mine.begin(), mine.end());
      host_begins.push_back(static_cast<uint32_t>(host_rows.size()));
      if (!mine.empty()) ++used;
    }
    check(cudaMemcpy(begins, host_begins.data(), host_begins.size() * 4, cudaMemcpyHostToDevice),
          "begins");
    check(cudaMemcpy(x_rows, host_rows.data(), host_rows.size() * 4, cudaMemcpyHostToDevice),
          "rows");
    for (const bool is_down : {false, true})
      for (const bool is_grouped : {true, false}) {
        const double seconds = seconds_of(launch.stream, [&] {
          for (uint32_t i = 0; i < shape.layers; ++i) {
            LinearArgs args = layer_of(i, is_down);
            args.tokens = host_begins.back();
            if (is_grouped) {
              check(kernels::packed_gemm_grouped(args, {shape.experts, begins}, input, launch),
                    "packed_gemm_grouped");
              continue;
            }
            for (uint32_t e = 0; e < shape.experts; ++e) {
              LinearArgs own = args;
              own.tokens = host_begins[e + 1] - host_begins[e];
              if (own.tokens == 0) continue;
              if (own.x_rows != nullptr)
                own.x_rows += host_begins[e];
              else
                own.x += uint64_t{host_begins[e]} * shape.feed_forward;
              own.outputs[0] += uint64_t{host_begins[e]} * own.matrices[0].rows;
              for (uint32_t m = 0; m < own.matrix_count; ++m)
                own.matrices[m].packed_tiles += e * (is_down ? down_bytes : gate_bytes);
              check(kernels::packed_gemm(own, false, input, launch), "packed_gemm");
            }
          }
        });
        const double layer = seconds / shape.layers;
        const double gbs =
            static_cast<double>(used * (is_down ? down_bytes : 2 * gate_bytes)) / layer / 1e9;
        const double tflops = 2.0 * host_begins.back() * (is_down ? 1 : 2) * shape.dim *
                              shape.feed_forward / layer / 1e12;
        std::printf("%7u  %-7s  %8u  %8.2f  %5.0f (%4.1f %%)  %6.1f (%4.1f %%)\n", tokens,
                    is_down ? "down" : "gate+up", is_grouped ? 1 : used, layer * 1e6, gbs,
                    gbs * 1e9 / peaks.read_bytes * 100, tflops, tflops * 1e12 / peaks.flop * 100);
      }
  }
  return 0;
}

int run(const Shape& shape, const std::vector<uint32_t>& token_counts, uint32_t batch_max,
        bool is_invariant) {
  const uint32_t tokens_max = *std::max_element(token_counts.begin(), token_counts.end());
  const kernels::Launch launch = bench_launch();
  Model model{shape};
  model.products();
  const uint64_t pool_bytes = model.used;  // whole words
  model.used = 0;
  model.pool = allocate<uint8_t>(pool_bytes);
  model.x = allocate<float>(uint64_t{tokens_max} * shape.feed_forward);
  model.norm = allocate<float>(shape.dim);
  model.out[0] = allocate<float>(uint64_t{tokens_max} * shape.vocabulary);
  model.out[1] = allocate<float>(uint64_t{tokens_max} * shape.feed_forward);
  model.out[2] = allocate<float>(uint64_t{tokens_max} * shape.feed_forward);
  fill(reinterpret_cast<uint32_t*>(model.pool), pool_bytes / 4, weight_word);
  fill(model.x, uint64_t{tokens_max} * shape.feed_forward, random_unit);
  fill(model.norm, shape.dim, random_unit);
  const std::vector<Product> products = model.products();

  ops::Limits limits{};
  limits.max_batch_tokens = tokens_max;
  limits.batch_invariant = is_invariant;
  limits.embedding_length = shape.dim;
  limits.feed_forward_length = shape.feed_forward;
  limits.head_count = shape.dim / shape.head_length;
  limits.kv_head_count = shape.kv_dim / shape.head_length;
  limits.head_length = shape.head_length;
  limits.vocabulary_size = shape.vocabulary;
  auto* const scratch = allocate<uint8_t>(ops::CudaLinear::scratch_bytes(limits, launch));
  ops::CudaLinear linear;
  check(linear.prepare(limits, launch, scratch), "prepare");

  const bench::DeviceLimits peaks = bench::device_limits();
  std::printf(" tokens  product      ms   us/layer  GB/s (share)   TFLOP/s (share)\n");
  for (const uint32_t tokens : token_counts) {
    double total = 0, bytes = 0, flops = 0;
    for (const Product& product : products) {
      const double seconds = seconds_of(launch.stream, [&] {
        for (LinearArgs args : product.layers) {
          args.tokens = tokens;
          check(linear.run(node_of(args, limits, launch, batch_max), args, launch));
        }
      });
      const double product_flops = 2.0 * tokens * static_cast<double>(product.weights);
      const double gbs = static_cast<double>(product.bytes) / seconds / 1e9;
      const double tflops = product_flops / seconds / 1e12;
      std::printf("%7u  %-8s %7.3f  %9.2f  %5.0f (%4.1f %%)  %6.1f (%4.1f %%)\n", tokens,
                  product.name.c_str(), seconds * 1e3,
                  seconds * 1e6 / static_cast<double>(product.layers.size()), gbs,
                  gbs * 1e9 / peaks.read_bytes * 100, tflops, tflops * 1e12 / peaks.flop * 100);
      if (product.name == "output" && tokens > 256) continue;  // a prompt wants one row
      total += seconds;
      bytes += static_cast<double>(product.bytes);
      flops += product_flops;
    }
    std::printf("%7u  all      %7.3f  %9s  %5.0f (%4.1f %%)  %6.1f (%4.1f %%)  %.0f tokens/s\n",
                tokens, total * 1e3, "", bytes / total / 1e9,
                bytes / total / peaks.read_bytes * 100, flops / total / 1e12,
                flops / total / peaks.flop * 100, tokens / total);
  }
  return 0;
}

}  // namespace
}  // namespace wcuda

int main(int argument_count, char** arguments) {
  std::vector<uint32_t> tokens;
  uint32_t batch_max = 0;
  bool is_invariant = false;
  wcuda::Shape shape = wcuda::kShapes[0];
  const wcuda::quant::Format* format = nullptr;
  for (int i = 1; i < argument_count; ++i) {
    const std::string option = arguments[i];
    if (option == "-b" && i + 1 < argument_count)
      batch_max = static_cast<uint32_t>(std::atoi(arguments[++i]));
    else if (option == "-m" && i + 1 < argument_count) {
      const std::string name = arguments[++i];
      const auto* const found =
          std::find_if(std::begin(wcuda::kShapes), std::end(wcuda::kShapes),
                       [&](const wcuda::Shape& other) { return name == other.name; });
      if (found == std::end(wcuda::kShapes)) {
        std::printf("no shape '%s'\n", name.c_str());
        return 2;
      }
      shape = *found;
    } else if (option == "-t" && i + 1 < argument_count) {
      const std::string name = arguments[++i];
      for (const wcuda::quant::TileLayout& layout : wcuda::quant::kTileLayouts) {
        const auto* const other = wcuda::quant::find_format(layout.type);
        if (other != nullptr && name == other->name) format = other;
      }
      if (format == nullptr) {
        std::printf("no type '%s'\n", name.c_str());
        return 2;
      }
    } else if (option == "--batch-invariant")
      is_invariant = true;
    else
      tokens.push_back(static_cast<uint32_t>(std::atoi(arguments[i])));
  }
  if (tokens.empty()) tokens = {16, 32, 64, 128, 256, 512, 2048};
  if (format != nullptr) shape.type = shape.large_type = format->id;
  if (shape.experts != 0) return wcuda::run_experts(shape, tokens);
  return wcuda::run(shape, tokens, batch_max, is_invariant);
}
