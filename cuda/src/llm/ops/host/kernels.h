// The inner loops of the host operations: one table per instruction set, chosen at run time.
//
// The files with these loops (kernels_avx2.cpp, …) are compiled for instructions that the processor
// may not have. Therefore they include no header whose inline functions other files use as well.
#pragma once

#include <cstdint>

#include "kernels/shared/tile_sizes.h"

namespace wcuda::ops::host {

enum class Isa : uint32_t { kPortable, kAvx2, kAvxVnni, kAvx512 };

// Attention of consecutive tokens of one row for the query heads that share one key-value head.
struct AttentionTile {
  uint32_t kv_type;  // values of ops::KvType
  uint32_t head_length;
  uint32_t row_bytes;
  const uint8_t* keys;         // of this layer and head in page 0; row `slot` at slot * row_bytes
  const uint8_t* values;       // likewise
  uint64_t page_bytes;         // from one page to the next
  const uint32_t* page_table;  // page of each 64 positions
  const float* query;          // first token, first head of the group; heads are consecutive
  float* out;                  // likewise
  uint64_t token_stride;       // floats from token to token, in query and out
  uint32_t token_count;        // at most attention_tile_tokens(group_size)
  uint32_t group_size;         // query heads that share the key-value head
  uint32_t first_position;     // of the first token
  uint32_t window;             // 0: all positions
  float scale;
  float softcap;       // of scores; 0: none
  const float* sinks;  // (group_size) an extra score of each head, whose value is 0; may be null
  float* work;         // attention_work_floats(…)
};
// Returns the tokens per tile, so that about 64 queries use each expanded page.
constexpr uint32_t attention_tile_tokens(uint32_t group_size) {
  return group_size == 1 ? 64 : group_size < 4 ? 32 : 16;
}
constexpr uint64_t attention_work_floats(uint32_t head_length, uint32_t group_size) {
  const uint64_t queries = uint64_t{attention_tile_tokens(group_size)} * group_size;
  return 2 * 64 * uint64_t{head_length} + queries * (uint64_t{head_length} + 64 + 3);
}

// 32 columns of one token as integers: x = scale * code, codes of 16 bits. A block with a value
// that is not finite has a scale of NaN.
//
// Sums that are yet to be multiplied by the scale or the minimum of weights are 2^-21 of their
// value, so that 256 columns of the largest activations stay finite. These factors are multiplied
// by 2^21.
constexpr float kSumFactor = 0x1p-21f;
struct InputBlock {
  uint32_t codes[16];  // words 2c and 2c + 1: columns 4c and 4c + 2, 4c + 1 and 4c + 3
  float scale;
  float sum_scale;       // kSumFactor * scale
  float sum;             // sum_scale * sum of the codes
  float half_sums[2];    // of the first and last 16 columns
  int32_t code_sums[2];  // likewise, of the codes
};

// Computes tiles of up to kMTilesMax consecutive M-tiles. A tile (token_count, 16) is 16 rows of a
// matrix in the layout kHost16 times some tokens; tiles are kTileFloats apart. `input` has the
// blocks or floats of the first token; those of the next token are `stride` blocks or floats
// further on. A token's result does not depend on the other tokens.
constexpr uint32_t kMTilesMax = 4;
constexpr uint32_t kTokenBlock = 128;  // tokens of one call, at most
// Not a power of two, so that tiles do not compete for the same sets of the cache.
constexpr uint64_t kTileFloats = uint64_t{kTokenBlock + 1} * quant::kMTileRows;
struct MTileKernel {
  void (*run_blocks)(const uint8_t* m_tiles, uint32_t m_tile_count, uint32_t cols,
                     const InputBlock* input, uint64_t stride, uint32_t token_count,
                     float* tiles);  // or null
  void (*run_floats)(const uint8_t* m_tiles, uint32_t m_tile_count, uint32_t cols,
                     const float* input, uint64_t stride, uint32_t token_count,
                     float* tiles);  // or null
};

struct Kernels {
  Isa isa;
  const char* name;
  // Returns the kernel of a ggml type in the layout kHost16; its members are null if there is none.
  MTileKernel (*find_m_tile_kernel)(uint32_t type);
  // Converts x (cols, a multiple of 32) to cols / 32 blocks; null if no kernel uses blocks.
  void (*make_blocks)(const float* x, uint32_t cols, InputBlock* blocks);
  // out[t * out_stride] = sum over n of w[i] * x[t * x_stride + i], in an order that depends only
  // on n.
  void (*dot)(const float* w, uint32_t n, const float* x, uint64_t x_stride, uint32_t token_count,
              float* out, uint64_t out_stride);
  // out = x / sqrt(mean(x^2) + epsilon) * gain. A null gain means 1. out may be x.
  void (*rms_norm)(const float* x, const float* gain, uint32_t n, float epsilon, float* out);
  // out = activation(gate) * up. out may be gate.
  void (*silu_multiply)(const float* gate, const float* up, uint32_t n, float* out);
  void (*gelu_multiply)(const float* gate, const float* up, uint32_t n, float* out);
  void (*attend)(const AttentionTile& tile);
  // out (2n bytes) = x (n) rounded to f16; null if the instruction set has no such conversion.
  void (*to_halves)(const float* x, uint32_t n, uint8_t* out);
};

// The codebook of IQ3_S: 512 words of four 4-bit codes; and their levels, 1 to 15, one per byte.
const uint16_t* iq3_s_codes();
const uint32_t* iq3_s_levels();

// Returns the best table for this processor.
const Kernels& best_kernels();
// Returns the table of one instruction set, or null if this processor or this build has none.
const Kernels* find_kernels(Isa isa);

}  // namespace wcuda::ops::host
