// The corpora of the fuzzers of run-time kernels, without a fuzzer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/descriptor_entry.h"
#include "fuzz/jit_entry.h"

namespace wcuda {
namespace {

using Exercise = std::string (*)(const uint8_t*, size_t);

void replay(const char* name, Exercise exercise, int count_min) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(WCUDA_FUZZ_CORPUS "/") + name)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    EXPECT_EQ(exercise(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), "")
        << entry.path();
    ++count;
  }
  EXPECT_GE(count, count_min);
}

TEST(CodeCorpus, replays_every_input) { replay("code", fuzz::exercise_code, 5); }
TEST(CacheCorpus, replays_every_input) { replay("cache", fuzz::exercise_cache, 2); }
TEST(LaunchCorpus, replays_every_input) { replay("launch", fuzz::exercise_launch, 2); }
TEST(DescriptorCorpus, replays_every_input) { replay("descriptor", fuzz::exercise_descriptor, 4); }

}  // namespace
}  // namespace wcuda
