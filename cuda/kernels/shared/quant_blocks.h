// The blocks of the quantized tensor types, byte for byte as in a GGUF file. All members are bytes:
// a block may lie at any address. Multi-byte values are little-endian.
#pragma once

#include "kernels/shared/numeric.h"

namespace wcuda::quant {

// Elements that one call of unpack32 writes; every block consists of such sub-blocks.
constexpr uint32_t kSubBlockElements = 32;

// d, m, dmin are f16 scales and offsets; q is a code of the weight.

struct BlockQ4_0 {  // w = d * (q - 8)
  static constexpr uint32_t kElements = 32;
  uint8_t d[2];
  uint8_t qs[16];  // elements j (low nibble) and j + 16
};
struct BlockQ4_1 {  // w = d * q + m
  static constexpr uint32_t kElements = 32;
  uint8_t d[2];
  uint8_t m[2];
  uint8_t qs[16];
};
struct BlockQ5_0 {  // w = d * (q - 16)
  static constexpr uint32_t kElements = 32;
  uint8_t d[2];
  uint8_t qh[4];  // bit j: fifth bit of element j
  uint8_t qs[16];
};
struct BlockQ5_1 {  // w = d * q + m
  static constexpr uint32_t kElements = 32;
  uint8_t d[2];
  uint8_t m[2];
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ8_0 {  // w = d * q
  static constexpr uint32_t kElements = 32;
  uint8_t d[2];
  uint8_t qs[32];  // int8
};

struct BlockQ2_K {  // w = d * scale * q - dmin * min, one scale and min for 16 elements
  static constexpr uint32_t kElements = 256;
  uint8_t scales[16];  // scale in the low nibble, min in the high one
  uint8_t qs[64];      // byte 32 * (e / 128) + e % 32, bits 2 * (e / 32 % 4)
  uint8_t d[2];
  uint8_t dmin[2];
};
struct BlockQ3_K {  // w = d * (scale - 32) * (q - 4), one scale for 16 elements
  static constexpr uint32_t kElements = 256;
  uint8_t hmask[32];   // third bit: byte e % 32, bit e / 32
  uint8_t qs[64];      // as in Q2_K
  uint8_t scales[12];  // 16 of 6 bits: low nibbles in bytes 0 to 7, high bits in 8 to 11
  uint8_t d[2];
};
struct BlockQ4_K {  // w = d * scale * q - dmin * min, one scale and min for 32 elements
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t dmin[2];
  uint8_t scales[12];  // 8 scales and 8 mins of 6 bits: see k_scale_min
  uint8_t qs[128];     // byte 32 * (e / 64) + e % 32, low nibble for even e / 32
};
struct BlockQ5_K {  // as Q4_K
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t dmin[2];
  uint8_t scales[12];
  uint8_t qh[32];  // fifth bit: byte e % 32, bit e / 32
  uint8_t qs[128];
};
struct BlockQ6_K {  // w = d * scale * (q - 32), one scale for 16 elements
  static constexpr uint32_t kElements = 256;
  uint8_t ql[128];     // byte 64 * (e / 128) + e % 64, nibble e / 64 % 2
  uint8_t qh[64];      // byte 32 * (e / 128) + e % 32, bits 2 * (e / 32 % 4)
  uint8_t scales[16];  // int8
  uint8_t d[2];
};

struct BlockTQ1_0 {  // w = d * (q - 1), q in 0 … 2; five of them in a byte as a fraction of 256 in
                     // base 3
  static constexpr uint32_t kElements = 256;
  uint8_t qs[48];  // elements 0 … 159 in 32 bytes, then 160 … 239 in 16
  uint8_t qh[4];   // elements 240 … 255, four in a byte
  uint8_t d[2];
};
struct BlockTQ2_0 {  // w = d * (q - 1)
  static constexpr uint32_t kElements = 256;
  uint8_t qs[64];  // as in Q2_K
  uint8_t d[2];
};

struct BlockIQ2_XXS {  // w = d * (s + 0.5) / 4 * grid * sign, 32 elements in two words
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t qs[64];  // for 32 elements: 4 grid indices of 8 bits, 4 sign sets of 7 bits, s of 4 bits
};
struct BlockIQ2_XS {  // w = d * (s + 0.5) / 4 * grid * sign
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t qs[64];     // uint16 for 8 elements: grid index of 9 bits, sign set of 7
  uint8_t scales[8];  // a nibble for 16 elements
};
struct BlockIQ2_S {  // w = d * (s + 0.5) / 4 * grid * sign
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t qs[32];     // low 8 bits of the grid index of 8 elements
  uint8_t signs[32];  // a bit for each element
  uint8_t qh[8];      // high 2 bits of four grid indices
  uint8_t scales[8];  // a nibble for 16 elements
};
struct BlockIQ3_XXS {  // w = d * (s + 0.5) / 2 * grid * sign
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t qs[64];      // grid index of 4 elements
  uint8_t scales[32];  // word for 32 elements: 4 sign sets of 7 bits, s of 4 bits
};
struct BlockIQ3_S {  // w = d * (1 + 2 s) * grid * sign
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t qs[64];     // low 8 bits of the grid index of 4 elements
  uint8_t qh[8];      // ninth bits of eight grid indices
  uint8_t signs[32];  // a bit for each element
  uint8_t scales[4];  // a nibble for 32 elements
};
struct BlockIQ1_S {  // w = d * (1 + 2 s) * (grid ± 1/8)
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t qs[32];  // low 8 bits of the grid index of 8 elements
  uint8_t qh[16];  // uint16 for 32 elements: 4 times 3 high bits, s of 3 bits, sign of the shift
};
struct BlockIQ1_M {  // w = d * (1 + 2 s) * (grid ± 1/8)
  static constexpr uint32_t kElements = 256;
  uint8_t qs[32];     // low 8 bits of the grid index of 8 elements
  uint8_t qh[16];     // a nibble for 8 elements: 3 high bits, sign of the shift
  uint8_t scales[8];  // four uint16: s of 3 bits for 16 elements each; the top nibbles make up d
};
struct BlockIQ4_NL {  // w = d * level(q)
  static constexpr uint32_t kElements = 32;
  uint8_t d[2];
  uint8_t qs[16];  // elements j (low nibble) and j + 16
};
struct BlockIQ4_XS {  // w = d * (scale - 32) * level(q), one scale for 32 elements
  static constexpr uint32_t kElements = 256;
  uint8_t d[2];
  uint8_t scales_h[2];  // high 2 bits of 8 scales
  uint8_t scales_l[4];  // low nibbles
  uint8_t qs[128];      // 16 bytes for 32 elements, as in IQ4_NL
};

struct BlockMXFP4 {  // w = 2^(e - 127) * e2m1(q)
  static constexpr uint32_t kElements = 32;
  uint8_t e;
  uint8_t qs[16];  // elements j (low nibble) and j + 16
};
struct BlockNVFP4 {  // w = ue4m3(d) * e2m1(q), one d for 16 elements
  static constexpr uint32_t kElements = 64;
  uint8_t d[4];
  uint8_t qs[32];  // 8 bytes for 16 elements: j (low nibble) and j + 8
};
struct BlockQ1_0 {  // w = d or -d
  static constexpr uint32_t kElements = 128;
  uint8_t d[2];
  uint8_t qs[16];  // a bit for each element: 1 is +
};
struct BlockQ2_0 {  // w = d * (q - 1)
  static constexpr uint32_t kElements = 64;
  uint8_t d[2];
  uint8_t qs[16];  // element e: byte e / 4, bits 2 * (e % 4)
};

static_assert(sizeof(BlockQ4_0) == 18, "as in the file");
static_assert(sizeof(BlockQ4_1) == 20, "as in the file");
static_assert(sizeof(BlockQ5_0) == 22, "as in the file");
static_assert(sizeof(BlockQ5_1) == 24, "as in the file");
static_assert(sizeof(BlockQ8_0) == 34, "as in the file");
static_assert(sizeof(BlockQ2_K) == 84, "as in the file");
static_assert(sizeof(BlockQ3_K) == 110, "as in the file");
static_assert(sizeof(BlockQ4_K) == 144, "as in the file");
static_assert(sizeof(BlockQ5_K) == 176, "as in the file");
static_assert(sizeof(BlockQ6_K) == 210, "as in the file");
static_assert(sizeof(BlockTQ1_0) == 54, "as in the file");
static_assert(sizeof(BlockTQ2_0) == 66, "as in the file");
static_assert(sizeof(BlockIQ2_XXS) == 66, "as in the file");
static_assert(sizeof(BlockIQ2_XS) == 74, "as in the file");
static_assert(sizeof(BlockIQ2_S) == 82, "as in the file");
static_assert(sizeof(BlockIQ3_XXS) == 98, "as in the file");
static_assert(sizeof(BlockIQ3_S) == 110, "as in the file");
static_assert(sizeof(BlockIQ1_S) == 50, "as in the file");
static_assert(sizeof(BlockIQ1_M) == 56, "as in the file");
static_assert(sizeof(BlockIQ4_NL) == 18, "as in the file");
static_assert(sizeof(BlockIQ4_XS) == 136, "as in the file");
static_assert(sizeof(BlockMXFP4) == 17, "as in the file");
static_assert(sizeof(BlockNVFP4) == 36, "as in the file");
static_assert(sizeof(BlockQ1_0) == 18, "as in the file");
static_assert(sizeof(BlockQ2_0) == 18, "as in the file");

}  // namespace wcuda::quant
