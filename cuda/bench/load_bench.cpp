// Loading from page cache: load_bench [host|cuda] [SHAPE] [MIX] [FOLDER], by default cuda 8b q4_k_m
// /dev/shm. Writes a synthetic model there, loads it five times, then from a callback, and removes
// it. Phases are those of the progress callback: reserve takes memory, upload reads and places.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/synthetic_model.h"
#include "core/backend/open.h"
#include "llm/model/model.h"

namespace {

using namespace wcuda;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Times {
  double open, plan, reserve, upload, seal, all, verify, destroy;
};

Result<Times> load_once(const std::shared_ptr<vram::Memory>& memory,
                        std::shared_ptr<gguf::Source> source) {
  Times times{};
  Clock::time_point entered[WCUDA_LOAD_SEAL + 1];
  const Clock::time_point start = Clock::now();
  WCUDA_ASSIGN(const auto file, gguf::Gguf::open(std::move(source)));
  times.open = seconds_since(start);
  int32_t last = -1;
  model::LoadOptions options;
  options.progress = [&](int32_t phase, uint64_t, uint64_t) {
    if (phase != last) entered[phase] = Clock::now();
    last = phase;
    return true;
  };
  WCUDA_ASSIGN(auto loaded, model::Model::load(memory, file, options));
  const Clock::time_point ready = Clock::now();
  const auto between = [](Clock::time_point a, Clock::time_point b) {
    return std::chrono::duration<double>(b - a).count();
  };
  times.plan = between(entered[WCUDA_LOAD_PLAN], entered[WCUDA_LOAD_RESERVE]);
  times.reserve = between(entered[WCUDA_LOAD_RESERVE], entered[WCUDA_LOAD_UPLOAD]);
  times.upload = between(entered[WCUDA_LOAD_UPLOAD], entered[WCUDA_LOAD_SEAL]);
  times.seal = between(entered[WCUDA_LOAD_SEAL], ready);
  times.all = between(start, ready);
  WCUDA_TRY(loaded->verify());
  times.verify = seconds_since(ready);
  const Clock::time_point verified = Clock::now();
  loaded.reset();
  WCUDA_TRY(memory->backend().synchronize());
  times.destroy = seconds_since(verified);
  return times;
}

Status run(int32_t backend, const std::string& shape, const std::string& mix,
           const std::string& folder) {
  WCUDA_ASSIGN(const bench::SyntheticModel synthetic, bench::SyntheticModel::make(shape, mix));
  const std::string path = folder + "/load_bench_" + shape + "_" + mix + ".gguf";
  struct Remove {
    std::string path;
    ~Remove() { ::unlink(path.c_str()); }
  } remove{path};
  WCUDA_TRY(synthetic.write(path));
  OpenOptions options;
  options.backend = backend;
  WCUDA_ASSIGN(const Opened opened, open_backend(options));
  const auto memory = vram::Memory::create(opened.backend, 0);
  const double gigabytes = static_cast<double>(synthetic.bytes()) * 1e-9;
  std::printf("%s, %s %s, %.3f GB, milliseconds:\n", opened.backend->caps().name, shape.c_str(),
              mix.c_str(), gigabytes);
  std::printf("%-9s %7s %7s %7s %7s %7s %7s %7s %7s %7s\n", "source", "open", "plan", "reserve",
              "upload", "seal", "all", "GB/s", "verify", "destroy");
  std::vector<double> rates;
  for (int i = 0; i < 6; ++i) {
    const bool is_callback = i == 5;
    auto source = is_callback ? gguf::open_callback(synthetic.source().read,
                                                    synthetic.source().user, synthetic.bytes())
                              : gguf::open_path(path);
    WCUDA_TRY(source.status());
    WCUDA_ASSIGN(const Times t, load_once(memory, source.take()));
    if (!is_callback) rates.push_back(gigabytes / t.all);
    std::printf("%-9s %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f\n",
                is_callback ? "callback" : "file", t.open * 1e3, t.plan * 1e3, t.reserve * 1e3,
                t.upload * 1e3, t.seal * 1e3, t.all * 1e3, gigabytes / t.all, t.verify * 1e3,
                t.destroy * 1e3);
  }
  std::sort(rates.begin(), rates.end());
  std::printf("median %.1f GB/s, %.1f to %.1f\n", rates[2], rates.front(), rates.back());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  const bool is_host = argument(1, "cuda") == "host";
  const Status status = run(is_host ? WCUDA_BACKEND_HOST : WCUDA_BACKEND_CUDA, argument(2, "8b"),
                            argument(3, "q4_k_m"), argument(4, "/dev/shm"));
  if (status.ok()) return 0;
  std::fprintf(stderr, "load_bench: %s\n", status.message());
  return 1;
}
