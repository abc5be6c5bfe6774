// embed: out[t][c] = scale * w[token[t]][c].
//
// A warp takes 1024 columns of one token. It gathers one row of the packed tiles
// (kernels/shared/packed_tile.h) into shared memory, in the order of the file; then each lane
// unpacks 32 elements. Bytes moved: the rows, in sectors of 32 bytes, and the output.
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/ptx/quad_transpose.cuh"
#include "kernels/shared/tile_blocks.cuh"
#include "kernels/step/embed.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kTileColumns = 1024;
constexpr uint32_t kTileSubBlocks = kTileColumns / kSubBlockElements;  // one per lane
static_assert(kTileSubBlocks == 32);

struct Arguments {
  const int32_t* tokens;
  const uint8_t* packed_tiles;
  uint32_t rows;
  uint32_t cols;
  uint32_t packed_tile_count;  // per M-tile
  uint32_t tile_count;         // of kTileColumns, per row
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

// Returns a layout with this field only, so that packed_tile_offset does not search.
WCUDA_HD constexpr TileLayout single_field(TileLayout layout, uint32_t part) {
  layout.fields[0] = layout.fields[part];
  layout.field_count = 1;
  return layout;
}

// The number of iterations in which 32 lanes copy one field of the tile's blocks.
template <TensorType kType, uint32_t kField>
WCUDA_HD constexpr uint32_t field_passes() {
  using T = RowTile<kType>;
  constexpr TileField kOwn = T::kLayout.fields[kField];
  return (T::kBlocks * (kOwn.bytes / T::access_bytes(kOwn)) + 31) / 32;
}
template <TensorType kType, uint32_t kField = 0>
WCUDA_HD constexpr uint32_t all_passes() {
  if constexpr (kField < RowTile<kType>::kLayout.field_count)
    return field_passes<kType, kField>() + all_passes<kType, kField + 1>();
  else
    return 0;
}

// Copies fields kField and later: from `count` packed tiles to registers (kIsLoad), or from
// registers to shared memory. The registers of field kField begin at words[kFirst]. All fields are
// loaded before any is stored, so that a row costs one memory latency.
template <TensorType kType, bool kIsLoad, uint32_t kField = 0, uint32_t kFirst = 0>
__device__ inline void copy_fields(const uint8_t* packed_tiles, uint32_t count, uint32_t row,
                                   uint32_t (&words)[all_passes<kType>()], uint8_t* shared) {
  using T = RowTile<kType>;
  constexpr TileLayout kLayout = T::kLayout;
  constexpr TileField kOwn = kLayout.fields[kField];
  constexpr uint32_t kAccess = T::access_bytes(kOwn);
  constexpr uint32_t kAccesses = kOwn.bytes / kAccess;  // per block
  constexpr uint32_t kPasses = field_passes<kType, kField>();
#pragma unroll
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    const uint32_t access = pass * 32 + threadIdx.x;
    const uint32_t block = access / kAccesses;
    const uint32_t packed_tile = block / kLayout.blocks;
    const uint32_t byte = kOwn.offset + access % kAccesses * kAccess;
    if (packed_tile >= count) continue;
    // packed_tile_offset of a field known at compile time.
    constexpr TileLayout kSingleField = single_field(kLayout, kField);
    const uint8_t* from = packed_tiles + packed_tile * kLayout.packed_tile_bytes() +
                          T::field_start(kField) +
                          packed_tile_offset(kSingleField, row, block % kLayout.blocks, byte);
    uint8_t* target = shared + block * T::kStride + T::kShift + byte;
    uint32_t& word = words[kFirst + pass];
    if constexpr (kAccess == 4) {
      if (kIsLoad)
        word = *reinterpret_cast<const uint32_t*>(from);
      else
        *reinterpret_cast<uint32_t*>(target) = word;
    } else if constexpr (kAccess == 2) {
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
  if constexpr (kField + 1 < kLayout.field_count)
    copy_fields<kType, kIsLoad, kField + 1, kFirst + kPasses>(packed_tiles, count, row, words,
                                                              shared);
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
  const uint32_t first_packed_tile = tile * T::kPackedTiles;
  const uint8_t* const packed_tiles =
      arguments.packed_tiles +
      (uint64_t{row / kMTileRows} * arguments.packed_tile_count + first_packed_tile) *
          T::kLayout.packed_tile_bytes();
  const uint32_t count = min(T::kPackedTiles, arguments.packed_tile_count - first_packed_tile);
  uint32_t words[all_passes<kType>()];
  copy_fields<kType, true>(packed_tiles, count, row % kMTileRows, words, shared);
  copy_fields<kType, false>(packed_tiles, count, row % kMTileRows, words, shared);
  __syncwarp();

  constexpr uint32_t kBlockSubBlocks = T::kLayout.block_elements / kSubBlockElements;
  const auto& block = *reinterpret_cast<const BlockOf<kType>*>(
      shared + threadIdx.x / kBlockSubBlocks * T::kStride + T::kShift);
  float values[kSubBlockElements];
  unpack32(block, threadIdx.x % kBlockSubBlocks, values);

  float* const out = arguments.out + uint64_t{token_index} * arguments.cols;
  const uint32_t column = tile * kTileColumns + threadIdx.x * kSubBlockElements;
  if (!arguments.is_aligned) {
#pragma unroll
    for (uint32_t i = 0; i < kSubBlockElements; ++i)
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
      const uint32_t at =
          column - quad * kSubBlockElements + kSubBlockElements * i + 16 * half + 4 * quad;
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
