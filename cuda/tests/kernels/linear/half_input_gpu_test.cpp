// half_input against the definition in double precision, and its bits by the tokens of a tile.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/linear/half_input.h"
#include "kernels/shared/numeric.h"
#include "tests/kernels/attention/gpu_attention_fixture.h"

namespace wcuda::ops {
namespace {

struct Converted {
  std::vector<uint16_t> halves;  // (tokens, depth) in the order of the inputs
  std::vector<float> scales, norms;
};

Converted convert(const std::vector<float>& x, const std::vector<float>& norm, uint32_t tokens,
                  uint32_t tile_tokens, kernels::InputOrder order) {
  const auto cols = static_cast<uint32_t>(norm.size());
  const uint32_t depth = (cols + 255) / 256 * 256;
  const uint32_t rows = (tokens + tile_tokens - 1) / tile_tokens * tile_tokens;
  const DeviceBytes inputs(x), gains(norm), scales(std::vector<float>(rows, NAN)),
      norms(std::vector<float>(rows, NAN)),
      halves(std::vector<uint16_t>(size_t{rows} * depth, 0x7e00));
  kernels::HalfInputArgs args;
  args.tokens = tokens;
  args.cols = cols;
  args.x = inputs.as<float>();
  args.norm = gains.as<float>();
  args.epsilon = 1e-5f;
  args.out.h = halves.as<uint16_t>();
  args.out.scales = scales.as<float>();
  args.out.order = order;
  args.out.tile_tokens = tile_tokens;
  args.out.depth = depth;
  args.norms = norms.as<float>();
  EXPECT_EQ(kernels::half_input(args, testing::device_launch()), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint16_t> stored = halves.read<uint16_t>();
  Converted converted{std::vector<uint16_t>(size_t{tokens} * depth), scales.read<float>(),
                      norms.read<float>()};
  for (uint32_t token = 0; token < tokens; ++token)
    for (uint32_t place = 0; place < depth; ++place) {
      const uint32_t input = place / 32 * 32 + kernels::input_of_place(order, place % 32);
      converted.halves[size_t{token} * depth + input] =
          stored[args.out.piece_index(token, place / 8) * 8 + place % 8];
    }
  converted.scales.resize(tokens);
  converted.norms.resize(tokens);
  return converted;
}

TEST(GpuHalfInput, equals_the_definition_and_has_the_same_bits_in_tiles_of_any_size) {
  host::Random random(21);
  constexpr uint32_t kTokens = 70;
  for (const uint32_t cols : {64u, 576u, 1000u, 1001u, 4096u, 11008u, 14336u}) {
    SCOPED_TRACE(cols);
    const std::vector<float> x = random.normals(size_t{kTokens} * cols, 3.0f);
    const std::vector<float> norm = random.normals(cols, 1.0f);
    const Converted first = convert(x, norm, kTokens, 16, kernels::InputOrder::kContiguous8);
    const uint32_t depth = (cols + 255) / 256 * 256;
    for (uint32_t token = 0; token < kTokens; ++token) {
      double squares = 0.0, normed_squares = 0.0;
      const float* const own = &x[size_t{token} * cols];
      for (uint32_t c = 0; c < cols; ++c) squares += double{own[c]} * own[c];
      const double inverse = 1.0 / std::sqrt(squares / cols + 1e-5);
      const double scale = first.scales[token];
      double largest = 0.0;
      for (uint32_t c = 0; c < depth; ++c) {
        const double expected = c < cols ? own[c] * inverse * norm[c] : 0.0;
        const double value = half_to_float(first.halves[size_t{token} * depth + c]) * scale;
        ASSERT_NEAR(value, expected, std::fabs(expected) * 6e-4 + scale * 1e-6)
            << "token " << token << ", input " << c;
        normed_squares += expected * expected;
        largest = std::max(largest, std::fabs(value / scale));
      }
      ASSERT_GE(largest, 0x1p14 * 0.999) << "token " << token;
      ASSERT_LE(largest, 0x1p15) << "token " << token;
      ASSERT_NEAR(first.norms[token], std::sqrt(normed_squares), 1e-4 * std::sqrt(normed_squares));
    }
    for (const kernels::InputOrder order :
         {kernels::InputOrder::kContiguous8, kernels::InputOrder::kCross,
          kernels::InputOrder::kSplit, kernels::InputOrder::kNested}) {
      const Converted of_16 = convert(x, norm, kTokens, 16, order);
      for (const uint32_t tile : {32u, 64u, 128u, 256u}) {
        const Converted other = convert(x, norm, kTokens, tile, order);
        EXPECT_TRUE(other.halves == of_16.halves) << "tiles of " << tile;
        EXPECT_TRUE(other.scales == of_16.scales) << "tiles of " << tile;
        EXPECT_TRUE(other.norms == of_16.norms) << "tiles of " << tile;
      }
    }
  }
}

// Steps of many tokens have blocks with half the threads.
TEST(GpuHalfInput, has_the_same_bits_for_many_tokens) {
  host::Random random(22);
  constexpr uint32_t kFew = 64, kMany = 643;
  for (const uint32_t cols : {64u, 300u, 576u, 896u, 1024u, 1028u}) {
    SCOPED_TRACE(cols);
    const std::vector<float> x = random.normals(size_t{kMany} * cols, 3.0f);
    const std::vector<float> norm = random.normals(cols, 1.0f);
    const kernels::InputOrder order = kernels::InputOrder::kNested;
    const Converted all = convert(x, norm, kMany, 128, order);
    const uint32_t depth = (cols + 255) / 256 * 256;
    for (uint32_t first = 0; first < kMany; first += kFew) {
      const uint32_t count = std::min(kFew, kMany - first);
      const std::vector<float> part(&x[size_t{first} * cols],
                                    &x[size_t{first} * cols] + count * cols);
      const Converted few = convert(part, norm, count, 64, order);
      const auto* const halves = &all.halves[size_t{first} * depth];
      EXPECT_TRUE(std::equal(few.halves.begin(), few.halves.end(), halves)) << first;
      EXPECT_TRUE(std::equal(few.scales.begin(), few.scales.end(), &all.scales[first])) << first;
      EXPECT_TRUE(std::equal(few.norms.begin(), few.norms.end(), &all.norms[first])) << first;
    }
  }
}

}  // namespace
}  // namespace wcuda::ops
