// embed: out[t][c] = scale * w[token[t]][c].
//
// A warp takes 1024 columns of one token: it gathers the bytes of one row of the packed tiles
// (kernels/shared/packed_tile.h) into shared memory, in the file's order, then a lane unpacks 32
// elements. Bytes moved: those of the rows, in sectors of 32 bytes, and the output.
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/ptx/quad_transpose.cuh"
#include "kernels/shared/tile_blocks.cuh"
#include "kernels/step/embed.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kTileColumns = 1024;
constexpr uint32_t kTileParts = kTileColumns / kPartElements;  // one a lane
static_assert(kTileParts == 32);

struct Arguments {
  const int32_t* tokens;
  const uint8_t* packed_tiles;
  uint32_t rows;
  uint32_t cols;
  uint32_t packed_tile_count;  // of an M-tile
  uint32_t tile_count;         // of a row
  float scale;
  bool is_aligned;
  float* out;  // (token_count, cols)
};

template <TensorType kType>
struct RowTile : SharedBlocks<kType> {
  using Base = SharedBlocks<kType>;
  static constexpr uint32_t kPackedTiles = kTileColumns / Base::kLayout.packed_tile_inputs();
  static constexpr uint32_t kBlocks = kPackedTiles * Base::kLayout.blocks;
};

// The layout of one part: packed_tile_offset then searches none.
WCUDA_HD constexpr TileLayout part_alone(TileLayout layout, uint32_t part) {
  layout.fields[0] = layout.fields[part];
  layout.field_count = 1;
  return layout;
}

// Turns in which 32 lanes copy a part of the tile's blocks.
template <TensorType kType, uint32_t kPart>
WCUDA_HD constexpr uint32_t part_turns() {
  using T = RowTile<kType>;
  constexpr TileField kThis = T::kLayout.fields[kPart];
  return (T::kBlocks * (kThis.bytes / T::unit_bytes(kThis)) + 31) / 32;
}
template <TensorType kType, uint32_t kPart = 0>
WCUDA_HD constexpr uint32_t all_turns() {
  if constexpr (kPart < RowTile<kType>::kLayout.field_count)
    return part_turns<kType, kPart>() + all_turns<kType, kPart + 1>();
  else
    return 0;
}

// Parts from kPart on, whose units are words kFirst and up: from the packed tiles, where `packed
// tiles` is the first and `count` how many there are, or on into shared memory. All are loaded
// before any is stored, so that the row takes one time through memory.
template <TensorType kType, bool kIsLoad, uint32_t kPart = 0, uint32_t kFirst = 0>
__device__ inline void move_parts(const uint8_t* packed_tiles, uint32_t count, uint32_t row,
                                  uint32_t (&words)[all_turns<kType>()], uint8_t* shared) {
  using T = RowTile<kType>;
  constexpr TileLayout kLayout = T::kLayout;
  constexpr TileField kThis = kLayout.fields[kPart];
  constexpr uint32_t kUnit = T::unit_bytes(kThis);
  constexpr uint32_t kUnits = kThis.bytes / kUnit;  // of a block
  constexpr uint32_t kTurns = part_turns<kType, kPart>();
#pragma unroll
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    const uint32_t unit = turn * 32 + threadIdx.x;
    const uint32_t block = unit / kUnits;
    const uint32_t packed_tile = block / kLayout.blocks;
    const uint32_t byte = kThis.offset + unit % kUnits * kUnit;
    if (packed_tile >= count) continue;
    // packed_tile_offset of a part known at compile time.
    constexpr TileLayout kPartAlone = part_alone(kLayout, kPart);
    const uint8_t* from = packed_tiles + packed_tile * kLayout.packed_tile_bytes() +
                          T::part_start(kPart) +
                          packed_tile_offset(kPartAlone, row, block % kLayout.blocks, byte);
    uint8_t* target = shared + block * T::kStride + T::kShift + byte;
    uint32_t& word = words[kFirst + turn];
    if constexpr (kUnit == 4) {
      if (kIsLoad)
        word = *reinterpret_cast<const uint32_t*>(from);
      else
        *reinterpret_cast<uint32_t*>(target) = word;
    } else if constexpr (kUnit == 2) {
      if (kIsLoad)
        word = *reinterpret_cast<const uint16_t*>(from);
      else
        *reinterpret_cast<uint16_t*>(target) = static_cast<uint16_t>(word);
    } else {
      if (kIsLoad)
        word = *from;
      else
        *target = static_cast<uint8_t>(word);
    }
  }
  if constexpr (kPart + 1 < kLayout.field_count)
    move_parts<kType, kIsLoad, kPart + 1, kFirst + kTurns>(packed_tiles, count, row, words, shared);
}

template <TensorType kType>
__global__ void __launch_bounds__(32) embed_kernel(Arguments arguments) {
  using T = RowTile<kType>;
  __shared__ __align__(16) uint8_t shared[T::kBlocks * T::kStride];
  dependent_trigger();
  dependent_wait();
  const uint32_t token_index = blockIdx.x / arguments.tile_count;
  const uint32_t tile = blockIdx.x % arguments.tile_count;
  const uint32_t row =
      min(static_cast<uint32_t>(arguments.tokens[token_index]), arguments.rows - 1);
  const uint32_t first_record = tile * T::kPackedTiles;
  const uint8_t* const packed_tiles =
      arguments.packed_tiles +
      (uint64_t{row / kMTileRows} * arguments.packed_tile_count + first_record) *
          T::kLayout.packed_tile_bytes();
  const uint32_t count = min(T::kPackedTiles, arguments.packed_tile_count - first_record);
  uint32_t words[all_turns<kType>()];
  move_parts<kType, true>(packed_tiles, count, row % kMTileRows, words, shared);
  move_parts<kType, false>(packed_tiles, count, row % kMTileRows, words, shared);
  __syncwarp();

  constexpr uint32_t kBlockParts = T::kLayout.block_elements / kPartElements;
  const auto& block = *reinterpret_cast<const BlockOf<kType>*>(
      shared + threadIdx.x / kBlockParts * T::kStride + T::kShift);
  float values[kPartElements];
  unpack32(block, threadIdx.x % kBlockParts, values);

  float* const out = arguments.out + uint64_t{token_index} * arguments.cols;
  const uint32_t column = tile * kTileColumns + threadIdx.x * kPartElements;
  if (!arguments.is_aligned) {
#pragma unroll
    for (uint32_t i = 0; i < kPartElements; ++i)
      if (column + i < arguments.cols) out[column + i] = __fmul_rn(values[i], arguments.scale);
    return;
  }
  const uint32_t quad = threadIdx.x % 4;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    uint4 chunks[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float* from = values + 16 * half + 4 * i;
      chunks[i] = {float_bits(__fmul_rn(from[0], arguments.scale)),
                   float_bits(__fmul_rn(from[1], arguments.scale)),
                   float_bits(__fmul_rn(from[2], arguments.scale)),
                   float_bits(__fmul_rn(from[3], arguments.scale))};
    }
    quad_transpose(chunks);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = column - quad * kPartElements + kPartElements * i + 16 * half + 4 * quad;
      if (at < arguments.cols) *reinterpret_cast<uint4*>(out + at) = chunks[i];
    }
  }
}

}  // namespace

cudaError_t embed(const int32_t* tokens, uint32_t token_count, const Matrix& table, float scale,
                  float* out, const Launch& launch) {
  if (table.rows == 0 || table.cols == 0) return cudaErrorInvalidValue;
  if (token_count == 0) return cudaSuccess;
  Arguments arguments{};
  arguments.tokens = tokens;
  arguments.packed_tiles = table.packed_tiles;
  arguments.rows = table.rows;
  arguments.cols = table.cols;
  arguments.tile_count = (table.cols + kTileColumns - 1) / kTileColumns;
  arguments.scale = scale;
  arguments.is_aligned = table.cols % 4 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  arguments.out = out;
  const uint64_t blocks = uint64_t{token_count} * arguments.tile_count;
  if (blocks > 0x7fffffffu) return cudaErrorInvalidValue;
  return visit_type(table.type, [&](auto type) {
    constexpr TensorType kType = decltype(type)::value;
    arguments.packed_tile_count = RowTile<kType>::kLayout.packed_tile_count(table.cols);
    return launch_kernel(launch, static_cast<uint32_t>(blocks), 32, 0, 0, embed_kernel<kType>,
                         arguments);
  });
}

}  // namespace wcuda::kernels
