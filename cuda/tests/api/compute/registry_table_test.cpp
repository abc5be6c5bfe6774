// Slot compile_kernel of HOST finds kernels that were registered by descriptor, and the registry
// serves eight threads.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "support/arguments.h"
#include "support/context.h"

namespace wcuda::testing {
namespace {

// Elements lie as far apart as the library's struct_size says.
const wcuda_host_argument& argument(const wcuda_host_argument* first, uint32_t index) {
  return *reinterpret_cast<const wcuda_host_argument*>(reinterpret_cast<const char*>(first) +
                                                       index * first->struct_size);
}

// y[i] = factor * x[i]; the factor is what `user` points to.
int32_t scale(void* user, const wcuda_launch* launch, const wcuda_host_argument* arguments,
              uint64_t) {
  if (launch->block[0] != 64) return 7;
  const auto* x = static_cast<const float*>(argument(arguments, 0).data);
  auto* y = static_cast<float*>(argument(arguments, 1).data);
  const int32_t n = *static_cast<const int32_t*>(argument(arguments, 2).data);
  for (int32_t i = 0; i < n; ++i) y[i] = *static_cast<const float*>(user) * x[i];
  return 0;
}

// A registry and what it takes to describe `scale`.
class Scales {
 public:
  explicit Scales(wcuda_context context) : context_(context) {
    EXPECT_EQ(wcuda_registry_create(context, &registry_, nullptr), WCUDA_OK);
    const char* const names[] = {"x", "y", "n"};
    for (int i = 0; i < 3; ++i) {
      params_[i] = WCUDA_PARAMETER_INIT;
      params_[i].name = {names[i], 1};
      params_[i].kind = i < 2 ? WCUDA_ARG_BUFFER : WCUDA_ARG_I32;
      if (i == 2) continue;
      params_[i].dtype = WCUDA_ARG_F32;
      params_[i].access = i == 0 ? WCUDA_ACCESS_READ : WCUDA_ACCESS_WRITE;
      params_[i].shape = {"n", 1};
    }
  }
  ~Scales() { wcuda_registry_destroy(registry_); }
  Scales(const Scales&) = delete;
  Scales& operator=(const Scales&) = delete;

  wcuda_registry handle() const { return registry_; }
  // Without a factor: described, with no host function.
  uint32_t add(const std::string& name, float* factor, uint32_t number = 0) const {
    wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
    if (factor) {
      wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
      options.name = text(name);
      options.host = scale;
      options.host_user = factor;
      EXPECT_EQ(wcuda_kernel_create(context_, &options, &descriptor.kernel, nullptr), WCUDA_OK);
    }
    descriptor.kernel_id = number;
    descriptor.name = text(name);
    descriptor.parameters = params_;
    descriptor.parameter_count = 3;
    descriptor.threads = {"n", 1};
    descriptor.block[0] = {"64", 2};
    uint32_t id = 0;
    wcuda_error error{};
    EXPECT_EQ(wcuda_registry_add(registry_, &descriptor, &id, &error), WCUDA_OK) << error.message;
    wcuda_kernel_destroy(descriptor.kernel);  // the registry keeps it
    return id;
  }

 private:
  wcuda_context context_;
  wcuda_registry registry_{0};
  wcuda_parameter params_[3];
};

class RegistryTable : public ::testing::Test {
 protected:
  void SetUp() override {
    wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
    options.type = WCUDA_BACKEND_HOST;
    options.flags = WCUDA_BACKEND_WITH_FAULTS;
    ASSERT_EQ(wcuda_backend_open(&options, &backend_, &error_), WCUDA_OK) << error_.message;
    ASSERT_EQ(wcuda_backend_context_create(backend_, &context_, &error_), WCUDA_OK);
    ASSERT_EQ(wcuda_backend_table_get(backend_, &table_, &self_, &error_), WCUDA_OK);
  }
  void TearDown() override {
    wcuda_context_destroy(context_);
    wcuda_backend_close(backend_);
  }
  wcuda_status compile(const std::string& name, wcuda_backend_kernel* kernel) {
    return table_->compile_kernel(self_, text("void " + name + "();"), text(name), kernel, &error_);
  }
  // y[0] after a launch on x[0] = 2 of one element in blocks of so many threads; 0: it failed.
  float launched(wcuda_backend_kernel kernel, int32_t n = 1, uint32_t block = 64) {
    wcuda_device_memory x{0, 0}, y{0, 0};
    const float two = 2.0f;
    float found = 0.0f;
    EXPECT_EQ(table_->allocate(self_, 4, 0, &x, &error_), WCUDA_OK) << error_.message;
    EXPECT_EQ(table_->allocate(self_, 4, 0, &y, &error_), WCUDA_OK);
    EXPECT_EQ(table_->copy_to_device(self_, x, 0, &two, 4, &error_), WCUDA_OK);
    EXPECT_EQ(table_->copy_to_device(self_, y, 0, &found, 4, &error_), WCUDA_OK);
    wcuda_argument arguments[3];
    for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
    arguments[0].kind = arguments[1].kind = WCUDA_ARG_BUFFER;
    arguments[0].buffer.id = x.id;
    arguments[1].buffer.id = y.id;
    arguments[2].kind = WCUDA_ARG_I32;
    arguments[2].data = &n;
    wcuda_launch config = WCUDA_LAUNCH_INIT;
    config.block[0] = block;
    status_ = table_->launch_kernel(self_, kernel, &config, arguments, 3, &error_);
    wcuda_error ignored{};
    EXPECT_EQ(table_->copy_from_device(self_, &found, y, 0, 4, &ignored), WCUDA_OK);
    EXPECT_EQ(table_->free(self_, x, &ignored), WCUDA_OK);
    EXPECT_EQ(table_->free(self_, y, &ignored), WCUDA_OK);
    return found;
  }

  wcuda_backend backend_{0};
  wcuda_context context_{0};
  const wcuda_backend_vtable* table_ = nullptr;
  void* self_ = nullptr;
  wcuda_status status_ = WCUDA_OK;
  wcuda_error error_{};
};

TEST_F(RegistryTable, a_registered_kernel_compiles_and_runs_its_host_function) {
  const Scales scales(context_);
  float three = 3.0f;
  const uint32_t id = scales.add("my_scale", &three);
  wcuda_backend_kernel kernel{7};
  ASSERT_EQ(compile("my_scale", &kernel), WCUDA_OK) << error_.message;

  EXPECT_EQ(launched(kernel), 6.0f) << error_.message;
  EXPECT_EQ(launched(kernel, 2), 0.0f);
  EXPECT_EQ(status_, WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "argument 0 ('x') has 1 elements, the kernel needs 2");
  EXPECT_EQ(launched(kernel, 1, 32), 0.0f) << "the launch is the caller's";
  EXPECT_EQ(status_, WCUDA_DEVICE_ERROR);

  // What was compiled stays what it is.
  ASSERT_EQ(wcuda_registry_remove(scales.handle(), id, &error_), WCUDA_OK);
  EXPECT_EQ(launched(kernel), 6.0f);
  EXPECT_EQ(table_->destroy_kernel(self_, kernel, &error_), WCUDA_OK);
  EXPECT_EQ(compile("my_scale", &kernel), WCUDA_UNSUPPORTED_KERNEL);
  EXPECT_NE(std::string(error_.message).find("neither registered"), std::string::npos)
      << error_.message;
}

TEST_F(RegistryTable, one_without_a_host_function_says_so) {
  const Scales scales(context_);
  scales.add("my_scale", nullptr);
  scales.add("vector_add", nullptr);  // not the catalogue's in its place
  for (const char* name : {"my_scale", "vector_add"}) {
    wcuda_backend_kernel kernel{7};
    EXPECT_EQ(compile(name, &kernel), WCUDA_UNSUPPORTED_KERNEL);
    EXPECT_EQ(std::string(error_.message),
              "kernel '" + std::string(name) + "': is registered, but has no host function");
    EXPECT_EQ(kernel.id, 7u);
  }
}

TEST_F(RegistryTable, the_newest_registry_goes_before_and_other_contexts_are_none) {
  float three = 3.0f, five = 5.0f, nine = 9.0f;
  const Scales first(context_);
  first.add("my_scale", &three);
  const TestContext other;
  const Scales elsewhere(other.handle());
  elsewhere.add("my_scale", &nine);
  elsewhere.add("their_scale", &nine);
  wcuda_backend_kernel kernel{0};
  {
    const Scales second(context_);
    second.add("my_scale", &five);
    ASSERT_EQ(compile("my_scale", &kernel), WCUDA_OK) << error_.message;
    EXPECT_EQ(launched(kernel), 10.0f);
    EXPECT_EQ(wcuda_registry_add_builtin(second.handle(), text("softmax"), WCUDA_ARG_F32, 0,
                                         nullptr, &error_),
              WCUDA_OK);
    EXPECT_EQ(compile("softmax", &kernel), WCUDA_OK) << "of the catalogue";
  }
  ASSERT_EQ(compile("my_scale", &kernel), WCUDA_OK) << error_.message;
  EXPECT_EQ(launched(kernel), 6.0f);
  EXPECT_EQ(compile("their_scale", &kernel), WCUDA_UNSUPPORTED_KERNEL);
}

TEST_F(RegistryTable, a_failing_launch_leaves_the_output) {
  const Scales scales(context_);
  float three = 3.0f;
  scales.add("my_scale", &three);
  wcuda_backend_kernel kernel{0};
  ASSERT_EQ(wcuda_backend_fault_set(backend_, WCUDA_FAULT_COMPILE, 1, &error_), WCUDA_OK);
  EXPECT_EQ(compile("my_scale", &kernel), WCUDA_COMPILE_FAILED);
  EXPECT_EQ(kernel.id, 0u);
  ASSERT_EQ(compile("my_scale", &kernel), WCUDA_OK) << error_.message;
  ASSERT_EQ(wcuda_backend_fault_set(backend_, WCUDA_FAULT_LAUNCH, 1, &error_), WCUDA_OK);
  EXPECT_EQ(launched(kernel), 0.0f);
  EXPECT_EQ(status_, WCUDA_DEVICE_ERROR);
  EXPECT_EQ(launched(kernel), 6.0f);
}

// Eight threads, 10,000 turns each: register, look up, launch, unregister, all in one registry.
TEST_F(RegistryTable, eight_threads_register_look_up_launch_and_unregister) {
  constexpr int kThreads = 8, kTurns = 10000;
  const Scales scales(context_);
  float factors[kThreads];
  std::atomic<int> wrong{0};
  const auto turns = [&](int thread) {
    factors[thread] = static_cast<float>(thread + 1);
    const std::string own = "scale_" + std::to_string(thread);
    const TestBuffer x(context_, 4), y(context_, 4);
    const float two = 2.0f;
    wrong += wcuda_buffer_write(x.handle(), 0, &two, 4, nullptr) != WCUDA_OK;
    const int32_t n = 1;
    wcuda_argument arguments[3];
    for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
    arguments[0].kind = arguments[1].kind = WCUDA_ARG_BUFFER;
    arguments[0].buffer = x.handle();
    arguments[1].buffer = y.handle();
    arguments[2].kind = WCUDA_ARG_I32;
    arguments[2].data = &n;
    for (int turn = 0; turn < kTurns; ++turn) {
      const uint32_t id = scales.add(own, &factors[thread], static_cast<uint32_t>(10 + thread));
      wcuda_registered_kernel found = WCUDA_REGISTERED_KERNEL_INIT;
      wrong += wcuda_registry_find(scales.handle(), text(own), &found, nullptr) != WCUDA_OK;
      wrong += found.kernel_id != id || found.flags != 0;
      wrong +=
          wcuda_registry_run(scales.handle(), id, arguments, 3, {0}, nullptr, nullptr) != WCUDA_OK;
      if (turn % 64 == 0) {
        // One that all fight for: found or gone, and what was found runs.
        scales.add("shared", &factors[thread], 5);
        wcuda_backend_kernel kernel{0};
        wcuda_error error{};
        if (table_->compile_kernel(self_, text("shared"), text("shared"), &kernel, &error) ==
            WCUDA_OK)
          wrong += table_->destroy_kernel(self_, kernel, &error) != WCUDA_OK;
        std::vector<wcuda_registered_kernel> all(16, WCUDA_REGISTERED_KERNEL_INIT);
        uint64_t count = 0;
        wrong +=
            wcuda_registry_list(scales.handle(), 0, all.data(), 16, &count, &error) != WCUDA_OK;
        wrong += count > kThreads + 1;
        if (wcuda_registry_find(scales.handle(), {"shared", 6}, &found, &error) == WCUDA_OK)
          (void)wcuda_registry_remove(scales.handle(), found.kernel_id, &error);
      }
      wrong += wcuda_registry_remove(scales.handle(), id, nullptr) != WCUDA_OK;
    }
    float sum = 0.0f;
    wrong += wcuda_buffer_read(y.handle(), 0, &sum, 4, nullptr) != WCUDA_OK;
    wrong += sum != 2.0f * factors[thread];
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(turns, thread);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  uint64_t count = 77;
  EXPECT_EQ(wcuda_context_ledger_list(context_, 0, nullptr, 0, &count, nullptr), WCUDA_OK);
  EXPECT_EQ(count, 0u);
}

}  // namespace
}  // namespace wcuda::testing
