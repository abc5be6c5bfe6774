// Latency of a ZCTL/1 session, in process and over a socket pair:
//
//   zctl_bench host|cuda [WORKER]
//
// `WORKER zctl serve --stdio` is the other end of the socket pair; without a worker those rows are
// left out. A line each: what, median of its warm runs, unit. Results are checked first.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "worker_cuda.h"

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;

constexpr int kRuns = 1000;
constexpr int kLargeRuns = 20;
constexpr int kWarmRuns = 20;
constexpr uint32_t kNoop = 1, kTensorAdd = 2;
constexpr uint32_t kSmall = 1024;       // elements of a tensor
constexpr uint32_t kLarge = 16u << 20;  // 64 MiB
constexpr uint32_t kListed = 1000;      // kernels
constexpr uint32_t kResponse = 4096;    // offsets in the guest's memory
constexpr uint32_t kDescriptors = 128 << 10;
constexpr uint32_t kData = 1 << 20;

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

// Median of the microseconds of a run, after some that do not count.
double median(int runs, const std::function<void()>& run) {
  for (int i = 0; i < std::min(runs, kWarmRuns); ++i) run();
  std::vector<double> us;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    run();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::nth_element(us.begin(), us.begin() + runs / 2, us.end());
  return us[static_cast<size_t>(runs / 2)];
}

void put(Bytes* bytes, uint32_t value) {
  for (int i = 0; i < 4; ++i) bytes->push_back(static_cast<uint8_t>(value >> (8 * i)));
}
uint32_t u32_at(const uint8_t* bytes) {
  uint32_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

Bytes frame(uint32_t op, const Bytes& payload) {
  Bytes result;
  for (const uint32_t word :
       {0x4c54435au, 1 | op << 16, 0u, 1u, static_cast<uint32_t>(payload.size()), 0u, 0u, 0u})
    put(&result, word);
  result.insert(result.end(), payload.begin(), payload.end());
  return result;
}

// tensor_add of three tensors, one after the other from kData on.
Bytes run_add(uint32_t count) {
  Bytes payload;
  for (const uint32_t word : {kTensorAdd, 4u, 0u, 0u}) put(&payload, word);
  for (uint32_t i = 0; i < 3; ++i)
    for (const uint32_t word : {11u, kDescriptors + 64 * i, 32u, 0u}) put(&payload, word);
  for (const uint32_t word : {2u, count, 0u, 0u}) put(&payload, word);
  return frame(0x0102, payload);
}
Bytes run_noop() {
  Bytes payload;
  for (const uint32_t word : {kNoop, 0u, 0u, 0u}) put(&payload, word);
  return frame(0x0102, payload);
}

// The descriptors with their shapes, as they lie in the memory from kDescriptors on.
Bytes descriptors(uint32_t count) {
  Bytes result;
  for (uint32_t i = 0; i < 3; ++i) {
    const uint32_t bytes = count * 4, shape = kDescriptors + 64 * i + 32;
    for (const uint32_t word : {1u, 1u, 0u, kData + i * bytes, bytes, shape, 0u, 0u, count})
      put(&result, word);
    result.resize(64 * (i + 1));
  }
  return result;
}
std::vector<float> inputs(uint32_t count) {
  std::vector<float> values(2 * size_t{count});
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000) * 0.5f;
  return values;
}
bool are_sums(const std::vector<float>& in, const float* out) {
  const size_t count = in.size() / 2;
  for (size_t i = 0; i < count; ++i)
    if (out[i] != in[i] + in[count + i]) return false;
  return true;
}

void print(const char* what, double value, const char* unit) {
  std::printf("%-44s %10.2f %s\n", what, value, unit);
  std::fflush(stdout);
}

class InProcess {
 public:
  explicit InProcess(int32_t backend)
      : backend_(backend), memory_(kData + 3 * sizeof(float) * kLarge) {
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = backend;
    options.host_thread_count = 1;
    check(wcuda_context_create(&options, &context_, &error_), error_);
    check(wcuda_registry_create(context_, &registry_, &error_), error_);
    for (const char* name : {"noop", "tensor_add"})
      check(wcuda_registry_add_builtin(registry_, {name, std::strlen(name)}, WCUDA_ARG_F32, 0,
                                       nullptr, &error_),
            error_);
    wcuda_zctl_options of_session = WCUDA_ZCTL_OPTIONS_INIT;
    of_session.registry = registry_;
    check(wcuda_zctl_session_create(&of_session, &session_, &error_), error_);
  }
  ~InProcess() {
    wcuda_buffer_destroy(device_);
    wcuda_pinned_destroy(pinned_);
    wcuda_zctl_session_destroy(session_);
    wcuda_registry_destroy(registry_);
    wcuda_context_destroy(context_);
  }
  InProcess(const InProcess&) = delete;
  InProcess& operator=(const InProcess&) = delete;

  void noop() {
    prepare(run_noop());
    print("noop in process", median(kRuns, [&] { run(); }), "us");
  }

  void add() {
    const auto in = fill(kSmall);
    prepare(run_add(kSmall));
    run();
    check(are_sums(in, outputs(kSmall)), "tensor_add");
    print("tensor_add of 1,024 f32 in process", median(kRuns, [&] { run(); }), "us");
  }

  // Compared with the copies that it contains, between the device and pinned memory.
  void add_large() {
    const auto in = fill(kLarge);
    prepare(run_add(kLarge));
    run();
    check(are_sums(in, outputs(kLarge)), "tensor_add of 64 MiB");
    const double us = median(kLargeRuns, [&] { run(); });
    const double bytes = 3.0 * sizeof(float) * kLarge;
    print("tensor_add of 64 MiB a tensor in process", bytes / us / 1e3, "GB/s");
    if (backend_ == WCUDA_BACKEND_HOST) return;
    const double copies = median(kLargeRuns, [&] { copy_large(); });
    print("its three copies alone, pinned", bytes / copies / 1e3, "GB/s");
    print("share of the copies' rate", 100 * copies / us, "%");
  }

  void list() {
    for (uint32_t i = 0; i < kListed - 2; ++i) {
      const std::string name = "kernel_" + std::to_string(i);
      wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
      descriptor.name = {name.data(), name.size()};
      check(wcuda_registry_add(registry_, &descriptor, nullptr, &error_), error_);
    }
    const Bytes request = frame(0x0101, {});
    std::memcpy(memory_.data(), request.data(), request.size());
    const auto answer = [&] {
      return wcuda_zctl_call(session_, memory_.data(), memory_.size(), 0,
                             static_cast<int32_t>(request.size()), kResponse,
                             kDescriptors - kResponse, 0);
    };
    check(answer() > 0 && u32_at(memory_.data() + kResponse + 32) == kListed, "KERNEL_LIST");
    print("KERNEL_LIST of 1,000 kernels in process", median(kRuns, [&] { (void)answer(); }), "us");
  }

 private:
  void prepare(const Bytes& request) {
    request_bytes_ = static_cast<int32_t>(request.size());
    std::memcpy(memory_.data(), request.data(), request.size());
  }
  void run() {
    const int32_t ret = wcuda_zctl_call(session_, memory_.data(), memory_.size(), 0, request_bytes_,
                                        kResponse, 1024, 0);
    check(ret == 44 && memory_[kResponse + 32] == 1, "a run");
  }
  std::vector<float> fill(uint32_t count) {
    const Bytes all = descriptors(count);
    std::memcpy(memory_.data() + kDescriptors, all.data(), all.size());
    const auto in = inputs(count);
    std::memcpy(memory_.data() + kData, in.data(), in.size() * sizeof(float));
    return in;
  }
  const float* outputs(uint32_t count) const {
    return reinterpret_cast<const float*>(memory_.data() + kData + 2 * sizeof(float) * count);
  }
  void copy_large() {
    const uint64_t bytes = sizeof(float) * uint64_t{kLarge};
    if (!pinned_data_) {
      check(wcuda_pinned_create(context_, 3 * bytes, &pinned_, &error_), error_);
      uint64_t all = 0;
      check(wcuda_pinned_data_get(pinned_, &pinned_data_, &all, &error_), error_);
      wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
      options.bytes = 3 * bytes;
      check(wcuda_buffer_create(context_, &options, &device_, &error_), error_);
    }
    check(wcuda_buffer_write(device_, 0, pinned_data_, 2 * bytes, &error_), error_);
    void* const target = static_cast<uint8_t*>(pinned_data_) + 2 * bytes;
    check(wcuda_buffer_read(device_, 2 * bytes, target, bytes, &error_), error_);
  }

  const int32_t backend_;
  wcuda_context context_{};
  wcuda_registry registry_{};
  wcuda_zctl_session session_{};
  wcuda_buffer device_{};
  wcuda_pinned pinned_{};
  void* pinned_data_ = nullptr;
  wcuda_error error_{};
  Bytes memory_;
  int32_t request_bytes_ = 0;
};

// A server in a process of its own, at the other end of a socket pair.
class OverSockets {
 public:
  OverSockets(const char* worker, bool on_host) {
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a socket pair");
    child_ = fork();
    check(child_ >= 0, "a process");
    if (child_ == 0) {
      dup2(ends[1], STDIN_FILENO);
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      execl(worker, worker, "zctl", "serve", "--stdio", "--backend", on_host ? "host" : "cuda",
            static_cast<char*>(nullptr));
      _exit(127);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~OverSockets() {
    close(socket_);
    waitpid(child_, nullptr, 0);
  }
  OverSockets(const OverSockets&) = delete;
  OverSockets& operator=(const OverSockets&) = delete;

  void noop() {
    const Bytes request = run_noop();
    print("noop over a socket pair", median(kRuns, [&] { run(request); }), "us");
  }
  void add() {
    const auto in = inputs(kSmall);
    write(kDescriptors, descriptors(kSmall));
    const auto* const bytes = reinterpret_cast<const uint8_t*>(in.data());
    write(kData, {bytes, bytes + in.size() * sizeof(float)});
    const Bytes request = run_add(kSmall);
    run(request);
    const uint32_t out_bytes = kSmall * sizeof(float);
    Bytes payload;
    for (const uint32_t word : {kData + 2 * out_bytes, 0u, out_bytes, 0u}) put(&payload, word);
    const Bytes out = answer(frame(0x8002, payload), 32 + out_bytes);
    std::vector<float> sums(kSmall);
    std::memcpy(sums.data(), out.data() + 32, out_bytes);
    check(are_sums(in, sums.data()), "tensor_add");
    print("tensor_add of 1,024 f32 over a socket pair", median(kRuns, [&] { run(request); }), "us");
  }

 private:
  Bytes answer(const Bytes& request, size_t bytes) {
    check(::write(socket_, request.data(), request.size()) == static_cast<ssize_t>(request.size()),
          "the connection");
    Bytes response(bytes);
    size_t have = 0;
    while (have < bytes) {
      const ssize_t got = ::read(socket_, response.data() + have, bytes - have);
      check(got > 0, "the connection");
      have += static_cast<size_t>(got);
    }
    return response;
  }
  void run(const Bytes& request) { check(answer(request, 44)[32] == 1, "a run"); }
  void write(uint64_t offset, const Bytes& bytes) {
    Bytes payload;
    put(&payload, static_cast<uint32_t>(offset));
    put(&payload, 0);
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    answer(frame(0x8001, payload), 32);
  }

  pid_t child_ = -1;
  int socket_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  const bool on_host = argc < 2 || std::strcmp(argv[1], "cuda") != 0;
  signal(SIGPIPE, SIG_IGN);
  if (argc > 2) {  // before this process has threads
    OverSockets sockets(argv[2], on_host);
    sockets.noop();
    sockets.add();
  }
  InProcess process(on_host ? WCUDA_BACKEND_HOST : WCUDA_BACKEND_CUDA);
  process.noop();
  process.add();
  process.add_large();
  process.list();
}
