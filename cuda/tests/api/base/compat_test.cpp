// The functions of an older worker on either backend; the checks are a C program's: compat_use.c.
#include <gtest/gtest.h>

#include <string>

#include "worker_cuda.h"

extern "C" int compat_use_c(int chosen_backend, const char* model_path);
extern "C" int compat_use_cpp(int chosen_backend, const char* model_path);

namespace {

void expect_text(int backend) {
  for (const char* const model : {"llama", "qwen3"}) {
    const std::string path = std::string(WCUDA_TEST_DATA "/models/") + model + ".gguf";
    EXPECT_EQ(compat_use_c(backend, path.c_str()), 0) << path << ", in C";
    EXPECT_EQ(compat_use_cpp(backend, path.c_str()), 0) << path << ", in C++";
  }
}

TEST(Compat, generates_text_and_refuses_with_a_code_on_the_host) {
  expect_text(WCUDA_BACKEND_HOST);
}

TEST(GpuCompat, generates_text_and_refuses_with_a_code_on_the_device) {
  expect_text(WCUDA_BACKEND_CUDA);
}

}  // namespace
