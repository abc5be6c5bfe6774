// Section 23 of the header: sessions of ZCTL/1 over registries, on the host and (Gpu…) on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "api/zctl/kernels.h"
#include "support/allocation_failure.h"
#include "support/context.h"
#include "support/fault_context.h"
#include "support/zctl_guest.h"

namespace wcuda::testing {
namespace {

using api::is_built_with_cuda;

constexpr uint32_t kResponse = ZctlGuest::kResponse, kData = ZctlGuest::kData;
constexpr uint32_t kNoop = 1, kTensorAdd = 2, kVectorAdd = 3, kCopy = 4;

wcuda_string text(const char* value) { return {value, std::strlen(value)}; }

// A registry with the two legacy kernels, vector_add and copy.
class Registry {
 public:
  explicit Registry(wcuda_context context) {
    if (::testing::Test::IsSkipped()) return;
    EXPECT_EQ(wcuda_registry_create(context, &handle_, &error_), WCUDA_OK) << error_.message;
    for (const char* name : {"noop", "tensor_add", "vector_add", "copy"})
      EXPECT_EQ(wcuda_registry_add_builtin(handle_, text(name), WCUDA_ARG_F32, 0, nullptr, &error_),
                WCUDA_OK)
          << error_.message;
  }
  ~Registry() { wcuda_registry_destroy(handle_); }
  wcuda_registry handle() const { return handle_; }

 private:
  wcuda_registry handle_{0};
  wcuda_error error_{};
};

// Requests that are known by their bytes, and the responses of a registry with the two legacy
// kernels.
constexpr struct {
  const char *request, *response;
} kGoldens[] = {
    {"5a43544c 0100 0100 00000000 01000000 00000000 00000000 00000000 00000000",
     "5a43544c 0100 0100 00000000 01000000 00000000 33000000 00000000 00000000"
     "02000000 01000000 10000000 'cuda.kernel.list' 02000000 0f000000 'cuda.kernel.run'"},
    {"5a43544c 0100 0100 00000000 01000000 00000000 00000000 1307b523 00000000",
     "5a43544c 0100 0100 00000000 01000000 00000000 33000000 c2e9865d 00000000"
     "02000000 01000000 10000000 'cuda.kernel.list' 02000000 0f000000 'cuda.kernel.run'"},
    {"5a43544c 0100 0101 00000000 01000000 00000000 00000000 00000000 00000000",
     "5a43544c 0100 0101 00000000 01000000 00000000 3a000000 00000000 00000000"
     "02000000 01000000 04000000 'noop' 0000000000000000 00000000"
     "02000000 0a000000 'tensor_add' a100000000000000 00000000"},
    {"5a43544c 0100 0201 00000000 02000000 10000000 00000000 00000000 00000000"
     "01000000 00000000 00000000 00000000",
     "5a43544c 0100 0201 00000000 02000000 00000000 0c000000 00000000 00000000"
     "01000000 00000000 00000000"},
    {"5a43544c 0100 0201 00000000 02000000 10000000 00000000 77b31a1d 00000000"
     "01000000 00000000 00000000 00000000",
     "5a43544c 0100 0201 00000000 02000000 00000000 0c000000 b2e362de 00000000"
     "01000000 00000000 00000000"},
    {"5a43544c 0100 0201 00000000 02000000 10000000 00000000 00000000 00000000"
     "09000000 00000000 00000000 00000000",
     "5a43544c 0100 0201 00000000 02000000 00000000 1f000000 00000000 00000000"
     "00000000 07000000 13000000 'kernel id not found'"},
    // Of the benchmark: tensor_add by the sizes of its tensors.
    {"5a43544c 0100 0201 00000000 00000000 50000000 00000000 00000000 00000000"
     "02000000 04000000 00000000 00000000 02000000 10000000 00000000 00000000"
     "02000000 10000000 00000000 00000000 02000000 10000000 00000000 00000000"
     "02000000 10000000 00000000 00000000",
     "5a43544c 0100 0201 00000000 00000000 00000000 0c000000 00000000 00000000"
     "01000000 00000000 00000000"},
    {"5a43544c 0100 7777 00000000 09000000 00000000 00000000 00000000 00000000",
     "5a43544c 0100 7777 00000000 09000000 02000000 00000000 00000000 00000000"},
};

class Base {
 protected:
  explicit Base(int32_t backend) : context_(0, backend), registry_(context_.handle()) {}

  void answers_golden_frames() {
    ZctlGuest guest(legacy_registry());
    for (const auto& [request, response] : kGoldens)
      EXPECT_EQ(guest.answer(bytes_of(request)), bytes_of(response)) << request;
  }

  void adds_tensors() {
    ZctlGuest guest(registry_.handle());
    const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {10, 20, 30, 40, 50, 60};
    guest.write(kData, a);
    guest.write(kData + 100, b);
    const ZctlAnswer answer =
        guest.run(kVectorAdd, {guest.tensor(kData + 1001, kData, 24, {6}),
                               guest.tensor(kData + 2000, kData + 100, 24, {2, 3}),
                               guest.tensor(kData + 3000, kData + 201, 24, {6}, {1}),
                               {1, 6, 0, 0}});
    EXPECT_EQ(answer.ok, 1u) << answer.message;
    EXPECT_EQ(guest.read<float>(kData + 201, 6), (std::vector<float>{11, 22, 33, 44, 55, 66}));
  }

  // Transposed in, every second column out.
  void follows_strides() {
    ZctlGuest guest(registry_.handle());
    std::vector<float> in(12), out(24, -1.0f);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
    guest.write(kData, in);
    guest.write(kData + 1000, out);
    const ZctlAnswer answer =
        guest.run(kCopy, {guest.tensor(kData + 2000, kData, 48, {3, 4}, {1, 3}),
                          guest.tensor(kData + 3000, kData + 1000, 96, {3, 4}, {8, 2}),
                          {2, 12, 0, 0}});
    EXPECT_EQ(answer.ok, 1u) << answer.message;
    for (size_t row = 0; row < 3; ++row)
      for (size_t column = 0; column < 4; ++column)
        out[row * 8 + column * 2] = in[row + column * 3];
    EXPECT_EQ(guest.read<float>(kData + 1000, 24), out);
  }

  void runs_equal_requests_equally() {
    ZctlGuest guest(registry_.handle());
    std::vector<float> a(1024);
    for (size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i));
    guest.write(kData, a);
    const auto frame = zctl_run(
        kVectorAdd,
        {{10, kData, 4096, 0}, {10, kData, 4096, 0}, {10, kData + 8192, 4096, 0}, {4, 1024, 0, 0}});
    const auto first = guest.answer(frame);
    const auto sums = guest.read<uint8_t>(kData + 8192, 4096);
    EXPECT_EQ(read_answer(static_cast<int32_t>(first.size()), first).ok, 1u);
    EXPECT_EQ(guest.answer(frame), first);
    EXPECT_EQ(guest.read<uint8_t>(kData + 8192, 4096), sums);
  }

  // One with noop and tensor_add alone.
  wcuda_registry legacy_registry() {
    for (const uint32_t id : {kVectorAdd, kCopy})
      EXPECT_EQ(wcuda_registry_remove(registry_.handle(), id, nullptr), WCUDA_OK);
    return registry_.handle();
  }

  TestContext context_;
  Registry registry_;
};

class ZctlSession : public Base, public ::testing::Test {
 protected:
  ZctlSession() : Base(WCUDA_BACKEND_HOST) {}

  // Registers a host kernel; its parameters' names are p0, p1, …
  uint32_t add_kernel(const char* name, std::vector<wcuda_parameter> parameters,
                      wcuda_host_kernel host, uint32_t budget_ms = 0, uint32_t flags = 0) {
    std::vector<std::string> names;
    for (size_t i = 0; i < parameters.size(); ++i) names.push_back("p" + std::to_string(i));
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].name = {names[i].data(), names[i].size()};
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = text(name);
    options.host = host;
    wcuda_kernel kernel{0};
    wcuda_error error{};
    if (host) {
      EXPECT_EQ(wcuda_kernel_create(context_.handle(), &options, &kernel, &error), WCUDA_OK)
          << error.message;
    }
    wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
    descriptor.name = text(name);
    descriptor.kernel = kernel;
    descriptor.parameters = parameters.data();
    descriptor.parameter_count = parameters.size();
    descriptor.budget_ms = budget_ms;
    descriptor.flags = flags;
    uint32_t id = 0;
    EXPECT_EQ(wcuda_registry_add(registry_.handle(), &descriptor, &id, &error), WCUDA_OK)
        << error.message;
    wcuda_kernel_destroy(kernel);
    return id;
  }
  static wcuda_parameter scalar(int32_t kind, const char* min = "", const char* max = "") {
    wcuda_parameter parameter = WCUDA_PARAMETER_INIT;
    parameter.kind = kind;
    parameter.min = text(min);
    parameter.max = text(max);
    return parameter;
  }
  static wcuda_parameter buffer(int32_t dtype, uint32_t access, const char* shape,
                                uint32_t layout_id = 0) {
    wcuda_parameter parameter = WCUDA_PARAMETER_INIT;
    parameter.kind = WCUDA_ARG_BUFFER;
    parameter.dtype = dtype;
    parameter.access = access;
    parameter.shape = text(shape);
    parameter.layout_id = layout_id;
    return parameter;
  }
};

class GpuZctlSession : public Base, public ::testing::Test {
 protected:
  GpuZctlSession() : Base(WCUDA_BACKEND_CUDA) {}
};

int32_t do_nothing(void*, const wcuda_launch*, const wcuda_host_argument*, uint64_t) { return 0; }

TEST_F(ZctlSession, answers_golden_frames) { answers_golden_frames(); }
TEST_F(GpuZctlSession, answers_golden_frames) { answers_golden_frames(); }
TEST_F(ZctlSession, adds_tensors_of_any_alignment) { adds_tensors(); }
TEST_F(GpuZctlSession, adds_tensors_of_any_alignment) { adds_tensors(); }
TEST_F(ZctlSession, gathers_and_scatters_by_strides) { follows_strides(); }
TEST_F(GpuZctlSession, gathers_and_scatters_by_strides) { follows_strides(); }
TEST_F(ZctlSession, same_request_twice_gives_equal_response) { runs_equal_requests_equally(); }
TEST_F(GpuZctlSession, same_request_twice_gives_equal_response) { runs_equal_requests_equally(); }

TEST_F(ZctlSession, every_prefix_of_a_golden_is_no_frame_or_malformed) {
  ZctlGuest guest(registry_.handle());
  for (const auto& each : kGoldens) {
    const auto golden = bytes_of(each.request);
    for (size_t bytes = 0; bytes < golden.size(); ++bytes) {
      // Exactly sized: a sanitizer sees a byte too many.
      std::vector<uint8_t> request(golden.begin(), golden.begin() + bytes), response(64);
      std::vector<uint8_t> memory(request);
      const auto size = static_cast<int32_t>(bytes);
      EXPECT_EQ(wcuda_zctl_call(guest.session(), memory.data(), memory.size(), 0, size, 0, size, 0),
                bytes < 32 ? -1 : 32)
          << bytes;
      const int32_t served = wcuda_zctl_serve(guest.session(), nullptr, 0, request.data(), bytes,
                                              response.data(), response.size());
      EXPECT_EQ(served, bytes < 32 ? -1 : 32) << bytes;
      EXPECT_EQ(bytes < 32 || u32_at(response, 16) == 1, true) << bytes;
    }
  }
}

TEST_F(ZctlSession, changed_bytes_change_nothing_outside_the_response) {
  constexpr int32_t kCapacity = 256;
  ZctlGuest guest(registry_.handle());
  for (const auto& golden : kGoldens) {
    const auto frame = bytes_of(golden.request);
    const auto size = static_cast<int32_t>(frame.size());
    for (size_t at = 0; at < frame.size(); ++at)
      for (const int change : {1, 0x80, 0xff}) {
        auto changed = frame;
        changed[at] ^= static_cast<uint8_t>(change);
        // Exactly sized, the response behind the frame.
        auto memory = changed;
        memory.resize(frame.size() + kCapacity, 0xcc);
        const int32_t ret = wcuda_zctl_call(guest.session(), memory.data(), memory.size(), 0, size,
                                            size, kCapacity, 0);
        // Magic, version and nothing else make it no frame.
        EXPECT_EQ(ret == -1, at < 6) << at;
        EXPECT_TRUE(std::equal(changed.begin(), changed.end(), memory.begin()));
        EXPECT_TRUE(std::all_of(memory.begin() + size + std::max(ret, 0), memory.end(),
                                [](uint8_t byte) { return byte == 0xcc; }));
      }
  }
}

TEST_F(ZctlSession, response_is_written_whole_or_not_at_all) {
  ZctlGuest guest(registry_.handle());
  for (const uint16_t op : {0x0001, 0x0101, 0x0102, 0x7777}) {
    const auto frame = op == 0x0102 ? zctl_run(kNoop, {}) : zctl_frame(op, {});
    const auto full = static_cast<int32_t>(guest.answer(frame).size());
    for (int32_t capacity = 0; capacity <= full; ++capacity) {
      std::fill(guest.memory.begin(), guest.memory.end(), uint8_t{0xcc});
      EXPECT_EQ(guest.call(frame, capacity), capacity < full ? -1 : full) << op << " " << capacity;
      const bool is_written = guest.memory[kResponse] != 0xcc;
      EXPECT_EQ(is_written, capacity == full) << op << " " << capacity;
    }
  }
}

TEST_F(ZctlSession, messages_are_cut_to_the_window_and_the_limit) {
  ZctlGuest guest(registry_.handle());
  const auto unknown = zctl_run(9, {});
  for (int32_t capacity = 44; capacity <= 44 + 19; ++capacity) {
    EXPECT_EQ(guest.call(unknown, capacity), capacity);
    EXPECT_EQ(std::memcmp(guest.memory.data() + kResponse + 44, "kernel id not found",
                          static_cast<size_t>(capacity - 44)),
              0);
  }
  wcuda_zctl_options options = ZctlGuest::options_for(registry_.handle());
  options.message_bytes_max = 6;
  ZctlGuest terse(options);
  EXPECT_EQ(terse.run(unknown).message, "kernel");
  options = WCUDA_ZCTL_OPTIONS_INIT;
  options.reason = text("Grafikkarte f\xc3\xa4llt aus");
  options.message_bytes_max = 14;
  ZctlGuest between(options);
  EXPECT_EQ(between.run(kNoop, {}).message, "Grafikkarte f");
}

TEST_F(ZctlSession, windows_at_both_ends_overlapping_and_huge) {
  ZctlGuest guest(registry_.handle(), 256);
  const auto frame = zctl_frame(1, {});
  const auto call = [&](int32_t req_ptr, int32_t req_len, int32_t resp_ptr, int32_t resp_cap) {
    guest.memory.assign(256, 0);
    if (req_ptr >= 0 && req_ptr <= 256 - 32)
      std::copy(frame.begin(), frame.end(), guest.memory.begin() + req_ptr);
    return wcuda_zctl_call(guest.session(), guest.memory.data(), guest.memory.size(), req_ptr,
                           req_len, resp_ptr, resp_cap, 0);
  };
  EXPECT_EQ(call(0, 32, 256 - 83, 83), 83);
  EXPECT_EQ(call(256 - 32, 32, 0, 83), 83);
  EXPECT_EQ(call(0, 32, 0, 256), 83);    // the same bytes
  EXPECT_EQ(call(10, 32, 20, 200), 83);  // partly
  EXPECT_EQ(guest.memory[20], 0x5a);
  for (const int32_t wrong : {-1, INT32_MIN, INT32_MAX, 257}) {
    EXPECT_EQ(call(wrong, 32, 64, 100), -1) << wrong;
    EXPECT_EQ(call(0, wrong, 64, 100), -1) << wrong;
    EXPECT_EQ(call(0, 32, wrong, 100), -1) << wrong;
    EXPECT_EQ(call(0, 32, 64, wrong), -1) << wrong;
  }
  EXPECT_EQ(call(0, 32, 256 - 82, 83), -1);
  EXPECT_EQ(call(256 - 31, 32, 0, 83), -1);
  EXPECT_EQ(wcuda_zctl_call(guest.session(), nullptr, 256, 0, 32, 64, 100, 0), -1);
  EXPECT_EQ(wcuda_zctl_call({1}, guest.memory.data(), 256, 0, 32, 64, 100, 0), -1);
}

TEST_F(ZctlSession, kernel_list_filters_and_checks_its_payload) {
  add_kernel("drawn", {}, do_nothing, 0, WCUDA_KERNEL_NON_DETERMINISTIC);
  add_kernel("absent", {}, nullptr);
  ZctlGuest guest(registry_.handle());
  const auto count = [&](const std::vector<uint8_t>& payload) {
    return u32_at(guest.answer(zctl_frame(0x0101, payload)), 32);
  };
  EXPECT_EQ(count({}), 6u);
  EXPECT_EQ(count({0, 0, 0, 0}), 6u);
  EXPECT_EQ(count({1, 0, 0, 0}), 5u);
  EXPECT_EQ(count({2, 0, 0, 0}), 5u);
  EXPECT_EQ(count({3, 0, 0, 0}), 4u);
  const auto status = [&](const std::vector<uint8_t>& payload) {
    const auto answer = guest.answer(zctl_frame(0x0101, payload));
    EXPECT_EQ(answer.size(), 32u);
    return u32_at(answer, 16);
  };
  EXPECT_EQ(status({4, 0, 0, 0}), 7u);
  EXPECT_EQ(status({0, 0, 0, 0x80}), 7u);
  EXPECT_EQ(status({0}), 1u);
  EXPECT_EQ(status({0, 0, 0, 0, 0}), 1u);
  EXPECT_EQ(guest.answer(zctl_frame(1, {9, 9, 9})).size(), 83u);  // CAPS_LIST does not look
}

TEST_F(ZctlSession, run_rows_answer_in_order) {
  const uint32_t drawn = add_kernel("drawn", {}, do_nothing, 0, WCUDA_KERNEL_NON_DETERMINISTIC);
  const uint32_t absent = add_kernel("absent", {}, nullptr);
  const uint32_t allowed[] = {drawn, kNoop, absent, kVectorAdd};
  wcuda_zctl_options options = ZctlGuest::options_for(registry_.handle());
  options.flags = WCUDA_ZCTL_ALLOW_LIST;
  options.allowed = allowed;
  options.allowed_count = 4;
  options.argument_count_max = 3;
  ZctlGuest guest(options);
  const auto expect = [&](const std::vector<uint8_t>& frame, uint32_t code, const char* message) {
    const ZctlAnswer answer = guest.run(frame);
    EXPECT_EQ(answer.status, 0u);
    EXPECT_EQ(answer.ok, 0u);
    EXPECT_EQ(answer.code, code);
    EXPECT_EQ(answer.message, message);
  };
  expect(zctl_frame(0x0102, std::vector<uint8_t>(15, 0xff)), 1, "payload too small");
  expect(zctl_frame(0x0102, std::vector<uint8_t>(16, 0xff)), 1, "reserved is not 0");
  const auto body = [](uint32_t id, uint32_t count) {
    std::vector<uint8_t> payload;
    for (const uint32_t field : {id, count, 0u, 0u}) put_u32(&payload, field);
    return zctl_frame(0x0102, payload);
  };
  expect(body(99, 4), 7, "4 args, at most 3");
  expect(body(99, 3), 1, "args truncated");
  expect(body(99, 0), 7, "kernel id not found");
  expect(body(kTensorAdd, 0), 3, "kernel is not allowed");
  expect(body(drawn, 0), 3, "kernel is not deterministic");
  const char* const without_code =
      is_built_with_cuda() ? "kernel 'absent': has no host function" : "CUDA runtime disabled";
  expect(body(absent, 0), 6, without_code);
  expect(body(kVectorAdd, 0), 7, "0 args, the kernel takes 4");
  options.flags |= WCUDA_ZCTL_NON_DETERMINISTIC;
  ZctlGuest permissive(options);
  EXPECT_EQ(permissive.run(body(drawn, 0)).ok, 1u);
  auto longer = zctl_run(kNoop, {});
  longer[16] += 3;
  longer.resize(longer.size() + 3, 0xee);
  EXPECT_EQ(guest.run(longer).ok, 1u);  // bytes beyond the arguments
}

TEST_F(ZctlSession, older_form_of_tensor_add_has_sizes_alone) {
  ZctlGuest guest(registry_.handle());
  const auto run = [&](std::vector<ZctlArgument> arguments) {
    const ZctlAnswer answer = guest.run(kTensorAdd, arguments);
    return answer.ok ? std::string("ok") : std::to_string(answer.code) + " " + answer.message;
  };
  const ZctlArgument n{2, 1000, 0, 0};
  EXPECT_EQ(run({n, n, n, n}), "ok");
  EXPECT_EQ(run({n, {2, 5000, 0, 0}, n, n}), "ok");
  EXPECT_EQ(run({{2, 0, 0, 0}, {2, 0, 0, 0}, {2, 0, 0, 0}, {2, 0, 0, 0}}), "ok");
  EXPECT_EQ(run({n, n, {2, 999, 0, 0}, n}), "7 arg 2: 999 elements, 1000 are needed");
  EXPECT_EQ(run({n, {2, 1000, 1, 0}, n, n}), "7 arg 1: a word that is not used is not 0");
  EXPECT_EQ(run({n, n, n, {1, 1000, 0, 0}}), "7 expected u32 size args");
  EXPECT_EQ(run({n, n, n, {12, 1000, 0, 0}}), "7 expected u32 size args");
  EXPECT_EQ(run({n, n, n, {11, 1000, 0, 0}}), "7 arg 0: kind 2, the parameter is buffer");
  const ZctlArgument most{2, UINT32_MAX, 0, 0};
  EXPECT_EQ(run({most, most, most, most}),
            "5 51539607540 bytes of device memory, at most 1073741824");
}

TEST_F(ZctlSession, rows_of_an_argument_answer_in_order) {
  const uint32_t kernel =
      add_kernel("rows",
                 {buffer(WCUDA_ARG_F32, WCUDA_ACCESS_READ | WCUDA_ACCESS_WRITE, "p1,p2", 7),
                  scalar(WCUDA_ARG_I32, "1", "p2 * 2"), scalar(WCUDA_ARG_U64)},
                 do_nothing);
  ZctlGuest guest(registry_.handle());
  const ZctlArgument rows{1, 2, 0, 0}, columns{2, 3, 0, 0};
  const auto answer = [&](const ZctlArgument& first, const ZctlArgument& second,
                          const ZctlArgument& third, uint32_t base = 0) {
    const ZctlAnswer got = guest.run(kernel, {first, second, third}, base);
    return got.ok ? std::string("ok") : std::to_string(got.code) + " " + got.message;
  };
  // Fields: dtype, rank, flags, data_off, data_len, shape_off, stride_off, reserved.
  const auto tensor = [&](std::vector<uint32_t> fields, std::vector<uint32_t> shape = {2, 3},
                          std::vector<uint32_t> strides = {}) {
    guest.write(kData, fields);
    guest.write(kData + 100, shape);
    guest.write(kData + 200, strides);
    return answer({11, kData, 32, 0}, rows, columns);
  };
  const uint32_t data = kData + 1000, shape = kData + 100, strides = kData + 200;
  EXPECT_EQ(tensor({1, 2, 0, data, 24, shape, 0, 0}), "ok");
  EXPECT_EQ(answer({13, kData, 31, 1}, rows, columns), "7 arg 0: kind 13, the parameter is buffer");
  EXPECT_EQ(answer({11, kData, 31, 1}, rows, columns), "7 arg 0: a word that is not used is not 0");
  EXPECT_EQ(answer({11, UINT32_MAX, 31, 0}, rows, columns),
            "7 arg 0: descriptor of 31 bytes, 32 are needed");
  EXPECT_EQ(answer({12, kData, 24, 0}, rows, columns),
            "7 arg 0: layout_id 0, the parameter's is 7");
  EXPECT_EQ(answer({12, UINT32_MAX, 24, 6}, rows, columns),
            "7 arg 0: layout_id 6, the parameter's is 7");
  EXPECT_EQ(answer({12, data, 24, 7}, rows, columns), "ok");
  EXPECT_EQ(answer({11, 65536 - 31, 32, 0}, rows, columns),
            "1 arg 0: the descriptor is outside the memory");
  EXPECT_EQ(answer({11, UINT32_MAX, 32, 0}, rows, columns, UINT32_MAX),
            "1 arg 0: the descriptor is outside the memory");
  EXPECT_EQ(answer({10, data, UINT32_MAX, 0}, rows, columns),
            "1 arg 0: the bytes are outside the memory");
  EXPECT_EQ(tensor({9, 9, 9, UINT32_MAX, 0, UINT32_MAX, UINT32_MAX, 9}),
            "7 arg 0: dtype 9, the parameter's is 1");
  EXPECT_EQ(tensor({0, 2, 0, data, 24, shape, 0, 0}), "7 arg 0: dtype 0, the parameter's is 1");
  EXPECT_EQ(tensor({1, 9, 9, UINT32_MAX, 0, UINT32_MAX, UINT32_MAX, 9}),
            "7 arg 0: rank 9, at most 8");
  EXPECT_EQ(tensor({1, 8, 7, UINT32_MAX, 0, UINT32_MAX, UINT32_MAX, 9}),
            "7 arg 0: flags 7, at most 3");
  EXPECT_EQ(tensor({1, 8, 1, UINT32_MAX, 0, UINT32_MAX, UINT32_MAX, 9}),
            "7 arg 0: flags 1, the kernel's access is 3");
  EXPECT_EQ(tensor({1, 8, 3, UINT32_MAX, 0, UINT32_MAX, UINT32_MAX, 9}),
            "7 arg 0: reserved is not 0");
  EXPECT_EQ(tensor({1, 2, 0, UINT32_MAX, 0, 65529, UINT32_MAX, 0}),
            "1 arg 0: the shape is outside the memory");
  EXPECT_EQ(tensor({1, 2, 0, UINT32_MAX, 0, shape, UINT32_MAX, 0}),
            "1 arg 0: the strides are outside the memory");
  EXPECT_EQ(tensor({1, 2, 0, 65536, 1, shape, strides, 0}),
            "1 arg 0: the data is outside the memory");
  EXPECT_EQ(tensor({1, 2, 0, data, 24, shape, strides, 0}, {2, 3}, {3, 0x80000000}),
            "7 arg 0: a stride is negative");
  EXPECT_EQ(tensor({1, 2, 0, data, 23, shape, 0, 0}),
            "7 arg 0: data_len is less than the tensor needs");
  EXPECT_EQ(tensor({1, 2, 0, data, 28, shape, strides, 0}, {2, 3}, {4, 1}), "ok");
  EXPECT_EQ(tensor({1, 2, 0, data, 27, shape, strides, 0}, {2, 3}, {4, 1}),
            "7 arg 0: data_len is less than the tensor needs");
  EXPECT_EQ(tensor({1, 2, 0, data, 400, shape, strides, 0}, {UINT32_MAX, UINT32_MAX},
                   {0x7fffffff, 0x7fffffff}),
            "7 arg 0: data_len is less than the tensor needs");
  EXPECT_EQ(tensor({1, 2, 0, data, 400, shape, strides, 0}, {2, 3}, {2, 1}),
            "7 arg 0: two elements share a place");
  EXPECT_EQ(tensor({1, 2, 0, data, 400, shape, strides, 0}, {2, 3}, {1, 2}), "ok");
  EXPECT_EQ(tensor({1, 2, 0, data, 400, shape, strides, 0}, {3, 2}, {2, 1}),
            "7 arg 0: the shape is not the parameter's");
  EXPECT_EQ(tensor({1, 1, 0, data, 400, shape, 0, 0}, {6}), "ok");
  EXPECT_EQ(tensor({1, 3, 0, data, 400, shape, 0, 0}, {1, 6, 1}), "ok");
  EXPECT_EQ(tensor({1, 0, 0, data, 400, UINT32_MAX, UINT32_MAX, 0}, {}),
            "7 arg 0: the shape is not the parameter's");
  EXPECT_EQ(answer({10, data, 23, 0}, rows, columns), "7 arg 0: 23 bytes, an element has 4");
  EXPECT_EQ(answer({10, data, 20, 0}, rows, columns), "7 arg 0: the shape is not the parameter's");
  // What an argument's own check refuses leaves the shape to it.
  EXPECT_EQ(answer({10, data, 20, 0}, {3, 0, 1, 0}, columns),
            "7 arg 1: the value does not fit i32");
  EXPECT_EQ(answer({10, data, 20, 0}, rows, {4, 0, 0x80000000, 0}),
            "7 arg 0: the parameter's shape has no value");
  EXPECT_EQ(answer({10, data, 0, 0}, {1, 0, 0, 0}, columns),
            "7 arg 1: the value is below the least");
  EXPECT_EQ(answer({10, data, 7 * 3 * 4, 0}, {1, 7, 0, 0}, columns),
            "7 arg 1: the value is above the greatest");
  EXPECT_EQ(answer({10, data, 24, 0}, rows, {1, 0xffffffff, 0, 0}),
            "7 arg 2: the value does not fit u64");
}

TEST_F(ZctlSession, written_windows_overlap_nothing) {
  ZctlGuest guest(registry_.handle());
  const auto answer = [&](uint32_t in, uint32_t out, uint32_t count = 4) {
    const auto a = guest.tensor(kData + 1000, in, 4 * count, {count}, {1});
    const auto b = guest.tensor(kData + 2000, out, 4 * count, {count}, {1});
    return guest.run(kCopy, {a, b, {1, count, 0, 0}}).message;
  };
  EXPECT_EQ(answer(kData, kData + 16), "");
  EXPECT_EQ(answer(kData + 16, kData), "");
  EXPECT_EQ(answer(kData, kData + 15), "arg 1: overlaps arg 0");
  EXPECT_EQ(answer(kData, kData, 0), "");
  EXPECT_EQ(answer(kData, kResponse + 4095), "arg 1: overlaps the response");
  EXPECT_EQ(answer(kData, kResponse + 4096), "arg 1: overlaps arg 0");
  EXPECT_EQ(answer(kData, kData + 1000 - 1), "arg 1: overlaps the descriptor of arg 0");
  EXPECT_EQ(answer(kData, kData + 1032), "arg 1: overlaps the shape of arg 0");
  EXPECT_EQ(answer(kData, kData + 1036), "arg 1: overlaps the strides of arg 0");
  EXPECT_EQ(answer(kData, kData + 2031), "arg 1: overlaps the descriptor of arg 1");
}

// Stores what it was given, so that a test sees every value.
std::vector<std::vector<uint8_t>> seen;
int32_t keep_values(void*, const wcuda_launch*, const wcuda_host_argument* arguments,
                    uint64_t count) {
  seen.clear();
  for (uint64_t i = 0; i < count; ++i) {
    const auto* const data = static_cast<const uint8_t*>(arguments[i].data);
    seen.emplace_back(data, data + arguments[i].bytes);
  }
  return 0;
}

TEST_F(ZctlSession, every_kind_goes_to_every_parameter_that_can_hold_it) {
  struct Row {
    int32_t kind;
    const char* name;
    std::vector<ZctlArgument> fit;
    std::vector<ZctlArgument> too_large;
  };
  const uint32_t kHigh = 0x80000000, kFull = 0xffffffff;
  const Row rows[] = {
      {WCUDA_ARG_I8,
       "i8",
       {{1, kFull - 127, 0, 0}, {2, 127, 0, 0}, {3, kFull, kFull, 0}, {4, 5, 0, 0}},
       {{1, kFull - 128, 0, 0}, {2, 128, 0, 0}, {3, 0, 1, 0}, {4, kFull, kFull, 0}}},
      {WCUDA_ARG_U8,
       "u8",
       {{1, 255, 0, 0}, {2, 255, 0, 0}, {3, 0, 0, 0}, {4, 255, 0, 0}},
       {{1, kFull, 0, 0}, {2, 256, 0, 0}, {3, kFull, kFull, 0}, {4, 0, 1, 0}}},
      {WCUDA_ARG_I16, "i16", {{1, kFull - 32767, 0, 0}, {2, 32767, 0, 0}}, {{2, 32768, 0, 0}}},
      {WCUDA_ARG_U16, "u16", {{1, 65535, 0, 0}}, {{1, kFull, 0, 0}, {2, 65536, 0, 0}}},
      {WCUDA_ARG_I32,
       "i32",
       {{1, kHigh, 0, 0}, {3, kHigh, kFull, 0}, {2, kHigh - 1, 0, 0}},
       {{2, kHigh, 0, 0}, {3, kHigh - 1, kFull, 0}}},
      {WCUDA_ARG_U32,
       "u32",
       {{2, kFull, 0, 0}, {3, kFull, 0, 0}},
       {{1, kFull, 0, 0}, {4, 0, 1, 0}}},
      {WCUDA_ARG_I64,
       "i64",
       {{1, kFull, 0, 0}, {2, kFull, 0, 0}, {3, 0, kHigh, 0}, {4, kFull, kHigh - 1, 0}},
       {{4, 0, kHigh, 0}}},
      {WCUDA_ARG_U64,
       "u64",
       {{4, kFull, kFull, 0}, {1, 7, 0, 0}},
       {{1, kFull, 0, 0}, {3, 0, kHigh, 0}}},
      {WCUDA_ARG_F16, "f16", {{2, 0x3c00, 0, 0}}, {{2, 0x10000, 0, 0}}},
      {WCUDA_ARG_BF16, "bf16", {{2, 0x3f80, 0, 0}}, {{2, kFull, 0, 0}}},
      {WCUDA_ARG_F32, "f32", {{2, 0x3f800000, 0, 0}, {5, 0x7fc00001, 0, 0}}, {}},
      {WCUDA_ARG_F64, "f64", {{4, 1, 0x3ff00000, 0}, {6, kFull, kFull, 0}}, {}},
  };
  ZctlGuest guest(registry_.handle());
  for (const Row& row : rows) {
    const uint32_t kernel = add_kernel(row.name, {scalar(row.kind)}, keep_values);
    for (const ZctlArgument& each : row.fit) {
      seen.clear();
      const ZctlAnswer answer = guest.run(kernel, {each});
      EXPECT_EQ(answer.ok, 1u) << row.name << ": " << answer.message;
      ASSERT_EQ(seen.size(), 1u) << row.name;
      const uint64_t wide = each.kind == 1
                                ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(each.a)})
                                : each.a | uint64_t{each.b} << 32;
      EXPECT_EQ(std::memcmp(seen[0].data(), &wide, seen[0].size()), 0) << row.name;
    }
    for (const ZctlArgument& each : row.too_large)
      EXPECT_EQ(guest.run(kernel, {each}).message,
                "arg 0: the value does not fit " + std::string(row.name))
          << each.kind;
    // All other kinds.
    for (uint32_t kind = 0; kind < 16; ++kind) {
      const auto takes = [&](const ZctlArgument& each) { return each.kind == kind; };
      const bool is_integer = row.kind <= WCUDA_ARG_U64;
      if (std::any_of(row.fit.begin(), row.fit.end(), takes) ||
          (is_integer && kind >= 1 && kind <= 4))
        continue;
      EXPECT_EQ(guest.run(kernel, {{kind, 0, 0, 0}}).message,
                "arg 0: kind " + std::to_string(kind) + ", the parameter is " + row.name);
    }
  }
}

TEST_F(ZctlSession, every_dtype_and_rank_arrives) {
  const int32_t types[] = {WCUDA_ARG_F32, WCUDA_ARG_F16, WCUDA_ARG_BF16, WCUDA_ARG_F64,
                           WCUDA_ARG_I8,  WCUDA_ARG_U8,  WCUDA_ARG_I16,  WCUDA_ARG_U16,
                           WCUDA_ARG_I32, WCUDA_ARG_U32, WCUDA_ARG_I64,  WCUDA_ARG_U64};
  const uint32_t sizes[] = {4, 2, 2, 8, 1, 1, 2, 2, 4, 4, 8, 8};
  ZctlGuest guest(registry_.handle());
  std::vector<uint8_t> data(2048);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7);
  guest.write(kData, data);
  for (uint32_t dtype = 1; dtype <= 12; ++dtype) {
    const uint32_t kernel = add_kernel(
        "any", {buffer(types[dtype - 1], WCUDA_ACCESS_READ, "p1"), scalar(WCUDA_ARG_I32)},
        keep_values);
    for (uint32_t rank = 0; rank <= 8; ++rank) {
      const std::vector<uint32_t> shape(rank, 2);
      const uint32_t count = 1u << rank, bytes = count * sizes[dtype - 1];
      seen.clear();
      const ZctlAnswer answer = guest.run(
          kernel, {guest.tensor(kData + 4000, kData, bytes, shape, {}, dtype), {1, count, 0, 0}});
      EXPECT_EQ(answer.ok, 1u) << answer.message;
      ASSERT_EQ(seen.size(), 2u);
      EXPECT_EQ(seen[0], std::vector<uint8_t>(data.begin(), data.begin() + bytes));
    }
  }
}

TEST_F(ZctlSession, offsets_count_from_hopper_base) {
  ZctlGuest guest(registry_.handle());
  guest.write<float>(kData + 500, {1, 2});
  const auto in = guest.tensor(kData + 1000, kData + 500, 8, {2});
  EXPECT_EQ(guest.run(kCopy, {in, {10, kData + 600, 8, 0}, {1, 2, 0, 0}}).ok, 1u);
  EXPECT_EQ(guest.read<float>(kData + 600, 2), (std::vector<float>{1, 2}));
  // The same with every offset 8,192 lower.
  guest.write<uint32_t>(kData + 1000, {1, 1, 0, 500, 8, 1032, 0, 0});
  EXPECT_EQ(guest.run(kCopy, {{11, 1000, 32, 0}, {10, 700, 8, 0}, {1, 2, 0, 0}}, kData).ok, 1u);
  EXPECT_EQ(guest.read<float>(kData + 700, 2), (std::vector<float>{1, 2}));
  EXPECT_EQ(
      guest.run(kCopy, {{11, 1000, 32, 0}, {10, 65536 - kData - 7, 8, 0}, {1, 2, 0, 0}}, kData)
          .message,
      "arg 1: the bytes are outside the memory");
}

TEST_F(ZctlSession, bytes_by_value_have_the_size_of_the_parameter) {
  wcuda_parameter by_value = WCUDA_PARAMETER_INIT;
  by_value.kind = WCUDA_ARG_BYTES;
  by_value.shape = text("12");
  by_value.layout_id = 3;
  const uint32_t kernel = add_kernel("by_value", {by_value, by_value}, keep_values);
  ZctlGuest guest(registry_.handle());
  guest.write<uint32_t>(kData, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(guest.run(kernel, {{10, kData, 12, 0}, {12, kData + 12, 12, 3}}).ok, 1u);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(u32_at(seen[0], 8), 3u);
  EXPECT_EQ(u32_at(seen[1], 0), 4u);
  EXPECT_EQ(guest.run(kernel, {{10, kData, 12, 0}, {10, kData, 13, 0}}).message,
            "arg 1: 13 bytes, the parameter has 12");
  EXPECT_EQ(guest.run(kernel, {{11, kData, 32, 0}, {10, kData, 13, 0}}).message,
            "arg 0: kind 11, the parameter is bytes");
}

TEST_F(ZctlSession, bounds_of_floats_refuse_what_is_not_between) {
  const uint32_t kernel = add_kernel("bounded", {scalar(WCUDA_ARG_F32, "0", "1.5")}, keep_values);
  ZctlGuest guest(registry_.handle());
  const auto message = [&](float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    return guest.run(kernel, {{5, bits, 0, 0}}).message;
  };
  EXPECT_EQ(message(0.0f), "");
  EXPECT_EQ(message(1.5f), "");
  EXPECT_EQ(message(-1e-30f), "arg 0: the value is below the least");
  EXPECT_EQ(message(1.75f), "arg 0: the value is above the greatest");
  EXPECT_EQ(message(NAN), "arg 0: the value is below the least");
}

TEST_F(ZctlSession, outputs_that_a_kernel_does_not_write_become_zero) {
  const uint32_t kernel =
      add_kernel("lazy", {buffer(WCUDA_ARG_U8, WCUDA_ACCESS_WRITE, "8")}, do_nothing);
  const uint32_t updates =
      add_kernel("lazy_update", {buffer(WCUDA_ARG_U8, WCUDA_ACCESS_READ | WCUDA_ACCESS_WRITE, "8")},
                 do_nothing);
  ZctlGuest guest(registry_.handle());
  guest.write(kData, std::vector<uint8_t>(8, 9));
  EXPECT_EQ(guest.run(updates, {{10, kData, 8, 0}}).ok, 1u);
  EXPECT_EQ(guest.read<uint8_t>(kData, 8), std::vector<uint8_t>(8, 9));
  EXPECT_EQ(guest.run(kernel, {{10, kData, 8, 0}}).ok, 1u);
  EXPECT_EQ(guest.read<uint8_t>(kData, 8), std::vector<uint8_t>(8, 0));
}

TEST_F(ZctlSession, a_run_past_its_budget_is_a_timeout_without_output) {
  const auto slow = [](void*, const wcuda_launch*, const wcuda_host_argument* arguments, uint64_t) {
    std::memset(arguments[0].data, 1, arguments[0].bytes);
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(20)) {
    }
    return int32_t{0};
  };
  const auto output = buffer(WCUDA_ARG_U8, WCUDA_ACCESS_WRITE, "8");
  const uint32_t kernel = add_kernel("slow", {output}, slow, 15);
  const uint32_t unlimited = add_kernel("unlimited", {output}, slow);
  wcuda_zctl_options options = ZctlGuest::options_for(registry_.handle());
  options.budget_ms = 10;
  ZctlGuest guest(registry_.handle()), hurried(options);
  const std::vector<ZctlArgument> arguments = {{10, kData, 8, 0}};
  const auto message = [&](ZctlGuest& on, uint32_t id, uint32_t frame_ms, int32_t call_ms) {
    on.write(kData, std::vector<uint8_t>(8, 9));
    const ZctlAnswer answer = on.run(zctl_run(id, arguments, 0, frame_ms), call_ms);
    EXPECT_EQ(on.read<uint8_t>(kData, 8), std::vector<uint8_t>(8, answer.ok ? 1 : 9));
    EXPECT_EQ(answer.status, answer.ok ? 0u : 4u);
    EXPECT_EQ(answer.code, answer.ok ? 0u : 4u);
    return answer.message;
  };
  EXPECT_EQ(message(guest, kernel, 0, 0), "budget of 15 ms is over");
  EXPECT_EQ(message(guest, kernel, 12, 0), "budget of 12 ms is over");
  EXPECT_EQ(message(guest, kernel, 12, 11), "budget of 11 ms is over");
  EXPECT_EQ(message(hurried, kernel, 12, 11), "budget of 10 ms is over");
  EXPECT_EQ(message(hurried, kernel, 0x80000000, -1), "budget of 10 ms is over");
  EXPECT_EQ(message(guest, kernel, 0xffffffff, 5), "budget of 5 ms is over");
  EXPECT_EQ(message(guest, unlimited, 0, 0), "");
  EXPECT_EQ(message(guest, unlimited, 0x80000000, -1), "");
}

int32_t answer_nothing(void*, const wcuda_launch*, const wcuda_host_argument*, uint64_t) {
  return 0;
}

TEST_F(ZctlSession, a_warm_run_of_up_to_8_arguments_allocates_nothing) {
  wcuda_error error{};
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  options.name = text("eight");
  options.host = answer_nothing;
  wcuda_kernel kernel{0};
  ASSERT_EQ(wcuda_kernel_create(context_.handle(), &options, &kernel, &error), WCUDA_OK)
      << error.message;
  std::vector<wcuda_parameter> parameters(8, wcuda_parameter WCUDA_PARAMETER_INIT);
  const char* const names[] = {"a", "b", "c", "d", "e", "f", "n", "m"};
  for (size_t i = 0; i < 8; ++i) {
    parameters[i].name = text(names[i]);
    parameters[i].kind = i < 6 ? WCUDA_ARG_BUFFER : WCUDA_ARG_I32;
    if (i >= 6) continue;
    parameters[i].dtype = WCUDA_ARG_F32;
    parameters[i].shape = text("n, m");
    parameters[i].access = i < 5 ? WCUDA_ACCESS_READ : WCUDA_ACCESS_WRITE;
  }
  wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
  descriptor.name = text("eight");
  descriptor.kernel = kernel;
  descriptor.parameters = parameters.data();
  descriptor.parameter_count = parameters.size();
  uint32_t id = 0;
  ASSERT_EQ(wcuda_registry_add(registry_.handle(), &descriptor, &id, &error), WCUDA_OK)
      << error.message;

  ZctlGuest guest(registry_.handle());
  const auto tensor = [&](uint32_t index) {
    return guest.tensor(kData + 100 * index, kData + 2000 + 24 * index, 24, {2, 3}, {3, 1});
  };
  std::vector<ZctlArgument> eight;
  for (uint32_t i = 0; i < 6; ++i) eight.push_back(tensor(i));
  eight.insert(eight.end(), {{1, 2, 0, 0}, {1, 3, 0, 0}});
  for (const auto& frame :
       {zctl_run(kNoop, {}), zctl_run(kTensorAdd, {tensor(0), tensor(1), tensor(2), {1, 6, 0, 0}}),
        zctl_run(id, eight)}) {
    EXPECT_EQ(guest.run(frame).message, "");
    const int64_t before = allocation_count();
    const int32_t ret = guest.call(frame);
    EXPECT_EQ(allocation_count(), before);
    EXPECT_EQ(ret, 44);
  }
  wcuda_kernel_destroy(kernel);
}

TEST_F(ZctlSession, without_a_registry_lists_answer_and_runs_give_the_reason) {
  wcuda_zctl_options options = WCUDA_ZCTL_OPTIONS_INIT;
  options.reason = text("no driver");
  ZctlGuest guest(options);
  const auto list = guest.answer(zctl_frame(0x0101, {}));
  EXPECT_EQ(std::vector<uint8_t>(list.begin() + 32, list.end()),
            bytes_of("02000000 01000000 04000000 'noop' 0000000000000000 02000000"
                     "02000000 0a000000 'tensor_add' a100000000000000 02000000"));
  const ZctlAnswer answer = guest.run(kNoop, {{1, 2, 3, 4}});
  EXPECT_EQ(answer.code, 6u);
  EXPECT_EQ(answer.message, "no driver");
  EXPECT_EQ(guest.run(3, {}).message, "kernel id not found");
  options.reason = {nullptr, 0};
  ZctlGuest silent(options);
  EXPECT_EQ(silent.run(kNoop, {}).message,
            is_built_with_cuda() ? "no device" : "CUDA runtime disabled");
}

TEST(ZctlNoSession, lists_no_capability_and_knows_no_other_op) {
  std::vector<uint8_t> memory(256);
  const auto answer = [&](const std::string& frame, int32_t capacity = 192) {
    const std::vector<uint8_t> bytes = bytes_of(frame);
    std::copy(bytes.begin(), bytes.end(), memory.begin());
    const auto length = static_cast<int32_t>(bytes.size());
    const int32_t ret = wcuda_zctl_call({0}, memory.data(), 256, 0, length, 64, capacity, 0);
    return std::vector<uint8_t>(memory.begin() + 64, memory.begin() + 64 + std::max(ret, 0));
  };
  const std::string zeros = " 00000000 00000000 00000000";

  EXPECT_EQ(answer("5a43544c 0100 0100 00000000 01000000 00000000" + zeros),
            bytes_of("5a43544c 0100 0100 00000000 01000000 00000000 04000000 00000000 00000000"
                     "00000000"));
  for (const char* op : {"0101", "0201", "0180", "7777"})
    EXPECT_EQ(answer(std::string("5a43544c 0100 ") + op + " 00000000 09000000 00000000" + zeros),
              bytes_of(std::string("5a43544c 0100 ") + op + " 00000000 09000000 02000000" + zeros));
  EXPECT_EQ(answer("5a43544c 0100 0100 01000000 01000000 00000000" + zeros)[16], 1);
  EXPECT_TRUE(answer("5a43544c 0100 0100 00000000 01000000 00000000" + zeros, 35).empty());
  EXPECT_TRUE(answer("5a43544d 0100 0100 00000000 01000000 00000000" + zeros).empty());

  EXPECT_EQ(answer("5a434c31 0100 0100 01000000" + zeros),
            bytes_of("5a434c31 0100 0100 01000000 00000000 08000000 01000000 00000000"));
  for (const char* op : {"0200", "0300", "ff00"})
    EXPECT_EQ(answer(std::string("5a434c31 0100 ") + op + " 01000000" + zeros),
              bytes_of(std::string("5a434c31 0100 ") + op +
                       " 01000000 00000000 31000000"
                       "00000000 10000000 't_ctl_unknown_op' 11000000 'unknown operation'"
                       "00000000"));
}

TEST_F(ZctlSession, a_connection_has_ops_of_its_own) {
  ZctlGuest guest(registry_.handle(), 64);
  std::vector<uint8_t> memory(64), response(32 + (1 << 20));
  const auto serve = [&](const std::vector<uint8_t>& frame) {
    const int32_t ret =
        wcuda_zctl_serve(guest.session(), memory.data(), memory.size(), frame.data(), frame.size(),
                         response.data(), response.size());
    return std::vector<uint8_t>(response.begin(), response.begin() + std::max(ret, 0));
  };
  const auto body = [&](const std::vector<uint8_t>& answer) {
    EXPECT_EQ(u32_at(answer, 16), 0u);
    return std::vector<uint8_t>(answer.begin() + 32, answer.end());
  };
  const auto status = [&](uint16_t op, const std::string& payload) {
    const auto answer = serve(zctl_frame(op, bytes_of(payload)));
    EXPECT_EQ(answer.size(), 32u);
    return u32_at(answer, 16);
  };
  EXPECT_EQ(body(serve(zctl_frame(1, {}))),
            bytes_of("03000000 01000000 10000000 'cuda.kernel.list' 02000000 0f000000"
                     "'cuda.kernel.run' 03000000 0c000000 'wcuda.remote'"));
  EXPECT_EQ(body(serve(zctl_frame(0x8001, bytes_of("3c00000000000000 'abcd'")))), bytes_of(""));
  EXPECT_EQ(memory[63], 'd');
  EXPECT_EQ(status(0x8001, "3d00000000000000 'abcd'"), 1u);
  EXPECT_EQ(status(0x8001, "ffffffffffffffff 'abcd'"), 1u);
  EXPECT_EQ(status(0x8001, "00000000000000"), 1u);
  EXPECT_EQ(body(serve(zctl_frame(0x8002, bytes_of("3d00000000000000 02000000 00000000")))),
            bytes_of("'bc'"));
  EXPECT_EQ(status(0x8002, "3d00000000000000 04000000 00000000"), 1u);
  EXPECT_EQ(status(0x8002, "0000000000000000 04000000 01000000"), 1u);
  EXPECT_EQ(status(0x8002, "0000000000000000 04000000"), 1u);
  EXPECT_EQ(body(serve(zctl_frame(0x8003, {}))),
            bytes_of("4000000000000000 00001000 40000000 0000004000000000 30750000 00000000"));
  EXPECT_EQ(status(0x8003, "00"), 1u);
  EXPECT_EQ(body(serve(zctl_frame(0x8011, bytes_of("04000000 10000000")))), bytes_of("ffffffff"));
  EXPECT_EQ(body(serve(zctl_frame(0x8012, bytes_of("04000000 'abc'")))), bytes_of("ffffffff"));
  EXPECT_EQ(body(serve(zctl_frame(0x8013, bytes_of("04000000")))), bytes_of(""));
  EXPECT_EQ(status(0x8011, "04000000"), 1u);
  EXPECT_EQ(status(0x8012, "040000"), 1u);
  EXPECT_EQ(status(0x8013, ""), 1u);
  const auto described = body(serve(zctl_frame(0x8021, bytes_of("02000000"))));
  EXPECT_EQ(std::vector<uint8_t>(described.begin(), described.begin() + 40),
            bytes_of("a100000000000000 00000000 00000000 04000000 01000000 'a' 01000000 'b'"
                     "01000000 'c' 01000000 'n'"));
  const std::string signature(described.begin() + 44, described.end());
  EXPECT_EQ(signature, "r f32[$3];r f32[$3];w f32[$3];i64;");
  EXPECT_EQ(u32_at(described, 40), signature.size());
  EXPECT_EQ(status(0x8021, "63000000"), 7u);
  EXPECT_EQ(status(0x8021, "6300000000"), 1u);
  EXPECT_EQ(status(0x8004, ""), 2u);
  // In process they do not exist.
  ZctlGuest in_process(registry_.handle());
  for (const uint16_t op : {0x8001, 0x8002, 0x8003, 0x8011, 0x8012, 0x8013, 0x8021})
    EXPECT_EQ(u32_at(in_process.answer(zctl_frame(op, {})), 16), 2u);
}

TEST_F(ZctlSession, an_answer_over_the_limit_of_a_connection_is_status_5) {
  wcuda_zctl_options options = ZctlGuest::options_for(registry_.handle());
  options.payload_bytes_max = 16;
  ZctlGuest guest(options);
  std::vector<uint8_t> memory(64), response(100);
  const auto status = [&](const std::vector<uint8_t>& frame) {
    const int32_t ret =
        wcuda_zctl_serve(guest.session(), memory.data(), memory.size(), frame.data(), frame.size(),
                         response.data(), response.size());
    EXPECT_EQ(ret, 32);
    return u32_at(response, 16);
  };
  EXPECT_EQ(status(zctl_frame(1, {})), 5u);
  EXPECT_EQ(status(zctl_frame(0x8002, bytes_of("0000000000000000 11000000 00000000"))), 5u);
  EXPECT_EQ(status(zctl_frame(1, std::vector<uint8_t>(17))), 1u);
  const auto run = zctl_run(9, {});
  EXPECT_EQ(wcuda_zctl_serve(guest.session(), memory.data(), memory.size(), run.data(), run.size(),
                             response.data(), response.size()),
            48);
  EXPECT_EQ(std::string(response.begin() + 44, response.begin() + 48), "kern");
}

struct Line {
  int32_t kind;
  uint64_t offset;
  std::vector<uint8_t> data;
  int32_t ret;
};
void record_line(void* user, const wcuda_zctl_record* record) {
  const auto* const data = static_cast<const uint8_t*>(record->data);
  static_cast<std::vector<Line>*>(user)->push_back(
      {record->kind, record->offset, {data, data + record->bytes}, record->ret});
}

TEST_F(ZctlSession, a_recorder_receives_what_was_read_and_written) {
  std::vector<Line> lines;
  {
    wcuda_zctl_options options = ZctlGuest::options_for(registry_.handle());
    options.recorder = record_line;
    options.recorder_user = &lines;
    ZctlGuest guest(options);
    guest.write<float>(kData, {1, 9, 2});
    const auto in = guest.tensor(kData + 100, kData, 12, {2}, {2});
    const auto frame = zctl_run(kVectorAdd, {in, in, {10, kData + 50, 8, 0}, {1, 2, 0, 0}});
    EXPECT_EQ(guest.run(frame).ok, 1u);
    ASSERT_EQ(lines.size(), 7u);
    EXPECT_EQ(lines[0].kind, WCUDA_ZCTL_REQUEST);
    EXPECT_EQ(lines[0].data, frame);
    const std::vector<std::pair<uint64_t, size_t>> read = {
        {kData, 12}, {kData + 100, 32}, {kData + 132, 4}, {kData + 136, 4}};
    for (size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(lines[1 + i].kind, WCUDA_ZCTL_READ);
      EXPECT_EQ(lines[1 + i].offset, read[i].first);
      EXPECT_EQ(lines[1 + i].data,
                guest.read<uint8_t>(static_cast<uint32_t>(read[i].first), read[i].second));
    }
    EXPECT_EQ(lines[5].kind, WCUDA_ZCTL_WRITTEN);
    EXPECT_EQ(lines[5].offset, kData + 50);
    EXPECT_EQ(lines[5].data, guest.read<uint8_t>(kData + 50, 8));
    EXPECT_EQ(lines[6].kind, WCUDA_ZCTL_RESPONSE);
    EXPECT_EQ(lines[6].ret, 44);
    EXPECT_EQ(lines[6].data.size(), 44u);
    lines.clear();
    EXPECT_EQ(wcuda_zctl_call(guest.session(), guest.memory.data(), 64, 60, 32, 0, 60, 0), -1);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0].data.size(), 0u);
    EXPECT_EQ(lines[1].ret, -1);
    lines.clear();
  }
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].kind, WCUDA_ZCTL_CLOSED);
}

TEST_F(ZctlSession, a_recorder_receives_overlapping_strided_inputs_whole) {
  std::vector<Line> lines;
  wcuda_zctl_options options = ZctlGuest::options_for(registry_.handle());
  options.recorder = record_line;
  options.recorder_user = &lines;
  ZctlGuest guest(options);
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8};
  guest.write(kData, values);
  // Elements 0 and 2 with 1 and 3; then 5 and 7, apart from them, with 0 and 2.
  for (const uint32_t first : {1u, 5u}) {
    const auto a = guest.tensor(kData + 200, kData + 4 * first, 12, {2}, {2});
    const auto b = guest.tensor(kData + 300, kData, 12, {2}, {2});
    lines.clear();
    EXPECT_EQ(guest.run(zctl_run(kVectorAdd, {a, b, {10, kData + 50, 8, 0}, {1, 2, 0, 0}})).ok, 1u);
    EXPECT_EQ(guest.read<float>(kData + 50, 2),
              (std::vector<float>{1 + values[first], 3 + values[first + 2]}));
    size_t inputs = 0;
    for (const Line& line : lines) {
      if (line.kind != WCUDA_ZCTL_READ || line.data.size() != 12) continue;
      EXPECT_EQ(line.offset, inputs == 0 ? kData : kData + 4 * first);
      EXPECT_EQ(line.data, guest.read<uint8_t>(static_cast<uint32_t>(line.offset), 12));
      ++inputs;
    }
    EXPECT_EQ(inputs, 2u);
  }
}

TEST_F(ZctlSession, eight_sessions_of_one_registry_run_on_eight_threads) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      ZctlGuest guest(registry_.handle());
      bool all = true;
      for (int round = 0; round < 50; ++round) {
        const std::vector<float> a(256, static_cast<float>(t)), b(256, static_cast<float>(round));
        guest.write(kData, a);
        guest.write(kData + 1024, b);
        all = all && guest.run(kVectorAdd, {{10, kData, 1024, 0},
                                            {10, kData + 1024, 1024, 0},
                                            {10, kData + 2048, 1024, 0},
                                            {1, 256, 0, 0}})
                             .ok == 1;
        all = all && guest.read<float>(kData + 2048, 256) ==
                         std::vector<float>(256, static_cast<float>(t + round));
      }
      right += all;
    });
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(right, 8);
}

TEST_F(ZctlSession, limits_are_checked_when_a_session_is_created) {
  wcuda_zctl_session session{0};
  wcuda_error error{};
  const auto create = [&](auto change) {
    wcuda_zctl_options options = ZctlGuest::options_for(registry_.handle());
    change(options);
    const wcuda_status status = wcuda_zctl_session_create(&options, &session, &error);
    if (status == WCUDA_OK) wcuda_zctl_session_destroy(session);
    return status;
  };
  using Options = wcuda_zctl_options;
  EXPECT_EQ(create([](Options&) {}), WCUDA_OK);
  EXPECT_EQ(create([](Options& o) { o.rank_max = 9; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "rank_max: 9, at most 8");
  EXPECT_EQ(create([](Options& o) { o.argument_count_max = 4097; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.payload_bytes_max = (1u << 30) + 1; }),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.flags = 8; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.allowed_count = 1; }), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(create([](Options& o) { o.registry.id = 12345; }), WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_zctl_session_create(nullptr, &session, &error), WCUDA_INVALID_ARGUMENT);
}

TEST(ZctlFaults, every_failing_call_is_answered_and_leaves_the_memory) {
  for (const auto kind :
       {CallKind::kAllocate, CallKind::kCopy, CallKind::kLaunch, CallKind::kWait}) {
    bool is_over = false;
    for (uint64_t k = 1; !is_over; ++k) {
      ASSERT_LT(k, 50u);
      FaultContext context;
      {
        Registry registry(context.handle());
        ZctlGuest guest(registry.handle());
        guest.write<float>(kData, {1, 2, 3, 4});
        const std::vector<ZctlArgument> arguments = {
            {10, kData, 16, 0}, {10, kData, 16, 0}, {10, kData + 100, 16, 0}, {1, 4, 0, 0}};
        context.faults().fail(kind, k);
        const auto before = guest.read<uint8_t>(kData, 200);
        const ZctlAnswer answer = guest.run(kVectorAdd, arguments);
        is_over = answer.ok == 1;
        if (!is_over) {
          EXPECT_EQ(answer.code, kind == CallKind::kAllocate ? 5u : 6u) << answer.message;
          EXPECT_EQ(guest.read<uint8_t>(kData, 200), before);
          context.faults().fail(kind, 0);
          EXPECT_EQ(guest.run(kVectorAdd, arguments).ok, 1u);  // the next one
        }
        EXPECT_EQ(guest.read<float>(kData + 100, 4), (std::vector<float>{2, 4, 6, 8}));
      }
      EXPECT_EQ(context.device_bytes(), 0u);
    }
  }
}

TEST(ZctlFaults, a_lost_device_answers_6_for_ever) {
  bool is_over = false;
  for (uint64_t k = 1; !is_over; ++k) {
    ASSERT_LT(k, 50u);
    FaultContext context;
    Registry registry(context.handle());
    ZctlGuest guest(registry.handle());
    guest.write<float>(kData, {1, 2, 3, 4});
    const std::vector<ZctlArgument> arguments = {
        {10, kData, 16, 0}, {10, kData, 16, 0}, {10, kData + 100, 16, 0}, {1, 4, 0, 0}};
    context.faults().lose_device(k);
    const auto before = guest.read<uint8_t>(kData, 200);
    const ZctlAnswer answer = guest.run(kVectorAdd, arguments);
    is_over = answer.ok == 1;
    if (is_over) continue;
    EXPECT_EQ(answer.code, 6u) << answer.message;
    EXPECT_EQ(guest.read<uint8_t>(kData, 200), before);
    for (int again = 0; again < 3; ++again) {
      const ZctlAnswer later = guest.run(kVectorAdd, arguments);
      EXPECT_EQ(later.code, 6u);
      EXPECT_FALSE(later.message.empty());
    }
    EXPECT_EQ(guest.answer(zctl_frame(0x0101, {})).size() > 90, true);  // lists answer
  }
}

}  // namespace
}  // namespace wcuda::testing
