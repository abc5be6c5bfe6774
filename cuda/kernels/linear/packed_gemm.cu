// packed_gemm: writes the activations in each order that the weight types need, then launches a
// kernel for each type or pair of types.
#include <algorithm>

#include "kernels/linear/packed_gemm.h"
#include "kernels/linear/packed_gemm_instances.h"
#include "kernels/linear/packed_gemm_kernel.cuh"
#include "kernels/linear/packed_gemm_mma.h"
#include "kernels/linear/packed_gemm_plan.h"
#include "kernels/linear/token_tiles.h"
#include "kernels/ptx/code.h"
#include "kernels/shared/arena.h"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {

#define WCUDA_DECLARE(type, second_type) extern WCUDA_PACKED_GEMM(type, second_type);
WCUDA_PACKED_GEMM_TYPES(WCUDA_DECLARE)
#undef WCUDA_DECLARE

namespace {

// Returns the kernel for matrices of both types, or null if there is none.
const GemmKernel* find_kernel(uint32_t type, uint32_t second_type) {
#define WCUDA_FIND(first, second) \
  if (type == first && second_type == second) return packed_gemm_kernels<first, second>();
  WCUDA_PACKED_GEMM_TYPES(WCUDA_FIND)
#undef WCUDA_FIND
  return nullptr;
}
const GemmKernel* find_kernel(uint32_t type) { return find_kernel(type, type); }

uint64_t token_bytes(uint32_t cols, uint32_t tokens) {
  return uint64_t{round_up(cols, kKTileInputs)} * round_up(tokens, kGemmTileTokens[1]) * 2;
}
// What a grouped launch has in its input memory. Over a null base, only its bytes.
struct GroupedInput {
  uint32_t tile_tokens;
  uint32_t tiles_max;
  Arena arena;
  uint16_t* h;
  float* scales;
  TokenTile* tiles;
  uint32_t* places;

  GroupedInput(uint32_t cols, uint32_t tokens, uint32_t groups, void* base)
      : tile_tokens(has_warpgroup_code() ? kGroupedTokens : kMmaTokens),
        tiles_max(token_tiles_max(tokens, groups, tile_tokens)),
        arena(base),
        h(arena.take<uint16_t>(uint64_t{round_up(cols, kKTileInputs)} * tiles_max * tile_tokens)),
        scales(arena.take<float>(tokens)),
        tiles(arena.take<TokenTile>(tiles_max)),
        places(arena.take<uint32_t>(tokens)) {}
};
uint64_t counter_bytes(const Launch& launch) {
  return round_up(8 * static_cast<uint32_t>(launch.sm_count), 256);
}

// The matrices of a launch, in the order of the two types.
struct Matrices {
  const GemmKernel* kernel;
  PackedGemmParams params;

  void add(const LinearArgs& args, uint32_t m) {
    const uint32_t i = params.matrix_count++;
    params.packed_tiles[i] = args.matrices[m].packed_tiles;
    params.scale_factors[i] = args.matrices[m].scale_factor;
    params.biases[i] = args.biases[m];
    params.outputs[i] = args.outputs[m];
    params.rows[i] = args.matrices[m].rows;
  }
};

cudaError_t launch_matrices(Matrices* matrices, const GemmPlan& plan, const Launch& launch) {
  PackedGemmParams& params = matrices->params;
  params.token_tiles = plan.token_tiles;
  params.row_pairs = divide_up(plan.row_tiles, kGemmCluster);
  params.iteration_count = plan.iteration_count;
  params.tile_count = plan.iteration_count / params.k_tile_count;
  params.full_pairs = plan.full_pairs;
  params.run_tiles = (params.tile_count + plan.clusters - 1) / plan.clusters;
  params.tile_pieces = plan.tile_pieces;
  params.partitions = plan.partitions;
  params.token_stages = plan.token_stages;
  params.weight_stages = plan.weight_stages;
  params.weight_stage_bytes =
      kGemmWarps * matrices->kernel->k_tile_bytes / gemm_parts(matrices->kernel->k_tile_bytes);
  std::copy_n(plan.first_tile, kLinearMatricesMax, params.first_tile);
  const auto kernel =
      params.groups != nullptr
          ? matrices->kernel->grouped
          : matrices->kernel->kernels[plan.tile_tokens == kGemmTileTokens[0] ? 0 : 1];
  if (const cudaError_t status = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kGemmSharedBytes))
    return status;
  return launch_kernel(launch, dim3(plan.clusters * kGemmCluster), dim3(kGemmThreads),
                       kGemmSharedBytes, kGemmCluster, kernel, params);
}

// Returns the next matrices of a launch: those of the first type that is not done and, if one
// kernel supports both and `may_mix`, those of another type.
Matrices next_matrices(const LinearArgs& args, bool may_mix, bool (&is_done)[kLinearMatricesMax]) {
  uint32_t first = 0;
  while (is_done[first]) ++first;
  Matrices matrices = {find_kernel(args.matrices[first].type), {}};
  for (uint32_t m = first + 1; m < args.matrix_count && may_mix; ++m)
    if (!is_done[m] && args.matrices[m].type != args.matrices[first].type)
      if (const GemmKernel* const mixed =
              find_kernel(args.matrices[first].type, args.matrices[m].type))
        matrices.kernel = mixed;
  PackedGemmParams& params = matrices.params;
  for (const uint32_t type : {matrices.kernel->type, matrices.kernel->second_type}) {
    if (type == matrices.kernel->second_type) params.second_matrix = params.matrix_count;
    for (uint32_t m = first; m < args.matrix_count; ++m) {
      if (is_done[m] || args.matrices[m].type != type) continue;
      is_done[m] = true;
      if (args.matrices[m].rows != 0) matrices.add(args, m);
    }
  }
  return matrices;
}

bool writes_in_bulk(const PackedGemmParams& params) {
  if (params.epilogue != Epilogue::kStore && params.epilogue != Epilogue::kAdd) return false;
  for (uint32_t m = 0; m < params.matrix_count; ++m)
    if (params.rows[m] % 4 != 0 || reinterpret_cast<uintptr_t>(params.outputs[m]) % 16 != 0)
      return false;
  return true;
}

// How the launches of a layer divide its tokens.
struct TokenDivision {
  bool is_invariant = false;
  uint32_t groups = 0;  // of tokens; 0: all have the same matrices
  const TokenTile* tiles = nullptr;
};

GemmPlan plan_matrices(const Matrices& matrices, const LinearArgs& args,
                       const TokenDivision& division, const Launch& launch) {
  GemmLayer layer;
  layer.tokens = args.tokens;
  layer.k_tiles = divide_up(args.matrices[0].cols, kKTileInputs);
  std::copy_n(matrices.params.rows, kLinearMatricesMax, layer.rows);
  layer.is_gate = is_gate(args.epilogue);
  layer.matrix_count = layer.is_gate ? 1 : matrices.params.matrix_count;
  layer.may_have_short_pairs =
      layer.matrix_count == 1 && matrices.kernel->type == matrices.kernel->second_type;
  layer.k_tile_bytes = matrices.kernel->k_tile_bytes;
  layer.sm_count = static_cast<uint32_t>(launch.sm_count);
  layer.groups = division.groups;
  if (division.is_invariant)
    layer.partitions = invariant_partitions(row_count(args), layer.k_tiles, layer.sm_count);
  return plan_gemm(layer);
}

// `x` may be null, if `input` holds the converted activations.
HalfInputArgs input_args(const LinearArgs& args, void* input) {
  HalfInputArgs half;
  half.tokens = args.tokens;
  half.cols = args.matrices[0].cols;
  half.out.depth = round_up(half.cols, kKTileInputs);
  half.x = args.x;
  half.x_rows = args.x_rows;
  half.norm = args.norm;
  half.epsilon = args.epsilon;
  half.out.h = static_cast<uint16_t*>(input);
  half.out.scales =
      reinterpret_cast<float*>(static_cast<uint8_t*>(input) + token_bytes(half.cols, args.tokens));
  return half;
}

// Launches each of the types of a layer. `half` has all but tile_tokens and order.
cudaError_t run(const LinearArgs& args, HalfInputArgs half, const TokenDivision& division,
                const GemmOperand& operand, const Launch& launch) {
  bool is_done[kLinearMatricesMax] = {};
  while (std::count(is_done, is_done + args.matrix_count, false) != 0) {
    Matrices matrices = next_matrices(args, division.groups == 0, is_done);
    PackedGemmParams& params = matrices.params;
    if (params.matrix_count == 0) continue;
    params.tokens = args.tokens;
    params.groups = division.tiles;
    const uint32_t packed_tile_inputs = kKTileInputs / matrices.kernel->packed_tiles;
    params.packed_tile_count = divide_up(half.cols, packed_tile_inputs);
    params.k_tile_count = half.out.depth / kKTileInputs;
    params.k_groups = round_up(divide_up(half.cols, 32), gemm_stage_groups(kGemmTileTokens[1]));
    params.epilogue = args.epilogue;
    params.writes_in_bulk = writes_in_bulk(params);
    params.h = half.out.h;
    params.scales = half.out.scales;
    params.norms = half.norms;
    params.operand = operand;
    params.counters = static_cast<uint32_t*>(launch.scratch);
    params.partials =
        reinterpret_cast<float*>(static_cast<uint8_t*>(launch.scratch) + counter_bytes(launch));
    const GemmPlan plan = plan_matrices(matrices, args, division, launch);
    if (plan.clusters == 0) return cudaErrorInvalidValue;
    // Writes the activations again if tiles or order of inputs differ from the previous launch.
    if (args.x != nullptr &&
        (half.out.order != matrices.kernel->order || half.out.tile_tokens != plan.tile_tokens)) {
      half.out.order = matrices.kernel->order;
      half.out.tile_tokens = plan.tile_tokens;
      if (const cudaError_t status = half_input(half, launch)) return status;
    }
    if (const cudaError_t status = launch_matrices(&matrices, plan, launch)) return status;
  }
  return cudaSuccess;
}

}  // namespace

bool packed_gemm_supports(const LinearArgs& args, const Launch& launch) {
  for (uint32_t m = 0; m < args.matrix_count; ++m)
    if (find_kernel(args.matrices[m].type) == nullptr) return false;
  // Code with WGMMA runs only on compute capability 9.0.
  return !has_warpgroup_code() ||
         (launch.compute_capability == 90 &&
          (!is_gate(args.epilogue) || args.matrices[0].type == args.matrices[1].type));
}

uint64_t packed_gemm_input_bytes(uint32_t cols, uint32_t tokens) {
  return token_bytes(cols, tokens) + 2 * round_up(tokens, kGemmTileTokens[1]) * sizeof(float);
}

uint64_t packed_gemm_scratch_bytes(const Launch& launch) {
  if (launch.compute_capability != 90) return 0;
  return counter_bytes(launch) +
         uint64_t(launch.sm_count) * 2 * kGemmRows * kGemmTileTokens[1] * sizeof(float);
}

bool packed_gemm_operand(const LinearArgs& args, bool is_invariant, void* input,
                         const Launch& launch, HalfOperand* operand) {
  if (!has_warpgroup_code() || args.matrix_count != 1 || args.matrices[0].cols % 32 != 0 ||
      !packed_gemm_supports(args, launch))
    return false;
  bool is_done[kLinearMatricesMax] = {};
  const Matrices matrices = next_matrices(args, true, is_done);
  *operand = input_args(args, input).out;
  operand->order = matrices.kernel->order;
  operand->tile_tokens = plan_matrices(matrices, args, {is_invariant}, launch).tile_tokens;
  return true;
}

cudaError_t packed_gemm(const LinearArgs& args, bool is_invariant, void* input,
                        const Launch& launch, const GemmOperand& operand) {
  if (args.tokens == 0 || !packed_gemm_supports(args, launch)) return cudaErrorInvalidValue;
  if (operand.out.h != nullptr &&
      (!has_warpgroup_code() || !is_gate(args.epilogue) || args.biases[0] != nullptr ||
       args.biases[1] != nullptr || args.matrices[0].rows % kKTileInputs != 0))
    return cudaErrorInvalidValue;
  HalfInputArgs half = input_args(args, input);
  if (!has_warpgroup_code()) return packed_gemm_mma(args, half, {}, launch);
  if (launch.sm_count < 2 || launch.scratch_bytes < packed_gemm_scratch_bytes(launch) ||
      (args.x == nullptr && args.matrix_count != 1))
    return cudaErrorInvalidValue;
  if (operand.out.h != nullptr)
    half.norms = half.out.scales + round_up(args.tokens, kGemmTileTokens[1]);
  return run(args, half, {is_invariant}, operand, launch);
}

uint64_t packed_gemm_grouped_input_bytes(uint32_t cols, uint32_t tokens, uint32_t groups) {
  return GroupedInput(cols, tokens, groups, nullptr).arena.bytes();
}

cudaError_t packed_gemm_grouped(const LinearArgs& args, const TokenGroups& groups, void* input,
                                const Launch& launch) {
  if (args.tokens == 0 || args.x == nullptr || !packed_gemm_supports(args, launch) ||
      groups.count == 0 || groups.count > kTokenGroupsMax)
    return cudaErrorInvalidValue;
  const GroupedInput grouped(args.matrices[0].cols, args.tokens, groups.count, input);
  TokenTilesArgs tiles;
  tiles.groups = groups;
  tiles.tokens = args.tokens;
  tiles.tile_tokens = grouped.tile_tokens;
  tiles.tiles = grouped.tiles;
  tiles.places = grouped.places;
  if (const cudaError_t status = token_tiles(tiles, launch)) return status;
  HalfInputArgs half = input_args(args, grouped.h);
  half.out.scales = grouped.scales;
  half.places = grouped.places;
  if (!has_warpgroup_code())
    return packed_gemm_mma(args, half, {grouped.tiles, grouped.tiles_max}, launch);
  if (launch.sm_count < 2) return cudaErrorInvalidValue;
  return run(args, half, {false, groups.count, grouped.tiles}, {}, launch);
}

}  // namespace wcuda::kernels
