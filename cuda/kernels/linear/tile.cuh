// Tile<type>: a weight format as operand A of int8 MMAs (m16n8k32), read from packed tiles
// (kernels/shared/packed_tile.h) in shared memory. Everything specific to a format is here; kernels
// are templates over Tile.
//
// A K-tile is 256 inputs of an M-tile: one packed tile of 256, two of 128 or four of 64 inputs. A
// half K-tile is half a K-tile: 16 rows x 128 inputs, four groups of 32. Lane = 4 * g + t of a warp
// holds rows g and g + 8. In every group each lane of a quad owns 8 of the 32 inputs (Ownership). A
// weight is
//
//   w = scale * (code - kOffset) - min
//
// with scale and min of a row and a group of kGroup inputs. Tile<type> has
//
//   kLayout     layout of the packed tiles
//   kOwnership  which inputs lane t owns
//   kGroup      32 or 16 inputs; with 16, the inputs of lane t are in group t / 2 of the 32
//   kSigned     true if codes are int8, false if they are uint8
//   kOffset     an integer, subtracted exactly
//   kHasMin     true if scales() returns mins too (otherwise it leaves them unchanged)
//   Raw         codes of a lane's half K-tile, as stored
//   load        loads Raw of half `half` (0, 1) of the K-tile, 16 bytes at a time if possible
//   codes       operand A of group m (0 … 3) of the half K-tile; m and half are compile-time:
//               a[0] row g, the lane's first 4 inputs, a[1] row g + 8, the same inputs,
//               a[2] row g, its last 4 inputs,         a[3] row g + 8, the same inputs
//   scales      scales (and mins) of rows g and g + 8 for group m of the half K-tile. m is
//               0 … 3, or 0 … 7 if kGroup is 16, and may differ from lane to lane
//   kOddShift   optional, with shifted_codes: returns codes() with those of odd groups
//               multiplied by 2^kOddShift, still as uint8
//
// Bytes past the last packed tile of an M-tile read as zero.
#pragma once

#include "kernels/shared/packed_tile.h"
#include "kernels/shared/quant_unpack.h"

namespace wcuda::kernels {

using quant::kHalfKTileInputs;
using quant::kKTileInputs;

enum class Ownership : uint32_t {
  kContiguous8,  // 8t … 8t + 7: packed tiles with pieces of 8 or 16 bytes
  kSplit,        // 4t … 4t + 3 and 16 + 4t … 16 + 4t + 3: pieces of 4 bytes of nibbles
  kNested,       // with s = t / 2, u = t % 2: 16s + 4u … + 3 and 16s + 8 + 4u … + 3: NVFP4
};

// Returns the place of input k of 32 in lane order: lane t holds places 8t … 8t + 7.
WCUDA_HD constexpr uint32_t owned_place(Ownership ownership, uint32_t k) {
  switch (ownership) {
    case Ownership::kContiguous8:
      return k;
    case Ownership::kSplit:
      return k % 16 / 4 * 8 + k / 16 * 4 + k % 4;
    case Ownership::kNested:
      return k / 16 * 16 + k / 4 % 2 * 8 + k / 8 % 2 * 4 + k % 4;
  }
  return 0;
}

// Returns the offset of a field in the packed tile.
WCUDA_HD constexpr uint32_t field_base(const quant::TileLayout& layout, uint32_t part) {
  uint32_t base = 0;
  for (uint32_t p = 0; p < part; ++p)
    base += quant::kMTileRows * layout.blocks * layout.fields[p].bytes;
  return base;
}

template <TensorType kType>
struct Tile;

#if defined(__CUDACC__)

__device__ inline uint4 read_16(const uint8_t* bytes) {
  return *reinterpret_cast<const uint4*>(bytes);
}
__device__ inline uint2 read_8(const uint8_t* bytes) {
  return *reinterpret_cast<const uint2*>(bytes);
}
__device__ inline uint32_t read_4(const uint8_t* bytes) {
  return *reinterpret_cast<const uint32_t*>(bytes);
}
__device__ inline uint16_t read_2(const uint8_t* bytes) {
  return *reinterpret_cast<const uint16_t*>(bytes);
}

// Returns scale and min m of half `half` of a Q4_K or Q5_K block whose first 16 bytes are `header`.
// They are those of k_scale_min(4 * half + m), times d and dmin.
__device__ inline void k_header_scale(const uint4& header, uint32_t half, uint32_t m, float& scale,
                                      float& min) {
  const uint32_t first = header.y >> (8 * m), second = header.z >> (8 * m);
  uint32_t scale_code = first & 63, min_code = second & 63;
  if (half != 0) {
    const uint32_t third = header.w >> (8 * m);
    scale_code = (third & 15) | (first >> 2 & 48);
    min_code = (third >> 4 & 15) | (second >> 2 & 48);
  }
  scale = half_to_float(static_cast<uint16_t>(header.x)) * static_cast<float>(scale_code);
  min = half_to_float(static_cast<uint16_t>(header.x >> 16)) * static_cast<float>(min_code);
}

template <>
struct Tile<TensorType::kQ8_0> {  // Q8_0
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ8_0);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = true;
  static constexpr int32_t kOffset = 0;
  static constexpr bool kHasMin = false;
  struct Raw {
    uint4 qs[4];  // of a group: 8 bytes of row g, 8 of row g + 8
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    Raw raw;
#pragma unroll
    for (uint32_t m = 0; m < 4; ++m) raw.qs[m] = read_16(block(k_tile, half, m, 512) + lane * 16);
    return raw;
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    a[0] = raw.qs[m].x;
    a[1] = raw.qs[m].z;
    a[2] = raw.qs[m].y;
    a[3] = raw.qs[m].w;
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    const uint8_t* d = block(k_tile, half, m, 32) + field_base(kLayout, 1) + lane / 4 * 2;
    scale[0] = half_to_float(read_2(d));
    scale[1] = half_to_float(read_2(d + 16));
  }

 private:
  // Group m of the half K-tile is block m % 2 of packed tile 2 * half + m / 2.
  static __device__ const uint8_t* block(const uint8_t* k_tile, uint32_t half, uint32_t m,
                                         uint32_t block_stride) {
    return k_tile + (2 * half + m / 2) * kLayout.packed_tile_bytes() + m % 2 * block_stride;
  }
};

template <>
struct Tile<TensorType::kQ4_K> {  // Q4_K
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ4_K);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 0;
  static constexpr bool kHasMin = true;
  struct Raw {
    uint4 qs[2];  // of two groups, low nibbles and high: 8 bytes of row g, 8 of row g + 8
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    const uint8_t* qs = k_tile + half * 1024 + lane * 16;
    return {{read_16(qs), read_16(qs + 512)}};
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    const uint4 qs = raw.qs[m / 2];
    const uint32_t shift = m % 2 * 4;
    a[0] = qs.x >> shift & 0x0f0f0f0f;
    a[1] = qs.z >> shift & 0x0f0f0f0f;
    a[2] = qs.y >> shift & 0x0f0f0f0f;
    a[3] = qs.w >> shift & 0x0f0f0f0f;
  }
  // Codes of odd groups are multiplied by 2^kOddShift: their high nibbles are not shifted.
  static constexpr uint32_t kOddShift = 4;
  static __device__ void shifted_codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    const uint4 qs = raw.qs[m / 2];
    const uint32_t mask = m % 2 != 0 ? 0xf0f0f0f0 : 0x0f0f0f0f;
    a[0] = qs.x & mask;
    a[1] = qs.z & mask;
    a[2] = qs.y & mask;
    a[3] = qs.w & mask;
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&min)[2]) {
    const uint8_t* header = k_tile + field_base(kLayout, 1) + lane / 4 * 16;
    k_header_scale(read_16(header), half, m, scale[0], min[0]);
    k_header_scale(read_16(header + 128), half, m, scale[1], min[1]);
  }
};

#endif

}  // namespace wcuda::kernels
