// Speed of run-time kernels, matrix products, the catalogue, fill and copies on a CUDA device, most
// next to the raw call of the driver or library in turns: compute_bench [FOLDER_OF_NVRTC]. Results
// are checked first; a row is the median of 200 samples, of 5 where one moves 8 GiB. A rate has its
// share of the device's limit; the limit of the bus is the raw copy.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/device_limits.h"
#include "compute/nvrtc/functions.h"
#include "core/base/dynlib.h"
#include "core/gemm/cublas_lt.h"
#include "worker_cuda.h"

namespace wcuda {
namespace {

namespace lt = compute::cublas_lt;

constexpr int kSamples = 200;
constexpr int kLargeSamples = 5;
constexpr int kChain = 10;  // products a sample: the queue hides the calls
constexpr int kLaunches = 100;
constexpr uint64_t kLargeBytes = 8ull << 30;
constexpr uint64_t kPinnedBytes = 1ull << 30;

#define BENCH_CALL(call)                                                                       \
  do {                                                                                         \
    wcuda_error bench_error{};                                                                 \
    wcuda_error* const error = &bench_error;                                                   \
    if ((call) != WCUDA_OK) return Status::error(bench_error.code, "%s", bench_error.message); \
  } while (0)
#define BENCH_CUDA(call)                                                       \
  do {                                                                         \
    if (const cudaError_t status = (call))                                     \
      return Status::native_error(WCUDA_DEVICE_ERROR, status, "%s: %s", #call, \
                                  cudaGetErrorString(status));                 \
  } while (0)

constexpr char kVectorAdd[] =
    "extern \"C\" __global__ void vector_add(const float* a, const float* b, float* c, int n) {\n"
    "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) c[i] = a[i] + b[i];\n"
    "}\n";

using Clock = std::chrono::steady_clock;
using Run = std::function<Status()>;

// Seconds: medians of both, taken in turns, after one run of each that is not measured.
struct Pair {
  double raw = 0, ours = 0;
};
Result<Pair> in_turns(int samples, const Run& raw, const Run& ours) {
  std::vector<double> times[2];
  const Run* const runs[2] = {&raw, &ours};
  for (int i = -1; i < samples; ++i)
    for (int which = 0; which < 2; ++which) {
      if (!*runs[which]) continue;
      const auto start = Clock::now();
      WCUDA_TRY((*runs[which])());
      if (i >= 0)
        times[which].push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  for (std::vector<double>& each : times) std::sort(each.begin(), each.end());
  const auto median = [](const std::vector<double>& v) { return v.empty() ? 0 : v[v.size() / 2]; };
  return Pair{median(times[0]), median(times[1])};
}

// A time: less is better.
void print_time(const char* name, Pair pair, double divisor, const char* must) {
  std::printf("%-34s raw %9.2f us  ours %9.2f us", name, 1e6 * pair.raw / divisor,
              1e6 * pair.ours / divisor);
  if (pair.raw > 0) std::printf("  %5.2fx", pair.ours / pair.raw);
  std::printf("  (must %s)\n", must);
}

// A rate: more is better. `work` a sample, in units of `unit`; limit 0: not known.
void print_rate(const char* name, Pair pair, double work, const char* unit, double limit,
                const char* must) {
  std::printf("%-34s raw %9.1f %s  ours %9.1f %s  %5.1f %%  (must %s)", name, work / pair.raw, unit,
              work / pair.ours, unit, 100 * pair.raw / pair.ours, must);
  if (limit > 0) std::printf("  %5.1f %% of %.1f", 100 * work / pair.ours / limit, limit);
  std::printf("\n");
}

wcuda_argument buffer_argument(wcuda_buffer buffer) {
  wcuda_argument argument = WCUDA_ARGUMENT_INIT;
  argument.kind = WCUDA_ARG_BUFFER;
  argument.buffer = buffer;
  return argument;
}

wcuda_argument value_argument(int32_t kind, const void* data) {
  wcuda_argument argument = WCUDA_ARGUMENT_INIT;
  argument.kind = kind;
  argument.data = data;
  return argument;
}

class Bench {
 public:
  explicit Bench(std::string nvrtc_folder) : nvrtc_folder_(std::move(nvrtc_folder)) {}
  ~Bench() {
    for (const wcuda_buffer buffer : buffers_) wcuda_buffer_destroy(buffer);
    wcuda_context_destroy(context_);
    wcuda_context_destroy(host_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Status run() {
    WCUDA_TRY(open(WCUDA_BACKEND_CUDA, &context_));
    WCUDA_TRY(open(WCUDA_BACKEND_HOST, &host_));
    BENCH_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    cudaDeviceProp properties{};
    BENCH_CUDA(cudaGetDeviceProperties(&properties, 0));
    std::printf("%s\n", properties.name);
    // A part that cannot run here says so, and the others run.
    const auto part = [](const char* name, const Status& status) {
      if (!status.ok()) std::printf("%s: %s\n", name, status.message());
    };
    part("compile and launch", compile_and_launch());
    limits_ = bench::device_limits();
    part("matrix products",
         products(WCUDA_GEMM_F32, lt::kReal32, 4, limits_.flop_f32, "gemm 4096 f32"));
    part("matrix products",
         products(WCUDA_GEMM_BF16, lt::kRealBf16, 2, limits_.flop, "gemm 4096 bf16"));
    part("matmul", matmul());
    part("catalogue", catalogue());
    part("memory", memory());
    return {};
  }

 private:
  Status open(int32_t backend, wcuda_context* context) {
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = backend;
    BENCH_CALL(wcuda_context_create(&options, context, error));
    return {};
  }

  Result<wcuda_buffer> buffer(uint64_t bytes, wcuda_context context) {
    wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
    options.bytes = bytes;
    wcuda_buffer made{0};
    BENCH_CALL(wcuda_buffer_create(context, &options, &made, error));
    buffers_.push_back(made);
    return made;
  }
  Result<wcuda_buffer> buffer(uint64_t bytes) { return buffer(bytes, context_); }

  Result<void*> address(wcuda_buffer buffer) {
    void* result = nullptr;
    BENCH_CALL(wcuda_buffer_address_get(buffer, &result, error));
    return result;
  }

  // Buffers are given back as a part of the bench ends.
  void drop_buffers() {
    for (const wcuda_buffer buffer : buffers_) wcuda_buffer_destroy(buffer);
    buffers_.clear();
  }

  Status synchronize(wcuda_context context) {
    BENCH_CALL(wcuda_context_synchronize(context, error));
    return {};
  }
  Status synchronize_raw() {
    BENCH_CUDA(cudaStreamSynchronize(stream_));
    return {};
  }

  Result<wcuda_program> program(wcuda_kernel_cache cache) {
    wcuda_program_options options = WCUDA_PROGRAM_OPTIONS_INIT;
    options.source = {kVectorAdd, sizeof(kVectorAdd) - 1};
    options.architecture = {"sm_90a", 6};
    options.library_folder = {nvrtc_folder_.data(), nvrtc_folder_.size()};
    options.cache = cache;
    wcuda_program made{0};
    BENCH_CALL(wcuda_program_create(&options, &made, error));
    const wcuda_status status = wcuda_program_compile(made, nullptr);
    if (status == WCUDA_OK) return made;
    wcuda_program_destroy(made);
    return Status::error(status, "vector_add does not compile");
  }

  Status compile_and_launch() {
    WCUDA_ASSIGN(const wcuda_program compiled, program({0}));
    const void* code = nullptr;
    uint64_t bytes = 0;
    BENCH_CALL(wcuda_program_code_get(compiled, &code, &bytes, error));
    const Status status = launches(compiled, code);
    wcuda_program_destroy(compiled);
    WCUDA_TRY(status);
    WCUDA_TRY(compiles());
    return disk_hits();
  }

  Status launches(wcuda_program compiled, const void* code) {
    constexpr int32_t n = 1024;
    wcuda_module module{0};
    wcuda_kernel kernel{0};
    BENCH_CALL(wcuda_module_load_program(context_, compiled, &module, error));
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = {"vector_add", 10};
    options.module = module;
    BENCH_CALL(wcuda_kernel_create(context_, &options, &kernel, error));
    wcuda_buffer buffers[3];
    void* addresses[3];
    for (int i = 0; i < 3; ++i) {
      WCUDA_ASSIGN(buffers[i], buffer(4 * n));
      WCUDA_ASSIGN(addresses[i], address(buffers[i]));
    }
    const uint32_t patterns[] = {0x3f800000, 0x40000000};  // 1 and 2
    for (int i = 0; i < 2; ++i)
      BENCH_CALL(wcuda_buffer_fill(buffers[i], 0, 4 * n, patterns[i], 4, error));
    const wcuda_argument arguments[] = {buffer_argument(buffers[0]), buffer_argument(buffers[1]),
                                        buffer_argument(buffers[2]),
                                        value_argument(WCUDA_ARG_I32, &n)};
    wcuda_stream stream{0};
    BENCH_CALL(wcuda_stream_create(context_, 0, &stream, error));
    wcuda_launch shape = WCUDA_LAUNCH_INIT;
    shape.grid[0] = n / 256;
    shape.stream = stream;
    const Run ours = [&]() -> Status {
      BENCH_CALL(wcuda_kernel_launch(kernel, &shape, arguments, 4, error));
      return {};
    };
    WCUDA_TRY(ours());
    WCUDA_TRY(synchronize(context_));
    std::vector<float> sums(n);
    BENCH_CALL(wcuda_buffer_read(buffers[2], 0, sums.data(), 4 * n, error));
    if (sums != std::vector<float>(n, 3.0f)) return Status::error(WCUDA_INTERNAL, "1 + 2 is not 3");

    cudaLibrary_t library = nullptr;
    cudaKernel_t raw_kernel = nullptr;
    BENCH_CUDA(cudaLibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0));
    BENCH_CUDA(cudaLibraryGetKernel(&raw_kernel, library, "vector_add"));
    int32_t count = n;
    void* values[] = {&addresses[0], &addresses[1], &addresses[2], &count};
    const Run raw = [&]() -> Status {
      BENCH_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(raw_kernel), dim3(n / 256),
                                  dim3(256), values, 0, stream_));
      return {};
    };
    const auto many = [](const Run& one, const Run& wait) -> Run {
      return [&one, wait]() -> Status {
        for (int i = 0; i < kLaunches; ++i) WCUDA_TRY(one());
        return wait();
      };
    };
    const Run wait = [&]() -> Status {
      BENCH_CALL(wcuda_stream_synchronize(stream, error));
      return {};
    };
    const Run raw_wait = [&] { return synchronize_raw(); };
    WCUDA_ASSIGN(const Pair chain, in_turns(kSamples, many(raw, raw_wait), many(ours, wait)));
    print_time("launch, 4 arguments", chain, kLaunches, "1.3x");
    WCUDA_ASSIGN(const Pair single, in_turns(
                                        10 * kSamples,
                                        [&]() -> Status {
                                          WCUDA_TRY(raw());
                                          return raw_wait();
                                        },
                                        [&]() -> Status {
                                          WCUDA_TRY(ours());
                                          return wait();
                                        }));
    print_time("launch and wait", single, 1, "1.3x");
    wcuda_stream_destroy(stream);
    wcuda_kernel_destroy(kernel);
    wcuda_module_unload(module);
    BENCH_CUDA(cudaLibraryUnload(library));
    drop_buffers();
    return {};
  }

  Status compiles() {
    const std::string path =
        nvrtc_folder_.empty() ? kNvrtcLibrary : nvrtc_folder_ + "/" + kNvrtcLibrary;
    WCUDA_ASSIGN(const DynamicLibrary library, DynamicLibrary::open(path.c_str()));
    nvrtc::Functions f{};
    WCUDA_TRY(library.find("nvrtcCreateProgram", &f.create));
    WCUDA_TRY(library.find("nvrtcCompileProgram", &f.compile));
    WCUDA_TRY(library.find("nvrtcDestroyProgram", &f.destroy));
    const Run raw = [&]() -> Status {
      void* made = nullptr;
      const char* const arch = "--gpu-architecture=sm_90a";
      int status = f.create(&made, kVectorAdd, "kernel.cu", 0, nullptr, nullptr);
      if (status == nvrtc::kSuccess) status = f.compile(made, 1, &arch);
      f.destroy(&made);
      if (status == nvrtc::kSuccess) return {};
      return Status::error(WCUDA_COMPILE_FAILED, "NVRTC answered %d", status);
    };
    const Run ours = [&]() -> Status {
      WCUDA_ASSIGN(const wcuda_program made, program({0}));
      wcuda_program_destroy(made);
      return {};
    };
    WCUDA_ASSIGN(const Pair pair, in_turns(kSamples, raw, ours));
    print_time("compile vector_add, warm", pair, 1, "9,000 us");
    return {};
  }

  Status disk_hits() {
    char folder[] = "/tmp/compute_bench_XXXXXX";
    if (!mkdtemp(folder)) return Status::error(WCUDA_IO, "no folder in /tmp");
    wcuda_kernel_cache cache{0};
    BENCH_CALL(wcuda_kernel_cache_open({folder, std::strlen(folder)}, 1 << 20, &cache, error));
    const Run ours = [&]() -> Status {
      WCUDA_ASSIGN(const wcuda_program made, program(cache));
      wcuda_program_destroy(made);
      return {};
    };
    const auto pair = in_turns(kSamples, nullptr, ours);
    wcuda_kernel_cache_stats stats = WCUDA_KERNEL_CACHE_STATS_INIT;
    BENCH_CALL(wcuda_kernel_cache_stats_get(cache, &stats, error));
    wcuda_kernel_cache_close(cache);
    const std::string remove = std::string("rm -r ") + folder;
    if (std::system(remove.c_str()) != 0) std::printf("%s stays\n", folder);
    WCUDA_TRY(pair.status());
    if (stats.hit_count != kSamples) return Status::error(WCUDA_INTERNAL, "the cache missed");
    print_time("compile vector_add, disk hit", *pair, 1, "1,000 us");
    return {};
  }

  // c = a b' of 4096 in powers of two, which is exact: both ways as cuBLASLt likes it best.
  Status products(int32_t type, int native_type, uint64_t element, double limit, const char* name) {
    constexpr uint64_t n = 4096;
    wcuda_buffer buffers[3];
    void* addresses[3];
    for (int i = 0; i < 3; ++i) {
      WCUDA_ASSIGN(buffers[i], buffer(element * n * n));
      WCUDA_ASSIGN(addresses[i], address(buffers[i]));
    }
    const uint64_t half = element == 4 ? 0x3f000000 : 0x3f00;  // 0.5; in c 1024 = 0x4480…
    for (int i = 0; i < 2; ++i)
      BENCH_CALL(wcuda_buffer_fill(buffers[i], 0, element * n * n, half, uint32_t(element), error));
    wcuda_gemm gemm = WCUDA_GEMM_INIT;
    gemm.type = type;
    gemm.flags = WCUDA_GEMM_TRANSPOSE_B;
    gemm.m = gemm.n = gemm.k = n;
    const wcuda_argument arguments[] = {buffer_argument(buffers[0]), buffer_argument(buffers[1]),
                                        buffer_argument(buffers[2])};
    const Run ours = [&]() -> Status {
      for (int i = 0; i < kChain; ++i)
        BENCH_CALL(wcuda_gemm_run(context_, &gemm, arguments, 3, {0}, error));
      return synchronize(context_);
    };
    WCUDA_TRY(ours());
    std::vector<uint8_t> found(element * n * n), expected(found.size());
    BENCH_CALL(wcuda_buffer_read(buffers[2], 0, found.data(), found.size(), error));
    const uint32_t thousand = element == 4 ? 0x44800000 : 0x4480;
    for (size_t i = 0; i < n * n; ++i) std::memcpy(&expected[element * i], &thousand, element);
    if (found != expected) return Status::error(WCUDA_INTERNAL, "the product is wrong");

    WCUDA_TRY(lt::functions().status());
    const lt::Functions& f = *lt::functions();
    void *handle = nullptr, *descriptor = nullptr, *layout = nullptr, *preference = nullptr;
    WCUDA_TRY(lt::checked(f.create(&handle), "create"));
    WCUDA_TRY(lt::checked(f.descriptor_create(&descriptor, lt::kCompute32, lt::kReal32), "create"));
    WCUDA_TRY(lt::checked(f.descriptor_set(descriptor, lt::kDescriptorTransposeA, &lt::kTransposed,
                                           sizeof(lt::kTransposed)),
                          "set"));
    WCUDA_TRY(lt::checked(f.layout_create(&layout, native_type, n, n, n), "create"));
    WCUDA_TRY(lt::checked(f.preference_create(&preference), "create"));
    const uint64_t workspace_bytes = 32 << 20;
    WCUDA_TRY(lt::checked(f.preference_set(preference, lt::kPreferenceWorkspaceBytes,
                                           &workspace_bytes, sizeof(workspace_bytes)),
                          "set"));
    lt::HeuristicResult result{};
    int count = 0;
    WCUDA_TRY(lt::checked(f.heuristic(handle, descriptor, layout, layout, layout, layout,
                                      preference, 1, &result, &count),
                          "heuristic"));
    WCUDA_ASSIGN(const wcuda_buffer workspace, buffer(workspace_bytes));
    WCUDA_ASSIGN(void* const scratch, address(workspace));
    const float one = 1, zero = 0;
    const Run raw = [&]() -> Status {
      for (int i = 0; i < kChain; ++i)
        WCUDA_TRY(lt::checked(f.matmul(handle, descriptor, &one, addresses[1], layout, addresses[0],
                                       layout, &zero, addresses[2], layout, addresses[2], layout,
                                       &result.algorithm, scratch, workspace_bytes, stream_),
                              "matmul"));
      return synchronize_raw();
    };
    WCUDA_ASSIGN(const Pair pair, in_turns(kSamples, raw, ours));
    print_rate(name, pair, 2e-12 * n * n * n * kChain, "TFLOP/s", 1e-12 * limit, "97 %");
    f.preference_destroy(preference);
    f.layout_destroy(layout);
    f.descriptor_destroy(descriptor);
    f.destroy(handle);
    drop_buffers();
    return {};
  }

  // The catalogue's product on the host and on the device.
  Status matmul() {
    constexpr uint64_t n = 1024;
    Pair times;
    for (const wcuda_context context : {host_, context_}) {
      wcuda_buffer buffers[3];
      for (wcuda_buffer& each : buffers) {
        WCUDA_ASSIGN(each, buffer(4 * n * n, context));
        BENCH_CALL(wcuda_buffer_fill(each, 0, 4 * n * n, 0x3f000000, 4, error));
      }
      std::vector<wcuda_argument> arguments = {
          buffer_argument(buffers[0]), buffer_argument(buffers[1]), buffer_argument(buffers[2])};
      for (int i = 0; i < 3; ++i) arguments.push_back(value_argument(WCUDA_ARG_U64, &n));
      const bool on_host = context.id == host_.id;
      const int chain = on_host ? 1 : kChain;
      const Run ours = [&]() -> Status {
        for (int i = 0; i < chain; ++i)
          BENCH_CALL(wcuda_catalogue_run(context, {"matrix_multiply", 15}, WCUDA_ARG_F32,
                                         arguments.data(), arguments.size(), {0}, error));
        return synchronize(context);
      };
      WCUDA_ASSIGN(const Pair pair, in_turns(kSamples, nullptr, ours));
      (on_host ? times.raw : times.ours) = pair.ours / chain;
      std::vector<float> found(n * n);
      BENCH_CALL(wcuda_buffer_read(buffers[2], 0, found.data(), 4 * n * n, error));
      if (found != std::vector<float>(n * n, 256.0f))
        return Status::error(WCUDA_INTERNAL, "the product is wrong");
      drop_buffers();
    }
    wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
    BENCH_CALL(wcuda_context_info_get(host_, &info, error));
    std::printf(
        "%-34s host %8.1f GFLOP/s on %u threads  device %8.1f  %5.1fx  "
        "(must 10x)  %5.1f %% of %.1f\n",
        "matmul 1024 f32", 2e-9 * n * n * n / times.raw, info.host_thread_count,
        2e-9 * n * n * n / times.ours, times.raw / times.ours,
        200.0 * n * n * n / times.ours / limits_.flop_f32, 1e-9 * limits_.flop_f32);
    return {};
  }

  // A kernel of each kind that the catalogue has, by the bytes that it moves.
  Status catalogue() {
    constexpr uint64_t rows = 8192, width = 32768, n = rows * width, seed = 5, offset = 0;
    constexpr uint64_t bytes = n * sizeof(float);
    constexpr float low = 0.0f, high = 1.0f;
    wcuda_buffer buffers[3];
    for (wcuda_buffer& each : buffers) {
      WCUDA_ASSIGN(each, buffer(bytes));
      BENCH_CALL(wcuda_buffer_fill(each, 0, bytes, 0x3f800000, 4, error));  // 1.0
    }
    const wcuda_argument x = buffer_argument(buffers[0]), y = buffer_argument(buffers[1]),
                         out = buffer_argument(buffers[2]),
                         count = value_argument(WCUDA_ARG_U64, &n);
    struct Row {
      const char* name;
      double moved;
      std::vector<wcuda_argument> arguments;
      float least, most;  // of each of its first outputs
    };
    const Row table[] = {
        {"vector_add", 3.0 * bytes, {x, y, out, count}, 2.0f, 2.0f},
        {"softmax",
         2.0 * bytes,
         {x, out, value_argument(WCUDA_ARG_U64, &rows), value_argument(WCUDA_ARG_U64, &width)},
         0.999f / width,
         1.001f / width},
        {"reduce_sum", 1.0 * bytes, {x, out, count}, 0.999999f * n, 1.000001f * n},
        {"uniform",
         1.0 * bytes,
         {out, value_argument(WCUDA_ARG_F32, &low), value_argument(WCUDA_ARG_F32, &high), count,
          value_argument(WCUDA_ARG_U64, &seed), value_argument(WCUDA_ARG_U64, &offset)},
         low,
         high},
    };
    for (const Row& row : table) {
      const Run ours = [&]() -> Status {
        BENCH_CALL(wcuda_catalogue_run(context_, {row.name, std::strlen(row.name)}, WCUDA_ARG_F32,
                                       row.arguments.data(), row.arguments.size(), {0}, error));
        return synchronize(context_);
      };
      WCUDA_ASSIGN(const Pair pair, in_turns(kLargeSamples, nullptr, ours));
      float first = 0;
      BENCH_CALL(wcuda_buffer_read(buffers[2], 0, &first, sizeof first, error));
      if (!(first >= row.least && first <= row.most))
        return Status::error(WCUDA_INTERNAL, "%s is wrong: %g", row.name, double(first));
      std::printf("%-34s %9.1f GB/s  %5.1f %% of %.1f\n",
                  (std::string(row.name) + ", f32, 1 GiB").c_str(), 1e-9 * row.moved / pair.ours,
                  100 * row.moved / pair.ours / limits_.read_bytes, 1e-9 * limits_.read_bytes);
    }
    drop_buffers();
    return {};
  }

  Status memory() {
    WCUDA_ASSIGN(const wcuda_buffer a, buffer(kLargeBytes));
    WCUDA_ASSIGN(const wcuda_buffer b, buffer(kLargeBytes));
    WCUDA_ASSIGN(void* const to, address(a));
    WCUDA_ASSIGN(void* const from, address(b));
    const Run fill = [&]() -> Status {
      BENCH_CALL(wcuda_buffer_fill(a, 0, kLargeBytes, 0x5a5a5a5a, 4, error));
      return {};
    };
    WCUDA_ASSIGN(const Pair fills, in_turns(
                                       kLargeSamples,
                                       [&]() -> Status {
                                         BENCH_CUDA(cudaMemsetAsync(to, 7, kLargeBytes, stream_));
                                         return synchronize_raw();
                                       },
                                       fill));
    print_rate("fill, 8 GiB", fills, 1e-12 * double(kLargeBytes), "TB/s",
               1e-12 * limits_.read_bytes, "95 %");
    WCUDA_ASSIGN(
        const Pair copies,
        in_turns(
            kLargeSamples,
            [&]() -> Status {
              BENCH_CUDA(cudaMemcpyAsync(from, to, kLargeBytes, cudaMemcpyDeviceToDevice, stream_));
              return synchronize_raw();
            },
            [&]() -> Status {
              BENCH_CALL(wcuda_buffer_copy(b, 0, a, 0, kLargeBytes, error));
              return {};
            }));
    print_rate("device copy, 8 GiB", copies, 2e-12 * double(kLargeBytes), "TB/s",
               1e-12 * limits_.read_bytes, "95 %");
    std::vector<uint8_t> tail(4096);
    BENCH_CALL(wcuda_buffer_read(b, kLargeBytes - 4096, tail.data(), 4096, error));
    if (tail != std::vector<uint8_t>(4096, 0x5a))
      return Status::error(WCUDA_INTERNAL, "the fill or the copy is wrong");

    wcuda_pinned pinned{0};
    void* host = nullptr;
    uint64_t bytes = 0;
    BENCH_CALL(wcuda_pinned_create(context_, kPinnedBytes, &pinned, error));
    BENCH_CALL(wcuda_pinned_data_get(pinned, &host, &bytes, error));
    for (const bool is_up : {true, false}) {
      WCUDA_ASSIGN(const Pair pair,
                   in_turns(
                       kLargeSamples,
                       [&]() -> Status {
                         BENCH_CUDA(cudaMemcpyAsync(is_up ? to : host, is_up ? host : to,
                                                    kPinnedBytes, cudaMemcpyDefault, stream_));
                         return synchronize_raw();
                       },
                       [&]() -> Status {
                         if (is_up)
                           BENCH_CALL(wcuda_buffer_write(a, 0, host, kPinnedBytes, error));
                         else
                           BENCH_CALL(wcuda_buffer_read(a, 0, host, kPinnedBytes, error));
                         return {};
                       }));
      print_rate(is_up ? "pinned copy in, 1 GiB" : "pinned copy out, 1 GiB", pair,
                 1e-9 * double(kPinnedBytes), "GB/s", 1e-9 * double(kPinnedBytes) / pair.raw,
                 "95 %");
    }
    wcuda_pinned_destroy(pinned);
    drop_buffers();
    return {};
  }

  const std::string nvrtc_folder_;
  wcuda_context context_{0};
  wcuda_context host_{0};
  cudaStream_t stream_ = nullptr;
  bench::DeviceLimits limits_;
  std::vector<wcuda_buffer> buffers_;
};

}  // namespace
}  // namespace wcuda

int main(int argc, char** argv) {
  const wcuda::Status status = wcuda::Bench(argc > 1 ? argv[1] : "").run();
  if (status.ok()) return 0;
  std::printf("%s\n", status.message());
  return status.code() == WCUDA_NO_DEVICE ? 77 : 1;
}
