// Tables: kernels are compiled, checked, launched and destroyed.
#include "core/backend/table_conformance.h"

namespace wcuda::testing {
namespace {

TEST_P(TableKernels, vector_add_of_1024_gives_threes) {
  const int32_t n = 1024;
  const auto a = upload(std::vector<float>(n, 1.0f)), b = upload(std::vector<float>(n, 2.0f));
  const auto c = allocate(n * sizeof(float));

  ASSERT_EQ(launch(dims(4, 256), TableArguments().buffer(a).buffer(b).buffer(c).number(&n)),
            WCUDA_OK)
      << error_.message;
  ASSERT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);

  EXPECT_EQ(floats(c), std::vector<float>(n, 3.0f));
}

TEST_P(TableKernels, windows_begin_at_their_offset) {
  const int32_t n = 3;
  const auto a = upload(std::vector<float>{9, 1, 2, 3}), b = upload(std::vector<float>{10, 20, 30});
  const auto c = upload(std::vector<float>(5, -1.0f));

  ASSERT_EQ(
      launch(dims(1, 32), TableArguments().buffer(a, 4).buffer(b).buffer(c, 8, 12).number(&n)),
      WCUDA_OK)
      << error_.message;
  ASSERT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);

  EXPECT_EQ(floats(c), (std::vector<float>{-1, -1, 11, 22, 33}));
}

TEST_P(TableKernels, launches_of_a_stream_are_in_order) {
  const int32_t n = 1000;
  const wcuda_stream stream = make_stream();
  const auto ones = upload(std::vector<float>(n, 1.0f)), sums = upload(std::vector<float>(n, 0.0f));
  const auto next = allocate(n * sizeof(float));
  for (int i = 0; i < 20; ++i) {
    const auto from = i % 2 ? next : sums, to = i % 2 ? sums : next;
    ASSERT_EQ(launch(dims(4, 256, stream),
                     TableArguments().buffer(from).buffer(ones).buffer(to).number(&n)),
              WCUDA_OK)
        << error_.message;
  }
  ASSERT_EQ(table_->stream_synchronize(self_, stream, &error_), WCUDA_OK);
  EXPECT_EQ(floats(sums), std::vector<float>(n, 20.0f));
}

TEST_P(TableKernels, a_kernel_that_the_source_lacks_is_an_error) {
  wcuda_backend_kernel kernel{7};
  const wcuda_status status = compile(kVectorAdd, "no_such_kernel", &kernel);
  EXPECT_TRUE(status == WCUDA_NOT_FOUND || status == WCUDA_COMPILE_FAILED ||
              status == WCUDA_UNSUPPORTED_KERNEL)
      << status << ": " << error_.message;
  EXPECT_EQ(kernel.id, 7u);
}

TEST_P(TableKernels, a_source_that_is_none_is_an_error) {
  wcuda_backend_kernel kernel{7};
  for (const std::string source : {"this is no source of my_kernel(",
                                   "\x7f"
                                   "ELF",
                                   "\x01\x02"})
    EXPECT_NE(compile(source, "my_kernel", &kernel), WCUDA_OK);
  EXPECT_EQ(kernel.id, 7u);
}

TEST_P(TableKernels, bad_source_says_what_is_wrong_where_it_is_compiled) {
  if (!is_cuda()) GTEST_SKIP() << "compiles nothing";
  wcuda_backend_kernel kernel{7};
  EXPECT_EQ(compile("extern \"C\" __global__ void vector_add(float* x) { x = undeclared; }",
                    "vector_add", &kernel),
            WCUDA_COMPILE_FAILED);
  EXPECT_NE(std::string(error_.message).find("undeclared"), std::string::npos) << error_.message;
}

TEST_P(TableKernels, the_word_version_in_a_comment_makes_no_ptx) {
  wcuda_backend_kernel kernel{0};
  EXPECT_EQ(
      compile(std::string("// .version 9.9 of this source\n") + kVectorAdd, "vector_add", &kernel),
      WCUDA_OK)
      << error_.message;
}

TEST_P(TableKernels, ptx_loads_and_needs_no_nul) {
  if (!is_cuda()) GTEST_SKIP() << "compiles nothing";
  const std::string ptx =
      ".version 7.0\n.target sm_80\n.address_size 64\n"
      ".visible .entry nothing() { ret; }\n";
  std::vector<char> exact(ptx.begin(), ptx.end());
  wcuda_backend_kernel kernel{0};
  ASSERT_EQ(
      table_->compile_kernel(self_, {exact.data(), exact.size()}, {"nothing", 7}, &kernel, &error_),
      WCUDA_OK)
      << error_.message;
  const wcuda_launch config = dims(1, 1);
  EXPECT_EQ(table_->launch_kernel(self_, kernel, &config, nullptr, 0, &error_), WCUDA_OK);
  EXPECT_EQ(table_->synchronize(self_, &error_), WCUDA_OK);
}

TEST_P(TableKernels, empty_texts_are_refused) {
  wcuda_backend_kernel kernel{7};
  EXPECT_EQ(compile("", "vector_add", &kernel), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(compile(kVectorAdd, "", &kernel), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(compile(kVectorAdd, std::string("vector_add\0", 11), &kernel), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(table_->compile_kernel(self_, {nullptr, 5}, {"a", 1}, &kernel, &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(kernel.id, 7u);
}

TEST_P(TableKernels, a_wrong_number_of_arguments_is_refused) {
  const int32_t n = 4;
  const auto a = upload(std::vector<float>(4, 1.0f));
  EXPECT_EQ(launch(dims(1, 32), TableArguments().buffer(a).buffer(a).buffer(a)),
            WCUDA_ARGUMENT_COUNT);
  EXPECT_EQ(launch(dims(1, 32), TableArguments()), WCUDA_ARGUMENT_COUNT);
  TableArguments many;
  for (int i = 0; i < 40; ++i) many.number(&n);
  EXPECT_EQ(launch(dims(1, 32), many), WCUDA_ARGUMENT_COUNT);
  EXPECT_EQ(floats(a), std::vector<float>(4, 1.0f));
}

TEST_P(TableKernels, arguments_of_another_kind_are_refused) {
  const int32_t n = 4;
  const auto a = upload(std::vector<float>(4, 1.0f));
  EXPECT_EQ(launch(dims(1, 32), TableArguments().buffer(a).number(&n).buffer(a).number(&n)),
            WCUDA_INVALID_ARGUMENT)
      << error_.message;
  wcuda_argument unknown = WCUDA_ARGUMENT_INIT;
  unknown.kind = 99;
  const wcuda_launch config = dims(1, 32);
  EXPECT_EQ(table_->launch_kernel(self_, add_, &config, &unknown, 1, &error_) == WCUDA_OK, false);
  EXPECT_EQ(table_->launch_kernel(self_, add_, &config, nullptr, 4, &error_),
            WCUDA_INVALID_ARGUMENT);
}

TEST_P(TableKernels, arguments_in_freed_memory_are_refused) {
  const int32_t n = 4;
  const auto a = upload(std::vector<float>(4, 1.0f)), gone = allocate(16);
  ASSERT_EQ(table_->free(self_, gone, &error_), WCUDA_OK);
  expect_refused(launch(dims(1, 32), TableArguments().buffer(a).buffer(gone).buffer(a).number(&n)));
}

TEST_P(TableKernels, windows_past_the_end_are_refused) {
  const int32_t n = 4;
  const auto a = upload(std::vector<float>(4, 1.0f)), c = allocate(16);
  EXPECT_EQ(launch(dims(1, 32), TableArguments().buffer(a).buffer(a).buffer(c, 4, 16).number(&n)),
            WCUDA_OUT_OF_RANGE);
}

TEST_P(TableKernels, host_visible_memory_is_no_argument) {
  const int32_t n = 4;
  const auto a = upload(std::vector<float>(4, 1.0f));
  const auto host = allocate(16, WCUDA_MEMORY_HOST_VISIBLE);
  expect_refused(launch(dims(1, 32), TableArguments().buffer(a).buffer(host).buffer(a).number(&n)));
}

TEST_P(TableKernels, dimensions_of_zero_or_past_the_limits_are_refused) {
  const int32_t n = 4;
  const auto a = upload(std::vector<float>(4, 1.0f)), c = allocate(16);
  const auto given = TableArguments().buffer(a).buffer(a).buffer(c).number(&n);
  EXPECT_EQ(launch(dims(0, 32), given), WCUDA_INVALID_CONFIG);
  EXPECT_EQ(launch(dims(1, 0), given), WCUDA_INVALID_CONFIG);
  EXPECT_EQ(launch(dims(1, 1 << 20), given), WCUDA_INVALID_CONFIG);
  wcuda_launch shared = dims(1, 32);
  shared.shared_bytes = 1u << 30;
  EXPECT_EQ(launch(shared, given), WCUDA_INVALID_CONFIG);
  wcuda_launch flags = dims(1, 32);
  flags.flags = 1u << 31;
  EXPECT_EQ(launch(flags, given), WCUDA_INVALID_ARGUMENT);
}

TEST_P(TableKernels, a_destroyed_kernel_is_refused) {
  const int32_t n = 4;
  const auto a = upload(std::vector<float>(4, 1.0f));
  ASSERT_EQ(table_->destroy_kernel(self_, add_, &error_), WCUDA_OK);
  expect_refused(launch(dims(1, 32), TableArguments().buffer(a).buffer(a).buffer(a).number(&n)));
  expect_refused(table_->destroy_kernel(self_, add_, &error_));
}

TEST_P(TableKernels, kernels_stay_what_they_are_when_more_are_compiled) {
  const int32_t n = 4;
  const auto a = upload(std::vector<float>{1, 2, 3, 4}), c = allocate(16);
  for (int i = 0; i < 50; ++i) {
    wcuda_backend_kernel kernel{0};
    ASSERT_EQ(compile(kVectorAdd, "vector_add", &kernel), WCUDA_OK);
    ASSERT_NE(kernel.id, add_.id);
  }
  ASSERT_EQ(launch(dims(1, 32), TableArguments().buffer(a).buffer(a).buffer(c).number(&n)),
            WCUDA_OK);
  EXPECT_EQ(floats(c), (std::vector<float>{2, 4, 6, 8}));
}

TEST_P(TableKernels, kernels_that_are_none_are_refused) {
  const wcuda_launch config = dims(1, 32);
  expect_refused(table_->launch_kernel(self_, {0}, &config, nullptr, 0, &error_));
  expect_refused(table_->launch_kernel(self_, {12345}, &config, nullptr, 0, &error_));
  expect_refused(table_->destroy_kernel(self_, {0}, &error_));
}

TEST_P(TableKernels, memory_freed_behind_a_launch_serves_it) {
  const int32_t n = 1 << 20;
  const auto c = allocate(n * sizeof(float));
  const wcuda_stream stream = make_stream();
  const auto a = upload(std::vector<float>(n, 1.5f)), b = upload(std::vector<float>(n, 2.0f));
  ASSERT_EQ(
      launch(dims(4096, 256, stream), TableArguments().buffer(a).buffer(b).buffer(c).number(&n)),
      WCUDA_OK);
  ASSERT_EQ(table_->free(self_, a, &error_), WCUDA_OK);
  ASSERT_EQ(table_->free(self_, b, &error_), WCUDA_OK);
  const auto again = upload(std::vector<float>(n, 9.0f));  // may be where they were
  ASSERT_EQ(table_->stream_synchronize(self_, stream, &error_), WCUDA_OK);
  EXPECT_EQ(floats(c), std::vector<float>(n, 3.5f));
  EXPECT_EQ(floats(again)[7], 9.0f);
}

}  // namespace
}  // namespace wcuda::testing
