// Section 16 of the header through the C interface; compiles need NVRTC, nothing needs a device.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/allocation_failure.h"
#include "support/arguments.h"
#include "support/context.h"
#include "support/nvrtc_library.h"
#include "support/temp_folder.h"

namespace wcuda::testing {
namespace {

std::string string_of(const wcuda_string& value) { return {value.data, value.bytes}; }

class Program : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.source = text(source_);
    options_.architecture = text(architecture_);
    options_.library_folder = text(folder_);
  }
  void TearDown() override { wcuda_program_destroy(program_); }

  wcuda_status create() {
    wcuda_program_destroy(program_);
    program_ = {0};
    return wcuda_program_create(&options_, &program_, &error_);
  }
  wcuda_program_info info() {
    wcuda_program_info info = WCUDA_PROGRAM_INFO_INIT;
    EXPECT_EQ(wcuda_program_info_get(program_, &info, nullptr), WCUDA_OK);
    return info;
  }

  std::string source_ =
      "template <class T> __global__ void scale(T* x, T by) { x[threadIdx.x] *= by; }\n"
      "extern \"C\" __global__ void noop() {}\n";
  std::string architecture_ = "compute_90";
  std::string folder_ = nvrtc_folder();
  wcuda_program_options options_ = WCUDA_PROGRAM_OPTIONS_INIT;
  wcuda_program program_{0};
  wcuda_error error_{};
};

TEST_F(Program, create_copies_and_checks_but_compiles_nothing) {
  ASSERT_EQ(create(), WCUDA_OK) << error_.message;
  source_.assign(source_.size(), '#');

  EXPECT_EQ(info().state, WCUDA_PROGRAM_NEW);
  EXPECT_EQ(info().code_kind, WCUDA_CODE_PTX);
  EXPECT_STREQ(info().architecture, "compute_90");
  const void* code = nullptr;
  uint64_t bytes = 0;
  EXPECT_EQ(wcuda_program_code_get(program_, &code, &bytes, &error_), WCUDA_INVALID_STATE);
  EXPECT_STREQ(error_.message, "program: was not compiled yet");
  wcuda_string log{nullptr, 9};
  EXPECT_EQ(wcuda_program_log_get(program_, &log, nullptr), WCUDA_OK);
  EXPECT_EQ(log.bytes, 0u);
}

TEST_F(Program, bad_options_are_refused_and_named) {
  const auto refused = [&](wcuda_status status, const char* message) {
    EXPECT_EQ(create(), status) << message;
    EXPECT_STREQ(error_.message, message);
    EXPECT_EQ(program_.id, 0u);
    options_ = WCUDA_PROGRAM_OPTIONS_INIT;
    SetUp();
  };

  options_.source = {nullptr, 0};
  refused(WCUDA_INVALID_ARGUMENT, "source: is empty");
  options_.architecture = {nullptr, 0};
  refused(WCUDA_INVALID_ARGUMENT,
          "architecture: is empty, and there is no context to take it from");
  const TestContext host;
  options_.architecture = {nullptr, 0};
  options_.context = host.handle();
  refused(WCUDA_INVALID_ARGUMENT, "architecture: is empty, and the context is not one of CUDA");
  options_.fuse_multiply_add = 3;
  refused(WCUDA_INVALID_ARGUMENT, "fuse_multiply_add: 3 is not 0, 1 or 2");
  options_.define_count = 1;
  refused(WCUDA_INVALID_ARGUMENT, "defines is NULL");
  options_.flags = 1u << 5;
  refused(WCUDA_INVALID_ARGUMENT, "flags: unknown bits 0x20");
}

TEST_F(Program, a_folder_without_nvrtc_is_a_status_and_leaves_the_program_new) {
  folder_ = "nowhere";
  options_.library_folder = text(folder_);
  ASSERT_EQ(create(), WCUDA_OK);

  EXPECT_EQ(wcuda_program_compile(program_, &error_), WCUDA_NOT_AVAILABLE);
  EXPECT_NE(std::string(error_.message).find("nowhere/libnvrtc"), std::string::npos);
  EXPECT_EQ(info().state, WCUDA_PROGRAM_NEW);
  wcuda_compiler_info compiler = WCUDA_COMPILER_INFO_INIT;
  EXPECT_EQ(wcuda_compiler_info_get(text(folder_), &compiler, nullptr), WCUDA_NOT_AVAILABLE);
}

class ProgramCompile : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    wcuda_compiler_info compiler = WCUDA_COMPILER_INFO_INIT;
    const wcuda_status status = wcuda_compiler_info_get(text(folder_), &compiler, &error_);
    WCUDA_NEEDS_NVRTC(status == WCUDA_OK, error_.message);
    EXPECT_GE(compiler.nvrtc_version, 13000);
    EXPECT_GE(compiler.architecture_count, 10u);
  }
};

TEST_F(ProgramCompile, compiles_and_returns_code_names_and_time) {
  const std::string expression = "scale<float>";
  const wcuda_string expressions[] = {text(expression)};
  options_.expressions = expressions;
  options_.expression_count = 1;
  ASSERT_EQ(create(), WCUDA_OK) << error_.message;

  ASSERT_EQ(wcuda_program_compile(program_, &error_), WCUDA_OK) << error_.message;

  const void* code = nullptr;
  uint64_t bytes = 0;
  ASSERT_EQ(wcuda_program_code_get(program_, &code, &bytes, nullptr), WCUDA_OK);
  const std::string ptx(static_cast<const char*>(code), bytes);
  EXPECT_NE(ptx.find(".entry noop"), std::string::npos);
  EXPECT_EQ(info().state, WCUDA_PROGRAM_COMPILED);
  EXPECT_EQ(info().code_bytes, bytes);
  EXPECT_GT(info().compile_ns, 0u);
  wcuda_string name{};
  ASSERT_EQ(wcuda_program_name_get(program_, text(expression), &name, nullptr), WCUDA_OK);
  EXPECT_NE(ptx.find(".entry " + string_of(name)), std::string::npos);
  EXPECT_EQ(wcuda_program_name_get(program_, text(architecture_), &name, &error_), WCUDA_NOT_FOUND);

  const uint64_t first_ns = info().compile_ns;
  EXPECT_EQ(wcuda_program_compile(program_, nullptr), WCUDA_OK) << "a second time does nothing";
  EXPECT_EQ(info().compile_ns, first_ns);
}

TEST_F(ProgramCompile, a_failure_keeps_the_whole_log) {
  source_ = "extern \"C\" __global__ void k(int* p) {\n *p = a;\n *p = b;\n}";
  options_.source = text(source_);
  ASSERT_EQ(create(), WCUDA_OK);

  EXPECT_EQ(wcuda_program_compile(program_, &error_), WCUDA_COMPILE_FAILED);

  EXPECT_STREQ(error_.message, "kernel.cu(2): error: identifier \"a\" is undefined");
  EXPECT_EQ(info().state, WCUDA_PROGRAM_FAILED);
  wcuda_string log{};
  ASSERT_EQ(wcuda_program_log_get(program_, &log, nullptr), WCUDA_OK);
  EXPECT_NE(string_of(log).find("identifier \"b\" is undefined"), std::string::npos);
  const void* code = nullptr;
  uint64_t bytes = 0;
  EXPECT_EQ(wcuda_program_code_get(program_, &code, &bytes, &error_), WCUDA_INVALID_STATE);
  EXPECT_STREQ(error_.message, "program: could not be compiled");
}

TEST_F(ProgramCompile, a_cache_answers_the_second_time_and_include_folders_bypass_it) {
  const TempFolder folder;
  const std::string path = folder.path() + "/cache";
  wcuda_kernel_cache cache{0};
  ASSERT_EQ(wcuda_kernel_cache_open(text(path), 1 << 20, &cache, &error_), WCUDA_OK)
      << error_.message;
  options_.cache = cache;
  const auto compile = [&] {
    EXPECT_EQ(create(), WCUDA_OK) << error_.message;
    EXPECT_EQ(wcuda_program_compile(program_, &error_), WCUDA_OK) << error_.message;
    const void* code = nullptr;
    uint64_t bytes = 0;
    EXPECT_EQ(wcuda_program_code_get(program_, &code, &bytes, nullptr), WCUDA_OK);
    return std::string(static_cast<const char*>(code), bytes);
  };

  const std::string first = compile();
  EXPECT_EQ(info().cache_result, WCUDA_CACHE_MISS);
  EXPECT_EQ(compile(), first);
  EXPECT_EQ(info().cache_result, WCUDA_CACHE_HIT);
  const wcuda_string folders[] = {text(folder.path())};
  options_.include_folders = folders;
  options_.include_folder_count = 1;
  compile();
  EXPECT_EQ(info().cache_result, WCUDA_CACHE_BYPASSED);

  wcuda_kernel_cache_stats stats = WCUDA_KERNEL_CACHE_STATS_INIT;
  ASSERT_EQ(wcuda_kernel_cache_stats_get(cache, &stats, &error_), WCUDA_OK) << error_.message;
  EXPECT_EQ(stats.hit_count, 1u);
  EXPECT_EQ(stats.miss_count, 1u);
  EXPECT_EQ(stats.bypass_count, 1u);
  EXPECT_EQ(stats.entry_count, 1u);
  EXPECT_GT(stats.entry_bytes, first.size());
  EXPECT_EQ(wcuda_kernel_cache_clear(cache, nullptr), WCUDA_OK);
  wcuda_kernel_cache_close(cache);
  EXPECT_EQ(create(), WCUDA_INVALID_HANDLE);
  options_.cache = {0};
}

// A backend of HOST with faults, its table, and a program for its context.
class ProgramFaults : public ProgramCompile {
 protected:
  void SetUp() override {
    ProgramCompile::SetUp();
    if (IsSkipped()) return;
    wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
    options.type = WCUDA_BACKEND_HOST;
    options.flags = WCUDA_BACKEND_WITH_FAULTS;
    options.trace = [](void* user, wcuda_string line) {
      static_cast<std::vector<std::string>*>(user)->push_back(string_of(line));
    };
    options.trace_user = &lines_;
    ASSERT_EQ(wcuda_backend_open(&options, &backend_, &error_), WCUDA_OK) << error_.message;
    ASSERT_EQ(wcuda_backend_context_create(backend_, &context_, &error_), WCUDA_OK);
    ASSERT_EQ(wcuda_backend_table_get(backend_, &table_, &self_, &error_), WCUDA_OK);
    options_.context = context_;
  }
  void TearDown() override {
    wcuda_context_destroy(context_);
    wcuda_backend_close(backend_);
    ProgramCompile::TearDown();
  }
  void fail(int32_t kind, uint64_t k) {
    ASSERT_EQ(wcuda_backend_fault_set(backend_, kind, k, &error_), WCUDA_OK);
  }
  uint64_t ledger_rows() const {
    uint64_t count = 77;
    EXPECT_EQ(wcuda_context_ledger_list(context_, 0, nullptr, 0, &count, nullptr), WCUDA_OK);
    return count;
  }
  wcuda_status compile_in_table() {
    wcuda_backend_kernel kernel{77};
    const wcuda_status status =
        table_->compile_kernel(self_, {"vector_add", 10}, {"vector_add", 10}, &kernel, &error_);
    if (status != WCUDA_OK) {
      EXPECT_EQ(kernel.id, 77u);
      return status;
    }
    return table_->destroy_kernel(self_, kernel, &error_);
  }
  wcuda_status compile_program() {
    EXPECT_EQ(create(), WCUDA_OK) << error_.message;
    const wcuda_status status = wcuda_program_compile(program_, &error_);
    const void* code = this;
    uint64_t bytes = 77;
    const wcuda_status got = wcuda_program_code_get(program_, &code, &bytes, nullptr);
    if (status == WCUDA_OK) {
      EXPECT_EQ(got, WCUDA_OK);
      return status;
    }
    EXPECT_EQ(got, WCUDA_INVALID_STATE);
    EXPECT_EQ(code, this);
    EXPECT_EQ(bytes, 77u);
    EXPECT_EQ(info().state, WCUDA_PROGRAM_NEW);
    EXPECT_EQ(info().log_bytes, 0u);
    return status;
  }

  std::vector<std::string> lines_;
  wcuda_backend backend_{0};
  wcuda_context context_{0};
  const wcuda_backend_vtable* table_ = nullptr;
  void* self_ = nullptr;
};

TEST_F(ProgramFaults, the_kth_compile_fails_whichever_way_it_is_asked_for) {
  for (uint64_t k = 1; k <= 5; ++k) {
    fail(WCUDA_FAULT_COMPILE, k);
    for (uint64_t call = 1; call <= 4; ++call) {
      const wcuda_status status = call % 2 ? compile_in_table() : compile_program();
      EXPECT_EQ(status, call == k ? WCUDA_COMPILE_FAILED : WCUDA_OK) << call << " of " << k;
      if (call == k) {
        EXPECT_STREQ(error_.message, "compile_kernel: injected failure");
      }
      EXPECT_EQ(ledger_rows(), 0u);
    }
    EXPECT_EQ(wcuda_program_compile(program_, &error_), WCUDA_OK) << "as good as before";
  }
}

TEST_F(ProgramFaults, compiles_are_traced_and_a_lost_device_has_none) {
  ASSERT_EQ(compile_program(), WCUDA_OK) << error_.message;
  ASSERT_EQ(lines_.size(), 1u);
  const std::string begin =
      R"({"slot":"compile_kernel","bytes":)" + std::to_string(source_.size()) + ",";
  EXPECT_EQ(lines_[0].rfind(begin, 0), 0u) << lines_[0];

  fail(WCUDA_FAULT_LOST, 1);
  EXPECT_EQ(compile_program(), WCUDA_DEVICE_LOST);
  EXPECT_EQ(compile_in_table(), WCUDA_DEVICE_LOST);
}

TEST_F(ProgramFaults, a_program_outlives_its_context) {
  ASSERT_EQ(create(), WCUDA_OK) << error_.message;
  fail(WCUDA_FAULT_COMPILE, 1);
  wcuda_context_destroy(context_);
  wcuda_backend_close(backend_);
  EXPECT_EQ(wcuda_program_compile(program_, &error_), WCUDA_OK) << error_.message;
}

TEST_F(ProgramCompile, survives_a_full_host_at_every_allocation) {
  for (int64_t k = 1;; ++k) {
    wcuda_program program{77};
    wcuda_status status;
    bool happened;
    {
      const FailAllocation failure(k);
      status = wcuda_program_create(&options_, &program, &error_);
      if (status == WCUDA_OK) status = wcuda_program_compile(program, &error_);
      happened = failure.happened();
    }
    if (program.id != 77) wcuda_program_destroy(program);
    if (!happened) {
      EXPECT_EQ(status, WCUDA_OK) << error_.message;
      break;
    }
    // NVRTC catches its own and says so in its way.
    EXPECT_NE(status, WCUDA_INTERNAL) << k << ": " << error_.message;
    ASSERT_LT(k, 100000);
    if (k > 60) k += k / 4;  // most of them are within NVRTC
  }
}

}  // namespace
}  // namespace wcuda::testing
