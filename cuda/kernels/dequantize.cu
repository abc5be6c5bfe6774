// dequantize: out[r][c] = round(w[r][c]).
//
// Records (kernels/records.h) in, read once by 16 bytes; rows of f32, f16 or bf16 out, written once
// by 16 bytes. A block of threads takes a tile of 16 rows x 256 columns: it puts the records' bytes
// back in the file's order in shared memory, then a thread unpacks 32 elements, and quads of lanes
// exchange them so that each store of a quad covers 64 bytes of a row.
#include "kernels/dependent_launch.h"
#include "kernels/dequantize.h"
#include "kernels/quad_transpose.h"
#include "kernels/record_blocks.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kTileColumns = 256;
constexpr uint32_t kTileParts = kTileColumns / kPartElements;
constexpr uint32_t kThreads = kRecordRows * kTileParts;  // a thread unpacks one part

struct Arguments {
  const uint8_t* records;
  uint32_t cols;
  uint32_t first_row;
  uint32_t row_count;
  uint32_t tile_count;    // of a strip
  uint32_t record_count;  // of a strip
  ElementType out_type;
  bool is_aligned;
  void* out;  // (row_count, cols)
};

template <uint32_t kType>
struct RecordTile : SharedBlocks<kType> {
  using Base = SharedBlocks<kType>;
  static constexpr uint32_t kRecordBytes = Base::kLayout.record_bytes();
  static constexpr uint32_t kRecords = kTileColumns / Base::kLayout.record_elements();
  static constexpr uint32_t kBlocks = kRecords * Base::kLayout.blocks;  // of a row
  static constexpr uint32_t kRowStride =
      (kBlocks * Base::kStride / 4 | 1) * 4;  // an odd word count
  static constexpr uint32_t kChunks = kRecords * kRecordBytes / 16;
  static_assert(kRecordBytes % 16 == 0);
};

// Puts the 16 bytes at `offset` of part kPart of record `record` of the tile into their places.
template <uint32_t kType, uint32_t kPart>
__device__ inline void scatter_part(uint32_t record, uint32_t offset, const uint4& chunk,
                                    uint8_t* shared) {
  using T = RecordTile<kType>;
  constexpr RecordPart kThis = T::kLayout.parts[kPart];
  constexpr uint32_t kPiece = kThis.piece_bytes;
  constexpr uint32_t kUnit = T::unit_bytes(kThis);
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (uint32_t unit = 0; unit < 16 / kUnit; ++unit) {
    const uint32_t at = offset + unit * kUnit;
    uint32_t row, block, byte;  // of the part's bytes of the block
    if constexpr (!kThis.by_lane) {
      constexpr uint32_t kPieces = kThis.bytes / kPiece;
      const uint32_t index = at / (kRecordRows * kPiece);
      row = at / kPiece % kRecordRows;
      block = index / kPieces;
      byte = index % kPieces * kPiece + at % kPiece;
    } else {
      constexpr uint32_t kRuns = kThis.bytes / (4 * kPiece);
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
                            (record * T::kLayout.blocks + block) * T::kStride + T::kShift +
                            kThis.offset + byte;
    const uint32_t word = words[unit * kUnit / 4];
    if constexpr (kUnit == 4)
      *reinterpret_cast<uint32_t*>(target) = word;
    else if constexpr (kUnit == 2)
      *reinterpret_cast<uint16_t*>(target) = static_cast<uint16_t>(word >> (unit % 2 * 16));
    else
      *target = static_cast<uint8_t>(word >> (unit % 4 * 8));
  }
}

template <uint32_t kType, uint32_t kPart = 0>
__device__ inline void scatter(uint32_t record, uint32_t offset, const uint4& chunk,
                               uint8_t* shared) {
  using T = RecordTile<kType>;
  if constexpr (kPart + 1 < T::kLayout.part_count) {
    if (offset >= T::part_start(kPart + 1))
      return scatter<kType, kPart + 1>(record, offset, chunk, shared);
  }
  scatter_part<kType, kPart>(record, offset - T::part_start(kPart), chunk, shared);
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

// Values 32 * part … of a row, in stores of 16 bytes. Lanes of a quad hold neighbouring parts.
__device__ inline void store_part(const Arguments& arguments, const float (&values)[32],
                                  uint64_t row_start, uint32_t column, bool is_row) {
  const uint32_t quad = threadIdx.x % 4;
  column -= quad * kPartElements;
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
        const uint32_t at = column + kPartElements * i + 16 * half + 4 * quad;
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
    const uint32_t at = column + kPartElements * i + 8 * quad;
    if (is_row && at < arguments.cols) *reinterpret_cast<uint4*>(out + at) = chunks[i];
  }
}

// The same one by one, for rows of any length.
__device__ inline void store_part_unaligned(const Arguments& arguments, const float (&values)[32],
                                            uint64_t row_start, uint32_t column) {
#pragma unroll
  for (uint32_t i = 0; i < kPartElements; ++i) {
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

template <uint32_t kType>
__global__ void __launch_bounds__(kThreads, 8) dequantize_kernel(Arguments arguments) {
  using T = RecordTile<kType>;
  __shared__ __align__(16) uint8_t shared[kRecordRows * T::kRowStride];
  dependent_trigger();
  const uint32_t strip = arguments.first_row / kRecordRows + blockIdx.x / arguments.tile_count;
  const uint32_t tile = blockIdx.x % arguments.tile_count;
  const uint32_t first_record = tile * T::kRecords;
  const uint32_t records = min(T::kRecords, arguments.record_count - first_record);
  const auto* chunks = reinterpret_cast<const uint4*>(
      arguments.records +
      (uint64_t{strip} * arguments.record_count + first_record) * T::kRecordBytes);

  constexpr uint32_t kLoads = (T::kChunks + kThreads - 1) / kThreads;
  const uint32_t chunk_count = records * (T::kRecordBytes / 16);
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
      scatter<kType>(chunk / (T::kRecordBytes / 16), chunk % (T::kRecordBytes / 16) * 16, loaded[i],
                     shared);
  }
  __syncthreads();

  const uint32_t row_of_strip = threadIdx.x / kTileParts;
  const uint32_t part = threadIdx.x % kTileParts;
  constexpr uint32_t kBlockParts = T::kLayout.block_elements / kPartElements;
  const auto& block = *reinterpret_cast<const BlockOf<kType>*>(
      shared + row_of_strip * T::kRowStride + part / kBlockParts * T::kStride + T::kShift);
  float values[kPartElements];
  unpack32(block, part % kBlockParts, values);

  dependent_wait();
  const uint32_t row = strip * kRecordRows + row_of_strip - arguments.first_row;
  const bool is_row =
      strip * kRecordRows + row_of_strip >= arguments.first_row && row < arguments.row_count;
  const uint64_t row_start = is_row ? uint64_t{row} * arguments.cols : 0;
  const uint32_t column = tile * kTileColumns + part * kPartElements;
  if (arguments.is_aligned)
    store_part(arguments, values, row_start, column, is_row);
  else if (is_row)
    store_part_unaligned(arguments, values, row_start, column);
}

}  // namespace

cudaError_t dequantize(const Matrix& matrix, uint32_t first_row, uint32_t row_count,
                       ElementType out_type, void* out, const Launch& launch) {
  if (first_row > matrix.rows || row_count > matrix.rows - first_row || matrix.cols == 0)
    return cudaErrorInvalidValue;
  if (row_count == 0) return cudaSuccess;
  const uint32_t element_bytes = out_type == ElementType::kF32 ? 4 : 2;
  Arguments arguments{};
  arguments.records = matrix.records;
  arguments.cols = matrix.cols;
  arguments.first_row = first_row;
  arguments.row_count = row_count;
  arguments.tile_count = (matrix.cols + kTileColumns - 1) / kTileColumns;
  arguments.out_type = out_type;
  arguments.is_aligned =
      uint64_t{matrix.cols} * element_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  arguments.out = out;
  const uint32_t strip_count =
      (first_row + row_count - 1) / kRecordRows - first_row / kRecordRows + 1;
  const uint64_t blocks = uint64_t{strip_count} * arguments.tile_count;
  if (blocks > 0x7fffffffu) return cudaErrorInvalidValue;
  return visit_type(matrix.type, [&](auto type) {
    constexpr uint32_t kType = decltype(type)::value;
    arguments.record_count = RecordTile<kType>::kLayout.record_count(matrix.cols);
    return launch_kernel(launch, static_cast<uint32_t>(blocks), kThreads, 0, 0,
                         dequantize_kernel<kType>, arguments);
  });
}

}  // namespace wcuda::kernels
