// The kernel of packed_gemm for one weight type on devices without WGMMA: mma.sync m16n8k16. Only
// for .cu files.
//
//   CTA    4 or 8 warps. Each warp computes an M-tile (16 rows) for 64 tokens over all inputs
//   step   half a K-tile (128 inputs). While the warps multiply one step, cp.async copies the next
//
//   weights   K-tile 0        | K-tile 1        | …
//   tokens    step 0 | step 1 | step 2 | step 3 | …
//
// Each warp copies its own packed tiles: a whole K-tile every second step, or half a K-tile every
// step if that is a whole number of packed tiles.
//
// A warp converts packed tiles to operand A in its registers. Activations are stored in the order
// that half_input.h defines, and ldmatrix reads operand B from their swizzled panels without bank
// conflicts. A sum is computed in one fixed order, so a token's bits depend only on its own x.
//
// Bytes moved: packed tiles once for every 64 tokens, activations once for every CTA of rows. CTAs
// of the same rows have neighbouring indices, so most reads of the same weights hit L2.
#pragma once

#include "kernels/linear/half_tile.cuh"
#include "kernels/linear/linear_activation.cuh"
#include "kernels/linear/packed_gemm_kernel.cuh"
#include "kernels/linear/packed_gemm_mma.h"
#include "kernels/ptx/copy_async.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace wcuda::kernels {

// A panel has 64 inputs, which are 128 bytes per token. A step has two panels.
constexpr uint32_t kMmaPanelBytes = kMmaTokens * 128;
constexpr uint32_t kMmaTokenBytes = 2 * kMmaPanelBytes;

template <TensorType kType>
struct MmaShape {
  using Operand = HalfTile<kType>;
  static constexpr uint32_t kSteps = Operand::kPackedTiles > 1 ? 1 : 2;  // per stage of weights
  static constexpr uint32_t kWeightBytes = Operand::kKTileBytes / 2 * kSteps;  // of a warp's stage
  // Two stages fit into the 99 KB that a CTA has on compute capability 8.6, 8.9 and 12.0.
  static constexpr uint32_t kWarps = kWeightBytes > 4096 ? 4 : 8;
  static constexpr uint32_t kSharedBytes = 2 * (kMmaTokenBytes + kWarps * kWeightBytes);
  static_assert(kWeightBytes % 16 == 0 && kSharedBytes <= 96 * 1024);
};

template <TensorType kType>
__global__ void __launch_bounds__(MmaShape<kType>::kWarps * 32, 16 / MmaShape<kType>::kWarps)
    packed_gemm_mma_kernel(const __grid_constant__ GemmMmaParams params) {
#if !WCUDA_HAS_WARPGROUPS
  using Shape = MmaShape<kType>;
  using Operand = typename Shape::Operand;
  extern __shared__ __align__(128) uint8_t mma_shared[];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t token_tile = blockIdx.x % params.token_tiles;
  uint32_t first_token = token_tile * kMmaTokens, group = 0;
  uint32_t tokens = min(params.tokens - first_token, kMmaTokens);
  if (params.groups != nullptr) {
    dependent_wait();
    const TokenTile tile = params.groups[token_tile];
    if (tile.count == 0) return;
    group = tile.group;
    first_token = tile.first;
    tokens = tile.count;
  }
  const uint32_t first_row =
      (blockIdx.x / params.token_tiles * Shape::kWarps + warp) * quant::kMTileRows;
  const uint32_t step_count = params.k_tile_count * 2;

  // Warps past the end of the matrix compute its last M-tile again and write nothing.
  const uint32_t last_m_tile = (params.rows - 1) / quant::kMTileRows;
  const uint8_t* const m_tile =
      params.packed_tiles +
      (uint64_t{group} * (last_m_tile + 1) + min(first_row / quant::kMTileRows, last_m_tile)) *
          params.m_tile_bytes;
  const uint8_t* const h = reinterpret_cast<const uint8_t*>(params.h) +
                           uint64_t{token_tile} * step_count * kMmaTokenBytes;
  const auto token_stage = [&](uint32_t step) { return step % 2 * kMmaTokenBytes; };
  const auto weight_stage = [&](uint32_t step) {
    const uint32_t stage = step / Shape::kSteps % 2;
    return 2 * kMmaTokenBytes + (stage * Shape::kWarps + warp) * Shape::kWeightBytes;
  };
  // Fills the stage with zeros past the end of an M-tile.
  const auto fetch_weights = [&](uint32_t step) {
    const uint64_t offset = uint64_t{step / Shape::kSteps} * Shape::kWeightBytes;
    const uint32_t target = shared_address(mma_shared) + weight_stage(step);
    for (uint32_t i = lane * 16; i < Shape::kWeightBytes; i += 512) {
      const bool is_inside = offset + i < params.m_tile_bytes;
      copy_async_16(target + i, is_inside ? m_tile + offset + i : m_tile, is_inside ? 16 : 0);
    }
  };
  const auto fetch_tokens = [&](uint32_t step) {
    const uint8_t* const source = h + uint64_t{step} * kMmaTokenBytes;
    const uint32_t target = shared_address(mma_shared) + token_stage(step);
    for (uint32_t i = threadIdx.x * 16; i < kMmaTokenBytes; i += Shape::kWarps * 512)
      copy_async_16(target + i, source + i, i % kMmaPanelBytes < tokens * 128 ? 16 : 0);
  };

  const __half2 factor = __float2half2_rn(params.scale_factor);
  const float sum_factor =
      1.0f / (Operand::kWeightScale * (Operand::kHasScaleFactor ? params.scale_factor : 1.0f));
  dependent_trigger();
  fetch_weights(0);
  prepare_operand<Operand>(0);
  dependent_wait();
  fetch_tokens(0);
  copy_async_commit();

  float sums[kMmaTokens / 8][4] = {};               // 8 tokens each, in the layout of mma.cuh
  const uint32_t token = lane / 16 * 8 + lane % 8;  // its address is the lane's operand of ldmatrix
#pragma unroll 1
  for (uint32_t k_tile = 0; k_tile < params.k_tile_count; ++k_tile) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t step = k_tile * 2 + half;
      copy_async_wait<0>();
      __syncthreads();  // this step's copies are complete, and all warps have finished the last
                        // step
      if (step + 1 < step_count) {
        if ((step + 1) % Shape::kSteps == 0) fetch_weights(step + 1);
        fetch_tokens(step + 1);
        copy_async_commit();
      }
      // load() expects a whole K-tile; a stage of half a K-tile is addressed as a part of one.
      Operand operand;
      operand.load(
          mma_shared + weight_stage(step) - (Shape::kSteps == 1 ? half * Shape::kWeightBytes : 0),
          half, lane, factor);
#pragma unroll
      for (uint32_t m = 0; m < 4; ++m) {
        uint32_t a[8];
        operand.group(half, m, lane, a);
        const uint32_t panel =
            shared_address(mma_shared) + token_stage(step) + m / 2 * kMmaPanelBytes;
#pragma unroll
        for (uint32_t n = 0; n < kMmaTokens / 16; ++n) {
          if (n * 16 >= tokens) continue;
#pragma unroll
          for (uint32_t i = 0; i < 2; ++i) {
            const uint32_t chunk = m % 2 * 4 + 2 * i + lane / 8 % 2;
            uint32_t b[4];
            load_tiles(b, panel + (n * 16 + token) * 128 + (chunk ^ token % 8) * 16);
            mma_f16(sums[2 * n], a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[0], b[1]);
            mma_f16(sums[2 * n + 1], a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[2],
                    b[3]);
          }
        }
      }
    }
  }

#pragma unroll
  for (uint32_t i = 0; i < kMmaTokens / 2; ++i) {
    const uint32_t column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const uint32_t row = first_row + lane / 4 + i / 2 % 2 * 8;
    if (column >= tokens || row >= params.rows) continue;
    float* const output = params.output + uint64_t{first_token + column} * params.rows + row;
    const float scale = params.scales[first_token + column] * sum_factor;
    float value = sums[i / 4][i % 4] * scale;
    if (params.bias != nullptr) value += params.bias[uint64_t{group} * params.rows + row];
    if (params.epilogue == Epilogue::kAdd)
      value += *output;
    else if (params.epilogue != Epilogue::kStore)
      value = activation_fast(params.epilogue == Epilogue::kSiluTimes, value) * *output;
    *output = value;
  }
#endif
}

// Returns null for two different types, because each matrix then has its own launch.
template <TensorType kType, TensorType kSecond>
const GemmMmaKernel* packed_gemm_mma_kernel() {
  if constexpr (kType == kSecond) {
    using Shape = MmaShape<kType>;
    static constexpr GemmMmaKernel kKernel = {Shape::Operand::kOrder, Shape::kWarps,
                                              Shape::kSharedBytes, packed_gemm_mma_kernel<kType>};
    return &kKernel;
  } else {
    return nullptr;
  }
}

// Instantiates the kernels of one type (passed twice) or of two, in a source file of their own.
#define WCUDA_PACKED_GEMM_ALL(type, second_type) \
  WCUDA_PACKED_GEMM(type, second_type);          \
  template const GemmMmaKernel* packed_gemm_mma_kernel<type, second_type>()

}  // namespace wcuda::kernels
