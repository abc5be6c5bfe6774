// How linear_vector cuts launches, by shape and device: without a GPU.
#include "kernels/linear/vector_plan.h"

#include <gtest/gtest.h>

namespace wcuda::kernels {
namespace {

constexpr uint32_t kQ4KTileBytes = 2304;

VectorEngine q4_k_engine(uint32_t tokens) {
  VectorEngine engine;
  engine.tokens = tokens;
  engine.stage_inputs = 256;
  engine.stage_bytes = kQ4KTileBytes;
  engine.x_codes_bytes = 512 * tokens;
  engine.x_scales_bytes = (tokens >= 4 ? 72 : 128) * tokens;
  return engine;
}

VectorDevice h200() { return {132, 232448, 233472, 1024, 90}; }
VectorDevice a100() { return {108, 166912, 167936, 1024, 80}; }

struct Layer {
  const char* name;
  uint32_t cols;
  uint32_t rows[kLinearMatricesMax];
  Epilogue epilogue;
};
constexpr Layer kQkv = {"8B query, key, value", 4096, {4096, 1024, 1024}, Epilogue::kStore};
constexpr Layer kOut = {"8B attention output", 4096, {4096}, Epilogue::kAdd};
constexpr Layer kGate = {"8B gate and up", 4096, {14336, 14336}, Epilogue::kSiluGate};
constexpr Layer kDown = {"8B down", 14336, {4096}, Epilogue::kAdd};
constexpr Layer kLogits = {"8B logits", 4096, {128256}, Epilogue::kStore};
constexpr Layer kGate70 = {"70B gate and up", 8192, {28672, 28672}, Epilogue::kSiluGate};
constexpr Layer kDown70 = {"70B down", 28672, {8192}, Epilogue::kAdd};
constexpr Layer kTiny = {"one M-tile", 256, {16}, Epilogue::kStore};

VectorParams params_of(const Layer& layer) {
  VectorParams params = {};
  params.cols = layer.cols;
  params.epilogue = layer.epilogue;
  for (uint32_t i = 0; i < kLinearMatricesMax; ++i) {
    params.matrices[i].rows = layer.rows[i];
    params.matrices[i].m_tiles = (layer.rows[i] + 15) / 16;
    params.m_tiles[0] += params.matrices[i].m_tiles;
  }
  for (VectorProblem& problem : params.problems)
    problem.m_tile_bytes = (layer.cols + 255) / 256 * kQ4KTileBytes;
  return params;
}

struct Case {
  Layer layer;
  uint32_t tokens;
  VectorDevice (*device)();
  uint32_t k_splits, clusters, k_warps, m_warps, stages, batch, shared_bytes;
};
const Case kCases[] = {
    {kQkv, 1, h200, 1, 132, 16, 1, 2, 3, 115968},
    {kQkv, 8, h200, 2, 66, 4, 4, 3, 6, 164672},   // few M-tiles: staging is split
    {kOut, 1, h200, 1, 132, 16, 1, 2, 2, 87360},  // adds: the smaller of two on an SM
    {kOut, 4, h200, 1, 132, 8, 2, 2, 2, 118272},
    {kGate, 1, h200, 1, 132, 16, 1, 2, 14, 115968},
    {kGate, 2, h200, 1, 132, 8, 2, 3, 14, 153472},
    {kGate, 8, h200, 1, 132, 4, 4, 3, 14, 215296},
    {kDown, 1, h200, 1, 132, 8, 2, 2, 2, 111936},
    {kDown, 4, h200, 4, 33, 4, 4, 3, 8, 154688},
    {kLogits, 1, h200, 1, 132, 16, 1, 3, 19, 170304},
    {kLogits, 8, h200, 1, 132, 4, 4, 2, 12, 198912},
    {kGate70, 1, h200, 1, 132, 16, 1, 3, 28, 167744},  // large: the SM alone
    {kDown70, 8, h200, 8, 16, 4, 4, 2, 12, 206208},
    {kTiny, 1, h200, 1, 1, 1, 1, 1, 1, 115968},
    {kQkv, 1, a100, 1, 108, 16, 1, 2, 4, 89920},
    {kDown, 1, a100, 1, 108, 14, 1, 2, 3, 104928},
    {kDown70, 1, a100, 2, 54, 8, 2, 2, 10, 118080},  // through global memory
};

TEST(VectorPlan, gives_the_measured_choice_for_each_shape) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.layer.name << ", " << c.tokens << " tokens");
    VectorParams params = params_of(c.layer);
    const VectorEngine engine = q4_k_engine(c.tokens);
    const VectorDevice device = c.device();

    const uint32_t k_splits = choose_k_splits(params, engine, device, {});
    const VectorPlan plan = plan_vector(&params, engine, device, {}, k_splits, 0);

    EXPECT_EQ(k_splits, c.k_splits);
    EXPECT_EQ(plan.clusters, c.clusters);
    EXPECT_EQ(params.k_warps, c.k_warps);
    EXPECT_EQ(params.m_warp_count, c.m_warps);
    EXPECT_EQ(plan.threads, c.k_warps * c.m_warps * 32);
    EXPECT_EQ(params.stages, c.stages);
    EXPECT_EQ(params.batch, c.batch);
    EXPECT_EQ(plan.shared_bytes, c.shared_bytes);
    EXPECT_EQ(plan.partials_bytes != 0, !device.has_clusters() && k_splits > 1);
  }
}

TEST(VectorPlan, covers_every_input_and_row_within_the_device) {
  for (const Layer& layer : {kQkv, kOut, kGate, kDown, kLogits, kGate70, kDown70, kTiny})
    for (const uint32_t tokens : {1u, 2u, 4u, 8u})
      for (const VectorDevice& device : {h200(), a100()}) {
        SCOPED_TRACE(testing::Message() << layer.name << ", " << tokens << " tokens");
        VectorParams params = params_of(layer);
        const VectorEngine engine = q4_k_engine(tokens);
        const uint32_t k_splits = choose_k_splits(params, engine, device, {});
        const VectorPlan plan = plan_vector(&params, engine, device, {}, k_splits, 0);

        const uint32_t width = layer.epilogue == Epilogue::kSiluGate ? 2 : 1;
        EXPECT_EQ(params.k_splits.begin(k_splits), (layer.cols + 255) / 256);
        for (uint32_t i = 0; i < 2; ++i)
          EXPECT_EQ(params.k_warp_tiles[i].begin(params.k_warps), params.k_splits.base + i);
        EXPECT_EQ(params.problems[0].items.begin(plan.clusters) * width, params.m_tiles[0]);
        EXPECT_LE(plan.threads, kVectorWarpsMax * 32);
        EXPECT_LE(plan.shared_bytes, device.block_shared_bytes);
        EXPECT_LE(params.early_stages, params.stages);
        EXPECT_EQ(params.batch % width, 0u);
      }
}

TEST(VectorPlan, leaves_out_multiprocessors_that_no_cluster_reaches) {
  VectorParams params = params_of(kDown70);
  const VectorEngine engine = q4_k_engine(4);
  const uint32_t k_splits = choose_k_splits(params, engine, h200(), {});
  ASSERT_EQ(k_splits, 4u);

  const VectorPlan plan = plan_vector(&params, engine, h200(), {}, k_splits, 30);

  EXPECT_EQ(plan.clusters, 30u);
}

TEST(VectorPlan, follows_a_tuning) {
  VectorTuning tuning;
  tuning.cluster_size = 2;
  tuning.stages = 3;
  tuning.m_warps = 2;
  tuning.residency = 1;
  tuning.early_stages = 2;
  VectorParams params = params_of(kGate);
  const VectorEngine engine = q4_k_engine(1);

  const uint32_t k_splits = choose_k_splits(params, engine, h200(), tuning);
  const VectorPlan plan = plan_vector(&params, engine, h200(), tuning, k_splits, 0);

  EXPECT_EQ(k_splits, 2u);
  EXPECT_EQ(params.stages, 3u);
  EXPECT_EQ(params.m_warp_count, 2u);
  EXPECT_EQ(params.early_stages, 2u);
  EXPECT_GT(plan.shared_bytes, h200().sm_shared_bytes / 2 - 1);  // no room for another kernel
}

}  // namespace
}  // namespace wcuda::kernels
