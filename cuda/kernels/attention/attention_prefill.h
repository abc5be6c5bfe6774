// attention_prefill: out = softmax(scale * q·k) · v for rows of more than one token.
#pragma once

#include "kernels/attention/attention.h"

namespace wcuda::kernels {

// Returns the most tiles that a step of so many tokens and rows can have.
inline uint32_t prefill_tiles_max(uint32_t token_count, uint32_t row_count) {
  return token_count / kPrefillTileTokens + (row_count < token_count ? row_count : token_count);
}

// Several blocks may share the keys of a tile and head. These return the sizes of the plan's arrays
// for their parts, for so many SMs. A partial result of a thread is 4 floats of softmax state, and
// its sums; heads are padded to 64 or 128 elements.
WCUDA_HOST_DEVICE constexpr uint32_t prefill_partial_floats(uint32_t padded_length) {
  return padded_length / 2 + 4;
}
constexpr uint32_t kPrefillConsumerThreads = 256;  // of a block
constexpr uint64_t prefill_partials_count(uint32_t head_length, uint32_t sm_count) {
  constexpr uint64_t kParts = 2;  // of a block, at most
  return sm_count * kParts * kPrefillConsumerThreads *
         prefill_partial_floats(head_length <= 64 ? 64 : kPrefillWarpgroupHeadMax) / 4;
}
constexpr uint32_t prefill_counter_count(uint32_t sm_count) { return sm_count * 2; }

// Must be called once for each format and head length, before a graph is captured.
cudaError_t attention_prefill_prepare(KvFormat format, uint32_t head_length);
// A token attends to the positions up to its own, whose keys and values are all in the pages. Skips
// rows of one token. Before its dependent wait, the kernel reads the plan, and keys and values
// before the first position of a row: kernels between attention_plan and this one must not write
// them.
cudaError_t attention_prefill(const AttentionKernelArgs& args, const Launch& launch);

// The same for compute capability 9.0 and the head lengths that prefill_has_warpgroup accepts.
bool attention_prefill_has_warpgroup(uint32_t head_length, const Launch& launch);
cudaError_t attention_prefill_warpgroup_prepare(KvFormat format, uint32_t head_length);
cudaError_t attention_prefill_warpgroup(const AttentionKernelArgs& args, const Launch& launch);
// The same of pages in a type other than f16, which it converts first, for plan.expanded_heads
// key-value heads at a time. Their f16 values must fit into plan.expanded: choose_expanded_heads
// (attention_choice.h) sees to that. In attention_expand.cu.
cudaError_t attention_prefill_expanded(const AttentionKernelArgs& args, const Launch& launch);
// Of the plan's shared tiles, instead. No kernel of the step may write their pages.
cudaError_t attention_shared(const AttentionKernelArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
