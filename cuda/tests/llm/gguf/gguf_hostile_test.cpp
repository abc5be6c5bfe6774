// Malformed files: every prefix, every field at its limits, every hand-made case, every allocation
// failing.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "fuzz/gguf_entry.h"
#include "llm/gguf/gguf_builder.h"
#include "llm/gguf/gguf_cases.h"
#include "llm/gguf/gguf_open.h"
#include "support/allocation_failure.h"

namespace wcuda::gguf {
namespace {

using testing::FailAllocation;
using testing::gguf_cases;
using testing::GgufBuilder;
using testing::GgufCase;
using testing::open_bytes;
using testing::sample_gguf;
using testing::why_not;

// Runs the fuzzer's checks on a copy in a heap block of exactly this size, where a sanitizer sees
// the first byte too many.
std::string exercise(const std::string& bytes, bool* is_open) {
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes.size()]);
  std::memcpy(exact.get(), bytes.data(), bytes.size());
  return fuzz::exercise_gguf(exact.get(), bytes.size(), is_open);
}

TEST(GgufHostile, every_prefix_of_a_valid_file_is_refused) {
  const std::string bytes = sample_gguf().build();

  for (size_t size = 0; size < bytes.size(); ++size) {
    bool is_open = true;
    EXPECT_EQ(exercise(bytes.substr(0, size), &is_open), "") << "at " << size;
    EXPECT_FALSE(is_open) << "at " << size;
  }
  bool is_open = false;
  EXPECT_EQ(exercise(bytes, &is_open), "");
  EXPECT_TRUE(is_open);
}

TEST(GgufHostile, every_field_at_its_limits_gives_a_status_or_a_sound_file) {
  GgufBuilder builder = sample_gguf();
  const std::string bytes = builder.build();
  uint64_t tried = 0, opened = 0;

  for (const GgufBuilder::Field& field : builder.fields()) {
    uint64_t original = 0;
    std::memcpy(&original, &bytes[field.offset], field.bytes);
    for (uint64_t value :
         {uint64_t{0}, uint64_t{1}, original - 1, original + 1, original * 2, uint64_t{0x7F},
          uint64_t{0xFF}, uint64_t{0x7FFF}, uint64_t{0xFFFF}, uint64_t{0x7FFFFFFF},
          uint64_t{0x80000000}, uint64_t{0xFFFFFFFF}, uint64_t{1} << 32, uint64_t(INT64_MAX),
          uint64_t{1} << 63, UINT64_MAX - 7, UINT64_MAX}) {
      if (field.bytes == 4) value &= UINT32_MAX;
      if (value == original) continue;
      std::string changed = bytes;
      GgufBuilder::set(&changed, field, value);
      bool is_open = false;
      EXPECT_EQ(exercise(changed, &is_open), "") << field.name << " = " << value;
      ++tried;
      opened += is_open;
      // What everything after it depends on can never be another number.
      // What all that follows depends on can be no other number; fewer tensors leave a gap, which
      // is legal.
      const bool is_length = field.name.find("element count") != std::string::npos ||
                             field.name.find("length") != std::string::npos ||
                             field.name == "metadata_count";
      EXPECT_FALSE(is_length && is_open) << field.name << " = " << value;
    }
  }
  EXPECT_GT(tried, 800u);
  EXPECT_LT(opened, tried / 10);
}

TEST(GgufHostile, every_byte_changed_gives_a_status_or_a_sound_file) {
  const std::string bytes = sample_gguf().build();

  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const char change : {'\x01', '\x80', '\xFF'}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ change);
      bool is_open = false;
      EXPECT_EQ(exercise(changed, &is_open), "") << "byte " << i;
    }
  }
}

TEST(GgufHostile, hand_made_cases_are_answered_as_they_must_be) {
  const std::vector<GgufCase> cases = gguf_cases();
  EXPECT_GE(cases.size(), 100u);

  for (const GgufCase& c : cases) {
    const std::string why = why_not(c.bytes);
    if (c.status == WCUDA_OK) {
      EXPECT_EQ(why, "") << c.name;
    } else {
      EXPECT_EQ(why.rfind(wcuda_status_name(c.status), 0), 0u) << c.name << ": " << why;
      EXPECT_NE(why.find(c.message), std::string::npos) << c.name << ": " << why;
    }
    bool is_open = false;
    EXPECT_EQ(exercise(c.bytes, &is_open), "") << c.name;
  }
}

// Giving back unused capacity may fail without harm: then the file opens all the same.
TEST(GgufHostile, every_failed_allocation_throws_or_does_no_harm) {
  const std::string bytes = sample_gguf().build();

  int64_t k = 1;
  for (bool happened = true; happened && k < 10000; ++k) {
    bool threw = false, opened = false;
    const FailAllocation fail(k);
    try {
      const Result<std::shared_ptr<Gguf>> file = open_bytes(bytes);
      opened = file.ok();
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    happened = fail.happened();
    EXPECT_NE(threw, opened) << "allocation " << k;
    EXPECT_TRUE(opened || happened);
  }
  EXPECT_GT(k, 20);
  EXPECT_LT(k, 10000);
}

TEST(GgufHostile, many_keys_and_tensors_open_in_linear_time) {
  GgufBuilder builder;
  const std::string prefix(40, 'p');
  for (int i = 0; i < 60000; ++i) builder.u8(prefix + std::to_string(i), 1);
  for (int i = 0; i < 60000; ++i)
    builder.tensor(prefix + std::to_string(i), {32}, 24, std::string(32, 'x'));
  const std::string bytes = builder.build();

  const std::shared_ptr<Gguf> file = open_bytes(bytes).take();

  EXPECT_EQ(file->value_count(), 60000u);
  EXPECT_EQ(file->tensors().size(), 60000u);
  EXPECT_NE(file->find_tensor(prefix + "59999"), nullptr);
}

TEST(GgufHostile, counts_over_the_caps_are_unsupported) {
  GgufBuilder keys;
  for (int i = 0; i < 65537; ++i) keys.u8("k" + std::to_string(i), 1);
  const std::string many_keys = keys.build();
  GgufBuilder list;
  list.array<uint8_t>("a", 0, std::vector<uint8_t>((1 << 24) + 1));
  const std::string long_array = list.build();
  GgufBuilder text;
  text.string("s", std::string((64 << 20) + 1, 'x'));
  const std::string long_string = text.build();
  GgufBuilder tensors;
  std::string many_tensors = tensors.build() + std::string((262145 * 33), '\0');
  tensors.set(&many_tensors, "tensor_count", 262145);

  EXPECT_NE(why_not(many_keys).find("UNSUPPORTED: memory: 65537 metadata entries, at most 65536"),
            std::string::npos);
  EXPECT_NE(why_not(long_array).find("16777217 elements, at most 16777216"), std::string::npos);
  EXPECT_NE(why_not(long_string).find("67108865 bytes, at most 67108864"), std::string::npos);
  EXPECT_NE(why_not(many_tensors).find("262145 tensors, at most 262144"), std::string::npos);
}

TEST(GgufHostile, counts_are_held_against_the_smallest_entry_before_memory_is_taken) {
  GgufBuilder builder;
  std::string bytes = builder.build() + std::string(65, '\0');
  builder.set(&bytes, "tensor_count", 2);
  EXPECT_EQ(why_not(bytes),
            "WCUDA_MALFORMED: memory: 2 tensors need at least 33 bytes each, 65 bytes remain");
}

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

TEST(GgufCorpus, replays_every_input) {
  uint64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(WCUDA_FUZZ_CORPUS "/gguf")) {
    bool is_open = false;
    EXPECT_EQ(exercise(read_file(entry.path()), &is_open), "") << entry.path();
    ++count;
  }
  EXPECT_GE(count, 100u);
}

TEST(GgufCorpus, holds_every_hand_made_case) {
  for (const GgufCase& c : gguf_cases()) {
    if (c.bytes.size() > 16384) continue;  // longer than the fuzzer's inputs
    EXPECT_EQ(read_file(WCUDA_FUZZ_CORPUS "/gguf/" + c.name), c.bytes)
        << c.name << ": write the corpus again with gguf_seeds";
  }
}

}  // namespace
}  // namespace wcuda::gguf
