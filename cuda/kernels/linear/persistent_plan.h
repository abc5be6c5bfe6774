// Divides the linear layers of one token among the CTAs of the persistent kernel, or reports that
// the kernel does not support them. Pure: a plan needs no device.
#pragma once

#include <cstdint>

#include "kernels/shared/packed_tile.h"

namespace wcuda::kernels {

constexpr uint32_t kPersistentLayersMax = 4;

// The properties of a linear layer on which the division depends.
struct PersistentLayerShape {
  uint32_t matrix_count = 0;  // 1 to 3
  uint32_t types[3] = {};     // TensorType
  uint32_t rows[3] = {};      // outputs
  uint32_t cols = 0;          // inputs of all matrices
  bool is_gate = false;       // gate and up, one output
  bool is_added = false;      // the result is added to the output
  bool has_norm = false;
};

// Problem 0 has the matrices of Q4_K, problem 1 those of Q6_K.
struct PersistentLayerPlan {
  uint32_t k_tiles = 0;  // K-tiles of 256 inputs of an M-tile of 16 rows, or of one of its K-splits
  uint32_t k_splits = 0;   // split-K partitions of an M-tile; 0: M-tiles are whole
  uint32_t rows_each = 0;  // with K-splits: outputs whose partial sums a CTA adds
  uint32_t ctas = 0;       // of problem 0; problem 1 has the others
  uint32_t items[2] = {};  // M-tiles, or their K-splits, of a problem
  uint32_t m_tiles = 0;    // of the largest partition; gate and up count separately
};

// Offsets in shared memory are in bytes.
struct PersistentPlan {
  PersistentLayerPlan layers[kPersistentLayersMax];
  uint32_t batch = 0;  // M-tiles between two epilogues
  uint32_t x_scales_offset = 0, squares_offset = 0, accumulators_offset = 0, partitions_offset = 0,
           barriers_offset = 0, ring_offset = 0;
  uint32_t stages = 0;  // of the ring
  uint32_t shared_bytes = 0;
};

// Plans one CTA per SM. Layer i + 1 must read the only output of layer i. Returns false if the
// kernel does not support the layers' types or shapes, or if other kernels are faster. `plan` may
// be null.
bool plan_persistent_layers(const PersistentLayerShape* layers, uint32_t count,
                            int32_t compute_capability, uint32_t sm_count,
                            uint32_t shared_bytes_max, PersistentPlan* plan);

// Constants that the division relies on; the kernel asserts each.
namespace persistent {
constexpr uint32_t kWarps = 16;
constexpr uint32_t kStagesMax = 32;
constexpr uint32_t kEpilogueBatch = 16;  // most M-tiles between two epilogues
// A layer with at least this many K-tiles per M-tile uses split-K, so that a CTA needs few of its
// inputs.
constexpr uint32_t kSplitKTilesMin = 48, kSplitKTiles = 4;
constexpr uint32_t kAccumulatorStride = 20;  // floats per row: one for each warp, and padding
constexpr uint32_t kKTileBytes[2] = {
    quant::tile_layout(TensorType::kQ4_K).packed_tile_bytes(),
    quant::tile_layout(TensorType::kQ6_K).packed_tile_bytes()};  // of 16 rows
constexpr uint32_t kStageBytes = 4 * kKTileBytes[0];
constexpr uint32_t kStagesLeast = 8;  // the stages that the warps hold at once for Q6_K
// Bytes of 256 inputs as two int8 terms each, and of their scales.
constexpr uint32_t kCodesBytes = 512, kScalesBytes = 128;
constexpr uint32_t kPartitionBytes = 96, kBarriersBytes = 520;
}  // namespace persistent

}  // namespace wcuda::kernels
