// How a launch of persistent fused layers divides linear layers of one token over its CTAs, or that
// it cannot take them. Pure: a plan needs no device.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

constexpr uint32_t kPersistentLayersMax = 4;

// A linear layer of one token, as far as the division depends on it.
struct PersistentLayerShape {
  uint32_t matrix_count = 0;  // 1 to 3
  uint32_t types[3] = {};     // TensorType
  uint32_t rows[3] = {};      // outputs
  uint32_t cols = 0;          // inputs of all matrices
  bool is_gate = false;       // gate and up, one output
  bool is_added = false;      // to what the output holds
  bool has_norm = false;
};

// Problem 0 has the matrices of Q4_K, problem 1 those of Q6_K.
struct PersistentLayerPlan {
  uint32_t k_tiles = 0;  // K-tiles of 256 inputs of an M-tile of 16 rows, or of one of its K-splits
  uint32_t k_splits = 0;   // split-K partitions of an M-tile; 0: M-tiles are whole
  uint32_t rows_each = 0;  // outputs whose partial sums a CTA adds, where there are K-splits
  uint32_t ctas = 0;       // of problem 0; problem 1 has the others
  uint32_t items[2] = {};  // M-tiles, or their K-splits, of a problem
  uint32_t m_tiles = 0;    // of the largest partition, gate and up counted singly
};

// Places in shared memory are in bytes.
struct PersistentPlan {
  PersistentLayerPlan layers[kPersistentLayersMax];
  uint32_t batch = 0;  // M-tiles between two epilogues
  uint32_t x_scales_offset = 0, squares_offset = 0, accumulators_offset = 0, partitions_offset = 0,
           barriers_offset = 0, ring_offset = 0;
  uint32_t stages = 0;  // of the ring
  uint32_t shared_bytes = 0;
};

// A CTA a multiprocessor. Layer i + 1 reads the output of layer i, its only one. False where the
// layers' types or shapes have no such kernel, or other kernels are faster. `plan` may be null.
bool plan_persistent_layers(const PersistentLayerShape* layers, uint32_t count,
                            int32_t compute_capability, uint32_t sm_count,
                            uint32_t shared_bytes_max, PersistentPlan* plan);

// What the division relies on; the kernel asserts each.
namespace persistent {
constexpr uint32_t kWarps = 16;
constexpr uint32_t kStagesMax = 32;
constexpr uint32_t kEpilogueBatch =
    16;  // M-tiles between two epilogues, where a partition has more
// A layer with so many K-tiles an M-tile goes by K-splits, for a CTA then needs few of its inputs.
constexpr uint32_t kSplitKTilesMin = 48, kSplitKTiles = 4;
constexpr uint32_t kAccumulatorStride = 20;  // floats of a row, one for each warp
// Bytes of a K-tile of 16 rows of Q4_K and of Q6_K.
constexpr uint32_t kKTileBytes[2] = {2304, 3360};
constexpr uint32_t kStageBytes = 4 * kKTileBytes[0];
constexpr uint32_t kStagesLeast = 8;  // what the warps hold at once of Q6_K
// Bytes of 256 inputs as two int8 terms a value, and of their scales.
constexpr uint32_t kCodesBytes = 512, kScalesBytes = 128;
constexpr uint32_t kPartitionBytes = 96, kBarriersBytes = 520;
}  // namespace persistent

}  // namespace wcuda::kernels
