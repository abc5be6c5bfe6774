// Which attention kernels serve a head length on a device. Pure.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

constexpr uint32_t kDecodeClusterBlocks = 8;
constexpr uint32_t kDecodeGroupMax = 8;  // query heads of one key-value head that a block serves
constexpr uint32_t kPrefillWarpgroupHeadMax = 128;
constexpr uint32_t kDecodeSharedHeadsMax = 128;  // query heads of a key-value head
constexpr uint32_t kDecodeSharedRowsMax = 512;   // of a step with shared prefixes

// Returns the number of tiles of at most kDecodeGroupMax query heads, over all key-value heads.
inline uint32_t decode_head_tiles(uint32_t head_count, uint32_t kv_head_count) {
  const uint32_t group = head_count / kv_head_count;
  return kv_head_count * ((group + kDecodeGroupMax - 1) / kDecodeGroupMax);
}

// Returns whether decode can use groups. They need clusters, more shared memory than compute
// capability 12.0 has, and a head length for which a kernel is compiled.
inline bool decode_has_groups(uint32_t head_length, int32_t compute_capability) {
  return compute_capability >= 90 && compute_capability < 120 &&
         (head_length == 64 || head_length == 128 || head_length == 256);
}

// Returns whether code for sm_90a can serve the head length. Another check at run time finds out
// whether the program has that code.
inline bool prefill_has_warpgroup(uint32_t head_length, int32_t compute_capability) {
  return compute_capability == 90 && head_length <= kPrefillWarpgroupHeadMax &&
         head_length % 8 == 0;
}

}  // namespace wcuda::kernels
