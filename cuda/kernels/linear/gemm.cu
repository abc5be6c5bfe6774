// gemm: y[c][r] = Σ_k w[r][k] h[c][k], f16 operands, f32 sums.
//
// A block makes 128 rows by 128 columns in steps of 32 inputs: mma.sync m16n8k16, operands through
// a ring of kStages tiles in shared memory filled by cp.async. Eight warps, 64 rows by 32 columns
// each. What lies past the end is taken as zeros and not written. Rows of w that do not begin on
// 16 bytes (depth not a multiple of 8) are staged number by number. Bytes moved: w once for each
// 128 columns, h once for each 128 rows, y written once.
#include "kernels/linear/gemm.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/numeric.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kTileRows = 128;
constexpr uint32_t kTileColumns = 128;
constexpr uint32_t kTileDepth = 32;
constexpr uint32_t kStages = 4;
// 16 warps' worth of registers would not fit two blocks an SM: 8 warps with 64 sums a lane do.
constexpr uint32_t kGemmThreads = 256;
constexpr uint32_t kTileBytes = kTileRows * kTileDepth * 2;
constexpr uint32_t kGemmSharedBytes = kStages * 2 * kTileBytes;

static_assert(kTileRows == kTileColumns, "both operands are staged by one function");

// 16 bytes number `chunk` (0 … 3) of row `row` of a tile: rows are 64 bytes, and the eight rows
// that ldmatrix reads at once lie in different banks.
__device__ inline uint32_t tile_place(uint32_t row, uint32_t chunk) {
  return row * (kTileDepth * 2) + (chunk ^ (row >> 1 & 3)) * 16;
}

__device__ inline void copy_async(uint32_t target, const void* source, bool is_inside) {
  const uint32_t bytes = is_inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(bytes));
}

// Rows first … first + 127 of a matrix (row_count, depth), inputs k … k + 31.
__device__ inline void stage_tile(uint32_t target, const uint16_t* matrix, uint32_t first,
                                  uint32_t row_count, uint32_t depth, uint32_t k) {
#pragma unroll
  for (uint32_t i = 0; i < kTileBytes / 16 / kGemmThreads; ++i) {
    const uint32_t index = i * kGemmThreads + threadIdx.x, row = index / 4, chunk = index % 4;
    const bool is_inside = first + row < row_count && k + chunk * 8 < depth;
    const uint64_t offset = is_inside ? uint64_t{first + row} * depth + k + chunk * 8 : 0;
    copy_async(target + tile_place(row, chunk), matrix + offset, is_inside);
  }
}

// The same where rows lie at any even address.
__device__ inline void stage_unaligned_tile(uint8_t* target, const uint16_t* matrix, uint32_t first,
                                            uint32_t row_count, uint32_t depth, uint32_t k) {
  for (uint32_t index = threadIdx.x; index < kTileRows * kTileDepth; index += kGemmThreads) {
    const uint32_t row = index / kTileDepth, at = index % kTileDepth;
    const bool is_inside = first + row < row_count && k + at < depth;
    *reinterpret_cast<uint16_t*>(target + tile_place(row, at / 8) + at % 8 * 2) =
        is_inside ? matrix[uint64_t{first + row} * depth + k + at] : uint16_t{0};
  }
}

__device__ inline void load_matrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sums[i][j]: rows 16 i … of the warp's 64, columns 8 j … of its 32.
__device__ inline void multiply_tile(float (&sums)[4][4][4], uint32_t w_tile, uint32_t h_tile,
                                     uint32_t warp_row, uint32_t warp_column) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t k = 0; k < kTileDepth / 16; ++k) {
    uint32_t a[4][4], b[2][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
      load_matrices(a[i], w_tile + tile_place(warp_row + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j)
      load_matrices(b[j], h_tile + tile_place(warp_column + 16 * j + lane / 16 * 8 + lane % 8,
                                              2 * k + lane / 8 % 2));
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j)
        multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kGemmThreads, 2) gemm_kernel(const GemmArgs args) {
  extern __shared__ __align__(128) uint8_t gemm_shared[];
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(gemm_shared));
  const uint32_t first_row = blockIdx.x * kTileRows, first_column = blockIdx.y * kTileColumns;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
  const uint32_t step_count = (args.depth + kTileDepth - 1) / kTileDepth;

  const auto stage = [&](uint32_t step) {
    if (step < step_count) {
      const uint32_t offset = step % kStages * 2 * kTileBytes, k = step * kTileDepth;
      if (kAligned)
        stage_tile(shared + offset, args.w, first_row, args.rows, args.depth, k);
      else
        stage_unaligned_tile(gemm_shared + offset, args.w, first_row, args.rows, args.depth, k);
      stage_tile(shared + offset + kTileBytes, args.h, first_column, args.tokens, args.h_stride, k);
    }
    asm volatile("cp.async.commit_group;");
  };

  dependent_wait();
  float sums[4][4][4] = {};
  for (uint32_t step = 0; step + 1 < kStages; ++step) stage(step);
  for (uint32_t step = 0; step < step_count; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
    __syncthreads();
    stage(step + kStages - 1);
    const uint32_t tile = shared + step % kStages * 2 * kTileBytes;
    multiply_tile(sums, tile, tile + kTileBytes, warp_row, warp_column);
  }

#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j)
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        const uint32_t row = first_row + warp_row + 16 * i + lane / 4 + e / 2 * 8;
        const uint32_t column = first_column + warp_column + 8 * j + lane % 4 * 2 + e % 2;
        if (row >= args.rows || column >= args.tokens) continue;
        const uint64_t place = uint64_t{column} * args.y_stride + row;
        if (args.y_half != nullptr)
          args.y_half[place] = float_to_half(sums[i][j][e]);
        else
          args.y[place] = args.is_added ? args.y[place] + sums[i][j][e] : sums[i][j][e];
      }
}

}  // namespace

cudaError_t gemm(const GemmArgs& args, const Launch& launch) {
  if (args.rows == 0 || args.tokens == 0) return cudaSuccess;
  if (args.depth == 0 || args.h_stride % 8 != 0 || args.h_stride < args.depth)
    return cudaErrorInvalidValue;
  const auto kernel = args.depth % 8 == 0 ? gemm_kernel<true> : gemm_kernel<false>;
  if (const cudaError_t status = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kGemmSharedBytes))
    return status;
  const dim3 grid((args.rows + kTileRows - 1) / kTileRows,
                  (args.tokens + kTileColumns - 1) / kTileColumns);
  return launch_kernel(launch, grid, dim3(kGemmThreads), kGemmSharedBytes, 0, kernel, args);
}

}  // namespace wcuda::kernels
