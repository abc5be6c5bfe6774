// The corpora of the fuzzers of ZCTL/1, without a fuzzer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/zctl_entry.h"

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
    const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
    // Every prefix too.
    for (size_t length = 0; length <= bytes.size(); ++length)
      EXPECT_EQ(exercise(data, length), "") << entry.path() << ", " << length << " bytes";
    ++count;
  }
  EXPECT_GE(count, count_min);
}

TEST(ZctlFramesCorpus, replays_every_input) { replay("zctl_frames", fuzz::exercise_zctl_frame, 6); }
TEST(ZctlSessionCorpus, replays_every_input) {
  replay("zctl_session", fuzz::exercise_zctl_session, 20);
}

TEST(ZctlCapabilitiesCorpus, replays_every_input) {
  replay("zctl_capabilities", fuzz::exercise_zctl_capabilities, 10);
}

}  // namespace
}  // namespace wcuda
