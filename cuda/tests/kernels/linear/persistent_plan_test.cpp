// How the linear layers of one token are divided among the CTAs of the persistent kernel, by shape
// and device: without a GPU.
#include "kernels/linear/persistent_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/linear/vector_params.h"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kQ4 = TensorType::kQ4_K, kQ6 = TensorType::kQ6_K;
constexpr uint32_t kH200Sms = 132, kH200BlockBytes = 232448;
using Layers = std::vector<PersistentLayerShape>;

PersistentLayerShape output_of(uint32_t rows, uint32_t cols, uint32_t type) {
  PersistentLayerShape shape;
  shape.matrix_count = 1;
  shape.types[0] = type;
  shape.rows[0] = rows;
  shape.cols = cols;
  shape.is_added = true;
  return shape;
}
PersistentLayerShape gate_and_up(uint32_t rows, uint32_t cols, uint32_t type = kQ4) {
  PersistentLayerShape shape;
  shape.matrix_count = 2;
  shape.types[0] = shape.types[1] = type;
  shape.rows[0] = shape.rows[1] = rows;
  shape.cols = cols;
  shape.is_gate = shape.has_norm = true;
  return shape;
}
PersistentLayerShape query_key_value(uint32_t query_rows, uint32_t kv_rows, uint32_t cols,
                                     uint32_t value_type) {
  PersistentLayerShape shape;
  shape.matrix_count = 3;
  shape.types[0] = shape.types[1] = kQ4;
  shape.types[2] = value_type;
  shape.rows[0] = query_rows;
  shape.rows[1] = shape.rows[2] = kv_rows;
  shape.cols = cols;
  shape.has_norm = true;
  return shape;
}
// Two matrices of one type and one of another, of 1,024 inputs.
PersistentLayerShape three_matrices(uint32_t first_type, uint32_t first_rows, uint32_t last_type,
                                    uint32_t last_rows) {
  PersistentLayerShape shape = query_key_value(first_rows, last_rows, 1024, last_type);
  shape.types[0] = shape.types[1] = first_type;
  shape.rows[1] = first_rows;
  return shape;
}
PersistentLayerShape logits(uint32_t rows, uint32_t cols) {
  PersistentLayerShape shape = output_of(rows, cols, kQ6);
  shape.is_added = false;
  shape.has_norm = true;
  return shape;
}

// From the output projection to query, key and value of the next layer. Q4_K_M has down and value
// in Q6_K in half of the layers.
struct Model {
  const char* name;
  uint32_t dim, feed_forward, query_rows, kv_rows;
};
constexpr Model k8b = {"8B", 4096, 14336, 4096, 1024};
constexpr Model k1b = {"1B", 2048, 8192, 2048, 512};
constexpr Model kSmall = {"0.6B", 1024, 3072, 2048, 1024};
constexpr Model k70b = {"70B", 8192, 28672, 8192, 1024};

Layers layers_of(const Model& model, uint32_t type = kQ4) {
  return {output_of(model.dim, model.query_rows, kQ4), gate_and_up(model.feed_forward, model.dim),
          output_of(model.dim, model.feed_forward, type),
          query_key_value(model.query_rows, model.kv_rows, model.dim, type)};
}
Layers with_logits(const Model& model, uint32_t vocabulary) {
  Layers layers = layers_of(model);
  layers.back() = logits(vocabulary, model.dim);
  return layers;
}

struct Device {
  uint32_t sm_count = kH200Sms, shared_bytes = kH200BlockBytes;
  int32_t compute_capability = 90;
};
bool plan_of(const Layers& layers, PersistentPlan* plan, const Device& device = {}) {
  return plan_persistent_layers(layers.data(), static_cast<uint32_t>(layers.size()),
                                device.compute_capability, device.sm_count, device.shared_bytes,
                                plan);
}
bool is_supported(const Layers& layers, const Device& device = {}) {
  return plan_of(layers, nullptr, device);
}

// ---- the division of 8B, 1B and a small model ----

struct ExpectedLayer {
  uint32_t k_tiles, k_splits, rows_each, ctas, items[2], m_tiles;
};
struct ModelCase {
  const Model& model;
  uint32_t type;
  ExpectedLayer layers[kPersistentLayersMax];
  uint32_t batch, stages;
};
const ModelCase kModelCases[] = {
    {k8b,
     kQ4,
     {{16, 0, 0, 132, {256, 0}, 2},
      {16, 0, 0, 132, {896, 0}, 14},
      {4, 14, 32, 132, {3584, 0}, 28},
      {16, 0, 0, 132, {384, 0}, 3}},
     16,
     21},
    {k8b,
     kQ6,
     {{16, 0, 0, 132, {256, 0}, 2},
      {16, 0, 0, 132, {896, 0}, 14},
      {4, 14, 32, 0, {0, 3584}, 28},
      {16, 0, 0, 102, {320, 64}, 4}},
     16,
     21},
    {k1b,
     kQ6,
     {{8, 0, 0, 132, {128, 0}, 1},
      {8, 0, 0, 132, {512, 0}, 8},
      {32, 0, 0, 0, {0, 128}, 1},
      {8, 0, 0, 102, {160, 32}, 2}},
     8,
     21},
    {kSmall,
     kQ4,
     {{8, 0, 0, 132, {64, 0}, 1},
      {4, 0, 0, 132, {192, 0}, 4},
      {12, 0, 0, 132, {64, 0}, 1},
      {4, 0, 0, 132, {256, 0}, 2}},
     4,
     23},
};

TEST(PersistentPlan, divides_the_layers_of_three_models) {
  for (const ModelCase& c : kModelCases) {
    SCOPED_TRACE(testing::Message() << c.model.name << " with " << c.type);
    PersistentPlan plan;

    ASSERT_TRUE(plan_of(layers_of(c.model, c.type), &plan));

    for (uint32_t p = 0; p < kPersistentLayersMax; ++p) {
      SCOPED_TRACE(testing::Message() << "layer " << p);
      const PersistentLayerPlan& layer = plan.layers[p];
      EXPECT_EQ(layer.k_tiles, c.layers[p].k_tiles);
      EXPECT_EQ(layer.k_splits, c.layers[p].k_splits);
      EXPECT_EQ(layer.rows_each, c.layers[p].rows_each);
      EXPECT_EQ(layer.ctas, c.layers[p].ctas);
      EXPECT_EQ(layer.items[0], c.layers[p].items[0]);
      EXPECT_EQ(layer.items[1], c.layers[p].items[1]);
      EXPECT_EQ(layer.m_tiles, c.layers[p].m_tiles);
    }
    EXPECT_EQ(plan.batch, c.batch);
    EXPECT_EQ(plan.stages, c.stages);
  }
}

// ---- coverage ----

// How often each K-tile of each M-tile of a layer's matrices is computed.
struct Coverage {
  std::vector<uint32_t> counts[3];  // (m_tiles, all K-tiles)
  uint32_t k_tiles;                 // of an M-tile
};

// What a CTA of the kernel does with its items of a layer, as partition_of in fused_copy.cuh: an
// item is an M-tile, an M-tile of gate and of up, or a K-split of an M-tile.
void compute(const PersistentLayerShape& shape, const PersistentLayerPlan& layer, uint32_t problem,
             uint32_t begin, uint32_t end, Coverage* done) {
  std::vector<uint32_t> matrices;
  for (uint32_t i = 0; i < shape.matrix_count; ++i)
    if ((shape.types[i] == kQ6) == (problem == 1)) matrices.push_back(i);
  const auto add = [&](uint32_t matrix, uint32_t m_tile, uint32_t first_k_tile) {
    for (uint32_t k = 0; k < layer.k_tiles; ++k)
      ++done->counts[matrix].at(m_tile * done->k_tiles + first_k_tile + k);
  };
  std::vector<uint32_t> runs;  // matrices, or K-splits, that the items belong to
  for (uint32_t item = begin; item < end; ++item) {
    uint32_t run = 0;
    if (shape.is_gate) {
      add(0, item, 0);
      add(1, item, 0);
    } else if (layer.k_splits != 0) {
      const uint32_t m_tiles = divide_up(shape.rows[0], 16);
      run = item / m_tiles;
      add(0, item % m_tiles, run * layer.k_tiles);
    } else {
      uint32_t m_tile = item;
      while (m_tile >= divide_up(shape.rows[matrices.at(run)], 16))
        m_tile -= divide_up(shape.rows[matrices[run++]], 16);
      add(matrices[run], m_tile, 0);
    }
    if (runs.empty() || runs.back() != run) runs.push_back(run);
  }
  EXPECT_LE(runs.size(), 2u);
  EXPECT_LE((end - begin) * (shape.is_gate ? 2 : 1), layer.m_tiles);
}

void expect_covered(const PersistentLayerShape& shape, const PersistentLayerPlan& layer,
                    uint32_t ctas) {
  Coverage done;
  done.k_tiles = shape.cols / 256;
  for (uint32_t i = 0; i < shape.matrix_count; ++i)
    done.counts[i].resize(uint64_t{divide_up(shape.rows[i], 16)} * done.k_tiles);
  const uint32_t problem_ctas[2] = {layer.ctas, ctas - layer.ctas};

  for (uint32_t s = 0; s < 2; ++s) {
    EXPECT_EQ(problem_ctas[s] != 0, layer.items[s] != 0) << "problem " << s;
    if (problem_ctas[s] == 0) continue;
    const EvenPartition items = partition_evenly(layer.items[s], problem_ctas[s]);
    for (uint32_t cta = 0; cta < problem_ctas[s]; ++cta)
      compute(shape, layer, s, items.begin(cta), items.begin(cta + 1), &done);
  }

  for (uint32_t i = 0; i < shape.matrix_count; ++i)
    for (const uint32_t count : done.counts[i]) ASSERT_EQ(count, 1u) << "matrix " << i;
  EXPECT_EQ(std::max(1u, layer.k_splits) * layer.k_tiles, done.k_tiles);
  if (layer.k_splits != 0) {  // each output is added by one CTA, 16 of them by a warp
    EXPECT_GE(layer.rows_each * ctas, shape.rows[0]);
    EXPECT_LE(layer.rows_each, persistent::kWarps * 16);
    EXPECT_EQ(layer.rows_each % 16, 0u);
  }
}

const std::vector<Layers>& supported_layers() {
  static const std::vector<Layers> all = {
      layers_of(k8b),
      layers_of(k8b, kQ6),
      with_logits(k8b, 128256),
      layers_of(k1b),
      layers_of(k1b, kQ6),
      with_logits(k1b, 128256),
      layers_of(kSmall),
      layers_of(kSmall, kQ6),
      // Rows that are no multiple of 16.
      {output_of(1024, 1024, kQ4), gate_and_up(2048, 1024), output_of(1111, 2048, kQ6)},
      {output_of(1024, 16384, kQ6), query_key_value(1000, 333, 1024, kQ6)},
      // So few rows of one type that its share of the bytes rounds to no CTA.
      {output_of(1024, 1024, kQ4), three_matrices(kQ4, 8192, kQ6, 16)},
      {output_of(1024, 1024, kQ4), three_matrices(kQ6, 8192, kQ4, 16)},
  };
  return all;
}

TEST(PersistentPlan, computes_every_row_and_input_once) {
  for (const Layers& layers : supported_layers())
    for (const uint32_t sm_count : {112u, 113u, kH200Sms, 144u}) {
      SCOPED_TRACE(testing::Message() << layers[1].rows[0] << " x " << layers[1].cols << " after "
                                      << layers[0].cols << " on " << sm_count << " SMs");
      PersistentPlan plan;
      ASSERT_TRUE(plan_of(layers, &plan, {sm_count}));

      for (uint32_t p = 0; p < layers.size(); ++p) {
        SCOPED_TRACE(testing::Message() << "layer " << p);
        expect_covered(layers[p], plan.layers[p], sm_count);
      }
    }
}

// ---- shared memory ----

TEST(PersistentPlan, regions_of_shared_memory_hold_what_the_kernel_stores_and_do_not_overlap) {
  for (const Layers& layers : supported_layers())
    for (const uint32_t shared_bytes : {120000u, 166912u, kH200BlockBytes}) {
      SCOPED_TRACE(testing::Message()
                   << layers[1].rows[0] << " x " << layers[1].cols << " in " << shared_bytes);
      PersistentPlan plan;
      ASSERT_TRUE(plan_of(layers, &plan, {kH200Sms, shared_bytes}));

      uint32_t x_k_tiles = 0, batch = 0;
      for (uint32_t p = 0; p < layers.size(); ++p) {
        const PersistentLayerPlan& layer = plan.layers[p];
        // With K-splits, a CTA may have two of them.
        x_k_tiles = std::max(x_k_tiles, layer.k_tiles * (layer.k_splits != 0 ? 2 : 1));
        batch = std::max(batch, std::min(layer.m_tiles, 16u));
        // These compute all their M-tiles before the epilogue.
        if (layers[p].is_gate || (layers[p].is_added && layer.k_splits == 0)) {
          EXPECT_LE(layer.m_tiles, plan.batch) << "layer " << p;
        }
      }
      EXPECT_EQ(plan.batch, batch);
      EXPECT_GE(plan.x_scales_offset, x_k_tiles * 512);
      EXPECT_GE(plan.squares_offset, plan.x_scales_offset + x_k_tiles * 128);
      EXPECT_GE(plan.accumulators_offset, plan.squares_offset + 16 * sizeof(float));
      EXPECT_GE(plan.partitions_offset, plan.accumulators_offset + batch * 16 * 20 * sizeof(float));
      EXPECT_GE(plan.barriers_offset, plan.partitions_offset + 96 * layers.size());
      EXPECT_GE(plan.ring_offset, plan.barriers_offset + 520);
      EXPECT_EQ(plan.ring_offset % 128, 0u);
      EXPECT_GE(plan.stages, 8u);
      EXPECT_LE(plan.stages, 32u);
      EXPECT_EQ(plan.shared_bytes, plan.ring_offset + plan.stages * 9216);
      EXPECT_LE(plan.shared_bytes, shared_bytes);
      if (plan.stages < 32) {
        EXPECT_GT(plan.shared_bytes + 9216, shared_bytes);
      }
    }
}

TEST(PersistentPlan, needs_shared_memory_for_eight_stages) {
  PersistentPlan plan;

  ASSERT_TRUE(plan_of(layers_of(k8b), &plan, {kH200Sms, 105600}));

  EXPECT_EQ(plan.stages, 8u);
  EXPECT_EQ(plan.shared_bytes, 105600u);
  EXPECT_FALSE(is_supported(layers_of(k8b), {kH200Sms, 105599}));
  EXPECT_FALSE(is_supported(layers_of(k8b), {kH200Sms, 99 * 1024}));
  EXPECT_FALSE(is_supported(layers_of(k8b), {kH200Sms, 0}));
}

// ---- refusals ----

TEST(PersistentPlan, needs_compute_capability_9) {
  for (const int32_t capability : {0, 80, 89, 100, 103, 120})
    EXPECT_FALSE(is_supported(layers_of(k8b), {kH200Sms, kH200BlockBytes, capability}))
        << capability;
  EXPECT_TRUE(is_supported(layers_of(k8b), {kH200Sms, kH200BlockBytes, 90}));
}

TEST(PersistentPlan, supports_q4_k_and_q6_k_only) {
  for (uint32_t type = 0; type < 48; ++type)
    for (uint32_t p = 0; p < 4; ++p)
      for (uint32_t i = 0; i < layers_of(k8b)[p].matrix_count; ++i) {
        Layers layers = layers_of(k8b);
        layers[p].types[i] = type;
        if (layers[p].is_gate) layers[p].types[1 - i] = type;
        EXPECT_EQ(is_supported(layers), type == kQ4 || type == kQ6)
            << "type " << type << ", layer " << p << ", matrix " << i;
      }
}

TEST(PersistentPlan, needs_an_sm_for_every_eight_pairs_of_m_tiles_of_gate_and_up) {
  // 896 pairs: 8 on 112 SMs. The epilogue holds 16 M-tiles.
  EXPECT_TRUE(is_supported(layers_of(k8b), {112}));
  EXPECT_FALSE(is_supported(layers_of(k8b), {111}));
  EXPECT_FALSE(is_supported(layers_of(k8b), {1}));
  EXPECT_FALSE(is_supported(layers_of(k8b), {0}));
  EXPECT_FALSE(is_supported(layers_of(k70b))) << "separate kernels are faster";
  EXPECT_TRUE(is_supported(layers_of(kSmall), {24}));
  EXPECT_FALSE(is_supported(layers_of(kSmall), {23}));
}

TEST(PersistentPlan, an_added_layer_without_k_splits_has_at_most_16_m_tiles_in_a_cta) {
  const Layers layers = {output_of(1024, 2048, kQ4), gate_and_up(64, 1024)};  // 64 M-tiles first
  EXPECT_TRUE(is_supported(layers, {4}));
  EXPECT_FALSE(is_supported(layers, {3}));
}

TEST(PersistentPlan, warps_of_a_cta_add_the_k_splits_of_at_most_16_m_tiles) {
  const Layers layers = {output_of(4096, 14336, kQ4), query_key_value(4096, 1024, 4096, kQ4)};
  EXPECT_TRUE(is_supported(layers, {16}));  // 256 rows each
  EXPECT_FALSE(is_supported(layers, {15}));
}

TEST(PersistentPlan, only_added_layers_of_12288_inputs_and_more_have_k_splits) {
  const auto splits_of = [](PersistentLayerShape first) {
    PersistentPlan plan;
    EXPECT_TRUE(plan_of({first, gate_and_up(8192, 4096)}, &plan));
    return plan.layers[0].k_splits;
  };
  EXPECT_EQ(splits_of(output_of(4096, 12288, kQ4)), 12u);
  EXPECT_EQ(splits_of(output_of(4096, 11264, kQ4)), 0u);
  PersistentLayerShape other = output_of(4096, 12288, kQ4);
  other.has_norm = true;
  EXPECT_EQ(splits_of(other), 0u);
  other = output_of(4096, 12288, kQ4);
  other.is_added = false;
  EXPECT_EQ(splits_of(other), 0u);
}

TEST(PersistentPlan, a_partition_has_at_most_two_matrices) {
  // 260 or 258 M-tiles on 132 CTAs: two each, which may not be more than a matrix has.
  const auto layers = [](uint32_t rows) {
    return Layers{output_of(4096, 4096, kQ4), gate_and_up(4096, 4096), output_of(4096, 4096, kQ4),
                  query_key_value(4096, rows, 4096, kQ4)};
  };
  EXPECT_TRUE(is_supported(layers(32)));
  EXPECT_FALSE(is_supported(layers(16)));
}

TEST(PersistentPlan, supports_two_to_four_layers) {
  const Layers all = layers_of(k8b);
  EXPECT_FALSE(is_supported({}));
  EXPECT_FALSE(is_supported({all[0]}));
  EXPECT_TRUE(is_supported({all[0], all[1]}));
  EXPECT_TRUE(is_supported({all[0], all[1], all[2]}));
  EXPECT_TRUE(is_supported({all[2], all[3]}));
  EXPECT_FALSE(is_supported({all[0], all[1], all[2], all[1], all[2]}));
}

TEST(PersistentPlan, each_layer_reads_the_only_output_of_the_one_before) {
  const Layers all = layers_of(k8b);
  EXPECT_FALSE(is_supported({all[1], all[3]})) << "14,336 outputs, 4,096 inputs";
  EXPECT_FALSE(is_supported({all[3], all[1]})) << "three outputs";
  EXPECT_TRUE(is_supported({all[1], all[2]}));
}

TEST(PersistentPlan, refuses_shapes_without_kernel) {
  const auto with = [](uint32_t layer, auto change) {
    Layers layers = layers_of(k8b);
    change(&layers[layer]);
    return is_supported(layers);
  };
  using Shape = PersistentLayerShape;
  EXPECT_TRUE(with(0, [](Shape*) {}));
  for (const uint32_t count : {0u, 4u})
    EXPECT_FALSE(with(3, [=](Shape* shape) { shape->matrix_count = count; })) << count;
  EXPECT_FALSE(with(3, [](Shape* shape) { shape->rows[2] = 0; }));
  for (const uint32_t cols : {0u, 576u, 4096u - 256, 4096u + 512})
    EXPECT_FALSE(with(0, [=](Shape* shape) { shape->cols = cols; })) << cols;
  EXPECT_FALSE(with(1, [](Shape* shape) { shape->rows[1] -= 16; })) << "gate and up differ";
  EXPECT_FALSE(with(1, [](Shape* shape) { shape->types[1] = kQ6; }));
  EXPECT_FALSE(with(1, [](Shape* shape) { shape->is_gate = false; })) << "two outputs";
  EXPECT_FALSE(with(3, [](Shape* shape) { shape->is_gate = true; })) << "three matrices";
  EXPECT_FALSE(with(3, [](Shape* shape) { shape->is_added = true; }));
}

TEST(PersistentPlan, a_refused_plan_leaves_the_result_untouched) {
  PersistentPlan plan;
  plan.stages = 7;
  plan.layers[2].items[1] = 5;

  EXPECT_FALSE(plan_of(layers_of(k70b), &plan));

  EXPECT_EQ(plan.stages, 7u);
  EXPECT_EQ(plan.layers[2].items[1], 5u);
  EXPECT_EQ(plan.shared_bytes, 0u);
}

TEST(PersistentPlan, the_same_layers_have_the_same_plan) {
  for (const Layers& layers : supported_layers()) {
    // All members are uint32_t, without padding.
    constexpr size_t kWords = sizeof(PersistentPlan) / sizeof(uint32_t);
    PersistentPlan first, second;
    std::fill_n(reinterpret_cast<uint32_t*>(&second), kWords, 0xa5a5a5a5u);
    ASSERT_TRUE(plan_of(layers, &first));
    ASSERT_TRUE(plan_of(layers, &second));

    const auto* const words = reinterpret_cast<const uint32_t*>(&first);
    EXPECT_TRUE(std::equal(words, words + kWords, reinterpret_cast<const uint32_t*>(&second)));
    EXPECT_TRUE(is_supported(layers)) << "without a result";
  }
}

}  // namespace
}  // namespace wcuda::kernels
