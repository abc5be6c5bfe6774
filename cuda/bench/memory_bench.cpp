// Speed of fill, copies, BLAKE3 digest, allocation and the check of residency on a backend:
// memory_bench [host|cuda] [MiB]. Checks each result first; prints minimum and median of ten runs,
// of the short ones of a thousand.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "core/backend/open.h"
#include "core/base/blake3.h"
#include "core/vram/digest.h"
#include "core/vram/memory.h"
#include "llm/engine/step_report.h"

namespace wcuda {
namespace {

constexpr int kRuns = 10;
constexpr int kShortRuns = 1000;
constexpr uint64_t kAllocationCount = 1000;

// Seconds of each run, ascending, after one that is not measured.
Result<std::vector<double>> time_runs(int count, const std::function<Status()>& run) {
  WCUDA_TRY(run());
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    const auto start = std::chrono::steady_clock::now();
    WCUDA_TRY(run());
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

struct Bench {
  std::shared_ptr<vram::Memory> memory;
  uint64_t bytes;
  double limit;  // bytes read and written a second; 0: not known

  // `moved`: bytes of the device's memory read and written by one run.
  Status measure(const char* name, uint64_t moved, const std::function<Status()>& run,
                 bool is_over_bus = false) const {
    WCUDA_ASSIGN(const std::vector<double> seconds, time_runs(kRuns, run));
    const double best = static_cast<double>(moved) / seconds[0];
    const double median = static_cast<double>(moved) / seconds[kRuns / 2];
    std::printf("%-18s best %8.1f GB/s  median %8.1f GB/s", name, best / 1e9, median / 1e9);
    if (limit > 0 && !is_over_bus)
      std::printf("  %5.1f %% of %.0f GB/s", 100 * best / limit, limit / 1e9);
    std::printf("\n");
    return {};
  }

  Status run() const {
    Backend& backend = memory->backend();
    WCUDA_ASSIGN(const vram::Buffer a, memory->allocate(bytes, WCUDA_PURPOSE_USER, "a"));
    WCUDA_ASSIGN(const vram::Buffer b, memory->allocate(bytes, WCUDA_PURPOSE_USER, "b"));
    WCUDA_ASSIGN(const vram::Buffer pinned, memory->allocate_pinned(bytes, "staging"));
    WCUDA_TRY(check(a, b, pinned));
    WCUDA_TRY(measure("fill", bytes, [&]() -> Status {
      WCUDA_TRY(backend.fill(a.data(), bytes, 0x0102030405060708, 8, Stream{}));
      return backend.synchronize(Stream{});
    }));
    WCUDA_TRY(measure("copy on device", 2 * bytes, [&]() -> Status {
      WCUDA_TRY(backend.copy_on_device(b.data(), a.data(), bytes, Stream{}));
      return backend.synchronize(Stream{});
    }));
    const auto measure_bus = [&](const char* name, const std::function<Status()>& copy) {
      return measure(name, bytes, copy, true);
    };
    WCUDA_TRY(measure_bus("copy to device",
                          [&] { return backend.copy_to_device(a.data(), pinned.data(), bytes); }));
    WCUDA_TRY(measure_bus("copy to host",
                          [&] { return backend.copy_to_host(pinned.data(), a.data(), bytes); }));
    const std::vector<uint8_t> pageable(bytes, 0x5a);
    WCUDA_TRY(measure_bus(
        "pageable copy", [&] { return memory->copy_to_device(a.data(), pageable.data(), bytes); }));
    WCUDA_TRY(measure("digest", bytes, [&] {
      uint8_t digest[32];
      return vram::digest(backend, a.data(), bytes, digest);
    }));
    std::vector<uint8_t> pieces(blake3::piece_count(bytes) * blake3::kDigestBytes);
    return measure("digest by the MiB", bytes,
                   [&] { return vram::digest_pieces(backend, a.data(), bytes, 0, pieces.data()); });
  }

  Status run_short() const {
    const auto print = [](const char* name, const std::vector<double>& seconds) {
      std::printf("%-32s best %7.2f us  median %7.2f us\n", name, 1e6 * seconds[0],
                  1e6 * seconds[kShortRuns / 2]);
    };
    WCUDA_ASSIGN(const auto allocation, time_runs(kShortRuns, [&] {
                   return memory->allocate(1 << 20, WCUDA_PURPOSE_USER, "").status();
                 }));
    print("allocate and free 1 MiB", allocation);
    std::vector<vram::Buffer> buffers;
    for (uint64_t i = 0; i < kAllocationCount; ++i) {
      WCUDA_ASSIGN(vram::Buffer buffer, memory->allocate(4096, WCUDA_PURPOSE_USER, ""));
      buffers.push_back(std::move(buffer));
    }
    WCUDA_ASSIGN(const auto residency, time_runs(kShortRuns, [&]() -> Status {
                   WCUDA_ASSIGN(const vram::Residency found, memory->check_residency());
                   WCUDA_CHECK(found.checked_count == kAllocationCount);
                   return found.status();
                 }));
    print("residency of 1,000 allocations", residency);
    return {};
  }

  // Random bytes up, across and down again, and their digest.
  Status check(const vram::Buffer& a, const vram::Buffer& b, const vram::Buffer& pinned) const {
    Backend& backend = memory->backend();
    uint64_t state = 1;
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(pinned.data() + i, &state, 8);
    }
    uint8_t expected[32], digest[32];
    blake3::hash(pinned.data(), bytes, expected);
    WCUDA_TRY(backend.copy_to_device(a.data(), pinned.data(), bytes));
    WCUDA_TRY(backend.copy_on_device(b.data(), a.data(), bytes, Stream{}));
    WCUDA_TRY(backend.synchronize(Stream{}));
    WCUDA_TRY(vram::digest(backend, b.data(), bytes, digest));
    std::memset(pinned.data(), 0, bytes);
    WCUDA_TRY(backend.copy_to_host(pinned.data(), b.data(), bytes));
    uint8_t back[32];
    blake3::hash(pinned.data(), bytes, back);
    if (std::memcmp(digest, expected, 32) != 0 || std::memcmp(back, expected, 32) != 0)
      return Status::error(WCUDA_INTEGRITY, "the digest is wrong");
    return {};
  }
};

Status run(int argc, char** argv) {
  OpenOptions options;
  const char* const wanted = argc > 1 ? argv[1] : "auto";
  if (std::strcmp(wanted, "host") == 0) options.backend = WCUDA_BACKEND_HOST;
  if (std::strcmp(wanted, "cuda") == 0) options.backend = WCUDA_BACKEND_CUDA;
  const uint64_t mib = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 256;
  if (mib == 0) return Status::error(WCUDA_INVALID_ARGUMENT, "size: 0 MiB");
  WCUDA_ASSIGN(const Opened opened, open_backend(options));
  const wcuda_device_caps& caps = opened.backend->caps();
  std::printf("%s, %llu MiB", caps.name, static_cast<unsigned long long>(mib));
  if (caps.memory_clock_khz) std::printf(", memory clock %d MHz", caps.memory_clock_khz / 1000);
  std::printf("\n");
  const Bench bench{vram::Memory::create(opened.backend, 0), mib << 20,
                    engine::device_rates(caps, {}).bytes_per_second};
  WCUDA_TRY(bench.run());
  return bench.run_short();
}

}  // namespace
}  // namespace wcuda

int main(int argc, char** argv) {
  const wcuda::Status status = wcuda::run(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message());
  return status.ok() ? 0 : 1;
}
