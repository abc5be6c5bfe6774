// Time of the device's sampler by setting and row count, each figure from a graph of many launches:
// gpu_sampling_bench [repeats [vocabulary]]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "bench/device_limits.h"
#include "bench/graph_seconds.h"
#include "kernels/sampling/sample.h"
#include "kernels/step/step.h"
#include "llm/ops/sampling.h"

namespace {

using wcuda::kernels::SampleArgs;
using wcuda::kernels::SampleOutput;
using wcuda::kernels::SampleRow;
using wcuda::ops::Sampling;

constexpr uint32_t kRowsMax = 256;
constexpr uint32_t kPosition = 1000;
constexpr uint32_t kTop = 20;
constexpr uint32_t kLaunches = 20;  // of a graph

#define CHECK(call)                                                                            \
  do {                                                                                         \
    const cudaError_t status = (call);                                                         \
    if (status != cudaSuccess) {                                                               \
      std::fprintf(stderr, "gpu_sampling_bench: %s: %s\n", #call, cudaGetErrorString(status)); \
      std::exit(1);                                                                            \
    }                                                                                          \
  } while (0)

struct Setting {
  const char* name;
  bool has_filters;
  bool is_sampled = true;  // else the time of a launch that does nothing
  Sampling sampling;
};

std::vector<Setting> settings() {
  std::vector<Setting> list(14);
  list[0].name = "greedy";
  list[1].name = "temperature";
  list[2].name = "greedy, penalty over 64";
  list[2].sampling.repetition_penalty = 1.1f;
  list[3].name = "greedy, 5 logprobs";
  list[3].sampling.top_logprobs = 5;
  list[4].name = "temperature, top-p 0.9";
  list[4].sampling.top_p = 0.9f;
  list[5].name = "top-k 40";
  list[5].sampling.top_k = 40;
  list[6].name = "top-k 40, 5 logprobs";
  list[6].sampling.top_k = 40;
  list[6].sampling.top_logprobs = 5;
  list[7].name = "all filters, 20 logprobs";
  Sampling& all = list[7].sampling;
  all.top_k = 1000;
  all.typical_p = all.top_p = 0.95f;
  all.min_p = 0.01f;
  all.top_logprobs = 20;
  list[8].name = "temperature, min-p 0.05";
  list[8].sampling.min_p = 0.05f;
  for (size_t i = 0; i < 9; ++i) {
    if (i == 1 || i >= 4) list[i].sampling.temperature = 0.8f;
    list[i].has_filters = i >= 3;
  }
  list[9].name = "temperature of 1";
  list[9].sampling.temperature = 1.0f;
  const std::pair<size_t, const char*> without_logprob[] = {
      {0, "greedy, no logprob"}, {1, "temperature, no logprob"}, {4, "top-p 0.9, no logprob"}};
  size_t at = 10;
  for (const auto& [from, name] : without_logprob) {
    list[at] = list[from];
    list[at].name = name;
    list[at++].sampling.omits_logprob = 1;
  }
  list[at].name = "nothing";
  list[at].is_sampled = false;
  return list;
}

SampleRow row_of(const Sampling& sampling, uint32_t index) {
  SampleRow row = static_cast<const SampleRow&>(sampling);
  row.is_sampled = 1;
  row.logits_row = row.sequence_slot = index;
  row.position = kPosition;
  row.seed = index;
  row.mask_row = wcuda::kernels::kNoMask;
  return row;
}

struct Device {
  float* logits;
  int32_t* history;
  SampleRow* rows;
  int32_t* statuses;
  SampleOutput* outputs;
  int32_t* top_tokens;
  float* top_logprobs;
  void* scratch;
};

// Microseconds of one launch, minimum and median of `repeats` graphs.
void measure(const SampleArgs& args, wcuda::kernels::Launch launch, int repeats, double* least,
             double* median) {
  const std::vector<double> seconds = wcuda::bench::graph_seconds(
      launch.stream, repeats,
      [&] {
        for (uint32_t i = 0; i < kLaunches; ++i) CHECK(wcuda::kernels::sample(args, launch));
      },
      [](cudaError_t of_graph) { CHECK(of_graph); });
  *least = 1e6 * seconds[0] / kLaunches;
  *median = 1e6 * seconds[seconds.size() / 2] / kLaunches;
}

// The host draws the same token from the last row.
bool is_right(const SampleArgs& args, const Sampling& sampling, const std::vector<float>& logits,
              const std::vector<int32_t>& history) {
  SampleOutput output{};
  const size_t last = args.row_count - 1;
  CHECK(cudaMemcpy(&output, args.outputs + last, sizeof(output), cudaMemcpyDeviceToHost));
  Sampling row = sampling;
  row.seed = last;
  std::vector<uint64_t> work(wcuda::ops::sample_work_bytes(args.vocabulary) / sizeof(uint64_t));
  std::vector<int32_t> tokens(kTop);
  std::vector<float> logprobs(kTop);
  const auto expected = wcuda::ops::sample(logits.data() + last * args.vocabulary, args.vocabulary,
                                           row, history.data() + last * args.history_stride,
                                           kPosition, work.data(), tokens.data(), logprobs.data());
  return output.token == expected.token &&
         std::memcmp(&output.logprob, &expected.logprob, sizeof(float)) == 0;
}

}  // namespace

int main(int argument_count, char** arguments) {
  const int repeats = argument_count > 1 ? std::max(1, std::atoi(arguments[1])) : 21;
  const uint32_t vocabulary =
      argument_count > 2 ? static_cast<uint32_t>(std::max(1, std::atoi(arguments[2]))) : 128256;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(size_t{kRowsMax} * vocabulary);
  for (float& logit : logits) logit = normal(generator);
  std::vector<int32_t> history(kRowsMax * (kPosition + 1));
  for (int32_t& token : history) token = static_cast<int32_t>(generator() % vocabulary);

  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  const wcuda::bench::DeviceLimits limits = wcuda::bench::device_limits();
  wcuda::kernels::Launch launch;
  launch.sm_count = properties.multiProcessorCount;
  launch.compute_capability = properties.major * 10 + properties.minor;
  CHECK(cudaStreamCreate(&launch.stream));
  Device device;
  CHECK(cudaMalloc(&device.logits, logits.size() * sizeof(float)));
  CHECK(cudaMalloc(&device.history, history.size() * sizeof(int32_t)));
  CHECK(cudaMalloc(&device.rows, kRowsMax * sizeof(SampleRow)));
  CHECK(cudaMalloc(&device.statuses, kRowsMax * sizeof(int32_t)));
  CHECK(cudaMalloc(&device.outputs, kRowsMax * sizeof(SampleOutput)));
  CHECK(cudaMalloc(&device.top_tokens, kRowsMax * kTop * sizeof(int32_t)));
  CHECK(cudaMalloc(&device.top_logprobs, kRowsMax * kTop * sizeof(float)));
  CHECK(cudaMalloc(&device.scratch, logits.size() * sizeof(float)));
  CHECK(cudaMemcpy(device.logits, logits.data(), logits.size() * sizeof(float),
                   cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(device.history, history.data(), history.size() * sizeof(int32_t),
                   cudaMemcpyHostToDevice));
  CHECK(cudaMemset(device.statuses, 0, kRowsMax * sizeof(int32_t)));

  std::printf(
      "%s, vocabulary %u, microseconds a launch of %u in a graph, minimum (median), rate of "
      "reading the logits once and its share of the limit\n",
      properties.name, vocabulary, kLaunches);
  std::printf("%-26s %4s %3s %33s %33s %33s %33s %33s\n", "setting", "pdl", "blk", "1 row",
              "8 rows", "32 rows", "64 rows", "256 rows");
  for (const Setting& setting : settings()) {
    std::vector<SampleRow> rows;
    for (uint32_t i = 0; i < kRowsMax; ++i) {
      rows.push_back(row_of(setting.sampling, i));
      rows.back().is_sampled = setting.is_sampled;
    }
    CHECK(cudaMemcpy(device.rows, rows.data(), rows.size() * sizeof(SampleRow),
                     cudaMemcpyHostToDevice));
    for (const auto& [is_dependent, blocks] :
         {std::pair{false, 0u}, {true, 0u}, {true, 8u}, {true, 16u}}) {
      std::printf("%-26s %4s %3u", setting.name, is_dependent ? "yes" : "no", blocks);
      for (const uint32_t row_count : {1u, 8u, 32u, 64u, kRowsMax}) {
        SampleArgs args;
        args.row_count = row_count;
        args.vocabulary = vocabulary;
        args.has_filters = setting.has_filters;
        args.blocks_per_row = blocks;
        args.rows = device.rows;
        args.logits = device.logits;
        args.logits_count = row_count;
        args.history = device.history;
        args.history_stride = kPosition + 1;
        args.statuses = device.statuses;
        args.outputs = device.outputs;
        args.top_stride = kTop;
        args.top_tokens = device.top_tokens;
        args.top_logprobs = device.top_logprobs;
        args.scratch = device.scratch;
        launch.is_dependent = is_dependent;
        double least, median;
        measure(args, launch, repeats, &least, &median);
        std::printf(" %8.2f (%7.2f)", least, median);
        const double bytes = setting.is_sampled ? 4.0 * row_count * vocabulary : 0;
        wcuda::bench::print_bandwidth(bytes, median * 1e-6, limits);
        if (setting.is_sampled && !is_right(args, setting.sampling, logits, history)) {
          std::fprintf(stderr, "gpu_sampling_bench: '%s' differs from the host\n", setting.name);
          return 1;
        }
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}
