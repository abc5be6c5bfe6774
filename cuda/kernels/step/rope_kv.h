// rope_kv: q = rope(norm(q)) in place; writes k = rope(norm(k)) and v to the key-value pages.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/rope_head.h"

namespace wcuda::kernels {

struct RopeKvArgs {
  StepRows step;
  KvPages pages;
  uint32_t layer = 0;
  uint32_t head_count = 0;       // of queries
  float* query = nullptr;        // (token_count, head_count * head_length), changed in place
  const float* key = nullptr;    // (token_count, pages.head_count * head_length)
  const float* value = nullptr;  // the same shape
  HeadRope rope;
};

// head_length is at most kRopeHeadLengthMax. The kernel skips tokens whose row is kDeadToken.
constexpr uint32_t kRopeHeadLengthMax = 256;
cudaError_t rope_kv(const RopeKvArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
