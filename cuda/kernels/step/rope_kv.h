// rope_kv: q = rope(norm(q)) in place; k = rope(norm(k)) and v into the key-value pages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ptx/launch.h"
#include "kernels/shared/kv_pages.h"

namespace wcuda::kernels {

// What heads of q and k become: rope(norm(head)).
struct HeadTurn {
  // Gains (head_length) of an RMS norm of each head; null: none.
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float epsilon = 0.0f;
  // Pairs (0, 1), (2, 3), … or (i, i + rope_dimensions / 2).
  bool has_adjacent_pairs = true;
  uint32_t rope_dimensions = 0;             // even, at most head_length
  const float* rope_frequencies = nullptr;  // (rope_dimensions / 2) radians a position
  float rope_magnitude = 1.0f;
};

struct RopeKvArgs {
  StepRows step;
  KvPages pages;
  uint32_t layer = 0;
  uint32_t head_count = 0;       // of queries
  float* query = nullptr;        // (token_count, head_count * head_length), changed in place
  const float* key = nullptr;    // (token_count, pages.head_count * head_length)
  const float* value = nullptr;  // the same shape
  // Where query, key and value come from one after the other, instead: (token_count, (head_count +
  // 2 pages.head_count) * head_length); null: not.
  const float* joined = nullptr;
  HeadTurn turn;
};

// head_length at most kRopeHeadLengthMax. Tokens whose row is kDeadToken neither change nor write
// anything.
constexpr uint32_t kRopeHeadLengthMax = 256;
cudaError_t rope_kv(const RopeKvArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
