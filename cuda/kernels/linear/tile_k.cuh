// Tiles of Q5_K and Q6_K; Q4_K is in tile.cuh.
#pragma once

#include "kernels/linear/tile.cuh"

#if defined(__CUDACC__)

namespace wcuda::kernels {

template <>
struct Tile<TensorType::kQ5_K> {  // Q5_K
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ5_K);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 0;
  static constexpr bool kHasMin = true;
  struct Raw {
    uint4 qs[2];  // as Q4_K
    uint4 qh;     // 8 bytes of row g, 8 of row g + 8: bit 4 * half + m of group m
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    const uint8_t* qs = k_tile + half * 1024 + lane * 16;
    return {{read_16(qs), read_16(qs + 512)}, read_16(k_tile + field_base(kLayout, 1) + lane * 16)};
  }
  static __device__ void codes(const Raw& raw, uint32_t half, uint32_t m, uint32_t (&a)[4]) {
    const uint4 qs = raw.qs[m / 2];
    const uint32_t shift = m % 2 * 4, bit = 4 * half + m;
    a[0] = (qs.x >> shift & 0x0f0f0f0f) | fifth(raw.qh.x, bit);
    a[1] = (qs.z >> shift & 0x0f0f0f0f) | fifth(raw.qh.z, bit);
    a[2] = (qs.y >> shift & 0x0f0f0f0f) | fifth(raw.qh.y, bit);
    a[3] = (qs.w >> shift & 0x0f0f0f0f) | fifth(raw.qh.w, bit);
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&min)[2]) {
    const uint8_t* header = k_tile + field_base(kLayout, 2) + lane / 4 * 16;
    k_header_scale(read_16(header), half, m, scale[0], min[0]);
    k_header_scale(read_16(header + 128), half, m, scale[1], min[1]);
  }

 private:
  // Returns bit `bit` of each byte as bit 4.
  static __device__ uint32_t fifth(uint32_t bytes, uint32_t bit) {
    return (bit < 4 ? bytes << (4 - bit) : bytes >> (bit - 4)) & 0x10101010;
  }
};

template <>
struct Tile<TensorType::kQ6_K> {  // Q6_K
  static constexpr quant::TileLayout kLayout = quant::tile_layout(TensorType::kQ6_K);
  static constexpr Ownership kOwnership = Ownership::kContiguous8;
  static constexpr uint32_t kGroup = 16;
  static constexpr bool kSigned = false;
  static constexpr int32_t kOffset = 32;
  static constexpr bool kHasMin = false;
  struct Raw {
    uint4 ql[2];  // groups 0 (low nibbles) and 2 (high); 1 and 3
    uint4 qh;     // bits 2m, 2m + 1 of group m
  };
  static __device__ Raw load(const uint8_t* k_tile, uint32_t half, uint32_t lane) {
    const uint8_t* ql = k_tile + half * 1024 + lane * 16;
    return {{read_16(ql), read_16(ql + 512)},
            read_16(k_tile + field_base(kLayout, 1) + half * 512 + lane * 16)};
  }
  static __device__ void codes(const Raw& raw, uint32_t, uint32_t m, uint32_t (&a)[4]) {
    const uint4 ql = raw.ql[m % 2];
    const uint32_t shift = m / 2 * 4;
    a[0] = (ql.x >> shift & 0x0f0f0f0f) | high(raw.qh.x, m);
    a[1] = (ql.z >> shift & 0x0f0f0f0f) | high(raw.qh.z, m);
    a[2] = (ql.y >> shift & 0x0f0f0f0f) | high(raw.qh.y, m);
    a[3] = (ql.w >> shift & 0x0f0f0f0f) | high(raw.qh.w, m);
  }
  static __device__ void scales(const uint8_t* k_tile, uint32_t half, uint32_t m, uint32_t lane,
                                float (&scale)[2], float (&)[2]) {
    const uint8_t* codes = k_tile + field_base(kLayout, 2) + half * 128 + lane / 4 * 8 + m;
    const uint8_t* d = k_tile + field_base(kLayout, 3) + lane / 4 * 2;
    scale[0] = half_to_float(read_2(d)) * static_cast<float>(static_cast<int8_t>(codes[0]));
    scale[1] = half_to_float(read_2(d + 16)) * static_cast<float>(static_cast<int8_t>(codes[64]));
  }

 private:
  // Returns bits 2m and 2m + 1 of each byte as bits 4 and 5.
  static __device__ uint32_t high(uint32_t bytes, uint32_t m) {
    return (m < 2 ? bytes << (4 - 2 * m) : bytes >> (2 * m - 4)) & 0x30303030;
  }
};

}  // namespace wcuda::kernels

#endif
