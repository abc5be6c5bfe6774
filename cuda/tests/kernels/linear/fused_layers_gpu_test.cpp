// The linear layers of a token between two attentions as one kernel, against linear_vector, which
// has an oracle of its own, layer by layer.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/linear/fused_layers.h"
#include "kernels/linear/gpu_linear_fixture.h"
#include "kernels/linear/linear_vector.h"
#include "kernels/shared/packed_tile.h"
#include "support/device_array.h"

namespace wcuda::kernels {
namespace {

using testing::device_launch;
using testing::DeviceArray;
using testing::splitmix64;

// Random codes; scales so that a product of ordinary inputs is ordinary.
std::vector<uint8_t> random_packed_tiles(uint32_t type, uint32_t rows, uint32_t cols,
                                         uint64_t seed) {
  const quant::TileLayout layout = quant::tile_layout(type);
  const uint32_t m_tiles = (rows + 15) / 16;
  std::vector<uint8_t> packed_tiles(m_tiles * layout.m_tile_bytes(cols));
  for (size_t i = 0; i < packed_tiles.size(); ++i)
    packed_tiles[i] = static_cast<uint8_t>(splitmix64(seed << 32 ^ i) >> 56);
  const float scale = 1.0f / std::sqrt(static_cast<float>(cols));
  const auto put = [&](uint8_t* packed_tile, uint32_t row, uint32_t byte, float value) {
    const uint16_t half = float_to_half(value);
    packed_tile[quant::packed_tile_offset(layout, row, 0, byte)] = static_cast<uint8_t>(half);
    packed_tile[quant::packed_tile_offset(layout, row, 0, byte + 1)] =
        static_cast<uint8_t>(half >> 8);
  };
  for (size_t at = 0; at < packed_tiles.size(); at += layout.packed_tile_bytes())
    for (uint32_t row = 0; row < quant::kMTileRows; ++row) {
      put(&packed_tiles[at], row, type == TensorType::kQ4_K ? 0 : 208,
          scale / (type == TensorType::kQ4_K ? 200.0f : 1400.0f));
      if (type == TensorType::kQ4_K) put(&packed_tiles[at], row, 2, scale / 200.0f * 7.5f);
    }
  return packed_tiles;
}

std::vector<float> random_values(uint32_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (uint32_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(static_cast<int64_t>(splitmix64(seed << 32 ^ i)) * 0x1p-62);
  return values;
}

struct Sizes {
  uint32_t dim, attention, key, hidden, last;
  uint32_t types[7];  // o, gate, up, down; query, key, value
  bool has_bias = false;
  Epilogue gate = Epilogue::kSiluGate;
};
// As part of a test's name: letters, digits and underscores.
void PrintTo(const Sizes& sizes, std::ostream* out) {
  *out << "dim" << sizes.dim << "_attention" << sizes.attention << "_key" << sizes.key << "_hidden"
       << sizes.hidden << "_last" << sizes.last;
}

// o, gate and up, down, and query, key and value of the next layer; or, with `last` rows, the
// matrix that gives logits.
class Chain {
 public:
  explicit Chain(const Sizes& s) : sizes_(s) {
    x_ = values(s.attention);
    norm_ = values(s.dim);
    add(s.types[0], s.dim, s.attention);
    for (int i = 1; i < 3; ++i) add(s.types[i], s.hidden, s.dim);
    add(s.types[3], s.dim, s.hidden);
    if (s.last != 0) {
      add(s.types[4], s.last, s.dim);
    } else {
      add(s.types[4], s.attention, s.dim);
      for (int i = 5; i < 7; ++i) add(s.types[i], s.key, s.dim);
    }
    reset();
  }

  void reset() {
    outputs_.clear();
    seed_ = 1000;
    outputs_.push_back(values(sizes_.dim));  // the residual
    outputs_.push_back(values(sizes_.hidden));
    for (size_t i = 4; i < matrices_.size(); ++i) outputs_.push_back(values(matrices_[i].rows));
  }

  std::vector<LinearArgs> layers() const {
    LinearArgs o = layer(x_->data(), false, {0}, {0}), gate = layer(out(0), true, {1, 2}, {1}),
               down = layer(out(1), false, {3}, {0});
    o.epilogue = down.epilogue = Epilogue::kAdd;
    gate.epilogue = sizes_.gate;
    const LinearArgs end = sizes_.last != 0 ? layer(out(0), true, {4}, {2})
                                            : layer(out(0), true, {4, 5, 6}, {2, 3, 4});
    return {o, gate, down, end};
  }

  std::vector<std::vector<float>> read() const {
    std::vector<std::vector<float>> all;
    for (const auto& output : outputs_) all.push_back(output->read());
    return all;
  }

 private:
  using Values = std::unique_ptr<DeviceArray<float>>;

  Values values(uint32_t count) {
    return std::make_unique<DeviceArray<float>>(random_values(count, ++seed_));
  }
  void add(uint32_t type, uint32_t rows, uint32_t cols) {
    packed_tiles_.push_back(
        std::make_unique<DeviceArray<uint8_t>>(random_packed_tiles(type, rows, cols, ++seed_)));
    matrices_.push_back({packed_tiles_.back()->data(), type, rows, cols});
    biases_.push_back(values(rows));
  }
  float* out(size_t i) const { return outputs_[i]->data(); }
  LinearArgs layer(const float* x, bool has_norm, std::vector<size_t> matrices,
                   std::vector<size_t> outputs) const {
    LinearArgs args;
    args.tokens = 1;
    args.x = x;
    if (has_norm) args.norm = norm_->data();
    args.epsilon = 1e-5f;
    for (const size_t m : matrices) {
      args.matrices[args.matrix_count] = matrices_[m];
      if (sizes_.has_bias) args.biases[args.matrix_count] = biases_[m]->data();
      ++args.matrix_count;
    }
    for (size_t i = 0; i < outputs.size(); ++i) args.outputs[i] = out(outputs[i]);
    return args;
  }

  Sizes sizes_;
  uint64_t seed_ = 0;
  Values x_, norm_;
  std::vector<Matrix> matrices_;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> packed_tiles_;
  std::vector<Values> biases_, outputs_;
};

// Results differ by the order of sums alone, and by what that changes in the 16 bits of an input:
// 2^-15 of the largest of 32, a few times over.
void expect_as_layers(const Sizes& sizes, uint32_t count) {
  SCOPED_TRACE(::testing::Message() << "dim " << sizes.dim << " hidden " << sizes.hidden << " last "
                                    << sizes.last << ", " << count << " layers");
  Launch launch = device_launch();
  const uint64_t bytes =
      fused_layers_scratch_bytes(std::max({sizes.dim, sizes.hidden, sizes.attention}), sizes.dim);
  DeviceArray<uint8_t> scratch(bytes);
  ASSERT_EQ(fused_layers_prepare(scratch.data(), bytes, launch), cudaSuccess);
  Chain chain(sizes);
  std::vector<LinearArgs> layers = chain.layers();
  ASSERT_TRUE(fused_layers_supports(layers.data(), count, launch));
  for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(linear_vector(layers[i], launch), cudaSuccess);
  const std::vector<std::vector<float>> expected = chain.read();

  std::vector<std::vector<float>> first;
  for (const bool is_dependent : {false, true, true}) {
    chain.reset();
    layers = chain.layers();
    launch.is_dependent = is_dependent;
    ASSERT_EQ(fused_layers(layers.data(), count, scratch.data(), bytes, launch), cudaSuccess);
    const std::vector<std::vector<float>> results = chain.read();
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(results[i].size(), expected[i].size());
      double square = 0;
      for (const float value : expected[i]) square += double{value} * value;
      const double tolerance = 5e-4 * std::sqrt(square / static_cast<double>(expected[i].size()));
      for (size_t k = 0; k < expected[i].size(); ++k)
        ASSERT_NEAR(results[i][k], expected[i][k], tolerance) << "output " << i << " row " << k;
    }
    if (first.empty()) first = results;
    ASSERT_EQ(results, first) << "results repeat to the bit";
  }
}

class GpuFusedLayers : public ::testing::TestWithParam<Sizes> {};

TEST_P(GpuFusedLayers, as_layer_by_layer) {
  if (!fused_layers_has_device(device_launch())) GTEST_SKIP() << "CTAs cannot wait for each other";
  const Launch launch = device_launch();
  if (launch.compute_capability < 90 || launch.compute_capability >= 100)
    GTEST_SKIP() << "no kernel for this device";
  for (const uint32_t count : {2u, 3u, 4u}) {
    expect_as_layers(GetParam(), count);
    if (HasFatalFailure()) return;
  }
}
constexpr TensorType kQ4 = TensorType::kQ4_K, kQ6 = TensorType::kQ6_K;
// Models of 8B and 1B; types by turns; all K-splits; logits; the least.
INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuFusedLayers,
    ::testing::Values(Sizes{4096, 4096, 1024, 14336, 0, {kQ4, kQ4, kQ4, kQ6, kQ4, kQ4, kQ6}},
                      Sizes{2048, 2048, 512, 8192, 0, {kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4}, true},
                      Sizes{1024,
                            2048,
                            256,
                            5120,
                            0,
                            {kQ6, kQ6, kQ6, kQ4, kQ6, kQ4, kQ6},
                            true,
                            Epilogue::kGeluTanhGate},
                      Sizes{1024, 8192, 1024, 16384, 0, {kQ4, kQ4, kQ4, kQ6, kQ4, kQ4, kQ6}},
                      Sizes{3072, 1024, 1024, 3072, 20011, {kQ4, kQ4, kQ4, kQ6, kQ6, 0, 0}, true},
                      Sizes{1024, 1024, 256, 1024, 0, {kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ6}, true}),
    [](const auto& info) { return ::testing::PrintToString(info.param); });

TEST(GpuFusedLayersShapes, refuses_what_it_cannot_do) {
  Launch launch = device_launch();
  Chain chain({1024, 1024, 256, 2048, 0, {kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4}});
  const std::vector<LinearArgs> layers = chain.layers();
  launch.compute_capability = 80;
  EXPECT_FALSE(fused_layers_supports(layers.data(), 4, launch));
  launch.compute_capability = 90;
  EXPECT_FALSE(fused_layers_supports(layers.data(), 1, launch));
  std::vector<LinearArgs> others = layers;
  others[2].x = layers[0].x;
  EXPECT_FALSE(fused_layers_supports(others.data(), 4, launch))
      << "not the output of the layer before";
  others = layers;
  others[1].tokens = 2;
  EXPECT_FALSE(fused_layers_supports(others.data(), 4, launch));
  others = layers;
  others[3].matrices[1].type = TensorType::kQ8_0;
  EXPECT_FALSE(fused_layers_supports(others.data(), 4, launch));
  EXPECT_EQ(fused_layers(others.data(), 4, nullptr, 2048, launch), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace wcuda::kernels
