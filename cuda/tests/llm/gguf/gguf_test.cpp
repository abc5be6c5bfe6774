// Opening well-formed files: values, arrays, typed access, tensors and their data.
#include "llm/gguf/gguf.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "fuzz/gguf_entry.h"
#include "llm/gguf/gguf_builder.h"
#include "llm/gguf/gguf_open.h"

namespace wcuda::gguf {
namespace {

using testing::GgufBuilder;
using testing::open_bytes;
using testing::sample_gguf;

TEST(Gguf, reads_every_value_type) {
  const std::string bytes = sample_gguf().build();
  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->alignment(), 64u);
  EXPECT_EQ(file->value_count(), 18u);
  EXPECT_EQ(file->value(2).key, "t.u8");
  EXPECT_EQ(file->value(2).u64, 255u);
  EXPECT_EQ(file->value(3).i64, -128);
  EXPECT_EQ(file->value(4).u64, 65535u);
  EXPECT_EQ(file->value(5).i64, -32768);
  EXPECT_EQ(file->value(6).u64, 4294967295u);
  EXPECT_EQ(file->value(7).i64, INT32_MIN);
  EXPECT_EQ(file->value(8).f64, 0.5);
  EXPECT_EQ(file->value(9).u64, 1u);
  EXPECT_EQ(file->value(10).u64, UINT64_MAX);
  EXPECT_EQ(file->value(11).i64, INT64_MIN);
  EXPECT_EQ(file->value(12).f64, -2.25);
  EXPECT_EQ(file->value(0).string, "llama");
  EXPECT_EQ(file->value(17).type, ValueType::kArray);
  EXPECT_EQ(file->value(17).element_type, ValueType::kString);
  EXPECT_EQ(file->value(17).count, 4u);
  EXPECT_EQ(file->value(17).string_at(3), "\xF0\x9F\x98\x80");
  EXPECT_EQ(fuzz::check_gguf(*file), "");
}

TEST(Gguf, converts_numbers_that_fit_and_names_those_that_do_not) {
  const std::string bytes = sample_gguf().build();
  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  EXPECT_EQ(*file->get_u32("t.u8"), 255u);
  EXPECT_EQ(*file->get_u32("t.u16"), 65535u);
  EXPECT_EQ(*file->get_f32("t.f64"), -2.25f);
  EXPECT_EQ(*file->get_string("general.architecture"), "llama");

  EXPECT_EQ(file->get_u32("t.u64").status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(file->get_u32("t.i8").status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(file->get_u32("t.i64").status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(file->get_u32("t.bool").status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(file->get_f32("t.u32").status().code(), WCUDA_UNSUPPORTED);
  EXPECT_STREQ(file->get_u32("t.i8").status().message(),
               "key 't.i8' is i8 -128, must be an integer of 0 to 2^32 - 1");
}

TEST(Gguf, absent_key_is_not_found_or_the_fallback) {
  const std::string bytes = sample_gguf().build();
  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  EXPECT_EQ(file->get_u32("none").status().code(), WCUDA_NOT_FOUND);
  EXPECT_STREQ(file->get_u32("none").status().message(), "the file has no key 'none'");
  EXPECT_EQ(*file->get_u32("none", 7), 7u);
  EXPECT_EQ(*file->get_string("none", "x"), "x");
  EXPECT_FALSE(file->has("none"));
  // A present key of a wrong type is an error even where a fallback is given.
  EXPECT_EQ(file->get_u32("t.f32", 7).status().code(), WCUDA_UNSUPPORTED);
}

TEST(Gguf, reads_arrays) {
  const std::string bytes = sample_gguf().build();
  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  EXPECT_EQ(*file->get_u32s("a.empty"), std::vector<uint32_t>());
  EXPECT_STREQ(file->get_u32s("a.i32").status().message(),
               "key 'a.i32': element 0 is i32 -1, must be an integer of 0 to 2^32 - 1");
  EXPECT_STREQ(file->get_u32s("a.strings").status().message(),
               "key 'a.strings': element 0 is string, must be an integer of 0 to 2^32 - 1");
  EXPECT_EQ(file->get_u32s("a.f32").status().code(), WCUDA_UNSUPPORTED);
  EXPECT_EQ(file->get_u32s("t.u32").status().code(), WCUDA_UNSUPPORTED);
}

TEST(Gguf, reads_arrays_of_every_integer) {
  GgufBuilder builder;
  builder.array<uint8_t>("u8", 0, {1, 255}).array<int8_t>("i8", 1, {5, -1});
  builder.array<uint16_t>("u16", 2, {3, 65535}).array<int16_t>("i16", 3, {7, -3});
  builder.array<int64_t>("i64", 11, {9, -4});
  const std::string bytes = builder.build();
  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();
  const auto refusal = [&](const char* key) {
    return std::string(file->get_u32s(key).status().message());
  };
  const std::string wanted = ", must be an integer of 0 to 2^32 - 1";

  EXPECT_EQ(*file->get_u32s("u8"), (std::vector<uint32_t>{1, 255}));
  EXPECT_EQ(*file->get_u32s("u16"), (std::vector<uint32_t>{3, 65535}));
  EXPECT_EQ(refusal("i8"), "key 'i8': element 1 is i8 -1" + wanted);
  EXPECT_EQ(refusal("i16"), "key 'i16': element 1 is i16 -3" + wanted);
  EXPECT_EQ(refusal("i64"), "key 'i64': element 1 is i64 -4" + wanted);
}

TEST(Gguf, reads_tensors_and_their_data) {
  GgufBuilder builder = sample_gguf();
  const std::string bytes = builder.build();
  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  ASSERT_EQ(file->tensors().size(), 3u);
  uint64_t index = 0;
  const Tensor* q = file->find_tensor("blk.0.q.weight", &index);
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(index, 1u);
  EXPECT_STREQ(q->format->name, "Q4_0");
  EXPECT_EQ(q->dimension_count, 2u);
  EXPECT_EQ(q->dimensions[0], 64u);
  EXPECT_EQ(q->dimensions[1], 2u);
  EXPECT_EQ(q->dimensions[2], 1u);
  EXPECT_EQ(q->element_count, 128u);
  EXPECT_EQ(q->bytes, 72u);
  EXPECT_EQ(q->file_offset % 64, 0u);
  EXPECT_EQ(file->tensor_bytes(), 16u + 72u + 24u);
  EXPECT_EQ(file->file_bytes(), bytes.size());

  float norm[2] = {0, 0};
  EXPECT_TRUE(file->read_tensor(0, 8, norm, 8).ok());
  EXPECT_EQ(norm[0], 3.0f);
  EXPECT_EQ(norm[1], 4.0f);
  const Status past = file->read_tensor(0, 9, norm, 8);
  EXPECT_EQ(past.code(), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(past.message(),
            "tensor '" + std::string(file->tensors()[0].name) + "': 8 bytes at 9 are past its 16");
  EXPECT_EQ(file->read_tensor(3, 0, norm, 1).code(), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(file->find_tensor("blk.0.q"), nullptr);
}

TEST(Gguf, opens_version_2_and_a_file_with_nothing_in_it) {
  GgufBuilder empty;
  empty.version = 2;
  const std::string bytes = empty.build();

  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  EXPECT_EQ(file->version(), 2u);
  EXPECT_EQ(file->value_count(), 0u);
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(file->alignment(), 32u);
}

TEST(Gguf, accepts_gaps_between_tensors_and_any_order_of_data) {
  GgufBuilder builder;
  builder.tensor_f32("a", {8}, std::vector<float>(8, 1.0f));
  builder.tensor_f32("b", {8}, std::vector<float>(8, 2.0f));
  builder.tensor_f32("c", {8}, std::vector<float>(8, 3.0f));
  std::string bytes = builder.build();
  builder.set(&bytes, "tensor 0 offset", 64);
  builder.set(&bytes, "tensor 2 offset", 0);
  builder.set(&bytes, "tensor 1 offset", 128);
  bytes.resize(bytes.size() + 64);

  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  float value = 0;
  EXPECT_TRUE(file->read_tensor(0, 0, &value, 4).ok());
  EXPECT_EQ(value, 3.0f);
}

TEST(Gguf, lists_types_that_no_model_may_hold) {
  GgufBuilder builder;
  builder.tensor("q8_1", {32}, 9, std::string(36, '\0'));
  builder.tensor("q8_k", {256}, 15, std::string(292, '\0'));
  builder.tensor("i64", {3}, 27, std::string(24, '\0'));
  const std::string bytes = builder.build();

  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  for (const Tensor& tensor : file->tensors()) EXPECT_FALSE(tensor.format->is_loadable);
  EXPECT_STREQ(file->tensors()[0].format->name, "Q8_1");
}

TEST(Gguf, keeps_its_own_copy_of_the_header) {
  std::string bytes = sample_gguf().build();
  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  std::fill(bytes.begin(), bytes.end(), '\xFF');

  EXPECT_EQ(*file->get_string("general.architecture"), "llama");
  EXPECT_EQ(fuzz::check_gguf(*file), "");
}

TEST(Gguf, reads_a_real_model) {
  const char* path = std::getenv("WCUDA_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "WCUDA_TEST_MODEL names no model file";

  const Result<std::shared_ptr<Gguf>> file = Gguf::open_path(path);

  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE((*file)->has("general.architecture"));
  EXPECT_FALSE((*file)->tensors().empty());
  EXPECT_EQ(fuzz::check_gguf(**file), "");
}

}  // namespace
}  // namespace wcuda::gguf
