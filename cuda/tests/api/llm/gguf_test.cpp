// GGUF files through the C interface.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "llm/gguf/gguf_builder.h"
#include "support/allocation_failure.h"
#include "support/arguments.h"
#include "support/temp_folder.h"
#include "worker_cuda.h"

namespace wcuda::testing {
namespace {

std::string string(const wcuda_string& s) { return std::string(s.data, s.bytes); }

wcuda_source memory_source(const std::string& bytes) {
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_MEMORY;
  source.data = bytes.data();
  source.size = bytes.size();
  return source;
}

int32_t read_string(void* user, uint64_t offset, void* target, uint64_t bytes) {
  std::memcpy(target, static_cast<const std::string*>(user)->data() + offset, bytes);
  return 0;
}

// The sample file, open.
class GgufApi : public ::testing::Test {
 protected:
  void SetUp() override {
    const wcuda_source source = memory_source(bytes_);
    ASSERT_EQ(wcuda_gguf_open(&source, &gguf_, &error_), WCUDA_OK) << error_.message;
  }
  void TearDown() override { wcuda_gguf_close(gguf_); }

  const std::string bytes_ = sample_gguf().build();
  wcuda_gguf gguf_{};
  wcuda_error error_{};
};

TEST_F(GgufApi, every_kind_of_source_opens_the_same_file) {
  const TempFolder folder;
  const std::string path = folder.write("model.gguf", bytes_);
  wcuda_source sources[4] = {WCUDA_SOURCE_INIT, WCUDA_SOURCE_INIT, memory_source(bytes_),
                             WCUDA_SOURCE_INIT};
  sources[0].kind = WCUDA_SOURCE_PATH;
  sources[0].path = {path.data(), path.size()};
  sources[1].kind = WCUDA_SOURCE_FD;
  sources[1].fd = ::open(path.c_str(), O_RDONLY);
  sources[3].kind = WCUDA_SOURCE_CALLBACK;
  sources[3].read = read_string;
  sources[3].user = const_cast<std::string*>(&bytes_);
  sources[3].size = bytes_.size();

  for (const wcuda_source& source : sources) {
    wcuda_gguf gguf{};
    ASSERT_EQ(wcuda_gguf_open(&source, &gguf, &error_), WCUDA_OK) << error_.message;
    wcuda_gguf_info info = WCUDA_GGUF_INFO_INIT;
    EXPECT_EQ(wcuda_gguf_info_get(gguf, &info, &error_), WCUDA_OK);
    EXPECT_EQ(info.version, 3u);
    EXPECT_EQ(info.metadata_count, 18u);
    EXPECT_EQ(info.tensor_count, 3u);
    EXPECT_EQ(info.file_bytes, bytes_.size());
    EXPECT_EQ(info.tensor_bytes, 112u);
    EXPECT_EQ(info.alignment, 64u);
    EXPECT_EQ(info.split_count, 1u);
    float norm[4] = {};
    EXPECT_EQ(wcuda_gguf_tensor_read(gguf, 0, 0, norm, 16, &error_), WCUDA_OK);
    EXPECT_EQ(norm[3], 4.0f);
    wcuda_gguf_close(gguf);
    EXPECT_EQ(wcuda_gguf_info_get(gguf, &info, &error_), WCUDA_INVALID_HANDLE);
  }
  ::close(sources[1].fd);
}

TEST_F(GgufApi, values_by_index_and_by_key_are_the_same) {
  for (uint64_t i = 0; i < 18; ++i) {
    wcuda_gguf_value at = WCUDA_GGUF_VALUE_INIT, found = WCUDA_GGUF_VALUE_INIT;
    uint64_t count = 0;
    ASSERT_EQ(wcuda_gguf_value_list(gguf_, i, &at, 1, &count, &error_), WCUDA_OK);
    EXPECT_EQ(count, 18u);
    ASSERT_EQ(wcuda_gguf_value_find(gguf_, at.key, &found, &error_), WCUDA_OK);
    EXPECT_EQ(std::memcmp(&at, &found, sizeof(at)), 0) << string(at.key);
  }
  wcuda_gguf_value value = WCUDA_GGUF_VALUE_INIT;
  ASSERT_EQ(wcuda_gguf_value_find(gguf_, text("t.i64"), &value, &error_), WCUDA_OK);
  EXPECT_EQ(value.type, WCUDA_GGUF_I64);
  EXPECT_EQ(value.element_type, -1);
  EXPECT_EQ(value.element_count, 1u);
  EXPECT_EQ(value.value_i64, INT64_MIN);
  ASSERT_EQ(wcuda_gguf_value_find(gguf_, text("general.architecture"), &value, &error_), WCUDA_OK);
  EXPECT_EQ(string(value.value_string), "llama");
  ASSERT_EQ(wcuda_gguf_value_find(gguf_, text("a.f32"), &value, &error_), WCUDA_OK);
  EXPECT_EQ(value.type, WCUDA_GGUF_ARRAY);
  EXPECT_EQ(value.element_type, WCUDA_GGUF_F32);
  EXPECT_EQ(value.element_count, 2u);

  uint64_t count = 0;
  EXPECT_EQ(wcuda_gguf_value_list(gguf_, 19, &value, 1, &count, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_STREQ(error_.message, "first: 19 of 18 entries");
  EXPECT_EQ(wcuda_gguf_value_list(gguf_, 18, &value, 1, &count, &error_), WCUDA_OK);
  EXPECT_EQ(count, 18u);
  EXPECT_EQ(wcuda_gguf_value_find(gguf_, text("none"), &value, &error_), WCUDA_NOT_FOUND);
  EXPECT_EQ(wcuda_gguf_value_find(gguf_, {nullptr, 4}, &value, &error_), WCUDA_INVALID_ARGUMENT);
}

TEST_F(GgufApi, arrays_are_copied_in_range_only) {
  int32_t numbers[3] = {7, 7, 7};
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 13, 1, 2, numbers, 8, &error_), WCUDA_OK)
      << error_.message;
  EXPECT_EQ(numbers[0], 0);
  EXPECT_EQ(numbers[1], 1);
  EXPECT_EQ(numbers[2], 7);

  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 13, 1, 3, numbers, 12, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 13, 1, UINT64_MAX, numbers, 12, &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 13, 0, 3, numbers, 11, &error_), WCUDA_BUFFER_TOO_SMALL);
  EXPECT_STREQ(error_.message, "3 elements of key 'a.i32' need 12 bytes, target has 11");
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 13, 0, 3, nullptr, 12, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 13, 3, 0, nullptr, 0, &error_), WCUDA_OK);
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 16, 0, 0, nullptr, 0, &error_), WCUDA_OK);  // empty
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 17, 0, 1, numbers, 12, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 0, 0, 1, numbers, 12, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_gguf_array_copy(gguf_, 18, 0, 1, numbers, 12, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(numbers[0], 0);
}

TEST_F(GgufApi, strings_of_an_array_are_views) {
  wcuda_string strings[3] = {};
  EXPECT_EQ(wcuda_gguf_array_strings(gguf_, 17, 1, 3, strings, &error_), WCUDA_OK);
  EXPECT_EQ(string(strings[0]), "a");
  EXPECT_EQ(string(strings[1]), "h\xC3\xA9llo");
  EXPECT_EQ(string(strings[2]), "\xF0\x9F\x98\x80");

  EXPECT_EQ(wcuda_gguf_array_strings(gguf_, 17, 2, 3, strings, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_gguf_array_strings(gguf_, 17, 0, 1, nullptr, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_gguf_array_strings(gguf_, 13, 0, 1, strings, &error_), WCUDA_INVALID_ARGUMENT);
}

TEST_F(GgufApi, tensors_by_index_and_by_name) {
  wcuda_gguf_tensor tensor = WCUDA_GGUF_TENSOR_INIT;
  ASSERT_EQ(wcuda_gguf_tensor_find(gguf_, text("blk.0.q.weight"), &tensor, &error_), WCUDA_OK);
  EXPECT_EQ(tensor.type, 2u);
  EXPECT_EQ(tensor.dimension_count, 2u);
  EXPECT_EQ(tensor.dimensions[0], 64u);
  EXPECT_EQ(tensor.dimensions[1], 2u);
  EXPECT_EQ(tensor.dimensions[3], 1u);
  EXPECT_EQ(tensor.element_count, 128u);
  EXPECT_EQ(tensor.bytes, 72u);
  EXPECT_EQ(bytes_.substr(tensor.file_offset, 72), std::string(72, '\x11'));

  uint64_t count = 0;
  ASSERT_EQ(wcuda_gguf_tensor_list(gguf_, 2, &tensor, 1, &count, &error_), WCUDA_OK);
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(string(tensor.name), "cube");
  EXPECT_EQ(wcuda_gguf_tensor_list(gguf_, 4, &tensor, 1, &count, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_gguf_tensor_find(gguf_, text("none"), &tensor, &error_), WCUDA_NOT_FOUND);
  char byte;
  EXPECT_EQ(wcuda_gguf_tensor_read(gguf_, 2, 24, &byte, 1, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_gguf_tensor_read(gguf_, 3, 0, &byte, 1, &error_), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_gguf_tensor_read(gguf_, 2, 0, nullptr, 1, &error_), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_gguf_tensor_read(gguf_, 2, 0, nullptr, 0, &error_), WCUDA_OK);
}

TEST_F(GgufApi, dequantizes_whole_blocks) {
  float norm[4] = {};
  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf_, 0, 1, 3, norm, &error_), WCUDA_OK);
  EXPECT_EQ(norm[0], 2.0f);
  EXPECT_EQ(norm[2], 4.0f);
  EXPECT_EQ(norm[3], 0.0f);

  // Q4_0 of bytes 0x11: scale f16(0x1111), each nibble 1, value (1 - 8) * scale.
  const float scale = (1.0f + 0x111 / 1024.0f) / 2048.0f;
  std::vector<float> values(64, 1.0f);
  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf_, 1, 32, 64, values.data(), &error_), WCUDA_OK);
  for (const float value : values) EXPECT_EQ(value, -7.0f * scale);

  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf_, 1, 16, 32, values.data(), &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf_, 1, 32, 33, values.data(), &error_),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf_, 1, 128, 32, values.data(), &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf_, 1, 0, UINT64_MAX - 31, values.data(), &error_),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf_, 1, 0, 32, nullptr, &error_),
            WCUDA_INVALID_ARGUMENT);
}

TEST(GgufApiOpen, dequantizes_a_tensor_longer_than_one_piece) {
  std::vector<float> expected(50001);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<float>(i);
  GgufBuilder builder;
  builder.tensor_f32("a", {expected.size()}, expected).tensor("b", {32}, 9, std::string(36, '\0'));
  const std::string bytes = builder.build();
  const wcuda_source source = memory_source(bytes);
  wcuda_gguf gguf{};
  wcuda_error error{};
  ASSERT_EQ(wcuda_gguf_open(&source, &gguf, &error), WCUDA_OK) << error.message;

  std::vector<float> values(expected.size() + 1, -1.0f);
  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf, 0, 0, expected.size(), values.data(), &error),
            WCUDA_OK);

  EXPECT_EQ(values.back(), -1.0f);
  values.pop_back();
  EXPECT_EQ(values, expected);
  EXPECT_EQ(wcuda_gguf_tensor_dequantize(gguf, 1, 0, 32, values.data(), &error), WCUDA_UNSUPPORTED);
  wcuda_gguf_close(gguf);
}

TEST(GgufApiOpen, refuses_bad_arguments_and_leaves_the_handle) {
  const std::string bytes = sample_gguf().build();
  wcuda_error error{};
  wcuda_gguf gguf{42};
  wcuda_source source = memory_source(bytes);
  const auto open = [&] { return wcuda_gguf_open(&source, &gguf, &error); };

  EXPECT_EQ(wcuda_gguf_open(nullptr, &gguf, &error), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_gguf_open(&source, nullptr, &error), WCUDA_INVALID_ARGUMENT);
  for (const int32_t kind : {0, 5, -1}) {
    source.kind = kind;
    EXPECT_EQ(open(), WCUDA_INVALID_ARGUMENT);
  }
  source.kind = WCUDA_SOURCE_CALLBACK;  // without a callback
  EXPECT_EQ(open(), WCUDA_INVALID_ARGUMENT);
  source.kind = WCUDA_SOURCE_PATH;
  source.path = {nullptr, 3};
  EXPECT_EQ(open(), WCUDA_INVALID_ARGUMENT);
  source.path = text("/nonexistent/model.gguf");
  EXPECT_EQ(open(), WCUDA_IO);
  EXPECT_STREQ(error.message, "cannot open '/nonexistent/model.gguf': No such file or directory");
  source.kind = WCUDA_SOURCE_FD;
  EXPECT_EQ(open(), WCUDA_INVALID_ARGUMENT);
  source = memory_source(bytes);
  source.reserved = 1;
  EXPECT_EQ(open(), WCUDA_UNSUPPORTED);
  source.reserved = 0;
  source.struct_size = 4;
  EXPECT_NE(open(), WCUDA_OK);
  source = memory_source(bytes);
  source.size -= 1;
  EXPECT_EQ(open(), WCUDA_MALFORMED);

  EXPECT_EQ(gguf.id, 42u);
  wcuda_gguf_close(wcuda_gguf{0});
}

TEST(GgufApiOpen, callback_may_not_call_back) {
  struct Caller {
    std::string bytes = sample_gguf().build();
    wcuda_gguf gguf{};
    wcuda_status inner = WCUDA_OK;
    static int32_t read(void* user, uint64_t offset, void* target, uint64_t bytes) {
      Caller* caller = static_cast<Caller*>(user);
      wcuda_gguf_info info = WCUDA_GGUF_INFO_INIT;
      caller->inner = wcuda_gguf_info_get(caller->gguf, &info, nullptr);
      return read_string(&caller->bytes, offset, target, bytes);
    }
  } caller;
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_CALLBACK;
  source.read = Caller::read;
  source.user = &caller;
  source.size = caller.bytes.size();
  wcuda_error error{};

  ASSERT_EQ(wcuda_gguf_open(&source, &caller.gguf, &error), WCUDA_OK) << error.message;

  EXPECT_EQ(caller.inner, WCUDA_REENTRANT);
  wcuda_gguf_info info = WCUDA_GGUF_INFO_INIT;
  EXPECT_EQ(wcuda_gguf_info_get(caller.gguf, &info, &error), WCUDA_OK);
  wcuda_gguf_close(caller.gguf);
}

TEST(GgufApiOpen, failed_allocations_are_a_status) {
  const std::string bytes = sample_gguf().build();
  const wcuda_source source = memory_source(bytes);

  bool happened = true;
  for (int64_t k = 1; happened && k < 10000; ++k) {
    wcuda_gguf gguf{};
    const FailAllocation fail(k);
    const wcuda_status status = wcuda_gguf_open(&source, &gguf, nullptr);
    happened = fail.happened();
    EXPECT_TRUE(status == WCUDA_OK || status == WCUDA_OUT_OF_HOST_MEMORY) << status;
    EXPECT_EQ(status == WCUDA_OK, gguf.id != 0);
    EXPECT_TRUE(happened || status == WCUDA_OK);
    wcuda_gguf_close(gguf);
  }
  EXPECT_FALSE(happened);
}

TEST(TensorTypes, are_known_by_id) {
  wcuda_error error{};
  wcuda_tensor_type_info info = WCUDA_TENSOR_TYPE_INFO_INIT;
  ASSERT_EQ(wcuda_tensor_type_info_get(12, &info, &error), WCUDA_OK);
  EXPECT_STREQ(info.name, "Q4_K");
  EXPECT_EQ(info.block_elements, 256u);
  EXPECT_EQ(info.block_bytes, 144u);
  EXPECT_EQ(info.is_loadable, 1);
  ASSERT_EQ(wcuda_tensor_type_info_get(15, &info, &error), WCUDA_OK);
  EXPECT_EQ(info.is_loadable, 0);

  for (const uint32_t id : {4u, 5u, 31u, 38u, 43u, UINT32_MAX})
    EXPECT_EQ(wcuda_tensor_type_info_get(id, &info, &error), WCUDA_NOT_FOUND) << id;
  EXPECT_STREQ(info.name, "Q8_K");
  EXPECT_EQ(wcuda_tensor_type_info_get(12, nullptr, &error), WCUDA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace wcuda::testing
