// Options, diagnostics, and compiles by the NVRTC of the machine. None of it needs a device.
#include "compute/nvrtc/compiler.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "support/nvrtc_library.h"
#include "support/temp_folder.h"

namespace wcuda::nvrtc {
namespace {

using testing::nvrtc_folder;
using testing::TempFolder;

constexpr char kVectorAdd[] = R"(
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
})";

Request request(const std::string& source, const std::string& architecture) {
  Request result;
  result.source = source;
  result.architecture = architecture;
  return result;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string text_of(const Outcome& outcome) {
  return std::string(outcome.code.begin(), outcome.code.end());
}

TEST(NvrtcOptions, every_field_is_one_option_in_a_fixed_order) {
  Request r = request("x", "sm_90a");
  EXPECT_EQ(options_of(r),
            (std::vector<std::string>{"--gpu-architecture=sm_90a", "--no-source-include"}));

  r.standard = "c++17";
  r.fast_math = r.line_info = r.debug = r.relocatable = r.default_device = true;
  r.flush_denormals = Choice::kOn;
  r.precise_sqrt = Choice::kOff;
  r.precise_division = Choice::kOn;
  r.fuse_multiply_add = Choice::kOff;
  r.max_registers = 64;
  r.defines = {"N=4", "FLAG"};
  r.include_folders = {"some folder"};
  r.extras = {"--extra-device-vectorization"};

  EXPECT_EQ(
      options_of(r),
      (std::vector<std::string>{
          "--gpu-architecture=sm_90a", "--no-source-include", "--std=c++17", "--use_fast_math",
          "--ftz=true", "--prec-sqrt=false", "--prec-div=true", "--fmad=false", "--maxrregcount=64",
          "--generate-line-info", "--device-debug", "--relocatable-device-code=true",
          "--device-as-default-execution-space", "--define-macro=N=4", "--define-macro=FLAG",
          "--include-path=some folder", "--extra-device-vectorization"}));
}

TEST(NvrtcOptions, what_no_compiler_takes_is_refused_and_named) {
  for (const char* architecture : {"", "native", "sm_", "sm_9", "sm_9000", "sm_90b", "sm_90aa",
                                   "compute", "compute_a", "SM_90", "sm_-90", "90"}) {
    const Status status = check(request("x", architecture));
    EXPECT_EQ(status.code(), WCUDA_INVALID_ARGUMENT) << architecture;
    EXPECT_TRUE(contains(status.message(), "architecture")) << status.message();
  }
  for (const char* architecture : {"sm_75", "sm_90a", "sm_100f", "compute_90", "compute_120a"})
    EXPECT_TRUE(check(request("x", architecture)).ok()) << architecture;

  EXPECT_STREQ(check(request("", "sm_90")).message(), "source: is empty");
  EXPECT_STREQ(check(request(std::string("a\0b", 3), "sm_90")).message(),
               "source: has a NUL at byte 1");
  Request r = request("x", "sm_90");
  r.standard = "c++98";
  EXPECT_STREQ(check(r).message(), "standard 'c++98': is not c++11, c++14, c++17 or c++20");
  r = request("x", "sm_90");
  r.expressions = {""};
  EXPECT_STREQ(check(r).message(), "expression: is empty");
  r = request("x", "sm_90");
  r.headers = {{"", "text"}};
  EXPECT_STREQ(check(r).message(), "header's name: is empty");
}

TEST(NvrtcDiagnostic, is_the_first_line_that_states_an_error) {
  EXPECT_EQ(first_diagnostic("k.cu(1): warning #177: x\n  int x;\n\nk.cu(2): error: no y\n^\n"),
            "k.cu(2): error: no y");
  EXPECT_EQ(first_diagnostic("\nsomething else\nmore"), "something else");
  EXPECT_EQ(first_diagnostic(""), "");
  EXPECT_EQ(first_diagnostic("\n\n"), "");
  EXPECT_EQ(first_diagnostic(std::string(1000, 'e') + "error:").size(), 400u);
}

TEST(NvrtcOpen, a_folder_without_the_library_is_named) {
  const auto compiler = Compiler::open("no-such-folder");

  EXPECT_EQ(compiler.status().code(), WCUDA_NOT_AVAILABLE);
  EXPECT_TRUE(contains(compiler.status().message(), "no-such-folder/libnvrtc.so.13"))
      << compiler.status().message();
}

class Nvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Compiler::open(nvrtc_folder());
    WCUDA_NEEDS_NVRTC(opened.ok(), opened.status().message());
    compiler_ = opened.take();
  }
  Outcome compile(const Request& r) const { return compiler_->compile(r); }

  std::shared_ptr<Compiler> compiler_;
};

TEST_F(Nvrtc, knows_its_version_and_architectures) {
  EXPECT_GE(compiler_->version(), 13000);
  EXPECT_EQ(std::count(compiler_->architectures().begin(), compiler_->architectures().end(), 90),
            1);
  EXPECT_EQ(Compiler::open(nvrtc_folder())->get(), compiler_.get()) << "opened once";
}

TEST_F(Nvrtc, a_virtual_architecture_gives_ptx_a_device_its_code) {
  const Outcome ptx = compile(request(kVectorAdd, "compute_90"));
  ASSERT_TRUE(ptx.status.ok()) << ptx.status.message() << ptx.log;
  EXPECT_TRUE(contains(text_of(ptx), ".target sm_90"));
  EXPECT_TRUE(contains(text_of(ptx), ".entry vector_add"));
  EXPECT_NE(ptx.code.back(), 0);

  for (const char* architecture : {"sm_80", "sm_90a", "sm_100a", "sm_120"}) {
    const Outcome cubin = compile(request(kVectorAdd, architecture));
    ASSERT_TRUE(cubin.status.ok()) << architecture << cubin.status.message();
    EXPECT_EQ(text_of(cubin).substr(0, 4),
              "\x7f"
              "ELF");
  }
}

TEST_F(Nvrtc, a_failure_has_the_first_diagnostic_and_the_whole_log) {
  Request r = request("extern \"C\" __global__ void k(int* p) {\n  *p = nowhere;\n  *p = never;\n}",
                      "compute_90");
  r.name = "mine.cu";

  const Outcome outcome = compile(r);

  EXPECT_EQ(outcome.status.code(), WCUDA_COMPILE_FAILED);
  EXPECT_STREQ(outcome.status.message(), "mine.cu(2): error: identifier \"nowhere\" is undefined");
  EXPECT_EQ(outcome.status.native_code(), 6);
  EXPECT_TRUE(contains(outcome.log, "\"never\" is undefined"));
  EXPECT_TRUE(outcome.code.empty());
}

TEST_F(Nvrtc, warnings_of_a_success_are_in_its_log) {
  const Outcome outcome =
      compile(request("extern \"C\" __global__ void k() { int never_used; }", "compute_90"));

  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_TRUE(contains(outcome.log, "never_used")) << outcome.log;
}

TEST_F(Nvrtc, expressions_get_the_names_they_have_in_the_code) {
  Request r = request(R"(
    template <class T> __global__ void scale(T* x, T by, int n) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) x[i] *= by;
    })",
                      "compute_90");
  r.expressions = {"scale<float>", "scale<double>"};

  const Outcome outcome = compile(r);

  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  ASSERT_EQ(outcome.names.size(), 2u);
  EXPECT_EQ(outcome.names.at("scale<float>"), "_Z5scaleIfEvPT_S0_i");
  EXPECT_TRUE(contains(text_of(outcome), outcome.names.at("scale<double>")));

  r.expressions = {"scale<nothing>"};
  const Outcome wrong = compile(r);
  EXPECT_EQ(wrong.status.code(), WCUDA_COMPILE_FAILED);
  EXPECT_TRUE(contains(wrong.status.message(), "nothing")) << wrong.status.message();
}

TEST_F(Nvrtc, defines_headers_standard_and_built_in_headers_reach_the_source) {
  Request r = request(R"(
    #include "mine/width.h"
    #include <cuda_fp16.h>
    static_assert(__cplusplus >= 202002L);
    extern "C" __global__ void k(__half* x) { x[WIDTH * FACTOR] = __float2half(1.0f); })",
                      "compute_90");
  r.headers = {{"mine/width.h", "#define WIDTH 6\n"},
               {"cuda_fp16.h",
                "struct __half { unsigned short bits; };\n"
                "__device__ __half __float2half(float) { return {0x3c00}; }\n"}};
  r.defines = {"FACTOR=7"};
  r.standard = "c++20";

  const Outcome outcome = compile(r);

  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_TRUE(contains(text_of(outcome), "+84]")) << "element 42 of two bytes";
}

TEST_F(Nvrtc, headers_do_not_come_from_where_the_process_happens_to_be) {
  const TempFolder folder;
  folder.write("stray.h", "#define STRAY 1\n");
  const std::string before = std::filesystem::current_path().string();
  std::filesystem::current_path(folder.path());
  Request r = request("#include \"stray.h\"\nextern \"C\" __global__ void k() {}", "compute_90");

  const Outcome without = compile(r);
  r.include_folders = {folder.path()};
  const Outcome with = compile(r);

  std::filesystem::current_path(before);
  EXPECT_EQ(without.status.code(), WCUDA_COMPILE_FAILED);
  EXPECT_TRUE(with.status.ok()) << with.status.message();
}

TEST_F(Nvrtc, every_option_is_one_it_takes) {
  Request r = request(kVectorAdd, "compute_90");
  r.fast_math = r.line_info = r.relocatable = r.default_device = true;
  r.flush_denormals = r.precise_sqrt = r.precise_division = r.fuse_multiply_add = Choice::kOff;
  r.max_registers = 32;
  EXPECT_TRUE(compile(r).status.ok()) << compile(r).status.message();

  r = request(kVectorAdd, "compute_90");
  r.debug = true;
  r.flush_denormals = r.precise_sqrt = r.precise_division = r.fuse_multiply_add = Choice::kOn;
  EXPECT_TRUE(compile(r).status.ok()) << compile(r).status.message();

  r.extras = {"-O3"};
  const Outcome wrong = compile(r);
  EXPECT_EQ(wrong.status.code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(wrong.status.message(), "-O3")) << wrong.status.message();
}

TEST_F(Nvrtc, fast_math_changes_the_code_and_a_choice_wins_over_it) {
  Request r =
      request("extern \"C\" __global__ void k(float* x) { x[0] = x[1] / x[2]; }", "compute_90");
  const std::string exact = text_of(compile(r));
  r.fast_math = true;
  const std::string fast = text_of(compile(r));
  r.precise_division = Choice::kOn;
  const std::string chosen = text_of(compile(r));

  EXPECT_TRUE(contains(exact, "div.rn.f32"));
  EXPECT_TRUE(contains(fast, "div.approx.ftz.f32"));
  EXPECT_TRUE(contains(chosen, "div.rn.ftz.f32")) << chosen;
}

TEST_F(Nvrtc, an_architecture_it_does_not_know_is_refused_with_those_it_knows) {
  const Outcome outcome = compile(request(kVectorAdd, "sm_50"));

  EXPECT_EQ(outcome.status.code(), WCUDA_UNSUPPORTED);
  EXPECT_TRUE(contains(outcome.status.message(), "knows 75 80")) << outcome.status.message();
}

TEST_F(Nvrtc, compiles_on_several_threads_at_once) {
  const std::string alone = text_of(compile(request(kVectorAdd, "compute_90")));
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& result : results)
    threads.emplace_back([&] { result = text_of(compile(request(kVectorAdd, "compute_90"))); });
  for (std::thread& thread : threads) thread.join();

  for (const std::string& result : results) EXPECT_EQ(result, alone);
}

}  // namespace
}  // namespace wcuda::nvrtc
