// The unpackers and conversions on the device: the same bits as on the host, which unpack_test.cpp
// and numeric_test.cpp check.
#include "llm/quant/unpack_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/shared/numeric.h"
#include "llm/quant/format.h"
#include "llm/quant/random_blocks.h"

namespace wcuda::quant {
namespace {

TEST(GpuUnpack, gives_the_bits_of_the_host_for_random_blocks_of_every_format) {
  size_t count = 0;
  for (const testing::RandomBlocks& random : testing::read_random_blocks()) {
    if (random.format->block_elements == 1) continue;
    std::vector<float> expected(random.element_count), values(random.element_count);
    ASSERT_TRUE(
        unpack_row(*random.format, random.blocks.data(), expected.size(), expected.data()).ok());

    ASSERT_EQ(testing::unpack_on_device(random.format->id, random.blocks.data(),
                                        random.blocks.size(), values.size(), values.data()),
              0)
        << random.format->name;

    EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * 4), 0)
        << random.format->name;
    ++count;
  }
  EXPECT_EQ(count, 25u);
}

TEST(GpuNumeric, conversions_give_the_bits_of_the_host) {
  constexpr uint32_t kCount = 65536;
  std::vector<float> values(kCount), from_half(kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    values[i] = bits_float(static_cast<uint32_t>(testing::splitmix64(i)));
    if (std::isnan(values[i])) values[i] = 0.0f;  // the payload of a NaN is not promised
  }
  std::vector<uint16_t> codes(3 * kCount);

  ASSERT_EQ(testing::convert_on_device(values.data(), from_half.data(), codes.data()), 0);

  for (uint32_t i = 0; i < kCount; ++i) {
    const float expected = half_to_float(static_cast<uint16_t>(i));
    if (std::isnan(expected))
      ASSERT_TRUE(std::isnan(from_half[i])) << i;
    else
      ASSERT_EQ(float_bits(from_half[i]), float_bits(expected)) << i;
    ASSERT_EQ(codes[3 * i], float_to_half(values[i])) << values[i];
    ASSERT_EQ(codes[3 * i + 1], float_to_bf16(values[i])) << values[i];
    ASSERT_EQ(codes[3 * i + 2], float_to_e4m3(values[i])) << values[i];
  }
}

}  // namespace
}  // namespace wcuda::quant
