// Types, selection, registration, wrappers and failures through the C interface.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/backend/open.h"
#include "support/context.h"
#include "worker_cuda.h"

extern "C" wcuda_status example_backend_register(const char* name, int32_t* type,
                                                 wcuda_error* error);

namespace wcuda::testing {
namespace {

class Backends : public ::testing::Test {
 protected:
  void open(wcuda_backend_options options) {
    ASSERT_EQ(wcuda_backend_open(&options, &backend_, &error_), WCUDA_OK) << error_.message;
    ASSERT_EQ(wcuda_backend_table_get(backend_, &table_, &self_, &error_), WCUDA_OK);
  }
  static wcuda_backend_options host() {
    wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
    options.type = WCUDA_BACKEND_HOST;
    options.memory_budget = 64 << 20;
    return options;
  }
  void TearDown() override { wcuda_backend_close(backend_); }

  wcuda_status fail(int32_t kind, uint64_t k) {
    return wcuda_backend_fault_set(backend_, kind, k, &error_);
  }
  wcuda_status compile() {
    wcuda_backend_kernel kernel{0};
    return table_->compile_kernel(self_, {"vector_add", 10}, {"vector_add", 10}, &kernel, &error_);
  }

  // sums = values + values, with all steps of it; written when all went well.
  wcuda_status add(const std::vector<float>& values, std::vector<float>* sums) {
    const uint64_t bytes = values.size() * sizeof(float);
    const auto n = static_cast<int32_t>(values.size());
    wcuda_device_memory from{0, 0}, to{0, 0};
    wcuda_backend_kernel kernel{0};
    wcuda_stream stream{0};
    wcuda_launch config = WCUDA_LAUNCH_INIT;
    const std::function<wcuda_status()> steps[] = {
        [&] { return table_->allocate(self_, bytes, 0, &from, &error_); },
        [&] { return table_->allocate(self_, bytes, 0, &to, &error_); },
        [&] { return table_->stream_create(self_, 0, &stream, &error_); },
        [&] {
          return table_->copy_to_device_async(self_, from, 0, values.data(), bytes, stream,
                                              &error_);
        },
        [&] { return table_->fill(self_, to, 0, bytes, 0, 4, stream, &error_); },
        [&] {
          return table_->compile_kernel(self_, {"vector_add", 10}, {"vector_add", 10}, &kernel,
                                        &error_);
        },
        [&] {
          wcuda_argument arguments[4];
          for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
          for (int i = 0; i < 3; ++i) {
            arguments[i].kind = WCUDA_ARG_BUFFER;
            arguments[i].buffer.id = i < 2 ? from.id : to.id;
          }
          arguments[3].kind = WCUDA_ARG_I32;
          arguments[3].data = &n;
          config.stream = stream;
          return table_->launch_kernel(self_, kernel, &config, arguments, 4, &error_);
        },
        [&] { return table_->stream_synchronize(self_, stream, &error_); },
        [&] { return table_->copy_from_device(self_, sums->data(), to, 0, bytes, &error_); }};
    for (const auto& step : steps)
      if (const wcuda_status status = step()) return status;
    return WCUDA_OK;
  }

  wcuda_backend backend_{0};
  const wcuda_backend_vtable* table_ = nullptr;
  void* self_ = nullptr;
  wcuda_error error_{};
};

// The example's backend, once a process.
int32_t example_type() {
  static int32_t type = 0;
  wcuda_error error{};
  if (type == 0) {
    EXPECT_EQ(example_backend_register("types-test", &type, &error), WCUDA_OK);
  }
  return type;
}

std::vector<wcuda_backend_entry> list() {
  uint64_t count = 0;
  EXPECT_EQ(wcuda_backend_list(0, nullptr, 0, &count, nullptr), WCUDA_OK);
  std::vector<wcuda_backend_entry> entries(count, WCUDA_BACKEND_ENTRY_INIT);
  EXPECT_EQ(wcuda_backend_list(0, entries.data(), count, &count, nullptr), WCUDA_OK);
  return entries;
}

TEST_F(Backends, list_has_every_type_by_priority_and_says_why_not) {
  const auto entries = list();
  std::map<std::string, wcuda_backend_entry> by_name;
  for (size_t i = 0; i < entries.size(); ++i) {
    by_name[entries[i].name] = entries[i];
    EXPECT_LE(entries[i].priority, entries[i == 0 ? 0 : i - 1].priority);
  }
  for (const char* name : {"cuda", "metal", "vulkan", "webgpu", "opengl", "opengles", "webgl2",
                           "fpga", "stdgpu", "simulated", "directml", "tpu", "host"})
    EXPECT_EQ(by_name.count(name), 1u) << name;
  for (const char* name : {"metal", "vulkan", "webgpu", "fpga", "tpu"}) {
    EXPECT_EQ(by_name[name].is_available, 0);
    EXPECT_EQ(by_name[name].status, WCUDA_NOT_AVAILABLE);
    EXPECT_STRNE(by_name[name].reason, "");
  }
  for (const char* name : {"host", "stdgpu", "simulated"}) {
    EXPECT_EQ(by_name[name].is_available, 1);
    EXPECT_EQ(by_name[name].device_count, 1);
  }
  EXPECT_STREQ(entries[0].name, "cuda");
}

TEST_F(Backends, names_lead_to_types) {
  int32_t type = 0;
  EXPECT_EQ(wcuda_backend_find({"vulkan", 6}, &type, &error_), WCUDA_OK);
  EXPECT_EQ(type, WCUDA_BACKEND_VULKAN);
  EXPECT_EQ(wcuda_backend_find({"glide", 5}, &type, &error_), WCUDA_NOT_FOUND);
  EXPECT_NE(std::strstr(error_.message, "cuda, metal"), nullptr) << error_.message;
}

TEST_F(Backends, other_names_of_the_host_are_the_host) {
  for (const int32_t type : {WCUDA_BACKEND_STDGPU, WCUDA_BACKEND_SIMULATED}) {
    const TestContext context(1 << 20, type);
    wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
    ASSERT_EQ(wcuda_context_info_get(context.handle(), &info, &error_), WCUDA_OK);
    EXPECT_EQ(info.backend, WCUDA_BACKEND_HOST);
  }
}

TEST_F(Backends, types_of_other_devices_are_not_available) {
  for (int32_t type = WCUDA_BACKEND_VULKAN; type <= WCUDA_BACKEND_TPU; ++type) {
    if (type == WCUDA_BACKEND_STDGPU || type == WCUDA_BACKEND_SIMULATED) continue;
    wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
    options.type = type;
    EXPECT_EQ(wcuda_backend_open(&options, &backend_, &error_), WCUDA_NOT_AVAILABLE) << type;
    EXPECT_STREQ(wcuda_backend_error_name(error_.code), "BackendNotAvailable");
  }
  int32_t count = 0;
  EXPECT_EQ(wcuda_device_count(WCUDA_BACKEND_METAL, &count, &error_), WCUDA_NOT_AVAILABLE);
  EXPECT_EQ(wcuda_device_count(99, &count, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_device_count(9999, &count, &error_), WCUDA_NOT_AVAILABLE);
}

TEST_F(Backends, asking_for_cuda_never_falls_back) {
  int32_t count = 0;
  const wcuda_status there = wcuda_device_count(WCUDA_BACKEND_CUDA, &count, &error_);
  if (there == WCUDA_OK) GTEST_SKIP() << "there is a device";
  wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
  options.type = WCUDA_BACKEND_CUDA;
  EXPECT_EQ(wcuda_backend_open(&options, &backend_, &error_), there);
  EXPECT_EQ(backend_.id, 0u);
}

TEST(Auto, takes_the_host_only_where_there_is_no_usable_device) {
  EXPECT_TRUE(means_no_device(WCUDA_NOT_AVAILABLE));
  EXPECT_TRUE(means_no_device(WCUDA_NO_DEVICE));
  for (const Code code : {WCUDA_DEVICE_ERROR, WCUDA_DEVICE_LOST, WCUDA_OUT_OF_MEMORY,
                          WCUDA_OUT_OF_HOST_MEMORY, WCUDA_UNSUPPORTED, WCUDA_INTERNAL})
    EXPECT_FALSE(means_no_device(code)) << wcuda_status_name(code);
}

TEST_F(Backends, best_lists_what_it_passed_over_and_why) {
  wcuda_selection_options options = WCUDA_SELECTION_OPTIONS_INIT;
  options.preferred = WCUDA_BACKEND_METAL;
  wcuda_skipped_backend skipped[2] = {WCUDA_SKIPPED_BACKEND_INIT};
  wcuda_selection selection = WCUDA_SELECTION_INIT;
  selection.skipped = skipped;
  selection.skipped_capacity = 2;
  ASSERT_EQ(wcuda_backend_select(&options, &selection, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(selection.type, WCUDA_BACKEND_HOST);  // by its name stdgpu
  ASSERT_EQ(selection.skipped_count, 2u);
  EXPECT_EQ(selection.skipped[0].type, WCUDA_BACKEND_METAL);
  EXPECT_EQ(selection.skipped[1].type, WCUDA_BACKEND_VULKAN);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(selection.skipped[i].status, WCUDA_NOT_AVAILABLE);
    EXPECT_STRNE(selection.skipped[i].reason, "");
  }
}

TEST_F(Backends, best_of_a_chain_is_its_first_that_is_there) {
  const int32_t chain[] = {WCUDA_BACKEND_OPENGL, example_type(), WCUDA_BACKEND_HOST};
  wcuda_selection_options options = WCUDA_SELECTION_OPTIONS_INIT;
  options.preferred = WCUDA_BACKEND_FPGA;
  options.fallbacks = chain;
  options.fallback_count = 3;
  wcuda_selection selection = WCUDA_SELECTION_INIT;
  ASSERT_EQ(wcuda_backend_select(&options, &selection, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(selection.type, example_type());
  EXPECT_EQ(selection.skipped_count, 2u);
}

TEST_F(Backends, best_counts_what_it_skipped_past_the_room_there_is) {
  std::vector<int32_t> chain;
  for (int32_t i = 0; i < 20; ++i) chain.push_back(WCUDA_BACKEND_REGISTERED + 5000 + i);
  wcuda_selection_options options = WCUDA_SELECTION_OPTIONS_INIT;
  options.fallbacks = chain.data();
  options.fallback_count = static_cast<uint32_t>(chain.size());
  wcuda_skipped_backend skipped[16] = {WCUDA_SKIPPED_BACKEND_INIT};
  wcuda_selection selection = WCUDA_SELECTION_INIT;
  selection.skipped = skipped;
  selection.skipped_capacity = 16;
  ASSERT_EQ(wcuda_backend_select(&options, &selection, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(selection.type, WCUDA_BACKEND_HOST);
  EXPECT_EQ(selection.skipped_count, 20u);
  EXPECT_EQ(selection.skipped[0].type, chain[0]);
  EXPECT_EQ(selection.skipped[15].type, chain[15]);
  EXPECT_STRNE(selection.skipped[15].reason, "");
}

TEST_F(Backends, best_needs_the_features_asked_for) {
  wcuda_selection_options options = WCUDA_SELECTION_OPTIONS_INIT;
  options.preferred = WCUDA_BACKEND_HOST;
  options.required_features = WCUDA_FEATURE_TENSOR_CORES | WCUDA_FEATURE_FP64;
  wcuda_selection selection = WCUDA_SELECTION_INIT;
  EXPECT_EQ(wcuda_backend_select(&options, &selection, &error_), WCUDA_NOT_AVAILABLE);
  EXPECT_NE(std::strstr(error_.message, "tensor_cores"), nullptr) << error_.message;
  EXPECT_EQ(std::strstr(error_.message, "fp64"), nullptr) << error_.message;
  options.required_features = uint64_t{1} << 8;
  EXPECT_EQ(wcuda_backend_select(&options, &selection, &error_), WCUDA_INVALID_ARGUMENT);
}

TEST_F(Backends, best_without_the_host_may_find_nothing) {
  const int32_t chain[] = {WCUDA_BACKEND_TPU};
  wcuda_selection_options options = WCUDA_SELECTION_OPTIONS_INIT;
  options.flags = WCUDA_SELECT_NO_HOST;
  options.preferred = WCUDA_BACKEND_VULKAN;
  options.fallbacks = chain;
  options.fallback_count = 1;
  wcuda_selection selection = WCUDA_SELECTION_INIT;
  EXPECT_EQ(wcuda_backend_select(&options, &selection, &error_), WCUDA_NOT_AVAILABLE);
  EXPECT_EQ(selection.type, 0);
}

TEST_F(Backends, best_of_all_opens_and_states_its_reason) {
  wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
  options.type = WCUDA_BACKEND_AUTO;
  open(options);
  wcuda_backend_info info = WCUDA_BACKEND_INFO_INIT;
  ASSERT_EQ(wcuda_backend_info_get(backend_, &info, &error_), WCUDA_OK);
  EXPECT_TRUE(info.type == WCUDA_BACKEND_CUDA || info.type == WCUDA_BACKEND_HOST);
  EXPECT_EQ(info.type == WCUDA_BACKEND_HOST, std::strncmp(info.fallback_reason, "cuda: ", 6) == 0);
}

TEST_F(Backends, features_follow_the_caps) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  uint64_t features = 77;
  ASSERT_EQ(wcuda_device_features_get(&caps, &features, &error_), WCUDA_OK);
  EXPECT_EQ(features, 0u);
  caps.supports_fp16 = caps.supports_tensor_cores = 1;
  caps.warp_size = 32;
  caps.shared_memory_per_block = 49152;
  ASSERT_EQ(wcuda_device_features_get(&caps, &features, &error_), WCUDA_OK);
  EXPECT_EQ(features, WCUDA_FEATURE_FP16 | WCUDA_FEATURE_TENSOR_CORES | WCUDA_FEATURE_SUBGROUPS |
                          WCUDA_FEATURE_SHARED_MEMORY);
}

TEST_F(Backends, every_status_has_a_name_in_the_older_sets) {
  EXPECT_STREQ(wcuda_backend_error_name(WCUDA_OK), "");
  EXPECT_STREQ(wcuda_backend_error_name(WCUDA_OUT_OF_MEMORY), "OutOfMemory");
  EXPECT_STREQ(wcuda_backend_error_name(WCUDA_ARGUMENT_COUNT), "ArgumentCountMismatch");
  EXPECT_STREQ(wcuda_backend_error_name(WCUDA_TIMEOUT), "Timeout");
  EXPECT_STREQ(wcuda_backend_error_name(WCUDA_DEVICE_LOST), "SynchronizationFailed");
  for (wcuda_status status = 1000; status < 10000; ++status)
    if (std::strcmp(wcuda_status_name(status), "WCUDA_UNKNOWN") != 0) {
      EXPECT_STRNE(wcuda_backend_error_name(status), "") << status;
    }
}

TEST_F(Backends, threads_of_a_launch_are_counted_in_64_bits) {
  wcuda_launch launch = WCUDA_LAUNCH_INIT;
  uint64_t threads = 0;
  ASSERT_EQ(wcuda_launch_threads_get(&launch, &threads, &error_), WCUDA_OK);
  EXPECT_EQ(threads, 256u);
  launch.grid[0] = 2147483647;
  launch.grid[1] = 4;
  ASSERT_EQ(wcuda_launch_threads_get(&launch, &threads, &error_), WCUDA_OK);
  EXPECT_EQ(threads, uint64_t{2147483647} * 4 * 256);
  launch.grid[1] = launch.grid[2] = 65535;
  EXPECT_EQ(wcuda_launch_threads_get(&launch, &threads, &error_), WCUDA_OUT_OF_RANGE);
}

TEST_F(Backends, registering_checks_name_and_slots) {
  wcuda_backend_vtable table = WCUDA_BACKEND_VTABLE_INIT;
  wcuda_backend_registration registration = WCUDA_BACKEND_REGISTRATION_INIT;
  registration.name = {"mine", 4};
  registration.open = [](void*, int32_t, void**, wcuda_error*) -> wcuda_status { return 0; };
  int32_t type = 7;
  EXPECT_EQ(wcuda_backend_register(&registration, &type, &error_), WCUDA_INVALID_ARGUMENT);
  registration.table = &table;
  EXPECT_EQ(wcuda_backend_register(&registration, &type, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error_.message, "'deinit'"), nullptr) << error_.message;
  EXPECT_EQ(example_backend_register("cuda", &type, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(example_backend_register("auto", &type, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(example_backend_register("", &type, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(example_backend_register("a name of more than thirty-one bytes", &type, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(type, 7);
}

TEST_F(Backends, a_type_that_was_unregistered_is_gone_and_its_name_free) {
  int32_t type = 0, again = 0;
  ASSERT_EQ(example_backend_register("short-lived", &type, &error_), WCUDA_OK);
  EXPECT_EQ(example_backend_register("short-lived", &again, &error_), WCUDA_INVALID_ARGUMENT);
  wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
  options.type = type;
  open(options);
  ASSERT_EQ(wcuda_backend_unregister(type, &error_), WCUDA_OK);
  EXPECT_EQ(wcuda_backend_unregister(type, &error_), WCUDA_NOT_FOUND);
  wcuda_backend other{0};
  EXPECT_EQ(wcuda_backend_open(&options, &other, &error_), WCUDA_NOT_AVAILABLE);
  ASSERT_EQ(example_backend_register("short-lived", &again, &error_), WCUDA_OK);
  EXPECT_NE(again, type);
  wcuda_device_memory memory{0, 0};
  EXPECT_EQ(table_->allocate(self_, 16, 0, &memory, &error_), WCUDA_OK);  // still works
  EXPECT_EQ(wcuda_backend_unregister(again, &error_), WCUDA_OK);
}

TEST_F(Backends, contexts_open_on_a_registered_type) {
  const TestContext context(0, example_type());
  const TestBuffer buffer(context.handle(), 1000);
  std::vector<uint8_t> data(1000, 9), back(1000);
  EXPECT_EQ(wcuda_buffer_write(buffer.handle(), 0, data.data(), 1000, &error_), WCUDA_OK);
  EXPECT_EQ(wcuda_buffer_fill(buffer.handle(), 0, 8, 1, 8, &error_), WCUDA_OK);
  EXPECT_EQ(wcuda_buffer_read(buffer.handle(), 0, back.data(), 1000, &error_), WCUDA_OK);
  EXPECT_EQ(back[0], 1);
  EXPECT_EQ(back[999], 9);
  wcuda_residency residency = WCUDA_RESIDENCY_INIT;
  EXPECT_EQ(wcuda_context_residency_get(context.handle(), &residency, &error_), WCUDA_OK);
  wcuda_argument arguments[4];
  for (wcuda_argument& each : arguments) each = WCUDA_ARGUMENT_INIT;
  const int32_t n = 250;
  for (int i = 0; i < 3; ++i) {
    arguments[i].kind = WCUDA_ARG_BUFFER;
    arguments[i].buffer = buffer.handle();
  }
  arguments[3].kind = WCUDA_ARG_I32;
  arguments[3].data = &n;
  EXPECT_EQ(wcuda_catalogue_run(context.handle(), {"vector_add", 10}, WCUDA_ARG_F32, arguments, 4,
                                {0}, &error_),
            WCUDA_UNSUPPORTED_KERNEL)
      << error_.message;
}

TEST_F(Backends, a_registered_backend_refuses_memory_that_it_did_not_allocate) {
  const TestContext context(0, example_type());
  unsigned char memory[64] = {}, copy[64];
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = sizeof(memory);
  wcuda_buffer borrowed{0};
  ASSERT_EQ(wcuda_buffer_borrow(context.handle(), memory, &options, &borrowed, &error_), WCUDA_OK);

  EXPECT_EQ(wcuda_buffer_write(borrowed, 0, copy, 1, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "backend 'types-test': has not allocated these 1 bytes");
  EXPECT_EQ(wcuda_buffer_read(borrowed, 0, copy, 64, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_fill(borrowed, 0, 64, 0, 1, &error_), WCUDA_INVALID_ARGUMENT);

  wcuda_buffer_destroy(borrowed);
}

TEST_F(Backends, slots_that_are_null_are_unsupported) {
  // What the host's table offers, less all that may be missing.
  static wcuda_backend inner{0};
  static wcuda_backend_vtable narrow = WCUDA_BACKEND_VTABLE_INIT;
  wcuda_backend_options options = host();
  ASSERT_EQ(wcuda_backend_open(&options, &inner, &error_), WCUDA_OK);
  const wcuda_backend_vtable* table = nullptr;
  void* self = nullptr;
  ASSERT_EQ(wcuda_backend_table_get(inner, &table, &self, &error_), WCUDA_OK);
  narrow.deinit = [](void*) {};
  narrow.get_device_count = table->get_device_count;
  narrow.get_device_caps = table->get_device_caps;
  narrow.allocate = table->allocate;
  narrow.free = table->free;
  narrow.copy_to_device = table->copy_to_device;
  narrow.copy_from_device = table->copy_from_device;
  narrow.synchronize = table->synchronize;
  wcuda_backend_registration registration = WCUDA_BACKEND_REGISTRATION_INIT;
  registration.name = {"narrow", 6};
  registration.table = &narrow;
  registration.user = self;
  registration.open = [](void* user, int32_t, void** instance, wcuda_error*) -> wcuda_status {
    *instance = user;
    return WCUDA_OK;
  };
  int32_t type = 0;
  ASSERT_EQ(wcuda_backend_register(&registration, &type, &error_), WCUDA_OK) << error_.message;
  wcuda_backend_options of_type = WCUDA_BACKEND_OPTIONS_INIT;
  of_type.type = type;
  open(of_type);

  wcuda_device_memory memory{0, 0};
  uint8_t data[16] = {1, 2, 3}, back[16] = {};
  ASSERT_EQ(table_->allocate(self_, 16, 0, &memory, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(table_->copy_to_device(self_, memory, 0, data, 16, &error_), WCUDA_OK);
  EXPECT_EQ(table_->copy_from_device(self_, back, memory, 0, 16, &error_), WCUDA_OK);
  EXPECT_EQ(std::memcmp(data, back, 16), 0);
  wcuda_stream stream{7};
  wcuda_event event{7};
  EXPECT_EQ(table_->fill(self_, memory, 0, 16, 0, 1, {0}, &error_), WCUDA_UNSUPPORTED);
  EXPECT_STREQ(error_.message, "backend 'narrow': has no fill");
  EXPECT_EQ(table_->copy_to_device_async(self_, memory, 0, data, 16, {0}, &error_),
            WCUDA_UNSUPPORTED);
  EXPECT_EQ(table_->stream_create(self_, 0, &stream, &error_), WCUDA_UNSUPPORTED);
  EXPECT_EQ(table_->event_create(self_, &event, &error_), WCUDA_UNSUPPORTED);
  EXPECT_EQ(compile(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(table_->fault(self_, &error_), WCUDA_OK);
  uint64_t free_bytes = 0, total_bytes = 0;
  EXPECT_EQ(table_->memory_info(self_, &free_bytes, &total_bytes, &error_), WCUDA_OK);
  EXPECT_EQ(total_bytes - free_bytes, 16u);
  EXPECT_EQ(table_->free(self_, memory, &error_), WCUDA_OK);
  wcuda_backend_close(backend_);
  backend_.id = 0;
  EXPECT_EQ(wcuda_backend_unregister(type, &error_), WCUDA_OK);
  wcuda_backend_close(inner);
}

TEST_F(Backends, trace_writes_each_call_as_a_line_of_json) {
  std::vector<std::string> lines;
  wcuda_backend_options options = host();
  options.trace = [](void* user, wcuda_string line) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(line.data, line.bytes);
  };
  options.trace_user = &lines;
  open(options);
  wcuda_device_memory memory{0, 0};
  uint8_t data[100] = {};
  ASSERT_EQ(table_->allocate(self_, 100, 0, &memory, &error_), WCUDA_OK);
  ASSERT_EQ(table_->copy_to_device(self_, memory, 0, data, 100, &error_), WCUDA_OK);
  ASSERT_EQ(table_->copy_from_device(self_, data, memory, 0, 50, &error_), WCUDA_OK);
  ASSERT_EQ(compile(), WCUDA_OK);
  EXPECT_EQ(table_->allocate(self_, 65 << 20, 0, &memory, &error_), WCUDA_OVER_BUDGET);
  ASSERT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);

  const std::vector<std::pair<std::string, std::string>> expected = {{"allocate", "100"},
                                                                     {"copy_to_device", "100"},
                                                                     {"copy_from_device", "50"},
                                                                     {"compile_kernel", "10"},
                                                                     {"synchronize", "0"}};
  ASSERT_EQ(lines.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string begin = "{\"slot\":\"" + expected[i].first +
                              "\",\"bytes\":" + expected[i].second + ",\"stream\":0,\"ns\":";
    EXPECT_EQ(lines[i].compare(0, begin.size(), begin), 0) << lines[i];
    EXPECT_NE(lines[i].find(",\"status\":\"WCUDA_OK\"}"), std::string::npos) << lines[i];
  }
  wcuda_backend_close(backend_);
  backend_.id = 0;
  EXPECT_NE(lines.back().find("\"slot\":\"free\""), std::string::npos) << lines.back();
}

TEST_F(Backends, faults_are_refused_unless_opened_with_them) {
  open(host());
  EXPECT_EQ(fail(WCUDA_FAULT_COPY, 1), WCUDA_INVALID_STATE);
  EXPECT_EQ(fail(99, 1), WCUDA_INVALID_ARGUMENT);
}

TEST_F(Backends, the_kth_call_of_each_kind_fails_and_the_next_works) {
  wcuda_backend_options options = host();
  options.flags = WCUDA_BACKEND_WITH_FAULTS;
  open(options);
  wcuda_device_memory memory{0, 0}, more{7, 7};
  uint8_t data[64] = {};
  ASSERT_EQ(table_->allocate(self_, 64, 0, &memory, &error_), WCUDA_OK);
  struct {
    int32_t kind;
    wcuda_status status;
    std::function<wcuda_status()> call;
  } const cases[] = {{WCUDA_FAULT_ALLOCATE, WCUDA_OUT_OF_MEMORY,
                      [&] { return table_->allocate(self_, 64, 0, &more, &error_); }},
                     {WCUDA_FAULT_COPY, WCUDA_DEVICE_ERROR,
                      [&] { return table_->copy_to_device(self_, memory, 0, data, 64, &error_); }},
                     {WCUDA_FAULT_LAUNCH, WCUDA_DEVICE_ERROR,
                      [&] { return table_->fill(self_, memory, 0, 64, 1, 1, {0}, &error_); }},
                     {WCUDA_FAULT_SYNCHRONIZE, WCUDA_DEVICE_ERROR,
                      [&] { return table_->synchronize(self_, &error_); }},
                     {WCUDA_FAULT_COMPILE, WCUDA_COMPILE_FAILED, [&] { return compile(); }}};
  for (const auto& each : cases) {
    ASSERT_EQ(fail(each.kind, 3), WCUDA_OK);
    EXPECT_EQ(each.call(), WCUDA_OK) << each.kind;
    EXPECT_EQ(each.call(), WCUDA_OK) << each.kind;
    EXPECT_EQ(each.call(), each.status) << each.kind;
    EXPECT_EQ(each.call(), WCUDA_OK) << each.kind;
    ASSERT_EQ(fail(each.kind, 1), WCUDA_OK);
    ASSERT_EQ(fail(WCUDA_FAULT_NONE, 0), WCUDA_OK);
    EXPECT_EQ(each.call(), WCUDA_OK) << each.kind;
  }
  EXPECT_EQ(table_->fault(self_, &error_), WCUDA_OK);
}

TEST_F(Backends, an_asynchronous_copy_that_fails_is_not_done_in_another_way) {
  wcuda_backend_options options = host();
  options.flags = WCUDA_BACKEND_WITH_FAULTS;
  open(options);
  wcuda_device_memory memory{0, 0};
  const std::vector<uint8_t> ones(64, 1), twos(64, 2);
  std::vector<uint8_t> back(64);
  ASSERT_EQ(table_->allocate(self_, 64, 0, &memory, &error_), WCUDA_OK);
  ASSERT_EQ(table_->copy_to_device(self_, memory, 0, ones.data(), 64, &error_), WCUDA_OK);
  ASSERT_EQ(fail(WCUDA_FAULT_COPY, 1), WCUDA_OK);
  EXPECT_EQ(table_->copy_to_device_async(self_, memory, 0, twos.data(), 64, {0}, &error_),
            WCUDA_DEVICE_ERROR);
  ASSERT_EQ(table_->copy_from_device(self_, back.data(), memory, 0, 64, &error_), WCUDA_OK);
  EXPECT_EQ(back, ones);
}

TEST_F(Backends, a_lost_device_answers_lost_and_nothing_else) {
  wcuda_backend_options options = host();
  options.flags = WCUDA_BACKEND_WITH_FAULTS;
  open(options);
  wcuda_device_memory memory{0, 0}, more{7, 7};
  uint8_t data[64] = {};
  ASSERT_EQ(table_->allocate(self_, 64, 0, &memory, &error_), WCUDA_OK);
  ASSERT_EQ(fail(WCUDA_FAULT_LOST, 2), WCUDA_OK);
  EXPECT_EQ(table_->copy_to_device(self_, memory, 0, data, 64, &error_), WCUDA_OK);
  EXPECT_EQ(table_->synchronize(self_, &error_), WCUDA_DEVICE_LOST);  // no timeout
  EXPECT_EQ(table_->copy_to_device(self_, memory, 0, data, 64, &error_), WCUDA_DEVICE_LOST);
  EXPECT_EQ(table_->allocate(self_, 64, 0, &more, &error_), WCUDA_DEVICE_LOST);
  EXPECT_EQ(compile(), WCUDA_DEVICE_LOST);
  EXPECT_EQ(table_->fault(self_, &error_), WCUDA_DEVICE_LOST);
  EXPECT_EQ(table_->free(self_, memory, &error_), WCUDA_OK);
  wcuda_context context{0};
  ASSERT_EQ(wcuda_backend_context_create(backend_, &context, &error_), WCUDA_OK);
  wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
  EXPECT_EQ(wcuda_context_memory_get(context, WCUDA_PURPOSE_USER, &info, &error_) == WCUDA_OK ||
                error_.code == WCUDA_DEVICE_LOST,
            true);
  wcuda_context_destroy(context);
}

TEST_F(Backends, a_failure_at_every_call_leaves_the_output_and_no_memory) {
  const std::vector<float> ones(64, 1.0f);
  for (const int32_t kind : {WCUDA_FAULT_ALLOCATE, WCUDA_FAULT_COPY, WCUDA_FAULT_LAUNCH,
                             WCUDA_FAULT_SYNCHRONIZE, WCUDA_FAULT_COMPILE, WCUDA_FAULT_LOST}) {
    bool is_done = false;
    for (uint64_t k = 1; k < 100 && !is_done; ++k) {
      wcuda_backend_options options = host();
      options.flags = WCUDA_BACKEND_WITH_FAULTS;
      open(options);
      wcuda_context context{0};
      ASSERT_EQ(wcuda_backend_context_create(backend_, &context, &error_), WCUDA_OK);
      ASSERT_EQ(fail(kind, k), WCUDA_OK);
      std::vector<float> sums(64, -1.0f);

      const wcuda_status status = add(ones, &sums);

      is_done = status == WCUDA_OK;
      EXPECT_EQ(sums, std::vector<float>(64, is_done ? 2.0f : -1.0f)) << kind << ", " << k;
      table_->deinit(self_);
      backend_.id = 0;
      wcuda_ledger_entry entry = WCUDA_LEDGER_ENTRY_INIT;
      uint64_t count = 7;
      EXPECT_EQ(wcuda_context_ledger_list(context, 0, &entry, 1, &count, &error_), WCUDA_OK);
      EXPECT_EQ(count, 0u) << kind << ", " << k << ": " << entry.tag;
      wcuda_context_destroy(context);
    }
    EXPECT_TRUE(is_done) << kind;
  }
}

TEST_F(Backends, compiling_on_the_host_computes_or_refuses) {
  open(host());
  wcuda_backend_kernel kernel{7};
  const char source[] = "void my_kernel() {} // vector_add";
  EXPECT_EQ(table_->compile_kernel(self_, {source, sizeof(source) - 1}, {"my_kernel", 9}, &kernel,
                                   &error_),
            WCUDA_UNSUPPORTED_KERNEL);
  EXPECT_EQ(kernel.id, 7u);
  EXPECT_EQ(compile(), WCUDA_OK);
}

}  // namespace
}  // namespace wcuda::testing
