// Measured constants of the launch heuristics of linear layers: for each kernel a table by
// architecture and number of tokens. The plans (vector_plan, batch_plan, packed_gemm_plan,
// persistent_plan) are pure functions of a layer, a device and these rows.
//
// Every row was measured on one H200 (compute capability 9.0) with layers of Q4_K, or of the mix
// q4_k_m. All types use the same rows. Of Q4_0, Q8_0, Q6_K, IQ2_XXS, IQ4_XS, MXFP4 and F16 it was
// measured that the kernels change at the right counts of tokens (2026-11-29-h200/types.txt), not
// which division is best. No other architecture was measured: each uses the rows of the highest
// compute capability that is not above its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear/vector_params.h"

namespace wcuda::kernels {

// Returns the first row that applies to the device and has at least `tokens`, else the last one.
// Rows are ordered by architecture, the newest first, then by tokens.
template <class Row, size_t kCount>
constexpr const Row& find_costs(const Row (&rows)[kCount], int32_t compute_capability,
                                uint32_t tokens) {
  for (const Row& row : rows)
    if (compute_capability >= row.compute_capability && tokens <= row.tokens) return row;
  return rows[kCount - 1];
}

// linear_vector: costs of the work of a CTA, in twentieths of a K-tile of a warp, and limits of its
// division.
struct VectorCosts {
  int32_t compute_capability;
  uint32_t tokens;         // T
  uint32_t m_tile_end;     // storing the sums of an M-tile in their accumulators
  uint32_t m_warps;        // the barrier that more than one M-warp needs
  uint32_t x_token;        // staging a K-tile of a token, by all warps
  uint32_t m_warps_max;    // more M-warps gain nothing
  uint32_t split_inputs;   // K-splits double if there are at least so many inputs,
  uint32_t split_from;     // exactly so many K-splits (0: never),
  uint32_t m_tiles_of_sm;  // and at most so many M-tiles per SM; else staging x costs more
};
constexpr uint32_t kKTileCost = 20;
// 2026-11-21, 8B Q4_K, us per launch. M-warps 1, 2, 4: gate and up of 2 tokens 19.2, 18.6, 18.7, of
// 4 tokens 23.3, 21.7, 20.8, of 8 tokens 38.5, 31.8, 28.7. K-splits: down of 4 tokens 13.4 in two,
// 12.2 in four; query, key and value of 8 tokens 9.8 in one, 9.3 in two.
constexpr VectorCosts kVectorCosts[] = {
    {90, 1, 0, 0, 0, kVectorWarpsMax, 0, 0, 0},
    {90, 2, 4, 10, 0, 4, 0, 0, 0},
    {90, 4, 14, 10, 9, 4, 0, 2, 3},
    {90, 8, 25, 10, 9, 4, 4096, 1, 3},
    // Not measured: the rows of 9.0 without K-splits that double, which need clusters.
    {80, 1, 0, 0, 0, kVectorWarpsMax, 0, 0, 0},
    {80, 2, 4, 10, 0, 4, 0, 0, 0},
    {80, 4, 14, 10, 9, 4, 0, 0, 0},
    {80, 8, 25, 10, 9, 4, 0, 0, 0},
};
// With one token, a CTA for a large matrix has the SM alone and a deeper ring (70B in the mix
// q4_k_m: 96.6 steps/s instead of 94.4; the smaller matrices of 8B Q4_K: 790 instead of 807).
constexpr uint32_t kLargeInputs = 8192;
constexpr uint64_t kLargeBytes = 36u << 20;
// Stages filled before the dependent wait. More would compete with the loads of x (Q4_K: 8B 778
// steps/s with all, 792 with one; 1B 3112 and 3260).
constexpr uint32_t kEarlyStages = 1;

// fused_layers: the smallest embedding with which an engine uses them unless its options say
// otherwise. The layers of smaller models are too short (2026-11-22, 1B Q4_K_M: 2,355 tokens per
// second at position 0, and 2,335 without; 1,911 and 1,987 at position 4,096).
constexpr uint32_t kPersistentEmbeddingMin = 4096;

// linear_batch: costs of a wave of blocks apart from its MMAs, and of each K-tile of a block. The
// MMAs of one M-tile and one K-tile cost 1. With few tokens instructions wait for each other: a
// K-tile takes 1 us at 16 and 32 tokens, however few M-tiles there are; down of 8B took 27.6 us
// with 14 K-tiles per block and 21.5 with 8.
struct BatchCosts {
  int32_t compute_capability;
  uint32_t tokens;  // per tile
  uint32_t wave;
  uint32_t k_tile;
};
constexpr BatchCosts kBatchCosts[] = {{90, 16, 48, 56}, {90, 32, 48, 56}, {90, 64, 48, 3}};

// packed_gemm: costs in tenths of a microsecond of an iteration, of one of a short pair of tiles,
// of the outputs of a tile and, if several clusters compute a tile, of adding its partial sums
// (fixed, and for each). 2026-11-22, layers of 8B at 128 to 2,048 tokens
// (docs/lab/2026-11-22-packed-gemm.md). The choice is within 4 % of the best of those tried. There
// are no short pairs of tiles of 128 tokens: gate and up of 8B would gain 1 us of 58.
struct GemmCosts {
  int32_t compute_capability;
  uint32_t tokens;  // per tile
  uint32_t iteration, short_iteration, finish, join, partial;
};
constexpr GemmCosts kGemmCosts[] = {{90, 128, 16, 16, 25, 20, 15}, {90, 256, 29, 24, 40, 80, 15}};
// Longer runs of tiles gain nothing from short ones: gate and up of 8B at 2,048 tokens take 785 us
// with them, and 758 with 14 whole tiles (2026-11-25, 2026-11-25-h200/short_pairs.txt).
constexpr uint32_t kGemmShortRunMax = 4;

}  // namespace wcuda::kernels
