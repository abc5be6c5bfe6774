// Section 18 of the header: modules, kernels and launches, as functions of the host and (Gpu…) as
// device code.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "compute/nvrtc/compiler.h"
#include "support/allocation_failure.h"
#include "support/arguments.h"
#include "support/context.h"
#include "support/device_gate.h"
#include "support/fault_context.h"
#include "support/nvrtc_library.h"

namespace wcuda::testing {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream result;
  result << file.rdbuf();
  return result.str();
}

const std::string& module_ptx() {
  static const std::string ptx = read_text(WCUDA_TEST_DATA "/kernels/module.ptx");
  return ptx;
}

wcuda_argument window(wcuda_buffer buffer, uint64_t offset = 0, uint64_t bytes = 0,
                      uint32_t access = 0) {
  wcuda_argument argument = WCUDA_ARGUMENT_INIT;
  argument.kind = WCUDA_ARG_BUFFER;
  argument.access = access;
  argument.buffer = buffer;
  argument.offset = offset;
  argument.bytes = bytes;
  return argument;
}

class KernelBase {
 protected:
  explicit KernelBase(int32_t backend) : context_(0, backend) {}

  wcuda_status create(const wcuda_kernel_options& options, wcuda_kernel* kernel) {
    return wcuda_kernel_create(context_.handle(), &options, kernel, &error_);
  }
  wcuda_status launch(wcuda_kernel kernel, const std::vector<wcuda_argument>& arguments) {
    return wcuda_kernel_launch(kernel, &launch_, arguments.data(), arguments.size(), &error_);
  }
  template <class T>
  std::vector<T> read(wcuda_buffer buffer, size_t count) {
    std::vector<T> data(count);
    EXPECT_EQ(wcuda_buffer_read(buffer, 0, data.data(), count * sizeof(T), &error_), WCUDA_OK)
        << error_.message;
    return data;
  }
  template <class T>
  void write(wcuda_buffer buffer, const std::vector<T>& data) {
    EXPECT_EQ(wcuda_buffer_write(buffer, 0, data.data(), data.size() * sizeof(T), &error_),
              WCUDA_OK)
        << error_.message;
  }

  TestContext context_;
  wcuda_launch launch_ = WCUDA_LAUNCH_INIT;
  wcuda_error error_{};
};

// ---- on the host ----

// c[i] = a[i] + b[i]; user: int32_t* that counts calls.
int32_t vector_add_on_host(void* user, const wcuda_launch* launch,
                           const wcuda_host_argument* arguments, uint64_t count) {
  ++*static_cast<int32_t*>(user);
  if (count != 4 || launch->struct_size != sizeof(wcuda_launch)) return 1;
  const auto* a = static_cast<const float*>(arguments[0].data);
  const auto* b = static_cast<const float*>(arguments[1].data);
  auto* c = static_cast<float*>(arguments[2].data);
  const int32_t n = *static_cast<const int32_t*>(arguments[3].data);
  for (int32_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
  return 0;
}

wcuda_parameter parameter(const char* name, int32_t kind, uint32_t access = 0) {
  wcuda_parameter result = WCUDA_PARAMETER_INIT;
  result.name = {name, std::char_traits<char>::length(name)};
  result.kind = kind;
  result.access = access;
  if (kind == WCUDA_ARG_BUFFER) {
    result.dtype = WCUDA_ARG_F32;
    result.shape = {"n", 1};
  }
  return result;
}

const wcuda_parameter kVectorAdd[] = {parameter("a", WCUDA_ARG_BUFFER, WCUDA_ACCESS_READ),
                                      parameter("b", WCUDA_ARG_BUFFER, WCUDA_ACCESS_READ),
                                      parameter("c", WCUDA_ARG_BUFFER, WCUDA_ACCESS_WRITE),
                                      parameter("n", WCUDA_ARG_I32)};

class Kernels : public KernelBase, public ::testing::Test {
 protected:
  Kernels() : KernelBase(WCUDA_BACKEND_HOST) {
    options_.name = text(name_);
    options_.has_signature = 1;
    options_.parameters = kVectorAdd;
    options_.parameter_count = 4;
    options_.host = vector_add_on_host;
    options_.host_user = &calls_;
  }
  ~Kernels() override { wcuda_kernel_destroy(kernel_); }
  void SetUp() override { ASSERT_EQ(create(options_, &kernel_), WCUDA_OK) << error_.message; }

  std::string name_ = "vector_add";
  int32_t calls_ = 0;
  wcuda_kernel_options options_ = WCUDA_KERNEL_OPTIONS_INIT;
  wcuda_kernel kernel_{0};
};

TEST_F(Kernels, a_function_of_the_host_computes) {
  constexpr int32_t kCount = 1024;
  const TestBuffer a(context_.handle(), 4 * kCount), b(context_.handle(), 4 * kCount),
      c(context_.handle(), 4 * kCount);
  write(a.handle(), std::vector<float>(kCount, 1.0f));
  write(b.handle(), std::vector<float>(kCount, 2.0f));
  launch_.grid[0] = 4;

  ASSERT_EQ(launch(kernel_, {window(a.handle(), 0, 0, WCUDA_ACCESS_READ), window(b.handle()),
                             window(c.handle()), scalar(WCUDA_ARG_I32, &kCount)}),
            WCUDA_OK)
      << error_.message;

  EXPECT_EQ(read<float>(c.handle(), kCount), std::vector<float>(kCount, 3.0f));
  EXPECT_EQ(calls_, 1);
  wcuda_kernel_info info = WCUDA_KERNEL_INFO_INIT;
  ASSERT_EQ(wcuda_kernel_info_get(kernel_, &info, nullptr), WCUDA_OK);
  EXPECT_EQ(info.has_host_function, 1);
  EXPECT_EQ(info.has_device_code, 0);
  EXPECT_EQ(info.parameter_count, 4u);
  EXPECT_STREQ(info.name, "vector_add");
  wcuda_occupancy occupancy = WCUDA_OCCUPANCY_INIT;
  EXPECT_EQ(wcuda_kernel_occupancy_get(kernel_, 32, 0, &occupancy, nullptr),
            WCUDA_UNSUPPORTED_KERNEL);
}

TEST_F(Kernels, wrong_launches_are_refused_before_anything_runs) {
  const TestBuffer buffer(context_.handle(), 64);
  const int32_t n = 4;
  const wcuda_argument data = window(buffer.handle()), count = scalar(WCUDA_ARG_I32, &n);
  const auto refused = [&](std::vector<wcuda_argument> arguments, wcuda_status status,
                           const char* message) {
    EXPECT_EQ(launch(kernel_, arguments), status) << message;
    EXPECT_STREQ(error_.message, message);
  };

  refused({data, data, data}, WCUDA_ARGUMENT_COUNT, "arguments: 3 given, the kernel takes 4");
  refused(std::vector<wcuda_argument>(40, count), WCUDA_ARGUMENT_COUNT,
          "arguments: 40 given, the kernel takes 4");
  refused({data, data, data, scalar(WCUDA_ARG_U32, &n)}, WCUDA_INVALID_ARGUMENT,
          "argument 3 ('n') is u32, the kernel takes i32");
  refused({data, data, window(buffer.handle(), 0, 0, WCUDA_ACCESS_READ), count},
          WCUDA_INVALID_ARGUMENT,
          "argument 2 ('c') is written by the kernel, only reading is granted");
  refused({data, window(buffer.handle(), 62), data, count}, WCUDA_INVALID_ARGUMENT,
          "argument 1 ('b') has 0 elements, the kernel needs 4");
  refused({data, window(buffer.handle(), 60, 8), data, count}, WCUDA_OUT_OF_RANGE,
          "argument 1: offset 60 and 8 bytes, the buffer has 64");
  refused({data, window(buffer.handle(), 65), data, count}, WCUDA_OUT_OF_RANGE,
          "argument 1: offset 65 and 0 bytes, the buffer has 64");
  refused({scalar(0, &n), data, data, count}, WCUDA_INVALID_ARGUMENT,
          "argument 0: kind is not one of WCUDA_ARG_…");
  refused({scalar(WCUDA_ARG_I32, nullptr), data, data, count}, WCUDA_INVALID_ARGUMENT,
          "argument 0: data is NULL");
  wcuda_argument wide = count;
  wide.bytes = 8;
  refused({wide, data, data, count}, WCUDA_INVALID_ARGUMENT,
          "argument 0: bytes is not the size of its kind");

  const TestContext other;
  const TestBuffer strange(other.handle(), 64);
  refused({data, data, window(strange.handle()), count}, WCUDA_INVALID_ARGUMENT,
          "argument 2: the buffer is of another context");
  wcuda_buffer gone{0};
  {
    const TestBuffer short_lived(context_.handle(), 64);
    gone = short_lived.handle();
  }
  EXPECT_EQ(launch(kernel_, {window(gone), data, data, count}), WCUDA_INVALID_HANDLE);
  EXPECT_NE(std::string(error_.message).find("argument 0: handle"), std::string::npos);

  launch_.grid[2] = 0;
  refused({data, data, data, count}, WCUDA_INVALID_CONFIG, "grid z: 0, at least 1");
  launch_ = WCUDA_LAUNCH_INIT;
  launch_.block[0] = 1025;
  refused({data, data, data, count}, WCUDA_INVALID_CONFIG, "block x: 1025, at most 1024");
  launch_ = WCUDA_LAUNCH_INIT;
  launch_.flags = 2;
  EXPECT_EQ(launch(kernel_, {data, data, data, count}), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(calls_, 0);
}

TEST_F(Kernels, windows_of_one_buffer_may_be_several_arguments) {
  const TestBuffer buffer(context_.handle(), 12);
  write(buffer.handle(), std::vector<float>{1, 2, 0});
  const int32_t n = 1;

  ASSERT_EQ(launch(kernel_, {window(buffer.handle(), 0, 4), window(buffer.handle(), 4, 4),
                             window(buffer.handle(), 8), scalar(WCUDA_ARG_I32, &n)}),
            WCUDA_OK)
      << error_.message;

  EXPECT_EQ(read<float>(buffer.handle(), 3), (std::vector<float>{1, 2, 3}));
}

TEST_F(Kernels, a_function_that_fails_or_calls_back_is_a_status) {
  const wcuda_context context = context_.handle();
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  options.name = text(name_);
  options.host = [](void* user, const wcuda_launch*, const wcuda_host_argument*, uint64_t) {
    return wcuda_context_synchronize(*static_cast<wcuda_context*>(user), nullptr);
  };
  wcuda_context copy = context;
  options.host_user = &copy;
  wcuda_kernel kernel{0};
  ASSERT_EQ(create(options, &kernel), WCUDA_OK) << error_.message;

  EXPECT_EQ(launch(kernel, {}), WCUDA_DEVICE_ERROR);
  EXPECT_EQ(error_.native_code, WCUDA_REENTRANT);
  EXPECT_STREQ(error_.message, "kernel 'vector_add': its host function returned 1006");
  wcuda_kernel_destroy(kernel);
  EXPECT_EQ(launch(kernel, {}), WCUDA_INVALID_HANDLE);
}

TEST_F(Kernels, what_a_callback_destroys_goes_when_the_call_returns) {
  struct Parts {
    wcuda_context context;
    wcuda_buffer buffer;
    wcuda_kernel kernel;
    wcuda_status inside;
  } parts{context_.handle(), {0}, {0}, WCUDA_INTERNAL};
  wcuda_buffer_options bytes = WCUDA_BUFFER_OPTIONS_INIT;
  bytes.bytes = 100;
  ASSERT_EQ(wcuda_buffer_create(parts.context, &bytes, &parts.buffer, &error_), WCUDA_OK);
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  options.name = text(name_);
  options.host = [](void* user, const wcuda_launch*, const wcuda_host_argument*, uint64_t) {
    auto& given = *static_cast<Parts*>(user);
    wcuda_buffer_destroy(given.buffer);
    wcuda_kernel_destroy(given.kernel);
    uint64_t size = 0;
    given.inside = wcuda_buffer_size_get(given.buffer, &size, nullptr);
    return int32_t{0};
  };
  options.host_user = &parts;
  ASSERT_EQ(create(options, &parts.kernel), WCUDA_OK) << error_.message;
  const auto held = [&] {
    wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
    EXPECT_EQ(wcuda_context_memory_get(parts.context, WCUDA_PURPOSE_ANY, &info, &error_), WCUDA_OK);
    return info.current_bytes;
  };
  EXPECT_EQ(held(), 100u);

  EXPECT_EQ(launch(parts.kernel, {}), WCUDA_OK) << error_.message;

  EXPECT_EQ(parts.inside, WCUDA_REENTRANT);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(launch(parts.kernel, {}), WCUDA_INVALID_HANDLE);
}

TEST_F(Kernels, the_host_function_is_released_once_after_the_last_use) {
  int32_t released = 0;
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  options.name = text(name_);
  options.host = [](void*, const wcuda_launch*, const wcuda_host_argument*, uint64_t) {
    return int32_t{0};
  };
  options.host_user = &released;
  options.host_release = [](void* user) { ++*static_cast<int32_t*>(user); };
  const wcuda_parameter wrong[] = {parameter("x", WCUDA_ARG_BUFFER, 4)};
  wcuda_kernel_options refused = options;
  refused.has_signature = 1;
  refused.parameters = wrong;
  refused.parameter_count = 1;
  wcuda_kernel kernel{0};
  EXPECT_EQ(create(refused, &kernel), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(released, 0) << "a failed call owns nothing";
  ASSERT_EQ(create(options, &kernel), WCUDA_OK) << error_.message;
  EXPECT_EQ(launch(kernel, {}), WCUDA_OK);
  EXPECT_EQ(released, 0);
  wcuda_kernel_destroy(kernel);
  EXPECT_EQ(released, 1);
}

TEST_F(Kernels, a_kernel_destroyed_by_its_own_run_is_released_after_it) {
  struct State {
    wcuda_kernel kernel;
    int32_t released;
    int32_t released_inside;
  } state{{0}, 0, -1};
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  options.name = text(name_);
  options.host = [](void* user, const wcuda_launch*, const wcuda_host_argument*, uint64_t) {
    auto& given = *static_cast<State*>(user);
    std::thread([&] { wcuda_kernel_destroy(given.kernel); }).join();  // no callback there
    given.released_inside = given.released;
    return int32_t{0};
  };
  options.host_user = &state;
  options.host_release = [](void* user) { ++static_cast<State*>(user)->released; };
  ASSERT_EQ(create(options, &state.kernel), WCUDA_OK) << error_.message;

  EXPECT_EQ(launch(state.kernel, {}), WCUDA_OK) << error_.message;

  EXPECT_EQ(state.released_inside, 0);
  EXPECT_EQ(state.released, 1);
}

TEST_F(Kernels, bad_kernels_are_refused_and_named) {
  const auto refused = [&](const wcuda_kernel_options& options, wcuda_status status,
                           const char* message) {
    wcuda_kernel kernel{77};
    EXPECT_EQ(create(options, &kernel), status) << message;
    EXPECT_STREQ(error_.message, message);
    EXPECT_EQ(kernel.id, 77u);
  };
  wcuda_kernel_options options = options_;
  options.host = nullptr;
  refused(options, WCUDA_UNSUPPORTED_KERNEL,
          "kernel 'vector_add': has neither a module nor a host function");
  options = options_;
  options.name = {nullptr, 0};
  refused(options, WCUDA_INVALID_ARGUMENT, "name: is empty or has a NUL");
  options = options_;
  options.has_signature = 0;
  refused(options, WCUDA_INVALID_ARGUMENT, "parameters: given, but has_signature is 0");
  const wcuda_parameter wrong[] = {parameter("a", WCUDA_ARG_BUFFER, 4)};
  options = options_;
  options.parameters = wrong;
  options.parameter_count = 1;
  refused(options, WCUDA_INVALID_ARGUMENT, "parameters[0].access: has unknown bits");
}

TEST_F(Kernels, the_host_runs_no_device_code) {
  wcuda_module module{77};
  EXPECT_EQ(wcuda_module_load(context_.handle(), module_ptx().data(), module_ptx().size(), &module,
                              &error_),
            WCUDA_UNSUPPORTED_KERNEL);
  EXPECT_STREQ(error_.message, "this backend runs no device code");
  EXPECT_EQ(wcuda_module_load(context_.handle(), "int x;", 6, &module, &error_), WCUDA_MALFORMED);
  EXPECT_EQ(module.id, 77u);
  int32_t kind = 0;
  EXPECT_EQ(wcuda_code_kind_get(module_ptx().data(), module_ptx().size(), &kind, &error_),
            WCUDA_OK);
  EXPECT_EQ(kind, WCUDA_CODE_PTX);
}

TEST(KernelFaults, a_failing_or_lost_device_runs_nothing) {
  FaultContext context;
  int32_t calls = 0;
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  const std::string name = "k";
  options.name = text(name);
  options.host = [](void* user, const wcuda_launch*, const wcuda_host_argument*, uint64_t) {
    ++*static_cast<int32_t*>(user);
    return int32_t{0};
  };
  options.host_user = &calls;
  wcuda_kernel kernel{0};
  wcuda_error error{};
  const wcuda_launch launch = WCUDA_LAUNCH_INIT;
  ASSERT_EQ(wcuda_kernel_create(context.handle(), &options, &kernel, &error), WCUDA_OK);

  context.faults().lose_device(1);
  EXPECT_EQ(wcuda_kernel_launch(kernel, &launch, nullptr, 0, &error), WCUDA_DEVICE_LOST)
      << error.message;
  EXPECT_EQ(calls, 0);
  wcuda_kernel_destroy(kernel);
}

TEST_F(Kernels, launching_survives_a_full_host) {
  const TestBuffer buffer(context_.handle(), 64);
  const int32_t n = 4;
  const std::vector<wcuda_argument> arguments = {window(buffer.handle()), window(buffer.handle()),
                                                 window(buffer.handle()),
                                                 scalar(WCUDA_ARG_I32, &n)};
  for (int64_t k = 1;; ++k) {
    wcuda_status status;
    bool happened;
    {
      const FailAllocation failure(k);
      status = launch(kernel_, arguments);
      happened = failure.happened();
    }
    if (!happened) {
      EXPECT_EQ(status, WCUDA_OK) << error_.message;
      break;
    }
    EXPECT_EQ(status, WCUDA_OUT_OF_HOST_MEMORY) << error_.message;
    EXPECT_EQ(calls_, 0);
  }
}

// ---- device code ----

TEST(KernelData, module_ptx_is_what_nvrtc_makes_of_its_source) {
  auto opened = nvrtc::Compiler::open(nvrtc_folder());
  WCUDA_NEEDS_NVRTC(opened.ok(), opened.status().message());
  nvrtc::Request request;
  request.source = read_text(WCUDA_TEST_DATA "/kernels/module.cu");
  request.name = "module.cu";
  request.architecture = "compute_80";
  const nvrtc::Outcome outcome = (*opened)->compile(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.log;

  // The lines before .version name the build of the compiler.
  const std::string ptx(outcome.code.begin(), outcome.code.end());
  EXPECT_EQ(ptx.substr(ptx.find("\n.target")), module_ptx().substr(module_ptx().find("\n.target")));
}

class GpuKernels : public KernelBase, public ::testing::Test {
 protected:
  GpuKernels() : KernelBase(WCUDA_BACKEND_CUDA) {}
  ~GpuKernels() override {
    for (const wcuda_kernel kernel : kernels_) wcuda_kernel_destroy(kernel);
    wcuda_module_unload(module_);
  }
  void SetUp() override {
    ASSERT_EQ(wcuda_module_load(context_.handle(), module_ptx().data(), module_ptx().size(),
                                &module_, &error_),
              WCUDA_OK)
        << error_.message;
  }
  wcuda_kernel kernel(const std::string& name, wcuda_module module = {0}) {
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = text(name);
    options.module = module.id ? module : module_;
    wcuda_kernel kernel{0};
    EXPECT_EQ(create(options, &kernel), WCUDA_OK) << error_.message;
    kernels_.push_back(kernel);
    return kernel;
  }
  wcuda_kernel_info info(wcuda_kernel kernel) {
    wcuda_kernel_info info = WCUDA_KERNEL_INFO_INIT;
    EXPECT_EQ(wcuda_kernel_info_get(kernel, &info, &error_), WCUDA_OK) << error_.message;
    return info;
  }
  void synchronize() {
    EXPECT_EQ(wcuda_context_synchronize(context_.handle(), &error_), WCUDA_OK) << error_.message;
  }

  wcuda_module module_{0};
  std::vector<wcuda_kernel> kernels_;
};

TEST_F(GpuKernels, vector_add_of_1024_is_all_three) {
  constexpr int32_t kCount = 1024;
  const TestBuffer a(context_.handle(), 4 * kCount), b(context_.handle(), 4 * kCount),
      c(context_.handle(), 4 * kCount);
  write(a.handle(), std::vector<float>(kCount, 1.0f));
  write(b.handle(), std::vector<float>(kCount, 2.0f));
  launch_.grid[0] = 4;

  ASSERT_EQ(launch(kernel("vector_add"), {window(a.handle()), window(b.handle()),
                                          window(c.handle()), scalar(WCUDA_ARG_I32, &kCount)}),
            WCUDA_OK)
      << error_.message;

  EXPECT_EQ(read<float>(c.handle(), kCount), std::vector<float>(kCount, 3.0f));
}

TEST_F(GpuKernels, every_kind_of_value_arrives) {
  const int8_t i8 = -7;
  const uint8_t u8 = 200;
  const int16_t i16 = -3000;
  const uint16_t u16 = 60000, f16 = 0x3c00, bf16 = 0x3f80;
  const int32_t i32 = -100000;
  const uint32_t u32 = 4000000000u;
  const int64_t i64 = -5000000000;
  const uint64_t u64 = 1ull << 52;
  const float f32 = 0.5f;
  const double f64 = -0.25;
  const struct {
    int32_t a;
    float b[5];
  } pair = {3, {0, 0, 0, 0, 0.125f}};
  const TestBuffer out(context_.handle(), 14 * 8);
  wcuda_argument bytes = scalar(WCUDA_ARG_BYTES, &pair);
  bytes.bytes = sizeof(pair);
  std::vector<wcuda_argument> arguments = {scalar(WCUDA_ARG_I8, &i8),
                                           scalar(WCUDA_ARG_U8, &u8),
                                           scalar(WCUDA_ARG_I16, &i16),
                                           scalar(WCUDA_ARG_U16, &u16),
                                           scalar(WCUDA_ARG_I32, &i32),
                                           scalar(WCUDA_ARG_U32, &u32),
                                           scalar(WCUDA_ARG_I64, &i64),
                                           scalar(WCUDA_ARG_U64, &u64),
                                           scalar(WCUDA_ARG_F16, &f16),
                                           scalar(WCUDA_ARG_BF16, &bf16),
                                           scalar(WCUDA_ARG_F32, &f32),
                                           scalar(WCUDA_ARG_F64, &f64),
                                           bytes,
                                           window(out.handle(), 8)};
  launch_.block[0] = 1;
  const wcuda_kernel values = kernel("values");

  ASSERT_EQ(launch(values, arguments), WCUDA_OK) << error_.message;

  EXPECT_EQ(read<double>(out.handle(), 14),
            (std::vector<double>{read<double>(out.handle(), 1)[0], -7, 200, -3000, 60000, -100000,
                                 4000000000.0, -5000000000.0, 4503599627370496.0, 0x3c00, 0x3f80,
                                 0.5, -0.25, 3.125}));
  EXPECT_EQ(info(values).parameter_count, 14u);

  arguments[4] = scalar(WCUDA_ARG_I64, &i64);
  EXPECT_EQ(launch(values, arguments), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "argument 4: i64 of 8 bytes, the kernel takes 4");
  arguments.pop_back();
  EXPECT_EQ(launch(values, arguments), WCUDA_ARGUMENT_COUNT);
  EXPECT_STREQ(error_.message, "arguments: 13 given, the kernel takes 14");
}

TEST_F(GpuKernels, forty_arguments_all_arrive) {
  const TestBuffer out(context_.handle(), 4);
  std::vector<int32_t> numbers(39);
  std::vector<wcuda_argument> arguments = {window(out.handle())};
  int32_t expected = 0;
  for (int32_t i = 0; i < 39; ++i) {
    numbers[i] = i + 1;
    expected += i == 38 ? 1000 * numbers[i] : numbers[i];
    arguments.push_back(scalar(WCUDA_ARG_I32, &numbers[i]));
  }

  ASSERT_EQ(launch(kernel("forty"), arguments), WCUDA_OK) << error_.message;

  EXPECT_EQ(read<int32_t>(out.handle(), 1)[0], expected);
}

TEST_F(GpuKernels, launches_past_a_limit_report_value_and_limit_and_leave_the_device_alone) {
  const TestBuffer out(context_.handle(), 4096);
  const wcuda_kernel bounded = kernel("bounded"), shared = kernel("shared");
  EXPECT_EQ(info(bounded).max_threads_per_block, 128u);
  EXPECT_EQ(launch(bounded, {window(out.handle())}), WCUDA_INVALID_CONFIG);
  EXPECT_STREQ(error_.message, "block: 256 threads, at most 128");
  launch_.block[0] = 128;
  EXPECT_EQ(launch(bounded, {window(out.handle())}), WCUDA_OK) << error_.message;

  // All the shared memory that a block can have, and a byte more.
  const auto most = static_cast<uint32_t>(info(shared).dynamic_shared_bytes_max);
  EXPECT_GT(most, 48u * 1024);
  const auto bytes = static_cast<int32_t>(most);
  launch_.shared_bytes = most;
  ASSERT_EQ(launch(shared, {window(out.handle()), scalar(WCUDA_ARG_I32, &bytes)}), WCUDA_OK)
      << error_.message;
  EXPECT_EQ(read<int32_t>(out.handle(), 128), std::vector<int32_t>(128, bytes));
  launch_.shared_bytes = most + 1;
  EXPECT_EQ(launch(shared, {window(out.handle()), scalar(WCUDA_ARG_I32, &bytes)}),
            WCUDA_INVALID_CONFIG);

  // What only the driver finds out: more blocks than can wait for each other.
  launch_ = WCUDA_LAUNCH_INIT;
  launch_.flags = WCUDA_LAUNCH_COOPERATIVE;
  launch_.grid[0] = 1000000;
  EXPECT_EQ(launch(kernel("noop"), {}), WCUDA_LAUNCH_FAILED);
  EXPECT_NE(error_.native_code, 0);
  launch_ = WCUDA_LAUNCH_INIT;
  EXPECT_EQ(launch(kernel("noop"), {}), WCUDA_OK) << error_.message;
  synchronize();
}

TEST_F(GpuKernels, unknown_names_are_reported_with_the_known_ones) {
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  const std::string name = "nothing";
  options.name = text(name);
  options.module = module_;
  wcuda_kernel kernel{77};

  EXPECT_EQ(create(options, &kernel), WCUDA_NOT_FOUND);

  EXPECT_NE(std::string(error_.message).find("kernel 'nothing': the module has 10: "),
            std::string::npos)
      << error_.message;
  EXPECT_EQ(kernel.id, 77u);
  const std::string add = "vector_add";
  options.name = text(add);
  options.has_signature = 1;
  EXPECT_EQ(create(options, &kernel), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "parameters: 0 given, the kernel's code has 4");
}

TEST_F(GpuKernels, a_module_lives_as_long_as_its_kernels_and_may_go_while_they_run) {
  const wcuda_kernel wait = kernel("wait_ns");
  const uint64_t ns = 20000000;
  launch_.block[0] = 1;
  wcuda_module_unload(module_);
  ASSERT_EQ(launch(wait, {scalar(WCUDA_ARG_U64, &ns)}), WCUDA_OK) << error_.message;

  wcuda_kernel_destroy(wait);

  kernels_.clear();
  module_ = {0};
  synchronize();
}

TEST_F(GpuKernels, globals_are_buffers) {
  const std::string name = "counters", none = "nothing";
  wcuda_buffer counters{0};
  ASSERT_EQ(wcuda_module_global_create(module_, text(name), &counters, &error_), WCUDA_OK)
      << error_.message;
  EXPECT_EQ(read<int32_t>(counters, 4), (std::vector<int32_t>{1, 2, 3, 4}));
  launch_.block[0] = 4;
  const wcuda_kernel count_up = kernel("count_up");
  ASSERT_EQ(launch(count_up, {}), WCUDA_OK) << error_.message;
  EXPECT_EQ(read<int32_t>(counters, 4), (std::vector<int32_t>{11, 12, 13, 14}));
  write(counters, std::vector<int32_t>{0, 0, 0, 5});
  ASSERT_EQ(launch(count_up, {}), WCUDA_OK) << error_.message;
  EXPECT_EQ(read<int32_t>(counters, 4), (std::vector<int32_t>{10, 10, 10, 15}));

  wcuda_buffer nothing{77};
  EXPECT_EQ(wcuda_module_global_create(module_, text(none), &nothing, &error_), WCUDA_NOT_FOUND);
  EXPECT_EQ(nothing.id, 77u);
  // The view keeps the module.
  wcuda_module_unload(module_);
  for (const wcuda_kernel each : kernels_) wcuda_kernel_destroy(each);
  module_ = {0};
  kernels_.clear();
  EXPECT_EQ(read<int32_t>(counters, 1)[0], 10);
  EXPECT_EQ(context_.memory(WCUDA_PURPOSE_BORROWED).current_bytes, 16u);
  wcuda_buffer_destroy(counters);
}

TEST_F(GpuKernels, streams_order_launches_and_events_time_and_time_out) {
  DeviceGate gate(context_.handle());
  wcuda_stream stream{0};
  wcuda_event begin{0}, end{0};
  ASSERT_EQ(wcuda_stream_create(context_.handle(), -1, &stream, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_event_create(context_.handle(), &begin, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_event_create(context_.handle(), &end, nullptr), WCUDA_OK);
  ASSERT_EQ(wcuda_event_record(begin, stream, nullptr), WCUDA_OK);
  gate.close(stream);
  ASSERT_EQ(wcuda_event_record(end, stream, nullptr), WCUDA_OK);

  int32_t done = 7;
  EXPECT_EQ(wcuda_event_done_get(end, &done, nullptr), WCUDA_OK);
  EXPECT_EQ(done, 0);
  double milliseconds = -1;
  EXPECT_EQ(wcuda_event_elapsed_get(begin, end, &milliseconds, nullptr), WCUDA_INVALID_STATE);
  EXPECT_EQ(wcuda_event_wait(end, 10, &error_), WCUDA_TIMEOUT);
  gate.open();
  EXPECT_EQ(wcuda_event_wait(end, -1, &error_), WCUDA_OK) << error_.message;
  ASSERT_EQ(wcuda_event_elapsed_get(begin, end, &milliseconds, &error_), WCUDA_OK)
      << error_.message;
  EXPECT_GT(milliseconds, 0);
  wcuda_event_destroy(begin);
  wcuda_event_destroy(end);
  wcuda_stream_destroy(stream);
}

TEST_F(GpuKernels, a_buffer_destroyed_while_its_kernel_runs_is_freed_after_it) {
  const wcuda_kernel add = kernel("vector_add"), wait = kernel("wait_ns");
  wcuda_stream stream{0};
  ASSERT_EQ(wcuda_stream_create(context_.handle(), 0, &stream, nullptr), WCUDA_OK);
  const TestBuffer result(context_.handle(), 4096);
  const uint64_t ns = 20000000;
  const int32_t n = 1024;
  {
    const TestBuffer ones(context_.handle(), 4096);
    write(ones.handle(), std::vector<float>(n, 1.0f));
    launch_.stream = stream;
    launch_.grid[0] = 4;
    ASSERT_EQ(launch(wait, {scalar(WCUDA_ARG_U64, &ns)}), WCUDA_OK) << error_.message;
    ASSERT_EQ(launch(add, {window(ones.handle()), window(ones.handle()), window(result.handle()),
                           scalar(WCUDA_ARG_I32, &n)}),
              WCUDA_OK)
        << error_.message;
  }
  const TestBuffer next(context_.handle(), 4096);
  write(next.handle(), std::vector<float>(n, 9.0f));
  ASSERT_EQ(wcuda_stream_synchronize(stream, &error_), WCUDA_OK) << error_.message;

  EXPECT_EQ(read<float>(result.handle(), n), std::vector<float>(n, 2.0f));
  wcuda_stream_destroy(stream);
}

TEST_F(GpuKernels, occupancy_is_that_of_the_code) {
  wcuda_occupancy occupancy = WCUDA_OCCUPANCY_INIT;
  ASSERT_EQ(wcuda_kernel_occupancy_get(kernel("noop"), 256, 0, &occupancy, &error_), WCUDA_OK)
      << error_.message;
  EXPECT_GE(occupancy.blocks_per_multiprocessor, 4u);
  EXPECT_EQ(occupancy.threads_per_multiprocessor, 256 * occupancy.blocks_per_multiprocessor);
  EXPECT_GE(occupancy.best_block_threads, 32u);
  EXPECT_GT(occupancy.share, 0.5);
  EXPECT_LE(occupancy.share, 1.0);
  EXPECT_EQ(wcuda_kernel_occupancy_get(kernel("noop"), 1025, 0, &occupancy, &error_),
            WCUDA_INVALID_CONFIG);
}

TEST_F(GpuKernels, bad_code_is_reported_with_the_drivers_reason) {
  wcuda_module module{77};
  const std::string head = ".version 9.0\n.target sm_80\n.address_size 64\n";
  const std::string nonsense = head + ".visible .entry k()\n{\n  nonsense;\n}\n";
  EXPECT_EQ(
      wcuda_module_load(context_.handle(), nonsense.data(), nonsense.size(), &module, &error_),
      WCUDA_MALFORMED)
      << error_.message;
  EXPECT_NE(std::string(error_.message).find("nonsense"), std::string::npos) << error_.message;
  const std::string future =
      ".version 99.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n  ret;\n}\n";
  EXPECT_EQ(wcuda_module_load(context_.handle(), future.data(), future.size(), &module, &error_),
            WCUDA_UNSUPPORTED)
      << error_.message;
  EXPECT_EQ(module.id, 77u);
  synchronize();
}

TEST_F(GpuKernels, bad_code_without_kernels_is_found_when_it_is_loaded) {
  wcuda_module module{77};
  const std::string nonsense = ".version 9.0\n.target sm_80\n.address_size 64\nnonsense\n";
  EXPECT_EQ(
      wcuda_module_load(context_.handle(), nonsense.data(), nonsense.size(), &module, &error_),
      WCUDA_MALFORMED)
      << error_.message;
  EXPECT_EQ(module.id, 77u);
}

TEST_F(GpuKernels, compiled_for_the_device_with_expressions) {
  wcuda_compiler_info compiler = WCUDA_COMPILER_INFO_INIT;
  const std::string folder = nvrtc_folder();
  const wcuda_status found = wcuda_compiler_info_get(text(folder), &compiler, &error_);
  WCUDA_NEEDS_NVRTC(found == WCUDA_OK, error_.message);
  const std::string source =
      "template <class T> __global__ void scale(T* x, T by, int n) {\n"
      "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
      "  if (i < n) x[i] *= by;\n}\n";
  const std::string expression = "scale<float>";
  const wcuda_string expressions[] = {text(expression)};
  wcuda_program_options options = WCUDA_PROGRAM_OPTIONS_INIT;
  options.source = text(source);
  options.context = context_.handle();
  options.library_folder = text(folder);
  options.expressions = expressions;
  options.expression_count = 1;
  wcuda_program program{0};
  ASSERT_EQ(wcuda_program_create(&options, &program, &error_), WCUDA_OK) << error_.message;
  ASSERT_EQ(wcuda_program_compile(program, &error_), WCUDA_OK) << error_.message;
  wcuda_module module{0};
  ASSERT_EQ(wcuda_module_load_program(context_.handle(), program, &module, &error_), WCUDA_OK)
      << error_.message;
  wcuda_program_destroy(program);

  const TestBuffer x(context_.handle(), 400);
  write(x.handle(), std::vector<float>(100, 3.0f));
  const float by = 0.5f;
  const int32_t n = 100;
  ASSERT_EQ(launch(kernel(expression, module),
                   {window(x.handle()), scalar(WCUDA_ARG_F32, &by), scalar(WCUDA_ARG_I32, &n)}),
            WCUDA_OK)
      << error_.message;
  EXPECT_EQ(read<float>(x.handle(), 100), std::vector<float>(100, 1.5f));
  EXPECT_EQ(launch(kernel("_Z5scaleIfEvPT_S0_i", module),
                   {window(x.handle()), scalar(WCUDA_ARG_F32, &by), scalar(WCUDA_ARG_I32, &n)}),
            WCUDA_OK)
      << "by its mangled name";
  EXPECT_EQ(read<float>(x.handle(), 100), std::vector<float>(100, 0.75f));
  wcuda_module_unload(module);
}

}  // namespace
}  // namespace wcuda::testing
