// packed_gemm_mma: writes the activations in the order of each type, then launches each matrix.
#include "kernels/linear/packed_gemm_instances.h"
#include "kernels/linear/packed_gemm_mma.cuh"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {

#define WCUDA_DECLARE(type, second_type) \
  extern template const GemmMmaKernel* packed_gemm_mma_kernel<type, second_type>();
WCUDA_PACKED_GEMM_TYPES(WCUDA_DECLARE)
#undef WCUDA_DECLARE

namespace {

const GemmMmaKernel* find_kernel(uint32_t type) {
#define WCUDA_FIND(first, second) \
  if (type == first && type == second) return packed_gemm_mma_kernel<first, second>();
  WCUDA_PACKED_GEMM_TYPES(WCUDA_FIND)
#undef WCUDA_FIND
  return nullptr;
}

}  // namespace

cudaError_t packed_gemm_mma(const LinearArgs& args, HalfInputArgs half, const TokenTiles& tiles,
                            const Launch& launch) {
  const bool has_groups = tiles.tiles != nullptr;
  const uint32_t token_tiles = has_groups ? tiles.count : divide_up(args.tokens, kMmaTokens);
  half.out.tile_tokens = kMmaTokens;
  for (uint32_t i = 0; i < args.matrix_count; ++i) {
    // In a gate epilogue, the output holds the result of up until the launch of gate multiplies it.
    const uint32_t m = is_gate(args.epilogue) ? args.matrix_count - 1 - i : i;
    const Matrix& matrix = args.matrices[m];
    const GemmMmaKernel* const kernel = find_kernel(matrix.type);
    if (kernel == nullptr) return cudaErrorInvalidValue;
    if (i == 0 || half.out.order != kernel->order) {
      half.out.order = kernel->order;
      if (const cudaError_t status = half_input(half, launch)) return status;
    }
    if (matrix.rows == 0) continue;
    GemmMmaParams params;
    params.tokens = args.tokens;
    params.rows = matrix.rows;
    params.token_tiles = token_tiles;
    params.k_tile_count = half.out.depth / kKTileInputs;
    params.scale_factor = matrix.scale_factor;
    params.m_tile_bytes = quant::tile_layout(matrix.type).m_tile_bytes(half.cols);
    params.epilogue = !is_gate(args.epilogue) ? args.epilogue
                      : m == 1                ? Epilogue::kStore
                                              : times_of(args.epilogue);
    params.h = half.out.h;
    params.scales = half.out.scales;
    params.groups = tiles.tiles;
    params.packed_tiles = matrix.packed_tiles;
    params.bias = args.biases[m];
    params.output = args.outputs[is_gate(args.epilogue) ? 0 : m];
    if (const cudaError_t status = cudaFuncSetAttribute(
            kernel->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel->shared_bytes))
      return status;
    const uint32_t tile_rows = kernel->warps * quant::kMTileRows;
    const uint32_t row_tiles = divide_up(matrix.rows, tile_rows);
    if (const cudaError_t status =
            launch_kernel(launch, dim3(row_tiles * token_tiles), dim3(kernel->warps * 32),
                          kernel->shared_bytes, 0, kernel->kernel, params))
      return status;
  }
  return cudaSuccess;
}

}  // namespace wcuda::kernels
