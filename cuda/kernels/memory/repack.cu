// repack: packed_tiles[packed_tile_offset(row, block, byte)] = file_rows[row][block][byte].
//
// A work item is up to kRunPackedTiles packed tiles of one M-tile (16 rows). It is 16 contiguous
// ranges of the file, and one range of packed tiles. The item is staged in shared memory in the
// order of the file; packed tiles are read from it and written to it word by word, through a map
// that a block builds once. Bytes moved: the matrix twice.
//
// File rows are read 16 bytes at a time if their length and address allow it, otherwise 4 or 1.
#include "kernels/memory/repack.h"
#include "kernels/shared/packed_tile.h"

namespace wcuda::kernels {
namespace {

using quant::kMTileRows;
using quant::TileLayout;

constexpr uint32_t kThreads = 256;
// 8 packed tiles of any type have a multiple of 16 bytes per row, so rows keep their alignment.
constexpr uint32_t kRunPackedTiles = 8;
constexpr uint32_t kRowBytesMax = 256;  // of one row of a packed tile
constexpr uint32_t kPackedTileBytesMax = kMTileRows * kRowBytesMax;
// Stride of rows in shared memory: 16 modulo 128, so that the words that 8 rows by 4 lanes access
// together are in different banks.
constexpr uint32_t kSharedRowBytes = kRunPackedTiles * kRowBytesMax + 16;
constexpr uint32_t kBlocksPerSm = 4;  // 37 KB of shared memory each

struct Params {
  TileLayout layout;
  uint64_t row_bytes;
  uint32_t row_count;
  uint32_t packed_tile_count;  // per M-tile
  uint32_t run_count;          // items per M-tile
  uint64_t item_count;
  uint32_t width;            // bytes of an access to file rows: 16, 4, 1
  const uint8_t* file_rows;  // (row_count, row_bytes)
  uint8_t* packed_tiles;     // the M-tile of row 0
};

// Copies `bytes` bytes per row from the file rows to shared memory, where the rest of a row is
// zero.
template <class Word>
__device__ inline void load_rows(const Params& params, uint64_t m_tile, uint64_t offset,
                                 uint32_t bytes, uint8_t* shared) {
  constexpr uint32_t kWidth = sizeof(Word);
  const uint32_t words = (bytes + kWidth - 1) / kWidth;
  for (uint32_t i = threadIdx.x; i < kMTileRows * words; i += kThreads) {
    const uint32_t row = i / words, at = i % words * kWidth;
    const uint64_t file_row = m_tile * kMTileRows + row;
    const bool present = file_row < params.row_count && offset + at < params.row_bytes;
    *reinterpret_cast<Word*>(shared + row * kSharedRowBytes + at) =
        present ? *reinterpret_cast<const Word*>(params.file_rows + file_row * params.row_bytes +
                                                 offset + at)
                : Word{};
  }
}

// Access: the widest unsigned integer that never contains bytes of two pieces.
template <class Access>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) repack_kernel(const Params params) {
  constexpr uint32_t kAccesses = sizeof(uint32_t) / sizeof(Access);  // of a word of a packed tile
  __shared__ alignas(16) uint8_t shared[kMTileRows * kSharedRowBytes];
  // map[access of a packed tile] = its offset in shared memory, in accesses, for the item's first
  // packed tile.
  __shared__ alignas(4)
      uint16_t map[kPackedTileBytesMax / (sizeof(Access) == 1 ? 4 : sizeof(Access))];

  const TileLayout& layout = params.layout;
  const uint32_t row_bytes_of_tile = uint32_t{layout.blocks} * layout.block_bytes;
  const uint32_t packed_tile_words = layout.packed_tile_bytes() / sizeof(uint32_t);
  const uint32_t row_accesses = row_bytes_of_tile / sizeof(Access);
  for (uint32_t i = threadIdx.x; i < kMTileRows * row_accesses; i += kThreads) {
    const uint32_t row = i / row_accesses, byte = i % row_accesses * sizeof(Access);
    const uint32_t place =
        packed_tile_offset(layout, row, byte / layout.block_bytes, byte % layout.block_bytes);
    map[place / sizeof(Access)] =
        static_cast<uint16_t>((row * kSharedRowBytes + byte) / sizeof(Access));
  }
  __syncthreads();

  auto* accesses = reinterpret_cast<Access*>(shared);
  for (uint64_t item = blockIdx.x; item < params.item_count; item += gridDim.x) {
    const uint64_t m_tile = item / params.run_count;
    const uint32_t first = static_cast<uint32_t>(item % params.run_count) * kRunPackedTiles;
    const uint32_t count = min(params.packed_tile_count - first, kRunPackedTiles);
    const uint64_t offset = uint64_t{first} * row_bytes_of_tile;
    auto* words = reinterpret_cast<uint32_t*>(params.packed_tiles +
                                              (m_tile * params.packed_tile_count + first) *
                                                  layout.packed_tile_bytes());

    const uint32_t bytes = count * row_bytes_of_tile;
    if (params.width == 16)
      load_rows<uint4>(params, m_tile, offset, bytes, shared);
    else if (params.width == 4)
      load_rows<uint32_t>(params, m_tile, offset, bytes, shared);
    else
      load_rows<uint8_t>(params, m_tile, offset, bytes, shared);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count * packed_tile_words; i += kThreads) {
      const uint32_t packed_tile = i / packed_tile_words, word = i % packed_tile_words;
      uint32_t value = 0;
#pragma unroll
      for (uint32_t u = 0; u < kAccesses; ++u)
        value |= uint32_t{accesses[map[word * kAccesses + u] + packed_tile * row_accesses]}
                 << (8 * sizeof(Access) * u);
      words[i] = value;
    }
    __syncthreads();
  }
}

// out[i] = element i. Bytes moved: the elements, and 4 written for each.
__global__ void __launch_bounds__(kThreads)
    expand_kernel(uint32_t type, uint32_t count, const uint8_t* elements, float* out) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  if (type == TensorType::kF32) {
    out[i] = reinterpret_cast<const float*>(elements)[i];
    return;
  }
  const uint16_t code = reinterpret_cast<const uint16_t*>(elements)[i];
  out[i] = type == TensorType::kF16 ? half_to_float(code) : bf16_to_float(code);
}

// Returns the bytes of an element of F32, F16 and BF16, whose "blocks" are 64 elements; 0 for
// quantized types.
uint32_t element_bytes(uint32_t type) {
  if (type == TensorType::kF32) return 4;
  return type == TensorType::kF16 || type == TensorType::kBF16 ? 2 : 0;
}

uint32_t access_bytes(const TileLayout& layout) {
  uint32_t bits = layout.block_bytes;
  for (uint32_t p = 0; p < layout.field_count; ++p)
    bits |= uint32_t{layout.fields[p].offset} | layout.fields[p].piece_bytes;
  return bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
}

}  // namespace

cudaError_t repack(uint32_t type, uint32_t rows, uint32_t cols, uint32_t first_row,
                   uint32_t row_count, const uint8_t* file_rows, uint8_t* packed_tiles,
                   cudaStream_t stream) {
  Params params{};
  params.layout = quant::tile_layout(type);
  const TileLayout& layout = params.layout;
  if (layout.blocks == 0 || layout.type != type) return cudaErrorInvalidValue;
  if (first_row > rows || row_count > rows - first_row || first_row % kMTileRows != 0)
    return cudaErrorInvalidValue;
  if (row_count % kMTileRows != 0 && first_row + row_count != rows) return cudaErrorInvalidValue;
  if (const uint32_t bytes = element_bytes(type))
    params.row_bytes = uint64_t{cols} * bytes;
  else if (cols % layout.block_elements == 0)
    params.row_bytes = uint64_t{cols} / layout.block_elements * layout.block_bytes;
  else
    return cudaErrorInvalidValue;
  if (row_count == 0 || cols == 0) return cudaSuccess;

  params.row_count = row_count;
  params.packed_tile_count = layout.packed_tile_count(cols);
  params.run_count = (params.packed_tile_count + kRunPackedTiles - 1) / kRunPackedTiles;
  params.item_count = (uint64_t{row_count} + kMTileRows - 1) / kMTileRows * params.run_count;
  const uint64_t alignment = params.row_bytes | reinterpret_cast<uintptr_t>(file_rows);
  params.width = alignment % 16 == 0 ? 16 : alignment % 4 == 0 ? 4 : 1;
  params.file_rows = file_rows;
  params.packed_tiles = packed_tiles + uint64_t{first_row} / kMTileRows * layout.m_tile_bytes(cols);

  int device = 0, sm_count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const uint64_t resident = static_cast<uint64_t>(sm_count) * kBlocksPerSm;
  const auto blocks =
      static_cast<uint32_t>(params.item_count < resident ? params.item_count : resident);
  switch (access_bytes(layout)) {
    case 4:
      repack_kernel<uint32_t><<<blocks, kThreads, 0, stream>>>(params);
      break;
    case 2:
      repack_kernel<uint16_t><<<blocks, kThreads, 0, stream>>>(params);
      break;
    default:
      repack_kernel<uint8_t><<<blocks, kThreads, 0, stream>>>(params);
  }
  return cudaPeekAtLastError();
}

cudaError_t expand_vector(uint32_t type, uint32_t count, const uint8_t* elements, float* out,
                          cudaStream_t stream) {
  if (element_bytes(type) == 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<uint32_t>((uint64_t{count} + kThreads - 1) / kThreads);
  expand_kernel<<<blocks, kThreads, 0, stream>>>(type, count, elements, out);
  return cudaPeekAtLastError();
}

}  // namespace wcuda::kernels
