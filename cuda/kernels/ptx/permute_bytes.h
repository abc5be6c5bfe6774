// Four look-ups in a table of 8 bytes at once, with signs.
#pragma once

#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

// Byte i: byte (nibble i of select) % 8 of low, high, or 8 copies of its top bit if bit 3 is set.
WCUDA_HD inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t select) {
#if defined(__CUDA_ARCH__)
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(select));
  return bytes;
#else
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t nibble = select >> (4 * i) & 15;
    uint32_t byte = (nibble & 4 ? high : low) >> (8 * (nibble & 3)) & 255;
    if (nibble & 8) byte = byte & 128 ? 255 : 0;
    bytes |= byte << (8 * i);
  }
  return bytes;
#endif
}

}  // namespace wcuda::kernels
