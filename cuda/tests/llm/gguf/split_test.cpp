// Models split over several files.
#include "llm/gguf/split.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "llm/gguf/gguf.h"
#include "llm/gguf/gguf_builder.h"
#include "llm/gguf/part.h"
#include "llm/gguf/source.h"
#include "support/temp_folder.h"

namespace wcuda::gguf {
namespace {

using testing::GgufBuilder;
using testing::TempFolder;

// Part `number` (from 0) of three; each holds one tensor of its own number.
GgufBuilder part(uint16_t number, uint16_t count = 3, int32_t tensors = 3) {
  GgufBuilder b;
  if (number == 0) b.string("general.architecture", "llama");
  b.u16("split.no", number).u16("split.count", count).i32("split.tensors.count", tensors);
  const float value = static_cast<float>(number);
  b.tensor_f32("t" + std::to_string(number), {4}, std::vector<float>(4, value));
  return b;
}

class GgufSplit : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint16_t i = 0; i < 3; ++i) write(i, part(i));
  }
  static std::string name(int number, int count = 3) {
    char text[64];
    std::snprintf(text, sizeof(text), "m-%05d-of-%05d.gguf", number + 1, count);
    return text;
  }
  void write(int number, GgufBuilder builder) { folder_.write(name(number), builder.build()); }
  // "" or the failure of opening the first part.
  std::string why_not(Code code) {
    const Result<std::shared_ptr<Gguf>> file = Gguf::open_path(first_);
    if (file.ok()) return "it opens";
    EXPECT_EQ(file.status().code(), code) << file.status().message();
    return file.status().message();
  }

  TempFolder folder_;
  std::string first_ = folder_.path() + "/" + name(0);
};

TEST_F(GgufSplit, opens_all_parts_from_the_first) {
  const Result<std::shared_ptr<Gguf>> opened = Gguf::open_path(first_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Gguf& file = **opened;

  EXPECT_EQ(file.split_count(), 3u);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensor_bytes(), 48u);
  EXPECT_EQ(*file.get_string("general.architecture"), "llama");
  for (uint32_t i = 0; i < 3; ++i) {
    uint64_t index = 0;
    const Tensor* tensor = file.find_tensor("t" + std::to_string(i), &index);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->split_index, i);
    float value = -1;
    EXPECT_TRUE(file.read_tensor(index, 12, &value, 4).ok());
    EXPECT_EQ(value, static_cast<float>(i));
  }
}

TEST_F(GgufSplit, parts_may_be_symbolic_links) {
  const TempFolder links;
  for (int i = 0; i < 3; ++i)
    std::filesystem::create_symlink(folder_.path() + "/" + name(i), links.path() + "/" + name(i));

  EXPECT_TRUE(Gguf::open_path(links.path() + "/" + name(0)).ok());
}

TEST_F(GgufSplit, later_part_names_the_first) {
  const Status status = Gguf::open_path(folder_.path() + "/" + name(1)).status();

  EXPECT_EQ(status.code(), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(status.message()),
            "m-00002-of-00003.gguf: part 2 of 3: open the first, '" + first_ + "'");
}

TEST_F(GgufSplit, missing_part_is_named) {
  std::filesystem::remove(folder_.path() + "/" + name(2));

  EXPECT_NE(why_not(WCUDA_IO).find("m-00003-of-00003.gguf"), std::string::npos);
}

TEST_F(GgufSplit, name_must_fit_the_keys) {
  std::filesystem::rename(first_, folder_.path() + "/whole.gguf");
  const Status renamed = Gguf::open_path(folder_.path() + "/whole.gguf").status();
  EXPECT_EQ(renamed.code(), WCUDA_MALFORMED);
  EXPECT_NE(std::string(renamed.message()).find("-00001-of-00003.gguf"), std::string::npos);

  write(0, part(0, 2));
  EXPECT_EQ(why_not(WCUDA_MALFORMED),
            "m-00001-of-00003.gguf: named part 1 of 3, but its split keys say part 1 of 2");
  write(0, part(1));
  EXPECT_NE(why_not(WCUDA_MALFORMED).find("but its split keys say part 2 of 3"), std::string::npos);
}

TEST_F(GgufSplit, parts_must_agree) {
  write(1, part(2));
  EXPECT_NE(why_not(WCUDA_MALFORMED).find("say part 3 of 3, it should be part 2 of 3"),
            std::string::npos);
  write(1, part(1, 4));
  EXPECT_NE(why_not(WCUDA_MALFORMED).find("say part 2 of 4, it should be part 2 of 3"),
            std::string::npos);
  write(1, part(1, 3, 4));
  EXPECT_NE(why_not(WCUDA_MALFORMED).find("key 'split.tensors.count' differs"), std::string::npos);
  write(1, part(1).string("general.architecture", "qwen2"));
  EXPECT_NE(why_not(WCUDA_MALFORMED).find("key 'general.architecture' differs"), std::string::npos);
  GgufBuilder old = part(1);
  old.version = 2;
  write(1, old);
  EXPECT_NE(why_not(WCUDA_MALFORMED).find("version is 2, the first part's 3"), std::string::npos);
  write(1, part(1));
  EXPECT_EQ(why_not(WCUDA_OK).find("it opens"), 0u);
}

TEST_F(GgufSplit, part_without_split_keys_is_refused) {
  write(1, GgufBuilder().tensor_f32("t1", {4}, {1, 2, 3, 4}));

  EXPECT_NE(why_not(WCUDA_MALFORMED).find("say part 1 of 1, it should be part 2 of 3"),
            std::string::npos);
}

TEST_F(GgufSplit, tensor_names_and_count_hold_over_all_parts) {
  write(2, part(2).tensor_f32("t0", {4}, {1, 2, 3, 4}));
  EXPECT_NE(why_not(WCUDA_MALFORMED).find("split.tensors.count is 3, the parts hold 4"),
            std::string::npos);

  for (uint16_t i = 0; i < 2; ++i) write(i, part(i, 3, 4));
  write(2, part(2, 3, 4).tensor_f32("t0", {4}, {1, 2, 3, 4}));
  EXPECT_EQ(why_not(WCUDA_MALFORMED), "m-00003-of-00003.gguf: tensor 't0' occurs twice");
}

TEST_F(GgufSplit, malformed_part_is_named) {
  folder_.write(name(1), part(1).build().substr(0, 100));

  EXPECT_EQ(why_not(WCUDA_MALFORMED).find("m-00002-of-00003.gguf: "), 0u);
}

TEST_F(GgufSplit, failed_open_leaves_no_descriptor) {
  const auto open_descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  std::filesystem::remove(folder_.path() + "/" + name(2));
  const auto before = open_descriptors();

  why_not(WCUDA_IO);

  EXPECT_EQ(open_descriptors(), before);
}

TEST(SplitName, has_five_digits_twice) {
  SplitName name;
  ASSERT_TRUE(parse_split_path("/a/b-00002-of-00010.gguf", &name));
  EXPECT_EQ(name.prefix, "/a/b");
  EXPECT_EQ(name.number, 2u);
  EXPECT_EQ(name.count, 10u);
  EXPECT_EQ(split_path(name, 3), "/a/b-00003-of-00010.gguf");

  for (const char* path :
       {"", "b.gguf", "-00002-of-00010.gguf", "b-0002-of-00010.gguf", "b-00002-of-00010.ggu",
        "b-00002-of-00010.gguF", "b-00002-of-00010-gguf", "b-0000x-of-00010.gguf",
        "b-00002-of-000 0.gguf", "b-00002_of-00010.gguf", "b_00002-of-00010.gguf",
        "b-+0002-of-00010.gguf"})
    EXPECT_FALSE(parse_split_path(path, &name)) << path;
}

TEST(GgufBudget, each_part_takes_its_header_and_tensors_off_what_the_next_may_have) {
  GgufBuilder builder = part(0);
  const std::string bytes = builder.build();
  const uint64_t header = builder.header_bytes();
  const auto parse = [&](Budget* budget) {
    return parse_part(open_memory(bytes.data(), bytes.size()).take(), budget).status().code();
  };

  Budget two_parts{2 * header, 2};
  EXPECT_EQ(parse(&two_parts), WCUDA_OK);
  EXPECT_EQ(two_parts.header_bytes, header);
  EXPECT_EQ(two_parts.tensor_count, 1u);
  EXPECT_EQ(parse(&two_parts), WCUDA_OK);
  EXPECT_EQ(parse(&two_parts), WCUDA_UNSUPPORTED);

  Budget short_header{header - 1, 1}, no_tensor{header, 0};
  EXPECT_EQ(parse(&short_header), WCUDA_UNSUPPORTED);
  EXPECT_EQ(parse(&no_tensor), WCUDA_UNSUPPORTED);
}

}  // namespace
}  // namespace wcuda::gguf
