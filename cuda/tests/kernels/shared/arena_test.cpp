#include "kernels/shared/arena.h"

#include <gtest/gtest.h>

namespace wcuda {
namespace {

TEST(Arena, measures_what_it_hands_out) {
  alignas(256) uint8_t block[1024];
  Arena measure, arena(block);
  for (Arena* each : {&measure, &arena}) {
    EXPECT_EQ(each->reserve(0), 0u);
    EXPECT_EQ(each->reserve({3, 5}), 0u);
    EXPECT_EQ(each->reserve(256), 256u);
  }

  EXPECT_EQ(measure.take<float>(65), nullptr);
  EXPECT_EQ(static_cast<void*>(arena.take<float>(65)), block + 512);

  EXPECT_EQ(measure.bytes(), 1024u);
  EXPECT_EQ(arena.bytes(), 1024u);
  EXPECT_TRUE(arena.ok());
}

TEST(Arena, rounds_to_its_own_alignment) {
  Arena arena(nullptr, 16);

  arena.reserve(1);

  EXPECT_EQ(arena.reserve(17), 16u);
  EXPECT_EQ(arena.bytes(), 48u);
}

TEST(Arena, remembers_an_overflow) {
  Arena product, sum, rounding, limit;
  product.reserve({uint64_t{1} << 40, uint64_t{1} << 40});
  sum.reserve(uint64_t{1} << 63);
  sum.reserve(uint64_t{1} << 63);
  rounding.reserve(~uint64_t{0});
  limit.reserve(Arena::kBytesMax + 1);

  for (Arena* arena : {&product, &sum, &rounding, &limit}) {
    EXPECT_FALSE(arena->ok());
    arena->reserve(1);
    EXPECT_FALSE(arena->ok());
  }
}

}  // namespace
}  // namespace wcuda
