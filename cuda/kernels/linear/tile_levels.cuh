// Tiles of the formats whose 4-bit codes name one of 16 levels: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
// Interface: kernels/linear/tile.cuh.
//
// A byte permutation looks up 4 levels at once in a table of 8 levels (two registers). If bit 3 of
// a selector is set, it returns copies of the byte's top bit instead of the byte. All bytes of the
// tables are below 128. Therefore one lookup returns the levels of codes 0 … 7 and 0 for other
// codes; a second lookup, with the code xor 8, returns the levels of codes 8 … 15 and 0 for others.
#pragma once

#include "kernels/linear/tile.cuh"
#include "kernels/ptx/permute_bytes.h"

#if defined(__CUDACC__)

namespace wcuda::kernels {

// Levels of IQ4 plus 128. Codes 0 … 7 are the negative ones.
struct LevelsIq4 {
  static constexpr int32_t kOffset = 128;
  static __device__ uint32_t find(uint32_t select, uint32_t select_other) {
    const uint32_t minus = permute_bytes(0x4153687f, 0x0a162331, select);
    const uint32_t plus = permute_bytes(0x26190d01, 0x71594535, select_other);
    return (plus | 0x80808080) - minus;  // no borrow crosses a byte
  }
};

// Doubled values of e2m1 plus 12.
struct LevelsE2m1 {
  static constexpr int32_t kOffset = 12;
  static __device__ uint32_t find(uint32_t select, uint32_t select_other) {
    return permute_bytes(0x0f0e0d0c, 0x18141210, select) |
           permute_bytes(0x090a0b0c, 0x00040608, select_other);
  }
};

// Looks up the levels of 4 bytes. `low` receives those of their low nibbles, `high` the others.
template <class Levels>
__device__ inline void find_levels(uint32_t bytes, uint32_t& low, uint32_t& high) {
  const uint32_t other = bytes ^ 0x88888888;
  const uint32_t first = Levels::find(bytes, other);
  const uint32_t second = Levels::find(bytes >> 16, other >> 16);
  low = __byte_perm(first, second, 0x6420);
  high = __byte_perm(first, second, 0x7531);
}

// Formats whose K-tile is four packed tiles of 64 inputs (two groups each). The codes, in pieces of
// 4 bytes, are the first field.
template <TensorType kType, class Levels>
struct TileOfLevels {
  static constexpr quant::TileLayout kLayout = quant::tile_layout(kType);
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = Levels::kOffset;
  static constexpr bool kHasMin = false;
  struct Raw {
    uint4 qs[2];  // of two groups: 4 bytes of row g, of row g + 8
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    return {{read_16(packed_tile(k_tile, half, 0) + lane * 16),
             read_16(packed_tile(k_tile, half, 2) + lane * 16)}};
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    const uint4 qs = raw.qs[m / 2];
    find_levels<Levels>(m % 2 == 0 ? qs.x : qs.z, a[0], a[2]);
    find_levels<Levels>(m % 2 == 0 ? qs.y : qs.w, a[1], a[3]);
  }

 protected:
  // Returns the packed tile of group m.
  static __device__ const uint8_t* packed_tile(const uint8_t* k_tile, uint32_t half, uint32_t m) {
    return k_tile + (2 * half + m / 2) * kLayout.packed_tile_bytes();
  }
};

template <>
struct Tile<TensorType::kIQ4_NL> : TileOfLevels<TensorType::kIQ4_NL, LevelsIq4> {  // IQ4_NL
  static constexpr Ownership kOwnership = Ownership::kSplit;
  static constexpr uint32_t kGroup = 32;
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    const uint8_t* d =
        packed_tile(k_tile, half, m) + field_base(kLayout, 1) + m % 2 * 32 + lane / 4 * 2;
    scale[0] = half_to_float(read_2(d));
    scale[1] = half_to_float(read_2(d + 16));
  }
};

template <>
struct Tile<TensorType::kMXFP4> : TileOfLevels<TensorType::kMXFP4, LevelsE2m1> {  // MXFP4
  static constexpr Ownership kOwnership = Ownership::kSplit;
  static constexpr uint32_t kGroup = 32;
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    const uint8_t* e =
        packed_tile(k_tile, half, m) + field_base(kLayout, 1) + m % 2 * 16 + lane / 4;
    scale[0] = e8m0_half_to_float(e[0]);
    scale[1] = e8m0_half_to_float(e[8]);
  }
};

template <>
struct Tile<TensorType::kNVFP4> : TileOfLevels<TensorType::kNVFP4, LevelsE2m1> {  // NVFP4
  static constexpr Ownership kOwnership = Ownership::kNested;
  static constexpr uint32_t kGroup = 16;
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    const uint8_t* d =
        packed_tile(k_tile, half, m / 2) + field_base(kLayout, 1) + lane / 4 * 4 + m % 4;
    scale[0] = ue4m3_half_to_float(d[0]);
    scale[1] = ue4m3_half_to_float(d[32]);
  }
};

template <>
struct Tile<TensorType::kIQ4_XS> {  // IQ4_XS
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kIQ4_XS);
  static constexpr Ownership kOwnership = Ownership::kSplit;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = LevelsIq4::kOffset;
  static constexpr bool kHasMin = false;
  struct Raw {
    uint4 qs[2];  // of two groups: 4 bytes of row g, of row g + 8
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    const uint8_t* qs = k_tile + half * 1024 + lane * 16;
    return {{read_16(qs), read_16(qs + 512)}};
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    const uint4 qs = raw.qs[m / 2];
    find_levels<LevelsIq4>(m % 2 == 0 ? qs.x : qs.z, a[0], a[2]);
    find_levels<LevelsIq4>(m % 2 == 0 ? qs.y : qs.w, a[1], a[3]);
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint2 header = read_8(k_tile + field_base(kLayout, 1) + (lane / 4 + 8 * i) * 8);
      const uint32_t group = 4 * half + m;
      const uint32_t code = (header.y >> (4 * group) & 15) | (header.x >> 16 >> (2 * group) & 3)
                                                                 << 4;
      scale[i] = half_to_float(static_cast<uint16_t>(header.x)) *
                 static_cast<float>(static_cast<int32_t>(code) - 32);
    }
  }
};

}  // namespace wcuda::kernels

#endif
