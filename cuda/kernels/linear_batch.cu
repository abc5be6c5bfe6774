// linear_batch: which kernel, how many rows a block, how many blocks share a tile.
#include "kernels/linear_batch.h"
#include "kernels/linear_batch_kernel.h"

namespace wcuda::kernels {
namespace {

const BatchKernel* find_kernel(uint32_t type) {
  for (const auto find : {find_batch_plain, find_batch_legacy, find_batch_k, find_batch_few_bits,
                          find_batch_levels, find_batch_grid})
    if (const BatchKernel* const kernel = find(type)) return kernel;
  return nullptr;
}

constexpr uint32_t round_up(uint32_t value, uint32_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr bool is_gate(Epilogue epilogue) {
  return epilogue == Epilogue::kSiluGate || epilogue == Epilogue::kGeluTanhGate;
}
uint64_t input_bytes(uint32_t cols) {
  return uint64_t{round_up(cols, kChunkInputs)} * kLinearBatchColumnsMax * 2;
}
constexpr uint32_t kOrders = 3;
constexpr uint32_t kScaleBytes = kLinearBatchColumnsMax * 4;

// How the matrices of one type are cut. Of shapes, type and sm_count alone.
struct Shape {
  uint32_t warpgroups;
  uint32_t tiles;
  uint32_t cluster;
};

uint32_t tile_count(const LinearBatchParams& params, uint32_t warpgroups) {
  if (is_gate(params.epilogue)) return (params.rows[0] + warpgroups * 32 - 1) / (warpgroups * 32);
  uint32_t tiles = 0;
  for (uint32_t m = 0; m < params.matrix_count; ++m)
    tiles += (params.rows[m] + warpgroups * 64 - 1) / (warpgroups * 64);
  return tiles;
}

Shape choose_shape(const LinearBatchParams& params, const BatchKernel& kernel, uint32_t sm_count) {
  constexpr uint32_t kColumnBytes = kChunkInputs * kLinearBatchColumnsMax * 2;
  const uint32_t shares =
      params.chunk_count < kBatchClusterMax ? params.chunk_count : kBatchClusterMax;
  Shape shape{kBatchWarpgroupsMax, 0, 1};
  // Tall tiles read the columns less often: as tall as two stages allow, lower where that leaves
  // multiprocessors idle.
  while (shape.warpgroups > 1 &&
         (2 * (shape.warpgroups * 4 * kernel.chunk_bytes + kColumnBytes) + kBatchBarrierBytes >
              kBatchSharedBytes ||
          tile_count(params, shape.warpgroups) * shares < sm_count * 3 / 4))
    shape.warpgroups /= 2;
  shape.tiles = tile_count(params, shape.warpgroups);
  shape.cluster = sm_count / shape.tiles;
  if (shape.cluster < 1) shape.cluster = 1;
  if (shape.cluster > shares) shape.cluster = shares;
  return shape;
}

cudaError_t launch_type(LinearBatchParams params, const BatchKernel& kernel, const Launch& launch) {
  const Shape shape = choose_shape(params, kernel, static_cast<uint32_t>(launch.sm_count));
  uint32_t tile = 0;
  for (uint32_t m = 0; m < params.matrix_count; ++m) {
    params.first_tile[m] = tile;
    if (!is_gate(params.epilogue))
      tile += (params.rows[m] + shape.warpgroups * 64 - 1) / (shape.warpgroups * 64);
  }
  params.warpgroups = shape.warpgroups;
  params.cluster = shape.cluster;
  const uint32_t size = params.columns <= 16 ? 0 : params.columns <= 32 ? 1 : 2;
  const uint32_t columns = 16u << size;
  const uint32_t stage_bytes =
      shape.warpgroups * 4 * kernel.chunk_bytes + kChunkInputs * columns * 2;
  params.stage_count = (kBatchSharedBytes - kBatchBarrierBytes) / stage_bytes;
  if (params.stage_count > kBatchStagesMax) params.stage_count = kBatchStagesMax;
  if (const cudaError_t status = cudaFuncSetAttribute(
          kernel.kernels[size], cudaFuncAttributeMaxDynamicSharedMemorySize, kBatchSharedBytes))
    return status;
  return launch_kernel(launch, dim3(shape.tiles * shape.cluster), dim3(shape.warpgroups * 128 + 32),
                       kBatchSharedBytes, shape.cluster > 1 ? shape.cluster : 0,
                       kernel.kernels[size], params);
}

}  // namespace

bool linear_batch_supports(const LinearArgs& args, const Launch& launch) {
  if (launch.compute_capability != 90) return false;
  for (uint32_t m = 0; m < args.matrix_count; ++m)
    if (find_kernel(args.matrices[m].type) == nullptr) return false;
  return !is_gate(args.epilogue) || args.matrices[0].type == args.matrices[1].type;
}

uint64_t linear_batch_scratch_bytes(uint32_t cols) {
  return kOrders * input_bytes(cols) + kScaleBytes;
}

cudaError_t linear_batch(const LinearArgs& args, void* scratch, const Launch& launch) {
  if (args.columns == 0 || args.columns > kLinearBatchColumnsMax ||
      !linear_batch_supports(args, launch) || launch.sm_count < 1)
    return cudaErrorInvalidValue;
  auto* const memory = static_cast<uint8_t*>(scratch);
  const uint32_t cols = args.matrices[0].cols;
  HalfInputArgs input;
  input.columns = args.columns;
  input.cols = cols;
  input.depth = round_up(cols, kChunkInputs);
  input.x = args.x;
  input.x_rows = args.x_rows;
  input.norm = args.norm;
  input.epsilon = args.epsilon;
  input.tile_columns = args.columns <= 16 ? 16 : args.columns <= 32 ? 32 : 64;
  input.scales = reinterpret_cast<float*>(memory + kOrders * input_bytes(cols));

  // The columns in each order that a type wants, then one kernel a type.
  const auto input_of = [&](InputOrder order) {
    return reinterpret_cast<uint16_t*>(memory +
                                       (static_cast<uint32_t>(order) - 1) * input_bytes(cols));
  };
  bool is_made[kOrders + 1] = {};
  for (uint32_t m = 0; m < args.matrix_count; ++m) {
    input.order = find_kernel(args.matrices[m].type)->order;
    bool& made = is_made[static_cast<uint32_t>(input.order)];
    if (made) continue;
    made = true;
    input.h = input_of(input.order);
    if (const cudaError_t status = half_input(input, launch)) return status;
  }

  bool is_done[kLinearMatricesMax] = {};
  for (uint32_t first = 0; first < args.matrix_count; ++first) {
    if (is_done[first]) continue;
    const BatchKernel& kernel = *find_kernel(args.matrices[first].type);
    LinearBatchParams params = {};
    params.columns = args.columns;
    const uint32_t record_inputs = kChunkInputs / kernel.records;
    params.record_count = (cols + record_inputs - 1) / record_inputs;
    params.chunk_count = input.depth / kChunkInputs;
    params.epilogue = args.epilogue;
    params.h = input_of(kernel.order);
    params.scales = input.scales;
    for (uint32_t m = first; m < args.matrix_count; ++m) {
      if (args.matrices[m].type != kernel.type || args.matrices[m].rows == 0) continue;
      is_done[m] = true;
      params.records[params.matrix_count] = args.matrices[m].records;
      params.biases[params.matrix_count] = args.biases[m];
      params.outputs[params.matrix_count] = args.outputs[m];
      params.rows[params.matrix_count++] = args.matrices[m].rows;
    }
    if (params.matrix_count == 0) continue;
    if (const cudaError_t status = launch_type(params, kernel, launch)) return status;
  }
  return cudaSuccess;
}

}  // namespace wcuda::kernels
