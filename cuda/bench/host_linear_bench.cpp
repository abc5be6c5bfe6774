// Speed of the host's matrix products by format and token count: checks the result, then reports
// the best and median of several runs in GMAC/s and, for one token, the GB/s of weights read. With
// one thread it counts CPU time, which a busy machine disturbs less.
//
//   host_linear_bench [threads] [rows] [cols] [seconds a line] [type, -1: all] [instruction set]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "tests/llm/ops/host_fixture.h"

namespace wcuda::ops::host {
namespace {

struct Options {
  uint32_t threads = 0;
  uint32_t rows = 1536;
  uint32_t cols = 768;
  double seconds = 0.3;
  int type = -1;
  const char* isa = nullptr;  // all
};

double now(uint32_t threads) {
  timespec time{};
  ::clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Largest error of a few elements, against the sum of the magnitudes of their terms.
double relative_error(const Matrix& matrix, const std::vector<float>& x,
                      const std::vector<float>& y, uint32_t tokens) {
  double worst = 0.0;
  const uint32_t rows = matrix.weight.rows, cols = matrix.weight.cols;
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t r = (i * 7919) % rows, t = i % tokens;
    double sum = 0.0, magnitude = 0.0;
    for (uint32_t c = 0; c < cols; ++c) {
      const double term = static_cast<double>(matrix.values[uint64_t{r} * cols + c]) *
                          static_cast<double>(x[uint64_t{t} * cols + c]);
      sum += term;
      magnitude += std::abs(term);
    }
    worst = std::max(worst, std::abs(y[uint64_t{t} * rows + r] - sum) / magnitude);
  }
  return worst;
}

void measure(const Kernels& kernels, uint32_t type, uint32_t tokens, const Options& options) {
  Random random(type + tokens);
  const bool has_vectors = kernels.isa != Isa::kPortable;
  const Layout layout =
      quant::host_weight_layout(has_vectors, type, options.rows, options.cols)->layout;
  const Matrix matrix = random_matrix(type, options.rows, options.cols, layout, random);
  const auto x = random.normals(uint64_t{tokens} * options.cols);
  std::vector<float> y(uint64_t{tokens} * options.rows);
  Limits limits{};
  limits.max_batch_tokens = limits.max_logits_rows = limits.max_batch_rows = tokens;
  limits.embedding_length = limits.feed_forward_length = options.cols;
  limits.head_count = limits.kv_head_count = 1;
  limits.head_length = 64;
  Machine machine(kernels, options.threads, limits);
  if (!machine.ops) return;
  const auto run = [&] {
    return project(*machine.ops, tokens, x.data(), matrix.weight, nullptr, y.data());
  };
  if (!run().ok()) return;
  const double error = relative_error(matrix, x, y, tokens);

  std::vector<double> times;
  const double end = now(options.threads) + options.seconds;
  while (now(options.threads) < end || times.size() < 5) {
    const double start = now(options.threads);
    const Status status = run();
    times.push_back(now(options.threads) - start);
    if (!status.ok()) return;
  }
  std::sort(times.begin(), times.end());
  const double products = static_cast<double>(tokens) * options.rows * options.cols;
  std::printf("%-8s %-8s %5u tokens  best %7.1f  median %7.1f GMAC/s", kernels.name,
              quant::find_format(type)->name, tokens, products / times[0] * 1e-9,
              products / times[times.size() / 2] * 1e-9);
  if (tokens == 1)
    std::printf("  %5.1f GB/s", static_cast<double>(matrix.weight.bytes) / times[0] * 1e-9);
  std::printf("  error %.1e%s\n", error, error < 6e-5 ? "" : "  WRONG");
}

}  // namespace
}  // namespace wcuda::ops::host

int main(int argc, char** argv) {
  using namespace wcuda::ops::host;
  Options options;
  if (argc > 1) options.threads = static_cast<uint32_t>(std::atoi(argv[1]));
  if (argc > 2) options.rows = static_cast<uint32_t>(std::atoi(argv[2]));
  if (argc > 3) options.cols = static_cast<uint32_t>(std::atoi(argv[3]));
  if (argc > 4) options.seconds = std::atof(argv[4]);
  if (argc > 5) options.type = std::atoi(argv[5]);
  if (argc > 6) options.isa = argv[6];
  std::printf("%u rows, %u columns, %u threads\n", options.rows, options.cols, options.threads);
  for (const Kernels* kernels : all_kernels()) {
    if (options.isa != nullptr && std::strcmp(options.isa, kernels->name) != 0) continue;
    for (uint32_t type :
         {2u, 3u, 6u, 7u, 8u, 10u, 11u, 12u, 13u, 14u, 20u, 21u, 23u, 39u, 1u, 30u, 0u, 16u})
      for (uint32_t tokens : {1u, 2u, 4u, 8u, 16u, 32u, 512u}) {
        if (options.type >= 0 && static_cast<uint32_t>(options.type) != type) continue;
        if (options.cols % wcuda::quant::find_format(type)->block_elements != 0) continue;
        measure(*kernels, type, tokens, options);
      }
  }
  return 0;
}
