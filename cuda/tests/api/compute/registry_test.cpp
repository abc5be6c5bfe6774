// Section 22 of the header: kernels by descriptor, as functions of the host and (Gpu…) as device
// code.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/arguments.h"
#include "support/context.h"
#include "support/device_gate.h"
#include "support/fake_clock.h"
#include "support/fault_context.h"

namespace wcuda::testing {
namespace {

wcuda_argument window(const TestBuffer& buffer, uint32_t access = 0) {
  wcuda_argument argument = WCUDA_ARGUMENT_INIT;
  argument.kind = WCUDA_ARG_BUFFER;
  argument.access = access;
  argument.buffer = buffer.handle();
  return argument;
}

wcuda_parameter param(const char* name, int32_t kind, uint32_t access = 0, const char* shape = "") {
  wcuda_parameter result = WCUDA_PARAMETER_INIT;
  result.name = text(name);
  result.kind = kind;
  if (kind == WCUDA_ARG_BUFFER) result.dtype = WCUDA_ARG_F32;
  result.access = access;
  result.shape = text(shape);
  return result;
}

const wcuda_parameter kVectorAddParameters[] = {
    param("a", WCUDA_ARG_BUFFER, WCUDA_ACCESS_READ, "n"),
    param("b", WCUDA_ARG_BUFFER, WCUDA_ACCESS_READ, "n"),
    param("c", WCUDA_ARG_BUFFER, WCUDA_ACCESS_WRITE, "n"),
    param("n", WCUDA_ARG_I32),
};

int32_t vector_add(void*, const wcuda_launch* launch, const wcuda_host_argument* arguments,
                   uint64_t) {
  if (launch->grid[0] != 4 || launch->block[0] != 256) return 1;
  const auto* a = static_cast<const float*>(arguments[0].data);
  const auto* b = static_cast<const float*>(arguments[1].data);
  auto* c = static_cast<float*>(arguments[2].data);
  for (int32_t i = 0; i < *static_cast<const int32_t*>(arguments[3].data); ++i) c[i] = a[i] + b[i];
  return 0;
}

class RegistryBase {
 protected:
  explicit RegistryBase(int32_t backend) : context_(0, backend) {
    if (::testing::Test::IsSkipped()) return;
    EXPECT_EQ(wcuda_registry_create(context_.handle(), &registry_, &error_), WCUDA_OK)
        << error_.message;
    descriptor_.name = text("vector_add");
    descriptor_.parameters = kVectorAddParameters;
    descriptor_.parameter_count = 4;
    descriptor_.threads = text("n");
    descriptor_.budget_ms = 50;
  }
  ~RegistryBase() {
    wcuda_registry_destroy(registry_);
    wcuda_kernel_destroy(kernel_);
  }

  void make_kernel(wcuda_module module, wcuda_host_kernel host, const char* name = "vector_add") {
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = text(name);
    options.module = module;
    options.host = host;
    ASSERT_EQ(wcuda_kernel_create(context_.handle(), &options, &kernel_, &error_), WCUDA_OK)
        << error_.message;
    descriptor_.kernel = kernel_;
  }

  uint32_t add() {
    uint32_t id = 0;
    EXPECT_EQ(wcuda_registry_add(registry_, &descriptor_, &id, &error_), WCUDA_OK)
        << error_.message;
    return id;
  }

  // 1 + 2 of 1,024 elements.
  void run_vector_add(uint32_t id) {
    const TestBuffer a(context_.handle(), 4096), b(context_.handle(), 4096),
        c(context_.handle(), 4096);
    const std::vector<float> ones(1024, 1.0f), twos(1024, 2.0f);
    ASSERT_EQ(wcuda_buffer_write(a.handle(), 0, ones.data(), 4096, nullptr), WCUDA_OK);
    ASSERT_EQ(wcuda_buffer_write(b.handle(), 0, twos.data(), 4096, nullptr), WCUDA_OK);
    const int32_t n = 1024;
    const wcuda_argument arguments[] = {window(a, WCUDA_ACCESS_READ), window(b), window(c),
                                        scalar(WCUDA_ARG_I32, &n)};
    wcuda_run_info info = WCUDA_RUN_INFO_INIT;
    ASSERT_EQ(wcuda_registry_run(registry_, id, arguments, 4, {0}, &info, &error_), WCUDA_OK)
        << error_.message;
    std::vector<float> sums(1024);
    ASSERT_EQ(wcuda_buffer_read(c.handle(), 0, sums.data(), 4096, &error_), WCUDA_OK);
    EXPECT_EQ(sums, std::vector<float>(1024, 3.0f));
    EXPECT_EQ(info.grid[0], 4u);
    EXPECT_EQ(info.block[0], 256u);
    EXPECT_EQ(info.elements, 1024u);
    EXPECT_EQ(info.bytes, 3u * 4096);
    EXPECT_EQ(info.budget_ms, 50u);

    const int32_t many = 1025;
    wcuda_argument more[] = {arguments[0], arguments[1], arguments[2],
                             scalar(WCUDA_ARG_I32, &many)};
    EXPECT_EQ(wcuda_registry_run(registry_, id, more, 4, {0}, nullptr, &error_),
              WCUDA_INVALID_ARGUMENT);
    EXPECT_STREQ(error_.message, "argument 0 ('a') has 1024 elements, the kernel needs 1025");
  }

  TestContext context_;
  wcuda_registry registry_{0};
  wcuda_kernel kernel_{0};
  wcuda_kernel_descriptor descriptor_ = WCUDA_KERNEL_DESCRIPTOR_INIT;
  wcuda_error error_{};
};

class Registry : public RegistryBase, public ::testing::Test {
 protected:
  Registry() : RegistryBase(WCUDA_BACKEND_HOST) { make_kernel({0}, vector_add); }
  std::vector<wcuda_registered_kernel> list() {
    wcuda_registered_kernel empty = WCUDA_REGISTERED_KERNEL_INIT;
    std::vector<wcuda_registered_kernel> kernels(8, empty);
    uint64_t count = 0;
    EXPECT_EQ(wcuda_registry_list(registry_, 0, kernels.data(), 8, &count, &error_), WCUDA_OK);
    kernels.resize(count);
    return kernels;
  }
  uint32_t add_builtin(const char* name, int32_t type, uint32_t number = 0) {
    uint32_t id = 0;
    EXPECT_EQ(wcuda_registry_add_builtin(registry_, text(name), type, number, &id, &error_),
              WCUDA_OK)
        << error_.message;
    return id;
  }
};

TEST_F(Registry, a_described_kernel_runs_with_checked_arguments) { run_vector_add(add()); }

TEST_F(Registry, numbers_are_kept_given_and_unique) {
  EXPECT_EQ(add(), 3u);
  EXPECT_EQ(add(), 3u);  // replaced under its number
  descriptor_.name = text("other");
  descriptor_.kernel_id = 3;
  EXPECT_EQ(wcuda_registry_add(registry_, &descriptor_, nullptr, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "kernel_id: 3 is that of kernel 'vector_add'");
  descriptor_.kernel_id = 2;
  EXPECT_EQ(wcuda_registry_add(registry_, &descriptor_, nullptr, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "kernel_id: 2 is that of the catalogue's 'tensor_add'");
  descriptor_.kernel_id = 100;
  EXPECT_EQ(add(), 100u);
  descriptor_.kernel_id = 0;
  descriptor_.name = text("third");
  EXPECT_EQ(add(), 101u);
  ASSERT_EQ(list().size(), 3u);
  EXPECT_EQ(wcuda_registry_remove(registry_, 100, &error_), WCUDA_OK);
  EXPECT_EQ(wcuda_registry_remove(registry_, 100, &error_), WCUDA_NOT_FOUND);
  EXPECT_STREQ(error_.message, "kernel_id: 100 is not in the registry");
  EXPECT_EQ(list().size(), 2u);
}

TEST_F(Registry, a_replaced_or_removed_kernel_is_released) {
  int32_t released = 0;
  const auto add_one = [&] {
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = text("vector_add");
    options.host = vector_add;
    options.host_user = &released;
    options.host_release = [](void* user) { ++*static_cast<int32_t*>(user); };
    wcuda_kernel kernel{0};
    EXPECT_EQ(wcuda_kernel_create(context_.handle(), &options, &kernel, &error_), WCUDA_OK);
    descriptor_.kernel = kernel;
    const uint32_t id = add();
    wcuda_kernel_destroy(kernel);
    return id;
  };

  const uint32_t id = add_one();
  EXPECT_EQ(released, 0) << "the registry keeps it";
  run_vector_add(id);
  EXPECT_EQ(add_one(), id);
  EXPECT_EQ(released, 1) << "replaced";
  EXPECT_EQ(wcuda_registry_remove(registry_, id, &error_), WCUDA_OK);
  EXPECT_EQ(released, 2) << "removed";
  add_one();
  wcuda_registry_destroy(registry_);
  registry_ = {0};
  EXPECT_EQ(released, 3) << "the registry is destroyed";
}

// What a caller has that knows more fields, or fewer, than this library.
TEST_F(Registry, entries_of_a_list_lie_as_far_apart_as_the_caller_says) {
  const uint32_t first = add();
  descriptor_.name = text("another");
  const uint32_t second = add();
  struct Newer {
    wcuda_registered_kernel known;
    uint64_t later[2];
  } entries[3];
  std::memset(static_cast<void*>(entries), 0, sizeof(entries));
  for (Newer& entry : entries) entry.known.struct_size = sizeof(Newer);
  uint64_t count = 0;

  ASSERT_EQ(wcuda_registry_list(registry_, 0, &entries[0].known, 3, &count, &error_), WCUDA_OK)
      << error_.message;

  EXPECT_EQ(count, 2u);
  EXPECT_EQ(entries[0].known.kernel_id, first);
  EXPECT_EQ(entries[1].known.kernel_id, second);
  EXPECT_STREQ(entries[1].known.name, "another");
  EXPECT_EQ(entries[1].known.struct_size, sizeof(Newer));
  EXPECT_EQ(entries[1].later[0], 0u);
  entries[1].later[1] = 1;
  entries[1].known.struct_size = 0;  // that of the first counts for all
  ASSERT_EQ(wcuda_registry_list(registry_, 0, &entries[0].known, 3, &count, &error_), WCUDA_OK);
  EXPECT_EQ(entries[1].later[1], 0u);
  EXPECT_EQ(entries[1].known.struct_size, sizeof(Newer));
  for (Newer& entry : entries) entry.known.struct_size = sizeof(Newer) - 4;
  EXPECT_EQ(wcuda_registry_list(registry_, 0, &entries[0].known, 3, &count, &error_),
            WCUDA_INVALID_ARGUMENT);
}

TEST_F(Registry, the_two_legacy_kernels_keep_their_numbers_and_hashes) {
  EXPECT_EQ(add_builtin("tensor_add", WCUDA_ARG_F32), 2u);
  EXPECT_EQ(add_builtin("noop", WCUDA_ARG_F32), 1u);
  const uint32_t softmax = add_builtin("softmax", WCUDA_ARG_F16, 40);
  const auto kernels = list();
  ASSERT_EQ(kernels.size(), 3u);
  EXPECT_STREQ(kernels[0].name, "noop");
  EXPECT_EQ(kernels[0].sig_hash, 0u);
  EXPECT_STREQ(kernels[1].name, "tensor_add");
  EXPECT_EQ(kernels[1].sig_hash, 0xa1u);
  EXPECT_EQ(kernels[1].parameter_count, 4u);
  EXPECT_EQ(softmax, 40u);
  EXPECT_EQ(kernels[2].flags, 0u);
  EXPECT_EQ(wcuda_registry_add_builtin(registry_, text("relu"), WCUDA_ARG_F32, 2, nullptr, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(
      wcuda_registry_add_builtin(registry_, text("conv2d"), WCUDA_ARG_F16, 0, nullptr, &error_),
      WCUDA_UNSUPPORTED);

  const TestBuffer x(context_.handle(), 16);
  const int64_t n = 4;
  const wcuda_argument arguments[] = {window(x), window(x), window(x), scalar(WCUDA_ARG_I64, &n)};
  wcuda_run_info info = WCUDA_RUN_INFO_INIT;
  EXPECT_EQ(wcuda_registry_run(registry_, 2, arguments, 4, {0}, &info, &error_), WCUDA_OK)
      << error_.message;
  EXPECT_EQ(info.elements, 4u);
  EXPECT_EQ(wcuda_registry_run(registry_, 1, nullptr, 0, {0}, nullptr, &error_), WCUDA_OK);
}

TEST_F(Registry, every_kernel_of_the_catalogue_has_a_signature) {
  uint64_t count = 0;
  ASSERT_EQ(wcuda_catalogue_list(0, nullptr, 0, &count, nullptr), WCUDA_OK);
  for (uint64_t i = 0; i < count; ++i) {
    wcuda_catalogue_entry kernel = WCUDA_CATALOGUE_ENTRY_INIT;
    ASSERT_EQ(wcuda_catalogue_list(i, &kernel, 1, &count, nullptr), WCUDA_OK);
    EXPECT_EQ(
        wcuda_registry_add_builtin(registry_, kernel.name, WCUDA_ARG_F32, 0, nullptr, &error_),
        WCUDA_OK)
        << error_.message;
  }
}

TEST_F(Registry, a_kernel_without_code_here_is_listed_and_refused) {
  descriptor_.kernel = {0};
  descriptor_.flags = WCUDA_KERNEL_NON_DETERMINISTIC;
  const uint32_t id = add();
  wcuda_registered_kernel kernel = WCUDA_REGISTERED_KERNEL_INIT;
  ASSERT_EQ(wcuda_registry_find(registry_, text("vector_add"), &kernel, &error_), WCUDA_OK);
  EXPECT_EQ(kernel.kernel_id, id);
  EXPECT_EQ(kernel.flags, WCUDA_KERNEL_NON_DETERMINISTIC | WCUDA_KERNEL_NOT_HERE);
  EXPECT_EQ(wcuda_registry_run(registry_, id, nullptr, 0, {0}, nullptr, &error_),
            WCUDA_UNSUPPORTED_KERNEL);
  EXPECT_STREQ(error_.message, "kernel 'vector_add': has no host function");
  EXPECT_EQ(wcuda_registry_find(registry_, text("x"), &kernel, &error_), WCUDA_NOT_FOUND);
}

TEST_F(Registry, a_plan_runs_nothing) {
  const uint32_t id = add();
  const TestBuffer x(context_.handle(), 4);
  const int32_t n = 1;
  const wcuda_argument arguments[] = {window(x), window(x), window(x), scalar(WCUDA_ARG_I32, &n)};
  wcuda_run_info info = WCUDA_RUN_INFO_INIT;
  // Run, the host function refuses any grid but 4.
  EXPECT_EQ(wcuda_registry_plan(registry_, id, arguments, 4, &info, &error_), WCUDA_OK);
  EXPECT_EQ(info.grid[0], 1u);
  EXPECT_EQ(wcuda_registry_run(registry_, id, arguments, 4, {0}, &info, &error_),
            WCUDA_DEVICE_ERROR);
  descriptor_.block[0] = text("2048");
  add();
  EXPECT_EQ(wcuda_registry_plan(registry_, id, arguments, 4, &info, &error_), WCUDA_INVALID_CONFIG);
  EXPECT_STREQ(error_.message, "block x: 2048, at most 1024");
}

TEST_F(Registry, the_check_of_a_descriptor_gives_text_and_hash) {
  uint64_t hash = 0, bytes = 0;
  char signature[64];
  ASSERT_EQ(wcuda_kernel_descriptor_check(&descriptor_, &hash, signature, sizeof(signature), &bytes,
                                          &error_),
            WCUDA_OK);
  EXPECT_EQ(std::string(signature, bytes), "r f32[$3];r f32[$3];w f32[$3];i32;");
  EXPECT_EQ(wcuda_kernel_descriptor_check(&descriptor_, nullptr, signature, 3, nullptr, &error_),
            WCUDA_BUFFER_TOO_SMALL);
  EXPECT_STREQ(error_.message, "text: 3 bytes, 34 are needed");
  descriptor_.parameters = nullptr;
  EXPECT_EQ(wcuda_kernel_descriptor_check(&descriptor_, nullptr, nullptr, 0, nullptr, &error_),
            WCUDA_INVALID_ARGUMENT);
  descriptor_.struct_size = 4;
  EXPECT_EQ(wcuda_kernel_descriptor_check(&descriptor_, nullptr, nullptr, 0, nullptr, &error_),
            WCUDA_INVALID_ARGUMENT);
}

TEST_F(Registry, kernels_of_another_context_are_refused) {
  const TestContext other;
  wcuda_registry registry{0};
  ASSERT_EQ(wcuda_registry_create(other.handle(), &registry, nullptr), WCUDA_OK);
  EXPECT_EQ(wcuda_registry_add(registry, &descriptor_, nullptr, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "kernel: is of another context");
  wcuda_registry_destroy(registry);
  EXPECT_EQ(wcuda_registry_add(registry, &descriptor_, nullptr, &error_), WCUDA_INVALID_HANDLE);
}

// As vector_add, and takes 30 ms of the fake clock.
int32_t slow_vector_add(void*, const wcuda_launch* launch, const wcuda_host_argument* arguments,
                        uint64_t count) {
  FakeClock::advance_ms(30);
  return vector_add(nullptr, launch, arguments, count);
}

TEST_F(Registry, a_run_that_waits_reports_its_time_and_whether_it_passed_its_budget) {
  const FakeClock clock;
  const std::vector<float> ones(1024, 1.0f);
  const TestBuffer a(context_.handle(), 4096), c(context_.handle(), 4096);
  ASSERT_EQ(wcuda_buffer_write(a.handle(), 0, ones.data(), 4096, nullptr), WCUDA_OK);
  const int32_t n = 1024;
  const wcuda_argument arguments[] = {window(a), window(a), window(c), scalar(WCUDA_ARG_I32, &n)};
  wcuda_run_info info = WCUDA_RUN_INFO_INIT;
  const auto run = [&](uint32_t budget_ms) {
    descriptor_.budget_ms = budget_ms;
    const uint32_t id = add();
    const std::vector<float> zeros(1024);
    EXPECT_EQ(wcuda_buffer_write(c.handle(), 0, zeros.data(), 4096, nullptr), WCUDA_OK);
    const auto status = wcuda_registry_run_wait(registry_, id, arguments, 4, {0}, &info, &error_);
    std::vector<float> sums(1024);
    EXPECT_EQ(wcuda_buffer_read(c.handle(), 0, sums.data(), 4096, nullptr), WCUDA_OK);
    EXPECT_EQ(sums, std::vector<float>(1024, 2.0f)) << "what is late is done all the same";
    return status;
  };

  wcuda_kernel_destroy(kernel_);
  make_kernel({0}, slow_vector_add);
  EXPECT_EQ(run(5), WCUDA_TIMEOUT);
  EXPECT_STREQ(error_.message, "kernel 'vector_add': took 30.000 ms, its budget is 5 ms");
  EXPECT_EQ(info.is_over_budget, 1);
  EXPECT_EQ(info.budget_ms, 5u);
  EXPECT_EQ(info.elements, 1024u);
  EXPECT_EQ(info.time_ns, 30000000u);
  EXPECT_EQ(run(0), WCUDA_OK) << "no budget, no end";
  EXPECT_EQ(info.is_over_budget, 0);
  EXPECT_EQ(info.time_ns, 30000000u);
  EXPECT_EQ(run(29), WCUDA_TIMEOUT);
  EXPECT_EQ(run(30), WCUDA_OK) << error_.message;
  EXPECT_EQ(info.is_over_budget, 0);

  // One that says nothing of time, and one that fails: nothing is written.
  info.time_ns = info.budget_ms = 77;
  wcuda_argument wrong[] = {arguments[0], arguments[1], arguments[2], arguments[0]};
  EXPECT_EQ(wcuda_registry_run_wait(registry_, 3, wrong, 4, {0}, &info, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(info.time_ns, 77u);
  EXPECT_EQ(wcuda_registry_run_wait(registry_, 3, arguments, 4, {99}, &info, &error_),
            WCUDA_INVALID_HANDLE);
  EXPECT_EQ(wcuda_registry_run(registry_, 3, arguments, 4, {0}, &info, &error_), WCUDA_OK);
  EXPECT_EQ(info.time_ns, 0u);
}

// A launch that fails, and a device that cannot: outputs and ledger are as they were.
TEST(RegistryFaults, a_failing_launch_leaves_outputs_alone) {
  FaultContext context;
  wcuda_error error{};
  {
    wcuda_registry registry{0};
    ASSERT_EQ(wcuda_registry_create(context.handle(), &registry, &error), WCUDA_OK);
    wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
    options.name = text("vector_add");
    options.host = vector_add;
    wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
    ASSERT_EQ(wcuda_kernel_create(context.handle(), &options, &descriptor.kernel, &error),
              WCUDA_OK);
    descriptor.name = text("vector_add");
    descriptor.parameters = kVectorAddParameters;
    descriptor.parameter_count = 4;
    descriptor.threads = text("n");
    uint32_t id = 0;
    ASSERT_EQ(wcuda_registry_add(registry, &descriptor, &id, &error), WCUDA_OK) << error.message;
    wcuda_kernel_destroy(descriptor.kernel);  // the registry keeps it
    const TestBuffer a(context.handle(), 4096), c(context.handle(), 4096);
    const std::vector<float> ones(1024, 1.0f);
    for (const TestBuffer* buffer : {&a, &c})
      ASSERT_EQ(wcuda_buffer_write(buffer->handle(), 0, ones.data(), 4096, nullptr), WCUDA_OK);
    const int32_t n = 1024;
    const wcuda_argument arguments[] = {window(a), window(a), window(c), scalar(WCUDA_ARG_I32, &n)};
    const auto run = [&] {
      return wcuda_registry_run(registry, id, arguments, 4, {0}, nullptr, &error);
    };
    std::vector<float> found(1024);

    context.faults().fail(CallKind::kLaunch, 1);
    EXPECT_NE(run(), WCUDA_OK);
    ASSERT_EQ(wcuda_buffer_read(c.handle(), 0, found.data(), 4096, nullptr), WCUDA_OK);
    EXPECT_EQ(found, ones);
    EXPECT_EQ(run(), WCUDA_OK) << error.message;
    ASSERT_EQ(wcuda_buffer_read(c.handle(), 0, found.data(), 4096, nullptr), WCUDA_OK);
    EXPECT_EQ(found, std::vector<float>(1024, 2.0f));

    // One that waits: each step of it.
    for (const CallKind kind : {CallKind::kLaunch, CallKind::kWait, CallKind::kOther}) {
      wcuda_run_info info = WCUDA_RUN_INFO_INIT;
      uint64_t k = 0;
      for (wcuda_status status = WCUDA_INTERNAL; status != WCUDA_OK;) {
        info.budget_ms = 77;
        context.faults().fail(kind, ++k);
        status = wcuda_registry_run_wait(registry, id, arguments, 4, {0}, &info, &error);
        context.faults().fail(kind, 0);
        EXPECT_EQ(info.budget_ms, status == WCUDA_OK ? 0u : 77u);
        ASSERT_LT(k, 20u);
      }
      EXPECT_GE(k, 2u) << static_cast<int>(kind);
    }
    wcuda_registry_destroy(registry);
  }
  EXPECT_EQ(context.device_bytes(), 0u);
}

class GpuRegistry : public RegistryBase, public ::testing::Test {
 protected:
  GpuRegistry() : RegistryBase(WCUDA_BACKEND_CUDA) {}
  wcuda_module load_module() {
    std::ifstream file(WCUDA_TEST_DATA "/kernels/module.ptx", std::ios::binary);
    std::stringstream ptx;
    ptx << file.rdbuf();
    const std::string code = ptx.str();
    wcuda_module module{0};
    EXPECT_EQ(wcuda_module_load(context_.handle(), code.data(), code.size(), &module, &error_),
              WCUDA_OK)
        << error_.message;
    return module;
  }
};

TEST_F(GpuRegistry, a_described_kernel_runs_with_checked_arguments) {
  const wcuda_module module = load_module();
  make_kernel(module, nullptr);
  wcuda_module_unload(module);
  run_vector_add(add());
}

// The gate decides how long the kernel runs, so that no time has to be guessed.
TEST_F(GpuRegistry, a_run_past_its_budget_is_reported_and_keeps_running) {
  const wcuda_module module = load_module();
  make_kernel(module, nullptr, "wait_flag");
  wcuda_module_unload(module);
  const wcuda_parameter params[] = {param("flag", WCUDA_ARG_BUFFER, WCUDA_ACCESS_READ, "1")};
  descriptor_.name = text("wait_flag");
  descriptor_.parameters = params;
  descriptor_.parameter_count = 1;
  descriptor_.threads = text("");
  descriptor_.block[0] = text("1");
  DeviceGate gate(context_.handle());
  wcuda_run_info info = WCUDA_RUN_INFO_INIT;
  const auto run = [&](uint32_t budget_ms) {
    descriptor_.budget_ms = budget_ms;
    const uint32_t id = add();
    const wcuda_argument arguments[] = {window(gate.flag())};
    return wcuda_registry_run_wait(registry_, id, arguments, 1, {0}, &info, &error_);
  };

  EXPECT_EQ(run(20), WCUDA_TIMEOUT);
  EXPECT_STREQ(error_.message,
               "kernel 'wait_flag': still running after its budget of 20 ms; it is not stopped");
  EXPECT_EQ(info.is_over_budget, 1);
  EXPECT_EQ(info.time_ns, 0u);

  gate.open();
  EXPECT_EQ(wcuda_context_synchronize(context_.handle(), &error_), WCUDA_OK);
  EXPECT_EQ(run(UINT32_MAX), WCUDA_OK) << error_.message;
  EXPECT_EQ(info.is_over_budget, 0);
  EXPECT_GT(info.time_ns, 0u);
}

}  // namespace
}  // namespace wcuda::testing
