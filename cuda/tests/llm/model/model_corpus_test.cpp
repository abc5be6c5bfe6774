#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "fuzz/model_entry.h"
#include "llm/model/tiny_cases.h"

namespace wcuda::model {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

std::string exercise(const std::string& bytes, bool* is_loaded = nullptr) {
  return fuzz::exercise_model(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
                              is_loaded);
}

TEST(ModelCorpus, replays_every_input) {
  uint64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(WCUDA_FUZZ_CORPUS "/model")) {
    EXPECT_EQ(exercise(read_file(entry.path())), "") << entry.path();
    ++count;
  }
  EXPECT_GE(count, 12u);
}

TEST(ModelCorpus, its_seeds_load_or_are_refused) {
  for (const testing::ModelCase& c : testing::model_cases()) {
    bool is_loaded = false;
    EXPECT_EQ(exercise(c.bytes, &is_loaded), "") << c.name;
    EXPECT_EQ(is_loaded, c.loads) << c.name;
    EXPECT_EQ(read_file(WCUDA_FUZZ_CORPUS "/model/" + c.name), c.bytes)
        << c.name << ": write the corpus again with model_seeds";
  }
}

// Every byte of a small model changed in turn: refused with a reason, or loaded as planned.
TEST(ModelCorpus, every_byte_changed_is_a_status_or_a_model) {
  for (const std::string& bytes :
       {testing::model_cases()[0].bytes, testing::smallest_head(true).build()})
    for (size_t i = 0; i < bytes.size(); ++i)
      for (const int change : {0x01, 0x80, 0xff}) {
        std::string changed = bytes;
        changed[i] = static_cast<char>(changed[i] ^ change);
        ASSERT_EQ(exercise(changed), "") << "byte " << i;
      }
}

TEST(ModelCorpus, every_prefix_is_refused) {
  for (const std::string& bytes :
       {testing::model_cases()[0].bytes, testing::smallest_head(true).build()})
    for (size_t length = 0; length < bytes.size(); ++length) {
      bool is_loaded = true;
      const std::string prefix(bytes.data(), length);
      ASSERT_EQ(exercise(prefix, &is_loaded), "") << length;
      EXPECT_FALSE(is_loaded) << length;
    }
}

}  // namespace
}  // namespace wcuda::model
