// packed_gemm_grouped on the device against double precision.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/linear/gpu_linear_fixture.h"
#include "kernels/linear/half_input.h"
#include "kernels/linear/packed_gemm.h"
#include "kernels/linear/token_tiles.h"

namespace wcuda::testing {
namespace {

using namespace tensor_type;

std::vector<uint32_t> begins_of(const std::vector<uint32_t>& sizes) {
  std::vector<uint32_t> begins = {0};
  for (const uint32_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

// Queues a grouped layer.
class Grouped {
 public:
  explicit Grouped(const std::vector<uint32_t>& sizes) : begins_(begins_of(sizes)) {
    groups_.count = static_cast<uint32_t>(sizes.size());
    groups_.begins = begins_.data();
    launch.scratch = nullptr;
    launch.scratch_bytes = 0;
  }
  void operator()(const kernels::LinearArgs& args) {
    DeviceArray<uint8_t> input(kernels::packed_gemm_grouped_input_bytes(
        args.matrices[0].cols, args.tokens, groups_.count));
    input.fill(0xff);  // NaN wherever something is read before it is written
    EXPECT_EQ(kernels::packed_gemm_grouped(args, groups_, input.data(), launch), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  kernels::Launch launch = device_launch();

 private:
  DeviceArray<uint32_t> begins_;
  kernels::TokenGroups groups_;
};

LinearCase grouped_case(LinearCase parameters, std::vector<uint32_t> groups) {
  parameters.groups = std::move(groups);
  parameters.columns = begins_of(parameters.groups).back();
  return parameters;
}

std::vector<std::vector<float>> outputs_of(const LinearProblem& problem) {
  Grouped grouped(problem.parameters().groups);
  grouped.launch.is_dependent = true;
  return problem.outputs(grouped, 0, problem.parameters().columns);
}

void expect_close(const LinearCase& parameters) {
  const LinearProblem problem(parameters);
  problem.expect_close(outputs_of(problem));
}

TEST(GpuPackedGemmGrouped, every_format_is_close_to_double_precision) {
  for (const quant::Format* format : loadable_formats()) {
    SCOPED_TRACE(format->name);
    const uint32_t block = format->block_elements;
    const uint32_t cols = block == 1 ? 333 : 512 + (block == 256 ? 256 : block);
    expect_close(grouped_case({{format->id}, {53}, cols, 0, Epilogue::kStore, true, true, true},
                              {0, 3, 130, 0, 1, 65}));
  }
}

TEST(GpuPackedGemmGrouped, groups_of_any_sizes_are_close_to_double_precision) {
  for (const std::vector<uint32_t>& groups : std::vector<std::vector<uint32_t>>{
           {1}, {0, 0, 7}, {9, 0}, {128, 256, 0, 129, 127}, {1000, 0, 24}, {1500, 1100}}) {
    SCOPED_TRACE(groups.size());
    SCOPED_TRACE(groups[0]);
    expect_close(grouped_case({{kQ4_K}, {131}, 512, 0, Epilogue::kStore, true}, groups));
    expect_close(grouped_case({{kQ8_0}, {64}, 96, 0, Epilogue::kAdd, false, true, true}, groups));
  }
}

// As a layer of experts: gate and up, then down.
TEST(GpuPackedGemmGrouped, a_hundred_and_twenty_eight_groups_are_close_to_double_precision) {
  for (const uint32_t mean : {4u, 24u}) {
    SCOPED_TRACE(mean);
    std::vector<uint32_t> groups(128);
    for (size_t g = 0; g < groups.size(); ++g)
      groups[g] = g % 5 == 3 ? 0 : static_cast<uint32_t>(splitmix64(g) % (2 * mean));
    groups[77] = 300;
    expect_close(grouped_case(
        {{kQ4_K, kQ4_K}, {70, 70}, 512, 0, Epilogue::kSiluGate, true, false, true}, groups));
    expect_close(grouped_case({{kQ6_K}, {144}, 256, 0, Epilogue::kStore}, groups));
    expect_close(grouped_case({{kF16}, {40}, 96, 0, Epilogue::kAdd, false, true}, groups));
  }
}

TEST(GpuPackedGemmGrouped, gates_and_mixed_formats_are_close_to_double_precision) {
  const std::vector<uint32_t> groups = {17, 0, 200, 33};
  for (const Epilogue epilogue : {Epilogue::kSiluGate, Epilogue::kGeluTanhGate})
    expect_close(grouped_case({{kQ4_0, kQ4_0}, {145, 145}, 288, 0, epilogue, true, true}, groups));
  expect_close(grouped_case(
      {{kQ4_K, kQ4_0, kQ6_K}, {200, 33, 47}, 1280, 0, Epilogue::kStore, true, true}, groups));
}

TEST(GpuPackedGemmGrouped, columns_without_a_group_keep_their_outputs) {
  LinearCase parameters = grouped_case({{kQ4_K}, {65}, 256}, {30, 0, 140});
  parameters.columns += 45;
  expect_close(parameters);
  parameters.groups = {0, 0};
  expect_close(parameters);
}

TEST(GpuPackedGemmGrouped, inputs_of_any_magnitude_neither_overflow_nor_vanish) {
  for (const float scale : {1e-30f, 1e30f}) {
    SCOPED_TRACE(scale);
    LinearCase parameters = grouped_case({{kQ5_K}, {40}, 256}, {5, 131});
    parameters.x_scale = scale;
    expect_close(parameters);
  }
}

// A column alone in its group, in a tile of 128 tokens, and among many, in one of 256.
TEST(GpuPackedGemmGrouped, a_column_has_the_same_bits_in_any_company) {
  for (const uint32_t type : {kQ4_K, kQ8_0, kF16}) {
    const LinearProblem many(
        grouped_case({{type}, {200}, 1024, 0, Epilogue::kStore, true}, {1300, 0, 1200}));
    const auto expected = outputs_of(many);
    EXPECT_EQ(outputs_of(many), expected);
    Grouped first({7, 0, 0});
    const auto some = many.outputs(first, 0, 7);
    EXPECT_TRUE(std::equal(some[0].begin(), some[0].end(), expected[0].begin())) << type;
    Grouped last({0, 0, 100});
    const auto others = many.outputs(last, 1400, 100);
    EXPECT_TRUE(std::equal(others[0].begin(), others[0].end(), expected[0].begin() + 1400 * 200))
        << type;
  }
}

TEST(GpuPackedGemmGrouped, invalid_arguments_are_refused) {
  const LinearProblem problem(grouped_case({{kQ4_K}, {16}, 256}, {4}));
  const kernels::Launch launch = device_launch();
  DeviceArray<uint8_t> input(kernels::packed_gemm_grouped_input_bytes(256, 4, 2000));
  const DeviceArray<uint32_t> begins(std::vector<uint32_t>(2001, 4));
  problem.outputs(
      [&](const kernels::LinearArgs& args) {
        const auto status = [&](const kernels::LinearArgs& other, uint32_t groups) {
          return kernels::packed_gemm_grouped(other, {groups, begins.data()}, input.data(), launch);
        };
        kernels::LinearArgs other = args;
        other.tokens = 0;
        EXPECT_EQ(status(other, 1), cudaErrorInvalidValue);
        other = args;
        other.x = nullptr;
        EXPECT_EQ(status(other, 1), cudaErrorInvalidValue);
        EXPECT_EQ(status(args, 0), cudaErrorInvalidValue);
        EXPECT_EQ(status(args, kernels::kTokenGroupsMax + 1), cudaErrorInvalidValue);
        EXPECT_EQ(kernels::packed_gemm_grouped(args, {1, nullptr}, input.data(), launch),
                  cudaErrorInvalidValue);
        EXPECT_EQ(status(args, kernels::kTokenGroupsMax), cudaSuccess);
      },
      0, 4);
}

struct Tiles {
  std::vector<kernels::TokenTile> tiles;
  std::vector<uint32_t> places;
};

Tiles tiles_of(const std::vector<uint32_t>& begins, uint32_t tokens, uint32_t tile_tokens) {
  const DeviceArray<uint32_t> device_begins(begins);
  kernels::TokenTilesArgs args;
  args.groups = {static_cast<uint32_t>(begins.size()) - 1, device_begins.data()};
  args.tokens = tokens;
  args.tile_tokens = tile_tokens;
  DeviceArray<kernels::TokenTile> tiles(
      kernels::token_tiles_max(tokens, args.groups.count, tile_tokens));
  DeviceArray<uint32_t> places{size_t{tokens}};
  tiles.fill(0xff);
  places.fill(0xee);
  args.tiles = tiles.data();
  args.places = places.data();
  EXPECT_EQ(kernels::token_tiles(args, device_launch()), cudaSuccess);
  return {tiles.read(), places.read()};
}

TEST(GpuTokenTiles, are_those_of_the_groups_in_their_order) {
  for (const uint32_t groups : {1u, 31u, 128u, 1024u})
    for (const uint32_t tile_tokens : {64u, 128u, 256u})
      for (const uint32_t largest : {1u, 3u, 700u}) {
        SCOPED_TRACE(std::to_string(groups) + " groups, " + std::to_string(tile_tokens) +
                     " tokens a tile, up to " + std::to_string(largest));
        std::vector<uint32_t> sizes;
        for (uint32_t g = 0; g < groups; ++g)
          sizes.push_back(static_cast<uint32_t>(splitmix64(g) % (largest + 1)));
        const std::vector<uint32_t> begins = begins_of(sizes);
        const uint32_t tokens = begins.back() + 9;  // which no group has

        const Tiles actual = tiles_of(begins, tokens, tile_tokens);

        size_t tile = 0;
        for (uint32_t g = 0; g < groups; ++g)
          for (uint32_t first = 0; first < sizes[g]; first += tile_tokens, ++tile) {
            ASSERT_LT(tile, actual.tiles.size());
            const uint32_t count = std::min(sizes[g] - first, tile_tokens);
            ASSERT_EQ(actual.tiles[tile].group, g);
            ASSERT_EQ(actual.tiles[tile].first, begins[g] + first);
            ASSERT_EQ(actual.tiles[tile].count, count);
            for (uint32_t i = 0; i < count; ++i)
              ASSERT_EQ(actual.places[begins[g] + first + i], tile * tile_tokens + i);
          }
        for (; tile < actual.tiles.size(); ++tile) ASSERT_EQ(actual.tiles[tile].count, 0u);
        for (uint32_t i = begins.back(); i < tokens; ++i)
          ASSERT_EQ(actual.places[i], kernels::kNoPlace);
      }
}

TEST(GpuTokenTiles, begins_that_do_not_ascend_lead_to_no_token_or_place_past_the_end) {
  constexpr uint32_t kTokens = 500, kTile = 128;
  for (const std::vector<uint32_t>& begins :
       std::vector<std::vector<uint32_t>>{{0, 400, 100, 500, 0, 500},
                                          {300, 200, 100},
                                          {0, 0xffffffff, 7, 0xffffffff},
                                          {600, 700},
                                          {0, 500, 0, 500, 0, 500, 0, 500}}) {
    const Tiles tiles = tiles_of(begins, kTokens, kTile);
    for (const kernels::TokenTile& tile : tiles.tiles) {
      ASSERT_LE(tile.count, kTile);
      if (tile.count == 0) continue;
      ASSERT_LT(tile.group, begins.size() - 1);
      ASSERT_LE(tile.first + tile.count, kTokens);
    }
    for (const uint32_t place : tiles.places)
      ASSERT_TRUE(place == kernels::kNoPlace || place < tiles.tiles.size() * kTile) << place;
  }
}

}  // namespace
}  // namespace wcuda::testing
