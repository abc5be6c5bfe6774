// pad_matrix: target[b][r][c] = source[b][r][c] where the source has such an element, else 0.
//
// Shapes: source (source_rows, source_columns) or, transposed, (source_columns, source_rows);
// target (rows, columns). Alignment: that of an element. Bytes moved: each source element read
// once, each target element written once, both along rows; a transposed source passes through a
// tile in shared memory. H200: 4,093 x 4,093 elements of 1 byte in 53 us, transposed 60; of 2 bytes
// 71 and 64.
#include "kernels/memory/pad_matrix.h"

namespace wcuda::kernels {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = 8;  // threads of a block: 32 x 8
constexpr int64_t kBlocksMax = 1 << 16;

// Tiles of the target are numbered row by row, then batch by batch.
struct Tiles {
  int64_t down, across, count;
};

inline Tiles tiles_of(const PadMatrixArgs& args) {
  const int64_t down = (args.rows + kTile - 1) / kTile;
  const int64_t across = (args.columns + kTile - 1) / kTile;
  return {down, across, down * across * args.batch};
}

template <class T>
__device__ inline T source_at(const PadMatrixArgs& args, int64_t batch, int64_t row,
                              int64_t column) {
  if (row >= args.source_rows || column >= args.source_columns) return 0;
  const int64_t at =
      args.is_transposed ? column * args.source_stride + row : row * args.source_stride + column;
  return static_cast<const T*>(args.source)[batch * args.source_batch_stride + at];
}

template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    pad_matrix_kernel(const PadMatrixArgs args, const Tiles tiles) {
  __shared__ T tile[kTile][kTile + 1];
  for (int64_t index = blockIdx.x; index < tiles.count; index += gridDim.x) {
    const int64_t batch = index / (tiles.down * tiles.across);
    const int64_t first_row = index / tiles.across % tiles.down * kTile;
    const int64_t first_column = index % tiles.across * kTile;
    if (args.is_transposed) {
      __syncthreads();  // the previous tile has been read
      for (int i = threadIdx.y; i < kTile; i += kTileRows)
        tile[threadIdx.x][i] = source_at<T>(args, batch, first_row + threadIdx.x, first_column + i);
      __syncthreads();
    }
    for (int i = threadIdx.y; i < kTile; i += kTileRows) {
      const int64_t row = first_row + i, column = first_column + threadIdx.x;
      if (row >= args.rows || column >= args.columns) continue;
      static_cast<T*>(
          args.target)[batch * args.target_batch_stride + row * args.target_stride + column] =
          args.is_transposed ? tile[i][threadIdx.x] : source_at<T>(args, batch, row, column);
    }
  }
}

template <class T>
cudaError_t launch(const PadMatrixArgs& args, const Tiles& tiles, cudaStream_t stream) {
  const int64_t blocks = tiles.count < kBlocksMax ? tiles.count : kBlocksMax;
  pad_matrix_kernel<T>
      <<<static_cast<uint32_t>(blocks), dim3(kTile, kTileRows), 0, stream>>>(args, tiles);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t pad_matrix(const PadMatrixArgs& args, cudaStream_t stream) {
  const Tiles tiles = tiles_of(args);
  if (tiles.count <= 0) return cudaSuccess;
  switch (args.element_bytes) {
    case 1:
      return launch<uint8_t>(args, tiles, stream);
    case 2:
      return launch<uint16_t>(args, tiles, stream);
    case 4:
      return launch<uint32_t>(args, tiles, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace wcuda::kernels
