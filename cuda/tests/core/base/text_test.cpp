// UTF-8 checking, and how messages show foreign text.
#include "core/base/text.h"

#include <gtest/gtest.h>

namespace wcuda {
namespace {

// Every sequence of one to four bytes from a set that has each border of the definition, judged by
// the definition itself: decode, then shortest form, surrogates, range.
bool is_utf8_by_definition(const std::string& text) {
  size_t i = 0;
  while (i < text.size()) {
    const uint8_t lead = static_cast<uint8_t>(text[i]);
    const size_t bytes = lead < 0x80             ? 1
                         : (lead & 0xE0) == 0xC0 ? 2
                         : (lead & 0xF0) == 0xE0 ? 3
                         : (lead & 0xF8) == 0xF0 ? 4
                                                 : 0;
    if (bytes == 0 || text.size() - i < bytes) return false;
    uint32_t code = bytes == 1 ? lead : lead & (0xFFu >> (bytes + 1));
    for (size_t k = 1; k < bytes; ++k) {
      const uint8_t next = static_cast<uint8_t>(text[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3F);
    }
    const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < least[bytes] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    i += bytes;
  }
  return true;
}

TEST(Text, is_utf8_agrees_with_the_definition_at_every_border) {
  const uint8_t borders[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                             0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                             0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF7, 0xF8, 0xFF};
  uint64_t valid = 0;

  for (const uint8_t a : borders)
    for (const uint8_t b : borders)
      for (const uint8_t c : borders)
        for (const uint8_t d : borders) {
          const std::string text = {static_cast<char>(a), static_cast<char>(b),
                                    static_cast<char>(c), static_cast<char>(d)};
          for (size_t bytes = 1; bytes <= 4; ++bytes) {
            const std::string part = text.substr(0, bytes);
            ASSERT_EQ(is_utf8(part), is_utf8_by_definition(part)) << printable(part);
            valid += is_utf8(part);
          }
        }

  EXPECT_GT(valid, 1000u);
}

TEST(Text, is_utf8_checks_past_long_runs_of_ascii) {
  for (size_t ascii = 0; ascii < 20; ++ascii) {
    const std::string run(ascii, 'a');
    EXPECT_TRUE(is_utf8(run + "\xC3\xA9" + run));
    EXPECT_FALSE(is_utf8(run + "\xC3" + run));
    EXPECT_FALSE(is_utf8(run + run + "\xFF"));
  }
}

TEST(Text, printable_escapes_and_cuts) {
  EXPECT_EQ(printable("blk.0.attn_q"), "blk.0.attn_q");
  EXPECT_EQ(printable("a\nb"), "a\\x0Ab");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("h\xC3\xA9"), "h\xC3\xA9");
  EXPECT_EQ(printable("h\xC3"), "h\\xC3");
  EXPECT_EQ(printable(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(printable(std::string(81, 'x')), std::string(80, 'x') + "...");
  // Cut before the character that would be torn.
  EXPECT_EQ(printable(std::string(79, 'x') + "\xC3\xA9"), std::string(79, 'x') + "...");
}

}  // namespace
}  // namespace wcuda
