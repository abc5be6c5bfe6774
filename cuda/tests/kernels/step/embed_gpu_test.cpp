// embed gives the bits of the host's unpackers, for every type.
#include <gtest/gtest.h>

#include "kernels/step/embed.h"
#include "llm/quant/random_tiles.h"
#include "support/device_array.h"

namespace wcuda::kernels {
namespace {

using testing::DeviceArray;
using testing::random_matrix;
using testing::RandomMatrix;

Matrix on_device(const RandomMatrix& random, const DeviceArray<uint8_t>& packed_tiles) {
  return {packed_tiles.data(), random.format->id, random.rows, random.cols};
}

// Columns that fill no tile, and for plain types not even 16 bytes.
std::vector<uint32_t> column_counts(const quant::Format& format) {
  if (format.block_elements == 1) return {8, 72, 75, 320, 1096};
  return {format.block_elements, 3 * format.block_elements, 11 * format.block_elements};
}

TEST(GpuEmbed, gives_the_bits_of_the_host_for_every_format) {
  const std::vector<int32_t> tokens = {0, 36, 5, 16, 15, 5};
  const DeviceArray<int32_t> device_tokens(tokens);
  size_t count = 0;
  for (const quant::Format* format : testing::loadable_formats()) {
    for (const uint32_t cols : column_counts(*format)) {
      SCOPED_TRACE(std::string(format->name) + " x " + std::to_string(cols));
      const RandomMatrix matrix = random_matrix(*format, 37, cols);
      const DeviceArray<uint8_t> packed_tiles(matrix.packed_tiles);
      DeviceArray<float> out(tokens.size() * cols);
      out.fill(0xff);

      ASSERT_EQ(
          embed(device_tokens.data(), 6, on_device(matrix, packed_tiles), 1.7f, out.data(), {}), 0);
      const std::vector<float> values = out.read();

      ASSERT_EQ(values.size(), tokens.size() * cols);
      for (uint64_t i = 0; i < values.size(); ++i) {
        const float expected =
            matrix.values[static_cast<uint64_t>(tokens[i / cols]) * cols + i % cols] * 1.7f;
        ASSERT_EQ(float_bits(values[i]), float_bits(expected)) << i;
      }
    }
    ++count;
  }
  EXPECT_EQ(count, 28u);
}

TEST(GpuEmbed, a_token_outside_the_table_takes_the_last_row) {
  const DeviceArray<int32_t> tokens(std::vector<int32_t>{-1, 20, INT32_MAX, INT32_MIN, 3});
  for (const quant::Format* format : testing::loadable_formats()) {
    if (format->id != 14) continue;
    const RandomMatrix matrix = random_matrix(*format, 20, 512);
    const DeviceArray<uint8_t> packed_tiles(matrix.packed_tiles);
    DeviceArray<float> out(5 * 512);

    ASSERT_EQ(embed(tokens.data(), 5, on_device(matrix, packed_tiles), 1.0f, out.data(), {}), 0);
    const std::vector<float> values = out.read();

    ASSERT_EQ(values.size(), 5u * 512);
    for (uint32_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], matrix.values[(i < 4 * 512 ? 19 : 3) * 512 + i % 512]) << i;
  }
}

}  // namespace
}  // namespace wcuda::kernels
