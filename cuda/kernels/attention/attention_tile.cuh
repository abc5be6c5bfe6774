// Device code shared by the attention kernels: tiles of keys and values in shared memory, and
// tensor-core instructions on them. Only for .cu files.
//
// A tile is (rows, kLength) f16; row r has its 16-byte chunk c at chunk c ^ (r % 8), so that the
// same chunk of eight rows is in different banks. kLength is 64, 128 or 256; columns past the
// head's length are 0.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "kernels/ptx/copy_async.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/shared/int10_row.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/numeric.h"

namespace wcuda::kernels {

constexpr float kLog2E = 1.44269504088896340736f;

// ---- tensor cores ----

__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Over the four lanes that hold a row of scores or sums.
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

// Returns 2^x with an error of at most 2 ulp; results below the normal range are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns cap * tanh(score / cap), with score and result times log2(e); the error is at most 3e-7 *
// cap.
__device__ __forceinline__ float cap_score(float score, float cap) {
  const float e = exp2_fast(score * (2.0f / cap));
  return cap * kLog2E * (1.0f - __fdividef(2.0f, e + 1.0f));
}

// ---- tiles of keys and values ----

template <int kRowBytes>
__device__ __forceinline__ uint32_t tile_offset(uint32_t row, uint32_t chunk) {
  return row * kRowBytes + ((chunk ^ (kRowBytes >= 128 ? row & 7 : row >> 1 & 3)) << 4);
}

// Returns the first row of a head's keys or values in a page.
__device__ __forceinline__ const uint8_t* page_rows(const KvPages& pages, uint32_t layer,
                                                    uint32_t page, uint32_t head, bool is_value) {
  const uint64_t plane = (uint64_t{layer} * pages.page_count + page) * 2 + (is_value ? 1 : 0);
  return pages.data + (plane * pages.head_count + head) * kPagePositions * pages.row_bytes;
}

struct RowRange {
  uint32_t begin;
  uint32_t end;
};

// Does the work of copy_rows byte by byte, for rows that are not aligned to 16 bytes.
template <int kRowBytes, int kRows, int kThreads>
__device__ __noinline__ void copy_rows_slowly(uint32_t tile, const uint8_t* source,
                                              uint32_t row_bytes, RowRange valid, uint32_t thread) {
  for (uint32_t index = thread; index < kRows * kRowBytes; index += kThreads) {
    const uint32_t row = index / kRowBytes;
    const uint32_t byte = index % kRowBytes;
    uint16_t value = 0;
    if (row >= valid.begin && row < valid.end && byte < row_bytes)
      value = __ldcg(source + row * row_bytes + byte);
    store_shared_8(tile + tile_offset<kRowBytes>(row, byte / 16) + byte % 16, value);
  }
}

// Copies kRows rows of row_bytes <= kRowBytes into a tile; rows outside `valid` become 0 and are
// not read.
template <int kRowBytes, int kRows, int kThreads>
__device__ __forceinline__ void copy_rows(uint32_t tile, const uint8_t* source, uint32_t row_bytes,
                                          RowRange valid, uint32_t thread) {
  constexpr int kChunks = kRowBytes / 16;
  if (row_bytes % 16 != 0) {
    copy_rows_slowly<kRowBytes, kRows, kThreads>(tile, source, row_bytes, valid, thread);
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const uint32_t index = i * kThreads + thread;
    const uint32_t row = index / kChunks;
    const uint32_t chunk = index % kChunks;
    const bool is_valid = row >= valid.begin && row < valid.end && chunk * 16 < row_bytes;
    const uint8_t* from = is_valid ? source + row * row_bytes + chunk * 16 : source;
    copy_async_16(tile + tile_offset<kRowBytes>(row, chunk), from, is_valid ? 16 : 0);
  }
}

// Copies kRows rows of exactly kRowBytes, all valid, with one warp.
template <int kRowBytes, int kRows>
__device__ __forceinline__ void copy_whole_rows(uint32_t tile, const uint8_t* source,
                                                uint32_t lane) {
  constexpr uint32_t kChunks = kRowBytes / 16;
  constexpr uint32_t kPassRows = 32 / kChunks;  // rows that the warp copies at a time
  const uint32_t row = lane / kChunks;
#pragma unroll
  for (uint32_t i = 0; i < kRows / kPassRows; ++i) {
    uint32_t target = tile + tile_offset<kRowBytes>(i * kPassRows + row, lane % kChunks);
    if constexpr (kRowBytes >= 128) {
      // The same offset, computed so that the lane's part of it is loop-invariant.
      const uint32_t first = row * kRowBytes + ((lane % kChunks ^ row) << 4);
      target = tile + (first ^ (i * kPassRows % 8) << 4) + i * kPassRows * kRowBytes;
    }
    copy_async_16(target, source + lane * 16 + i * 512);
  }
}

// Copies kRows rows without changing their layout. Rows from valid.end on become 0.
template <int kRows, int kThreads>
__device__ __forceinline__ void copy_raw_rows(uint32_t target, const uint8_t* source,
                                              uint32_t row_bytes, RowRange valid, uint32_t thread) {
  const uint32_t end = valid.end * row_bytes;
  for (uint32_t offset = thread * 16; offset < kRows * row_bytes; offset += kThreads * 16) {
    const uint32_t bytes = offset >= end ? 0 : min(16u, end - offset);
    copy_async_16(target + offset, bytes == 0 ? source : source + offset, bytes);
  }
}

// Converts the two low bytes of a word, as signed numbers, to f16.
__device__ __forceinline__ __half2 signed_bytes_to_halves(uint32_t bytes) {
  // As f16, the bits 0x6400 + u are 1024 + u. Here u is the byte plus 128.
  const uint32_t word = __byte_perm(bytes ^ 0x8080u, 0x64646464u, 0x4140);
  return __hsub2(*reinterpret_cast<const __half2*>(&word), __float2half2_rn(1152.0f));
}

// Loads min(count, 8) codes byte by byte.
__device__ __noinline__ inline uint64_t load_codes_slowly(const uint8_t* codes, uint32_t count) {
  uint64_t word = 0;
  for (uint32_t i = 0; i < 8 && i < count; ++i) word |= uint64_t{codes[i]} << (8 * i);
  return word;
}

// Conversion of the codes of int10 (int10_row.h), four at a time.
struct Int10Codes {
  uint32_t low;    // a byte of low bits for each code
  uint32_t upper;  // for each code, the upper byte of the f16 number 1024 + stored code

  // `high` has a byte of high bits for each code; `shift` is where they begin, in bits.
  __device__ __forceinline__ Int10Codes(uint32_t low_bits, uint32_t high, uint32_t shift)
      : low(low_bits), upper((high >> shift & 0x03030303u) | 0x64646464u) {}
  // Returns codes 0 and 1 (pair = 0) or 2 and 3 (pair = 1).
  __device__ __forceinline__ __half2 halves(int pair) const {
    const uint32_t word = __byte_perm(low, upper, pair == 0 ? 0x5140 : 0x7362);
    return __hsub2(*reinterpret_cast<const __half2*>(&word),
                   __float2half2_rn(1024.0f + kInt10Offset));
  }
};

// Returns eight values of a row of `rows`, which are in the format of the KV cache and begin at an
// even slot, as f16; columns from n on are 0.
template <KvFormat kFormat>
__device__ __forceinline__ uint4 expand_chunk(const uint8_t* rows, uint32_t row_bytes,
                                              uint32_t row_index, uint32_t chunk, uint32_t n) {
  const uint8_t* const row = rows + row_index * row_bytes;
  uint4 out = make_uint4(0, 0, 0, 0);
  auto* const halves = reinterpret_cast<__half2*>(&out);
  if (chunk * 8 >= n) return out;
  if constexpr (kFormat == KvFormat::kQ8_0) {
    const auto* block = reinterpret_cast<const uint16_t*>(row + chunk / 4 * 34);
    const __half2 scale = __half2half2(__ushort_as_half(block[0]));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      halves[i] = __hmul2(signed_bytes_to_halves(block[1 + chunk % 4 * 4 + i]), scale);
  } else if constexpr (kFormat == KvFormat::kInt10) {
    const Int10Row at(n, row_index % 2 == 1);
    const uint32_t block = chunk / 8;
    const auto* const low = reinterpret_cast<const uint32_t*>(row + at.low + chunk * 8);
    const auto* const high =
        reinterpret_cast<const uint32_t*>(row + at.high + block * 16 + chunk % 2 * 8);
    const __half2 scale = __half2half2(
        __ushort_as_half(*reinterpret_cast<const uint16_t*>(row + at.scales + block * 2)));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Int10Codes codes(low[i], high[i], chunk % 8 / 2 * 2);
      halves[2 * i] = __hmul2(codes.halves(0), scale);
      halves[2 * i + 1] = __hmul2(codes.halves(1), scale);
    }
  } else {
    const uint64_t codes = n % 8 == 0 ? *reinterpret_cast<const uint64_t*>(row + chunk * 8)
                                      : load_codes_slowly(row + chunk * 8, n - chunk * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(codes >> (16 * i));
      halves[i] = __half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
    }
  }
  return out;
}

// Converts kRows raw rows in shared memory to a tile of f16.
template <KvFormat kFormat, int kLength, int kRows, int kThreads>
__device__ __forceinline__ void expand_rows(uint8_t* tile, const uint8_t* raw, uint32_t row_bytes,
                                            uint32_t n, uint32_t thread) {
  constexpr int kChunks = kLength / 8;
#pragma unroll 4
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const uint32_t index = i * kThreads + thread;
    const uint32_t row = index / kChunks;
    const uint32_t chunk = index % kChunks;
    *reinterpret_cast<uint4*>(tile + tile_offset<kLength * 2>(row, chunk)) =
        expand_chunk<kFormat>(raw, row_bytes, row, chunk, n);
  }
}

}  // namespace wcuda::kernels
