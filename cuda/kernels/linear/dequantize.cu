// dequantize: out[r][c] = round(w[r][c]).
//
// Input: packed tiles (kernels/shared/packed_tile.h), read once by 16 bytes. Output: rows of f32,
// f16 or bf16, written once by 16 bytes. A block of threads takes a tile of 16 rows x 256 columns.
// It restores the order of the file in shared memory, then each thread unpacks 32 elements, and
// quads of lanes transpose them so that each store of a quad covers 64 bytes of a row.
#include <algorithm>

#include "kernels/linear/dequantize.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/ptx/quad_transpose.cuh"
#include "kernels/shared/tile_blocks.cuh"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kTileColumns = 256;
constexpr uint32_t kTileSubBlocks = kTileColumns / kSubBlockElements;
constexpr uint32_t kThreads = kMTileRows * kTileSubBlocks;  // a thread unpacks one sub-block

struct Arguments {
  const uint8_t* packed_tiles;
  uint32_t cols;
  uint32_t first_row;
  uint32_t row_count;
  uint32_t tile_count;         // of an M-tile
  uint32_t packed_tile_count;  // of an M-tile
  ElementType out_type;
  bool is_aligned;
  void* out;  // (row_count, cols)
};

template <TensorType kType>
struct PackedTile : SharedBlocks<kType> {
  using Base = SharedBlocks<kType>;
  static constexpr uint32_t kPackedTileBytes = Base::kLayout.packed_tile_bytes();
  static constexpr uint32_t kPackedTiles = kTileColumns / Base::kLayout.packed_tile_inputs();
  static constexpr uint32_t kBlocks = kPackedTiles * Base::kLayout.blocks;  // of a row
  static constexpr uint32_t kRowStride =
      (kBlocks * Base::kStride / 4 | 1) * 4;  // an odd word count
  static constexpr uint32_t kChunks = kPackedTiles * kPackedTileBytes / 16;
  static_assert(kPackedTileBytes % 16 == 0);
};

// Stores the 16 bytes at `offset` of field kField of packed tile `packed_tile` in shared memory, in
// the order of the file.
template <TensorType kType, uint32_t kField>
__device__ inline void scatter_field(uint32_t packed_tile, uint32_t offset, const uint4& chunk,
                                     uint8_t* shared) {
  using T = PackedTile<kType>;
  constexpr TileField kOwn = T::kLayout.fields[kField];
  constexpr uint32_t kPiece = kOwn.piece_bytes;
  constexpr uint32_t kAccess = T::access_bytes(kOwn);
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (uint32_t access = 0; access < 16 / kAccess; ++access) {
    const uint32_t at = offset + access * kAccess;
    uint32_t row, block, byte;  // of the field's bytes in the block
    if constexpr (!kOwn.by_lane) {
      constexpr uint32_t kPieces = kOwn.bytes / kPiece;
      const uint32_t index = at / (kMTileRows * kPiece);
      row = at / kPiece % kMTileRows;
      block = index / kPieces;
      byte = index % kPieces * kPiece + at % kPiece;
    } else {
      constexpr uint32_t kRuns = kOwn.bytes / (4 * kPiece);
      const uint32_t lane = at / 16 % 32;
      uint32_t run, half;
      if constexpr (kPiece == 16) {
        run = at / 1024;
        half = at / 512 % 2;
      } else if constexpr (kPiece == 8) {
        run = at / 512;
        half = at / 8 % 2;
      } else {
        run = at / 512 * 2 + at / 8 % 2;
        half = at / 4 % 2;
      }
      row = lane / 4 + 8 * half;
      block = run / kRuns;
      byte = run % kRuns * 4 * kPiece + lane % 4 * kPiece + at % kPiece;
    }
    uint8_t* const target = shared + row * T::kRowStride +
                            (packed_tile * T::kLayout.blocks + block) * T::kStride + T::kShift +
                            kOwn.offset + byte;
    const uint32_t word = words[access * kAccess / 4];
    if constexpr (kAccess == 4)
      *reinterpret_cast<uint32_t*>(target) = word;
    else if constexpr (kAccess == 2)
      *reinterpret_cast<uint16_t*>(target) = static_cast<uint16_t>(word >> (access % 2 * 16));
    else
      *target = static_cast<uint8_t>(word >> (access % 4 * 8));
  }
}

template <TensorType kType, uint32_t kField = 0>
__device__ inline void scatter(uint32_t packed_tile, uint32_t offset, const uint4& chunk,
                               uint8_t* shared) {
  using T = PackedTile<kType>;
  if constexpr (kField + 1 < T::kLayout.field_count) {
    if (offset >= T::field_start(kField + 1))
      return scatter<kType, kField + 1>(packed_tile, offset, chunk, shared);
  }
  scatter_field<kType, kField>(packed_tile, offset - T::field_start(kField), chunk, shared);
}

__device__ inline uint32_t pack_f16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// Stores values 32 * part … of a row, 16 bytes at a time. Lanes of a quad hold neighbouring
// sub-blocks.
__device__ inline void store_part(const Arguments& arguments, const float (&values)[32],
                                  uint64_t row_start, uint32_t column, bool is_row) {
  const uint32_t quad = threadIdx.x % 4;
  column -= quad * kSubBlockElements;
  uint4 chunks[4];
  if (arguments.out_type == ElementType::kF32) {
    auto* const out = static_cast<float*>(arguments.out) + row_start;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float* from = values + 16 * half + 4 * i;
        chunks[i] = {float_bits(from[0]), float_bits(from[1]), float_bits(from[2]),
                     float_bits(from[3])};
      }
      quad_transpose(chunks);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t at = column + kSubBlockElements * i + 16 * half + 4 * quad;
        if (is_row && at < arguments.cols) *reinterpret_cast<uint4*>(out + at) = chunks[i];
      }
    }
    return;
  }
  auto* const out = static_cast<uint16_t*>(arguments.out) + row_start;
  const bool is_f16 = arguments.out_type == ElementType::kF16;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const float* from = values + 8 * i;
    if (is_f16)
      chunks[i] = {pack_f16(from[0], from[1]), pack_f16(from[2], from[3]),
                   pack_f16(from[4], from[5]), pack_f16(from[6], from[7])};
    else
      chunks[i] = {pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]),
                   pack_bf16(from[4], from[5]), pack_bf16(from[6], from[7])};
  }
  quad_transpose(chunks);
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t at = column + kSubBlockElements * i + 8 * quad;
    if (is_row && at < arguments.cols) *reinterpret_cast<uint4*>(out + at) = chunks[i];
  }
}

// The same one by one, for rows of any length.
__device__ inline void store_part_unaligned(const Arguments& arguments, const float (&values)[32],
                                            uint64_t row_start, uint32_t column) {
#pragma unroll
  for (uint32_t i = 0; i < kSubBlockElements; ++i) {
    if (column + i >= arguments.cols) continue;
    const uint64_t at = row_start + column + i;
    if (arguments.out_type == ElementType::kF32)
      static_cast<float*>(arguments.out)[at] = values[i];
    else
      static_cast<uint16_t*>(arguments.out)[at] = arguments.out_type == ElementType::kF16
                                                      ? float_to_half(values[i])
                                                      : float_to_bf16(values[i]);
  }
}

template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 8) dequantize_kernel(Arguments arguments) {
  using T = PackedTile<kType>;
  __shared__ __align__(16) uint8_t shared[kMTileRows * T::kRowStride];
  dependent_trigger();
  const uint32_t m_tile = arguments.first_row / kMTileRows + blockIdx.x / arguments.tile_count;
  const uint32_t tile = blockIdx.x % arguments.tile_count;
  const uint32_t first_packed_tile = tile * T::kPackedTiles;
  const uint32_t packed_tiles =
      min(T::kPackedTiles, arguments.packed_tile_count - first_packed_tile);
  const auto* chunks = reinterpret_cast<const uint4*>(
      arguments.packed_tiles +
      (uint64_t{m_tile} * arguments.packed_tile_count + first_packed_tile) * T::kPackedTileBytes);

  constexpr uint32_t kLoads = (T::kChunks + kThreads - 1) / kThreads;
  const uint32_t chunk_count = packed_tiles * (T::kPackedTileBytes / 16);
  uint4 loaded[kLoads];
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) {
    const uint32_t chunk = i * kThreads + threadIdx.x;
    if (chunk < chunk_count) loaded[i] = __ldcs(chunks + chunk);
  }
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) {
    const uint32_t chunk = i * kThreads + threadIdx.x;
    if (chunk < chunk_count)
      scatter<kType>(chunk / (T::kPackedTileBytes / 16), chunk % (T::kPackedTileBytes / 16) * 16,
                     loaded[i], shared);
  }
  __syncthreads();

  const uint32_t row_of_m_tile = threadIdx.x / kTileSubBlocks;
  const uint32_t part = threadIdx.x % kTileSubBlocks;
  constexpr uint32_t kBlockSubBlocks = T::kLayout.block_elements / kSubBlockElements;
  const auto& block = *reinterpret_cast<const BlockOf<kType>*>(
      shared + row_of_m_tile * T::kRowStride + part / kBlockSubBlocks * T::kStride + T::kShift);
  float values[kSubBlockElements];
  unpack32(block, part % kBlockSubBlocks, values);

  dependent_wait();
  const uint32_t row = m_tile * kMTileRows + row_of_m_tile - arguments.first_row;
  const bool is_row =
      m_tile * kMTileRows + row_of_m_tile >= arguments.first_row && row < arguments.row_count;
  const uint64_t row_start = is_row ? uint64_t{row} * arguments.cols : 0;
  const uint32_t column = tile * kTileColumns + part * kSubBlockElements;
  if (arguments.is_aligned)
    store_part(arguments, values, row_start, column, is_row);
  else if (is_row)
    store_part_unaligned(arguments, values, row_start, column);
}

// The two most frequent types to f16, whole packed tiles: bound by its instructions, the kernel
// above moves half of what memory could. Here a thread takes the codes of 8 neighbours where they
// lie in the packed tile, four times in its row, and a quad of lanes writes 64 bytes.
constexpr uint32_t kWordStages = 3;
constexpr uint32_t kWordBlocks = 12;  // a multiprocessor
constexpr float kTwoTo23 = 8388608.0f;

// Byte i of `codes` as a number: the last bits of 2^23 + code, of which the caller's constant is
// taken.
__device__ inline float code_float(uint32_t codes, uint32_t i, float subtrahend) {
  return bits_float(__byte_perm(codes, 0x4b000000u, 0x7440u + i)) - subtrahend;
}

// Where a thread works in a packed tile: row, codes 8 quad … of 32, part 4 half … of 8.
struct WordPlace {
  uint32_t row, quad, half;
  // Its 8 bytes of run `run` in a part of the packed tile that lies by lanes, 8 bytes a piece.
  __device__ uint32_t piece(uint32_t run) const {
    return run * 512 + row % 8 * 64 + quad * 16 + row / 8 * 8;
  }
};

__device__ inline float half_at(const uint8_t* bytes) {
  return half_to_float(*reinterpret_cast<const uint16_t*>(bytes));
}

// make(part, values) for 8 neighbours of each of its four parts.
template <class Make>
__device__ inline void unpack_words(TypeTag<TensorType::kQ4_K>, const uint8_t* packed_tile,
                                    const WordPlace& at, const Make& make) {
  const uint4 head = *reinterpret_cast<const uint4*>(packed_tile + 2048 + at.row * 16);
  const float d = half_to_float(static_cast<uint16_t>(head.x & 0xffff));
  const float dmin = half_to_float(static_cast<uint16_t>(head.x >> 16));
  uint32_t scales = head.y & 0x3f3f3f3fu, mins = head.z & 0x3f3f3f3fu;
  if (at.half != 0) {
    scales = (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
    mins = (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
  }
#pragma unroll
  for (uint32_t run = 0; run < 2; ++run) {
    const uint2 codes = *reinterpret_cast<const uint2*>(packed_tile + at.piece(at.half * 2 + run));
#pragma unroll
    for (uint32_t high = 0; high < 2; ++high) {
      const float scale = d * code_float(scales, run * 2 + high, kTwoTo23);
      const float min = dmin * code_float(mins, run * 2 + high, kTwoTo23);
      const uint32_t words[2] = {codes.x >> (4 * high) & 0x0f0f0f0fu,
                                 codes.y >> (4 * high) & 0x0f0f0f0fu};
      float values[8];
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i)
        values[i] = mul_add_rounded(scale, code_float(words[i / 4], i % 4, kTwoTo23), -min);
      make(run * 2 + high, values);
    }
  }
}

template <class Make>
__device__ inline void unpack_words(TypeTag<TensorType::kQ6_K>, const uint8_t* packed_tile,
                                    const WordPlace& at, const Make& make) {
  const float d = half_at(packed_tile + 3328 + at.row * 2);
  const uint2 scales =
      *reinterpret_cast<const uint2*>(packed_tile + 3072 + at.half * 128 + at.row * 8);
  const uint2 highs = *reinterpret_cast<const uint2*>(packed_tile + 2048 + at.piece(at.half));
  uint2 lows[2];
#pragma unroll
  for (uint32_t run = 0; run < 2; ++run)
    lows[run] = *reinterpret_cast<const uint2*>(packed_tile + at.piece(at.half * 2 + run));
#pragma unroll
  for (uint32_t part = 0; part < 4; ++part) {
    const uint32_t two = (part < 2 ? scales.x : scales.y) >> (part % 2 * 16);
    const float scale =
        d * static_cast<float>(static_cast<int8_t>(two >> (at.quad / 2 * 8) & 0xff));
    const uint2 low = lows[part % 2];
    const uint32_t words[2] = {
        (low.x >> (part / 2 * 4) & 0x0f0f0f0fu) | (highs.x >> (part * 2) & 0x03030303u) << 4,
        (low.y >> (part / 2 * 4) & 0x0f0f0f0fu) | (highs.y >> (part * 2) & 0x03030303u) << 4};
    float values[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i)
      values[i] = scale * code_float(words[i / 4], i % 4, kTwoTo23 + 32.0f);
    make(part, values);
  }
}

template <TensorType kType>
__global__ void __launch_bounds__(kThreads, kWordBlocks)
    dequantize_words_kernel(Arguments arguments, uint32_t all_tiles) {
  constexpr uint32_t kBytes = PackedTile<kType>::kPackedTileBytes;
  __shared__ __align__(16) uint8_t ring[kWordStages][kBytes];
  dependent_trigger();
  const uint8_t* const packed_tiles =
      arguments.packed_tiles +
      uint64_t{arguments.first_row / kMTileRows} * arguments.tile_count * kBytes;
  const auto fetch = [&](uint32_t index, uint32_t stage) {
    if (index < all_tiles) {
      const uint8_t* const from = packed_tiles + uint64_t{index} * kBytes;
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(ring[stage]));
#pragma unroll
      for (uint32_t i = 0; i < (kBytes / 16 + kThreads - 1) / kThreads; ++i) {
        const uint32_t chunk = i * kThreads + threadIdx.x;
        if (chunk < kBytes / 16)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + chunk * 16),
                       "l"(from + chunk * 16));
      }
    }
    asm volatile("cp.async.commit_group;");
  };
  for (uint32_t s = 0; s + 1 < kWordStages; ++s) fetch(blockIdx.x + s * gridDim.x, s);
  dependent_wait();

  const WordPlace at{threadIdx.x / 8, threadIdx.x % 4, threadIdx.x / 4 % 2};
  auto* const out = static_cast<uint16_t*>(arguments.out);
  uint32_t stage = 0;
  for (uint32_t index = blockIdx.x; index < all_tiles; index += gridDim.x) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kWordStages - 2));
    __syncthreads();  // the tile is there, and nobody reads the one before it
    fetch(index + (kWordStages - 1) * gridDim.x, (stage + kWordStages - 1) % kWordStages);
    const uint32_t row = index / arguments.tile_count * kMTileRows + at.row;
    const uint32_t column =
        index % arguments.tile_count * kTileColumns + at.half * 128 + at.quad * 8;
    uint16_t* const target = out + uint64_t{row} * arguments.cols + column;
    unpack_words(TypeTag<kType>{}, ring[stage], at, [&](uint32_t part, const float(&values)[8]) {
      if (row >= arguments.row_count) return;
      *reinterpret_cast<uint4*>(target + part * 32) =
          make_uint4(pack_f16(values[0], values[1]), pack_f16(values[2], values[3]),
                     pack_f16(values[4], values[5]), pack_f16(values[6], values[7]));
    });
    stage = (stage + 1) % kWordStages;
  }
}

}  // namespace

cudaError_t dequantize(const Matrix& matrix, uint32_t first_row, uint32_t row_count,
                       ElementType out_type, void* out, const Launch& launch) {
  if (first_row > matrix.rows || row_count > matrix.rows - first_row || matrix.cols == 0)
    return cudaErrorInvalidValue;
  if (row_count == 0) return cudaSuccess;
  const uint32_t element_bytes = out_type == ElementType::kF32 ? 4 : 2;
  Arguments arguments{};
  arguments.packed_tiles = matrix.packed_tiles;
  arguments.cols = matrix.cols;
  arguments.first_row = first_row;
  arguments.row_count = row_count;
  arguments.tile_count = (matrix.cols + kTileColumns - 1) / kTileColumns;
  arguments.out_type = out_type;
  arguments.is_aligned =
      uint64_t{matrix.cols} * element_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  arguments.out = out;
  const uint32_t m_tile_count =
      (first_row + row_count - 1) / kMTileRows - first_row / kMTileRows + 1;
  const uint64_t blocks = uint64_t{m_tile_count} * arguments.tile_count;
  if (blocks > 0x7fffffffu) return cudaErrorInvalidValue;
  if (out_type == ElementType::kF16 && arguments.is_aligned && first_row % kMTileRows == 0 &&
      matrix.cols % kTileColumns == 0 &&
      (matrix.type == TensorType::kQ4_K || matrix.type == TensorType::kQ6_K)) {
    const auto all_tiles = static_cast<uint32_t>(blocks);
    const uint32_t resident = kWordBlocks * static_cast<uint32_t>(std::max(launch.sm_count, 1));
    return launch_kernel(launch, std::min(all_tiles, resident), kThreads, 0, 0,
                         matrix.type == TensorType::kQ4_K
                             ? dequantize_words_kernel<TensorType::kQ4_K>
                             : dequantize_words_kernel<TensorType::kQ6_K>,
                         arguments, all_tiles);
  }
  return visit_type(matrix.type, [&](auto type) {
    constexpr TensorType kType = decltype(type)::value;
    arguments.packed_tile_count = PackedTile<kType>::kLayout.packed_tile_count(matrix.cols);
    return launch_kernel(launch, static_cast<uint32_t>(blocks), kThreads, 0, 0,
                         dequantize_kernel<kType>, arguments);
  });
}

}  // namespace wcuda::kernels
