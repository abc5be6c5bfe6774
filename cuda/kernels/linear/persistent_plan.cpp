#include "kernels/linear/persistent_plan.h"

#include <algorithm>

#include "kernels/shared/arena.h"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

using namespace persistent;

using quant::kKTileInputs;

uint32_t m_tiles_of(uint32_t rows) { return divide_up(rows, quant::kMTileRows); }

bool plan_layer(const PersistentLayerShape& shape, uint32_t ctas, PersistentLayerPlan* layer) {
  if (shape.matrix_count == 0 || shape.matrix_count > 3 || shape.cols == 0 ||
      shape.cols % 1024 != 0)
    return false;
  if (shape.is_gate && (shape.matrix_count != 2 || shape.rows[0] != shape.rows[1] ||
                        shape.types[0] != shape.types[1]))
    return false;
  *layer = {};
  layer->k_tiles = shape.cols / kKTileInputs;
  uint32_t least[2] = {~0u, ~0u};
  for (uint32_t i = 0; i < shape.matrix_count; ++i) {
    if (shape.rows[i] == 0 ||
        (shape.types[i] != TensorType::kQ4_K && shape.types[i] != TensorType::kQ6_K))
      return false;
    const uint32_t problem = shape.types[i] == TensorType::kQ6_K ? 1 : 0;
    if (!shape.is_gate || i == 0) layer->items[problem] += m_tiles_of(shape.rows[i]);
    least[problem] = std::min(least[problem], m_tiles_of(shape.rows[i]));
  }
  if (shape.is_added && shape.matrix_count != 1) return false;
  if (shape.is_added && !shape.has_norm && layer->k_tiles >= kSplitKTilesMin) {
    layer->k_splits = layer->k_tiles / kSplitKTiles;
    layer->k_tiles = kSplitKTiles;
    for (uint32_t& of_problem : layer->items) of_problem *= layer->k_splits;
    layer->rows_each = round_up(divide_up(shape.rows[0], ctas), quant::kMTileRows);
    // Each warp adds the K-splits of one M-tile.
    if (m_tiles_of(layer->rows_each) > kWarps) return false;
  }
  // Divides the CTAs in proportion to the bytes of the problems.
  const double first = double{kKTileBytes[0]} * layer->items[0];
  const double second = double{kKTileBytes[1]} * layer->items[1];
  layer->ctas =
      layer->items[1] == 0 ? ctas
      : layer->items[0] == 0
          ? 0
          : std::min(ctas - 1,
                     std::max(1u, static_cast<uint32_t>(ctas * (first / (first + second)) + 0.5)));
  const uint32_t partitions[2] = {layer->ctas, ctas - layer->ctas};
  for (uint32_t s = 0; s < 2; ++s) {
    if (partitions[s] == 0) continue;
    const uint32_t most = divide_up(layer->items[s], partitions[s]);
    // A partition has at most two runs; with split-K, a run lies within one K-split.
    if (!shape.is_gate && most > least[s]) return false;
    layer->m_tiles = std::max(layer->m_tiles, most * (shape.is_gate ? 2 : 1));
  }
  // Larger layers run in separate kernels (H200, 70B Q4_K_M: 92.7 tokens per second, 90.9 in here).
  if (shape.is_gate && layer->m_tiles > kEpilogueBatch) return false;
  return !shape.is_added || layer->k_splits != 0 || layer->m_tiles <= kEpilogueBatch;
}

}  // namespace

bool plan_persistent_layers(const PersistentLayerShape* layers, uint32_t count,
                            int32_t compute_capability, uint32_t sm_count,
                            uint32_t shared_bytes_max, PersistentPlan* result) {
  PersistentPlan plan;
  if (compute_capability < 90 || compute_capability >= 100 || count < 2 ||
      count > kPersistentLayersMax || sm_count == 0)
    return false;
  uint32_t k_tiles = 0;
  for (uint32_t p = 0; p < count; ++p) {
    const bool is_gate = layers[p].is_gate;
    // A layer must have one output, and the next layer must read it.
    if (p + 1 < count &&
        (layers[p + 1].cols != layers[p].rows[0] || layers[p].matrix_count != (is_gate ? 2u : 1u)))
      return false;
    PersistentLayerPlan& layer = plan.layers[p];
    if (!plan_layer(layers[p], sm_count, &layer)) return false;
    k_tiles = std::max(k_tiles, layer.k_tiles * (layer.k_splits != 0 ? 2 : 1));
    plan.batch =
        std::max(plan.batch, is_gate ? layer.m_tiles : std::min(layer.m_tiles, kEpilogueBatch));
  }
  Arena arena(nullptr, 128);
  const auto place = [&arena](uint32_t bytes) {
    return static_cast<uint32_t>(arena.reserve(bytes));
  };
  (void)place(k_tiles * kCodesBytes);
  plan.x_scales_offset = place(k_tiles * kScalesBytes);
  plan.squares_offset = place(kWarps * static_cast<uint32_t>(sizeof(float)));
  plan.accumulators_offset = place(plan.batch * quant::kMTileRows * kAccumulatorStride *
                                   static_cast<uint32_t>(sizeof(float)));
  plan.partitions_offset = place(kPartitionBytes * count);
  plan.barriers_offset = place(kBarriersBytes);
  const auto end = static_cast<uint32_t>(arena.bytes());
  if (end + kStagesLeast * kStageBytes > shared_bytes_max) return false;
  plan.ring_offset = end;
  plan.stages = std::min((shared_bytes_max - end) / kStageBytes, kStagesMax);
  plan.shared_bytes = end + plan.stages * kStageBytes;
  if (result != nullptr) *result = plan;
  return true;
}

}  // namespace wcuda::kernels
