#include "kernels/linear/persistent_plan.h"

#include <algorithm>

namespace wcuda::kernels {
namespace {

using namespace persistent;

constexpr uint32_t kQ4_K = 12, kQ6_K = 14;
constexpr uint32_t kChunkInputs = 256;

uint32_t strips_of(uint32_t rows) { return (rows + 15) / 16; }
uint32_t round_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

bool plan_layer(const PersistentLayerShape& shape, uint32_t ctas, PersistentLayerPlan* layer) {
  if (shape.matrix_count == 0 || shape.matrix_count > 3 || shape.cols == 0 ||
      shape.cols % 1024 != 0)
    return false;
  if (shape.is_gate && (shape.matrix_count != 2 || shape.rows[0] != shape.rows[1] ||
                        shape.types[0] != shape.types[1]))
    return false;
  *layer = {};
  layer->chunks = shape.cols / kChunkInputs;
  uint32_t least[2] = {~0u, ~0u};
  for (uint32_t i = 0; i < shape.matrix_count; ++i) {
    if (shape.rows[i] == 0 || (shape.types[i] != kQ4_K && shape.types[i] != kQ6_K)) return false;
    const uint32_t section = shape.types[i] == kQ6_K ? 1 : 0;
    if (!shape.is_gate || i == 0) layer->units[section] += strips_of(shape.rows[i]);
    least[section] = std::min(least[section], strips_of(shape.rows[i]));
  }
  if (shape.is_added && shape.matrix_count != 1) return false;
  if (shape.is_added && !shape.has_norm && layer->chunks >= kSplitChunks) {
    layer->slices = layer->chunks / kSliceChunks;
    layer->chunks = kSliceChunks;
    for (uint32_t& of_section : layer->units) of_section *= layer->slices;
    layer->rows_each = round_up((shape.rows[0] + ctas - 1) / ctas, 16);
  }
  // By bytes.
  const double first = double{kChunkBytes[0]} * layer->units[0];
  const double second = double{kChunkBytes[1]} * layer->units[1];
  layer->ctas =
      layer->units[1] == 0 ? ctas
      : layer->units[0] == 0
          ? 0
          : std::min(ctas - 1,
                     std::max(1u, static_cast<uint32_t>(ctas * (first / (first + second)) + 0.5)));
  const uint32_t shares[2] = {layer->ctas, ctas - layer->ctas};
  for (uint32_t s = 0; s < 2; ++s) {
    if (shares[s] == 0) continue;
    const uint32_t most = (layer->units[s] + shares[s] - 1) / shares[s];
    // A share has at most two runs.
    if (!shape.is_gate && most > least[s]) return false;  // of slices, those of a strip
    layer->strips = std::max(layer->strips, most * (shape.is_gate ? 2 : 1));
  }
  // Larger layers have kernels of their own (H200, 70B Q4_K_M: 92.7 tokens a second, 90.9 so).
  if (shape.is_gate && layer->strips > kWindow) return false;
  return !shape.is_added || layer->slices != 0 || layer->strips <= kWindow;
}

}  // namespace

bool plan_persistent_layers(const PersistentLayerShape* layers, uint32_t count,
                            int32_t compute_capability, uint32_t sm_count,
                            uint32_t shared_bytes_max, PersistentPlan* result) {
  PersistentPlan plan;
  if (compute_capability < 90 || compute_capability >= 100 || count < 2 ||
      count > kPersistentLayersMax || sm_count == 0)
    return false;
  uint32_t chunks = 0;
  for (uint32_t p = 0; p < count; ++p) {
    const bool is_gate = layers[p].is_gate;
    // The next layer reads the only output.
    if (p + 1 < count &&
        (layers[p + 1].cols != layers[p].rows[0] || layers[p].matrix_count != (is_gate ? 2u : 1u)))
      return false;
    PersistentLayerPlan& layer = plan.layers[p];
    if (!plan_layer(layers[p], sm_count, &layer)) return false;
    chunks = std::max(chunks, layer.chunks * (layer.slices != 0 ? 2 : 1));
    plan.window = std::max(plan.window, is_gate ? layer.strips : std::min(layer.strips, kWindow));
  }
  uint32_t end = round_up(chunks * kCodesBytes, 128);
  const auto place = [&end](uint32_t bytes) {
    const uint32_t begin = end;
    end = round_up(end + bytes, 128);
    return begin;
  };
  plan.x_scales_offset = place(chunks * kScalesBytes);
  plan.squares_offset = place(kWarps * static_cast<uint32_t>(sizeof(float)));
  plan.slots_offset = place(plan.window * 16 * kSlotStride * static_cast<uint32_t>(sizeof(float)));
  plan.shares_offset = place(kShareBytes * count);
  plan.barriers_offset = place(kBarriersBytes);
  if (end + kStagesLeast * kStageBytes > shared_bytes_max) return false;
  plan.ring_offset = end;
  plan.stages = std::min((shared_bytes_max - end) / kStageBytes, kStagesMax);
  plan.shared_bytes = end + plan.stages * kStageBytes;
  if (result != nullptr) *result = plan;
  return true;
}

}  // namespace wcuda::kernels
