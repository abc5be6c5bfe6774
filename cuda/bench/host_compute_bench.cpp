// Speed of the host backend's digest and matrix product:
//
//   host_compute_bench [threads, 1 unless given]
//
// A line each: what, size, median of its runs, unit. Results are checked first.
// tools/dev/host_compare.py runs it in turn with numpy.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "core/base/blake3.h"
#include "worker_cuda.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kDigestBytes = uint64_t{256} << 20;
constexpr int kDigestRuns = 20;
constexpr int kProductRuns = 200;

void check(wcuda_status status, const wcuda_error& error) {
  if (status == WCUDA_OK) return;
  std::fprintf(stderr, "%s: %s\n", wcuda_status_name(status), error.message);
  std::exit(1);
}

void check(bool is_right, const char* what) {
  if (is_right) return;
  std::fprintf(stderr, "%s is wrong\n", what);
  std::exit(1);
}

// Median of the seconds of a run.
double median(int runs, const std::function<void()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

class Bench {
 public:
  explicit Bench(uint32_t threads) {
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = WCUDA_BACKEND_HOST;
    options.host_thread_count = threads;
    check(wcuda_context_create(&options, &context_, &error_), error_);
  }
  ~Bench() { wcuda_context_destroy(context_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void digest() {
    const wcuda_buffer data = buffer(kDigestBytes);
    std::vector<uint8_t> bytes(kDigestBytes);
    for (uint64_t i = 0; i < kDigestBytes; ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 251);
    check(wcuda_buffer_write(data, 0, bytes.data(), kDigestBytes, &error_), error_);
    uint8_t found[32], expected[32];
    wcuda::blake3::Hasher hasher;
    hasher.update(bytes.data(), kDigestBytes);
    hasher.finish(expected);
    const double seconds = median(kDigestRuns, [&] {
      check(wcuda_buffer_digest(data, 0, kDigestBytes, found, &error_), error_);
    });
    check(std::memcmp(found, expected, sizeof found) == 0, "the digest");
    std::printf("digest %llu %.3f GB/s\n", static_cast<unsigned long long>(kDigestBytes),
                1e-9 * static_cast<double>(kDigestBytes) / seconds);
    wcuda_buffer_destroy(data);
  }

  // a (n, n) all 0.5, b all 2: each element of the product is n.
  void product(uint64_t n) {
    const uint64_t bytes = 4 * n * n;
    const wcuda_buffer a = buffer(bytes), b = buffer(bytes), c = buffer(bytes);
    check(wcuda_buffer_fill(a, 0, bytes, 0x3f000000, 4, &error_), error_);
    check(wcuda_buffer_fill(b, 0, bytes, 0x40000000, 4, &error_), error_);
    wcuda_argument arguments[6];
    for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
    const wcuda_buffer buffers[3] = {a, b, c};
    for (int i = 0; i < 6; ++i) {
      arguments[i].kind = i < 3 ? WCUDA_ARG_BUFFER : WCUDA_ARG_U64;
      if (i < 3)
        arguments[i].buffer = buffers[i];
      else
        arguments[i].data = &n;
    }
    const auto run = [&] {
      check(wcuda_catalogue_run(context_, {"matrix_multiply", 15}, WCUDA_ARG_F32, arguments, 6, {0},
                                &error_),
            error_);
    };
    run();
    std::vector<float> found(n * n);
    check(wcuda_buffer_read(c, 0, found.data(), bytes, &error_), error_);
    check(found == std::vector<float>(n * n, static_cast<float>(n)), "the product");
    const auto size = static_cast<double>(n);
    std::printf(
        "matmul %llu %.2f GFLOP/s\n", static_cast<unsigned long long>(n),
        2e-9 * size * size * size / median(n > 512 ? kProductRuns / 10 : kProductRuns, run));
    for (const wcuda_buffer each : buffers) wcuda_buffer_destroy(each);
  }

 private:
  wcuda_buffer buffer(uint64_t bytes) {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = bytes;
    wcuda_buffer made{0};
    check(wcuda_buffer_create(context_, &options, &made, &error_), error_);
    return made;
  }

  wcuda_context context_{0};
  wcuda_error error_{};
};

}  // namespace

int main(int argc, char** argv) {
  const unsigned long threads = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1;
  Bench bench(static_cast<uint32_t>(threads));
  bench.digest();
  for (const uint64_t n : {256, 512, 1024}) bench.product(n);
  return 0;
}
