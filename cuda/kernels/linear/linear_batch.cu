// linear_batch: selects the kernel for the types of the matrices, and launches it with the tiles of
// batch_plan.
#include <algorithm>
#include <atomic>
#include <functional>

#include "kernels/linear/batch_plan.h"
#include "kernels/linear/linear_batch.h"
#include "kernels/linear/linear_batch_instances.h"
#include "kernels/linear/linear_batch_kernel.cuh"
#include "kernels/linear/packed_gemm_plan.h"
#include "kernels/ptx/code.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {

#define WCUDA_DECLARE(type, second_type) extern WCUDA_LINEAR_BATCH(type, second_type);
WCUDA_LINEAR_BATCH_TYPES(WCUDA_DECLARE)
#undef WCUDA_DECLARE

namespace {

// Returns the kernel for matrices of both types, or null if there is none.
const BatchKernel* find_kernel(uint32_t type, uint32_t second_type) {
#define WCUDA_FIND(first, second) \
  if (type == first && second_type == second) return linear_batch_kernels<first, second>();
  WCUDA_LINEAR_BATCH_TYPES(WCUDA_FIND)
#undef WCUDA_FIND
  return nullptr;
}
const BatchKernel* find_kernel(uint32_t type) { return find_kernel(type, type); }

uint64_t input_bytes(uint32_t cols, uint32_t tokens) {
  return uint64_t{round_up(cols, kKTileInputs)} * round_up(tokens, 64) * 2;
}
uint64_t scale_bytes(uint32_t tokens) { return round_up(tokens, 64) * 4; }

HalfOperand input_place(uint32_t cols, uint32_t tokens, void* scratch) {
  HalfOperand place;
  place.h = static_cast<uint16_t*>(scratch);
  place.scales =
      reinterpret_cast<float*>(static_cast<uint8_t*>(scratch) + input_bytes(cols, tokens));
  place.tile_tokens = batch_tile_tokens(tokens);
  place.depth = round_up(cols, kKTileInputs);
  return place;
}

cudaError_t allow_shared_memory(void (*kernel)(LinearBatchParams)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              batch_shared_bytes(1));
}

// Returns how many clusters of `cluster` blocks can run at the same time. A cluster runs within one
// group of SMs (GPC), and these groups differ in size. Clusters that find no place run in a second
// wave: 15 instead of 8 us for 16 clusters of 8 (H200).
uint32_t resident_clusters(const void* kernel, uint32_t rows, uint32_t tile_tokens,
                           uint32_t cluster, uint32_t sm_count) {
  constexpr int32_t kDevicesMax = 32;
  constexpr uint32_t kBlocksMax = 4;  // per SM
  static std::atomic<uint32_t> known[kDevicesMax][kBlocksMax][kBatchClusterMax + 1];
  const uint32_t blocks = batch_blocks(rows, tile_tokens);
  if (cluster == 1) return sm_count * blocks;
  int32_t device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevicesMax) return sm_count / cluster;
  std::atomic<uint32_t>& count = known[device][blocks - 1][cluster];
  if (const uint32_t value = count.load(std::memory_order_relaxed)) return value;

  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(cluster * sm_count);
  config.blockDim = dim3(batch_threads(rows));
  config.dynamicSmemBytes = batch_shared_bytes(blocks);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int32_t clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess || clusters < 1)
    return sm_count / cluster;
  count.store(static_cast<uint32_t>(clusters), std::memory_order_relaxed);
  return static_cast<uint32_t>(clusters);
}

// The matrices from `second_matrix` on have the kernel's second type.
cudaError_t launch_type(LinearBatchParams params, const BatchKernel& kernel, uint32_t second_matrix,
                        uint32_t tile_tokens, uint32_t partitions, const Launch& launch) {
  params.token_tiles = divide_up(params.tokens, tile_tokens);
  const auto sm_count = static_cast<uint32_t>(launch.sm_count);
  const uint32_t size = tile_tokens == 16 ? 0 : tile_tokens == 32 ? 1 : 2;
  if (const cudaError_t status = allow_shared_memory(kernel.kernels[size])) return status;
  const auto resident = [&](uint32_t rows, uint32_t cluster) {
    return resident_clusters(reinterpret_cast<const void*>(kernel.kernels[size]), rows, tile_tokens,
                             cluster, sm_count);
  };
  const BatchTiles shape = plan_batch(params, tile_tokens, kernel.k_tile_bytes, partitions,
                                      {sm_count, std::cref(resident)});
  uint32_t tile = 0;
  params.second_tile = UINT32_MAX;
  for (uint32_t m = 0; m < params.matrix_count; ++m) {
    params.first_tile[m] = tile;
    if (m == second_matrix) params.second_tile = tile;
    if (!is_gate(params.epilogue)) tile += divide_up(params.rows[m], shape.rows);
  }
  for (uint32_t rank = 0; rank <= shape.cluster; ++rank)
    params.first_k_tile[rank] = params.k_tile_count * rank / shape.cluster;
  params.tile_rows = shape.rows;
  params.cluster = shape.cluster;
  uint32_t shared_bytes = 0;
  const uint32_t k_tiles = divide_up(params.k_tile_count, shape.cluster);
  for (uint32_t blocks = batch_blocks(shape.rows, tile_tokens); blocks > 0; blocks /= 2) {
    shared_bytes = batch_shared_bytes(blocks);
    params.weight_stage_count =
        batch_weight_stages(shape.rows, kernel.k_tile_bytes, k_tiles, tile_tokens, shared_bytes);
    if (params.weight_stage_count >= std::min(kBatchWeightStagesMin, k_tiles)) break;
  }
  return launch_kernel(launch, dim3(shape.cluster, params.token_tiles, shape.count),
                       dim3(batch_threads(shape.rows)), shared_bytes,
                       shape.cluster > 1 ? shape.cluster : 0, kernel.kernels[size], params);
}

}  // namespace

bool linear_batch_supports(const LinearArgs& args, const Launch& launch) {
  if (launch.compute_capability != 90 || !has_warpgroup_code()) return false;
  for (uint32_t m = 0; m < args.matrix_count; ++m)
    if (find_kernel(args.matrices[m].type) == nullptr) return false;
  return !is_gate(args.epilogue) || args.matrices[0].type == args.matrices[1].type;
}

uint64_t linear_batch_scratch_bytes(uint32_t cols, uint32_t tokens) {
  return input_bytes(cols, tokens) + scale_bytes(tokens);
}

bool linear_batch_operand(const LinearArgs& args, void* scratch, const Launch& launch,
                          HalfOperand* operand) {
  const Matrix& matrix = args.matrices[0];
  if (args.matrix_count != 1 || matrix.cols % 32 != 0 || !linear_batch_supports(args, launch))
    return false;
  *operand = input_place(matrix.cols, args.tokens, scratch);
  operand->order = find_kernel(matrix.type)->order;
  return true;
}

cudaError_t linear_batch(const LinearArgs& args, bool is_invariant, void* scratch,
                         const Launch& launch) {
  if (args.tokens == 0 || !linear_batch_supports(args, launch) || launch.sm_count < 1 ||
      (args.x == nullptr && args.matrix_count != 1))
    return cudaErrorInvalidValue;
  const uint32_t cols = args.matrices[0].cols;
  HalfInputArgs input;
  input.tokens = args.tokens;
  input.cols = cols;
  input.x = args.x;
  input.x_rows = args.x_rows;
  input.norm = args.norm;
  input.epsilon = args.epsilon;
  input.out = input_place(cols, args.tokens, scratch);
  // The bits of the sums depend only on the partitions of K.
  const uint32_t partitions =
      is_invariant ? invariant_partitions(row_count(args), input.out.depth / kKTileInputs,
                                          static_cast<uint32_t>(launch.sm_count))
                   : 0;

  // Writes the activations in each order that a type needs, then launches a kernel for one type or
  // two.
  bool is_done[kLinearMatricesMax] = {};
  for (uint32_t first = 0; first < args.matrix_count; ++first) {
    if (is_done[first]) continue;
    input.out.order = find_kernel(args.matrices[first].type)->order;
    if (args.x != nullptr)
      if (const cudaError_t status = half_input(input, launch)) return status;
    for (uint32_t i = first; i < args.matrix_count; ++i) {
      const BatchKernel* kernel = find_kernel(args.matrices[i].type);
      if (is_done[i] || kernel->order != input.out.order) continue;
      for (uint32_t m = i + 1; m < args.matrix_count; ++m)
        if (args.matrices[m].type != args.matrices[i].type && !is_done[m])
          if (const BatchKernel* const mixed =
                  find_kernel(args.matrices[i].type, args.matrices[m].type))
            kernel = mixed;
      LinearBatchParams params = {};
      params.tokens = args.tokens;
      const uint32_t inputs_of_packed_tile = kKTileInputs / kernel->packed_tiles;
      params.packed_tile_count = (cols + inputs_of_packed_tile - 1) / inputs_of_packed_tile;
      params.k_tile_count = input.out.depth / kKTileInputs;
      params.epilogue = args.epilogue;
      params.h = input.out.h;
      params.scales = input.out.scales;
      const auto add_matrices = [&](uint32_t type) {
        for (uint32_t m = i; m < args.matrix_count; ++m) {
          if (is_done[m] || args.matrices[m].type != type) continue;
          is_done[m] = true;
          if (args.matrices[m].rows == 0) continue;
          params.packed_tiles[params.matrix_count] = args.matrices[m].packed_tiles;
          params.scale_factors[params.matrix_count] = args.matrices[m].scale_factor;
          params.biases[params.matrix_count] = args.biases[m];
          params.outputs[params.matrix_count] = args.outputs[m];
          params.rows[params.matrix_count++] = args.matrices[m].rows;
        }
      };
      add_matrices(kernel->type);
      const uint32_t second_matrix = params.matrix_count;
      add_matrices(kernel->second_type);
      if (params.matrix_count == 0) continue;
      if (const cudaError_t status = launch_type(params, *kernel, second_matrix,
                                                 input.out.tile_tokens, partitions, launch))
        return status;
    }
  }
  return cudaSuccess;
}

}  // namespace wcuda::kernels
