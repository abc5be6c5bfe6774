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
uint64_t input_bytes(uint32_t cols, uint32_t columns) {
  return uint64_t{round_up(cols, kChunkInputs)} * round_up(columns, 128) * 2;
}
uint64_t scale_bytes(uint32_t columns) { return round_up(columns, 128) * 4; }

// How the matrices of one type are cut.
struct Shape {
  uint32_t rows;  // of a tile
  uint32_t tiles;
  uint32_t cluster;
};

uint32_t tile_count(const LinearBatchParams& params, uint32_t rows) {
  if (is_gate(params.epilogue)) return (params.rows[0] + rows / 2 - 1) / (rows / 2);
  uint32_t tiles = 0;
  for (uint32_t m = 0; m < params.matrix_count; ++m) tiles += (params.rows[m] + rows - 1) / rows;
  return tiles;
}

// Stages of half a chunk of columns: one in use, others on their way, 32 KB or more where few
// columns make small ones.
constexpr uint32_t column_stages(uint32_t columns) {
  return columns <= 16 ? 8 : columns <= 32 ? 6 : columns <= 64 ? 4 : 3;
}
constexpr uint32_t column_bytes(uint32_t columns) {
  return column_stages(columns) * kUnitInputs * columns * 2;
}
constexpr uint32_t kWeightStagesMin = 2;

bool fits(uint32_t rows, uint32_t chunk_bytes, uint32_t columns) {
  return kBatchBarrierBytes + column_bytes(columns) +
             kWeightStagesMin * (rows / quant::kRecordRows) * chunk_bytes <=
         kBatchSharedBytes;
}

// Columns of a tile: as few as hold them, up to 128 where two stages of every matrix allow.
// Invariant ones stop at 64, for all that larger tiles do otherwise.
uint32_t tile_columns(const LinearArgs& args, bool is_invariant) {
  if (args.columns <= 16) return 16;
  if (args.columns <= 32) return 32;
  if (args.columns <= 64 || is_invariant) return 64;
  for (uint32_t m = 0; m < args.matrix_count; ++m)
    if (!fits(64 * batch_strips(128), find_kernel(args.matrices[m].type)->chunk_bytes, 128))
      return 64;
  return 128;
}

// Tall tiles read the columns less often: as tall as two stages allow, lower where that leaves
// multiprocessors idle. What is left idle a cluster shares out.
Shape choose_shape(const LinearBatchParams& params, const BatchKernel& kernel, uint32_t columns,
                   uint32_t column_tiles, uint32_t sm_count) {
  const uint32_t shares =
      params.chunk_count < kBatchClusterMax ? params.chunk_count : kBatchClusterMax;
  const uint32_t rows_min = 64 * batch_strips(columns);
  Shape shape{kBatchRowsMax, 0, 1};
  while (shape.rows > rows_min &&
         (!fits(shape.rows, kernel.chunk_bytes, columns) ||
          tile_count(params, shape.rows) * column_tiles * shares < sm_count * 3 / 4))
    shape.rows /= 2;
  shape.tiles = tile_count(params, shape.rows);
  shape.cluster = sm_count / (shape.tiles * column_tiles);
  if (shape.cluster < 1) shape.cluster = 1;
  if (shape.cluster > shares) shape.cluster = shares;
  return shape;
}

cudaError_t launch_type(LinearBatchParams params, const BatchKernel& kernel, uint32_t columns,
                        bool is_invariant, const Launch& launch) {
  params.column_tiles = (params.columns + columns - 1) / columns;
  const auto sm_count = static_cast<uint32_t>(launch.sm_count);
  const Shape shape = is_invariant
                          ? choose_shape(params, kernel, 64, 1, sm_count)
                          : choose_shape(params, kernel, columns, params.column_tiles, sm_count);
  uint32_t tile = 0;
  for (uint32_t m = 0; m < params.matrix_count; ++m) {
    params.first_tile[m] = tile;
    if (!is_gate(params.epilogue)) tile += (params.rows[m] + shape.rows - 1) / shape.rows;
  }
  params.tile_rows = shape.rows;
  params.cluster = shape.cluster;
  params.column_stage_count = column_stages(columns);
  params.weight_stage_count = (kBatchSharedBytes - kBatchBarrierBytes - column_bytes(columns)) /
                              (shape.rows / quant::kRecordRows * kernel.chunk_bytes);
  if (params.weight_stage_count > kBatchStagesMax) params.weight_stage_count = kBatchStagesMax;
  if (params.weight_stage_count < kWeightStagesMin) return cudaErrorInvalidValue;
  const uint32_t size = columns == 16 ? 0 : columns == 32 ? 1 : columns == 64 ? 2 : 3;
  if (const cudaError_t status = cudaFuncSetAttribute(
          kernel.kernels[size], cudaFuncAttributeMaxDynamicSharedMemorySize, kBatchSharedBytes))
    return status;
  // Blocks of 128 columns go on to a next tile, and two share their columns.
  const bool is_direct = batch_strips(columns) > 1 && shape.cluster == 1;
  params.sharing = is_direct && shape.tiles > 1 ? 2 : 1;
  const uint32_t group = is_direct ? params.sharing : shape.cluster;
  params.tile_count = (shape.tiles + params.sharing - 1) / params.sharing * params.column_tiles;
  uint32_t groups = params.tile_count;
  if (is_direct && groups > sm_count / group) groups = sm_count / group;
  return launch_kernel(launch, dim3(groups * group), dim3(batch_threads(shape.rows, columns)),
                       kBatchSharedBytes, group > 1 ? group : 0, kernel.kernels[size], params);
}

}  // namespace

bool linear_batch_supports(const LinearArgs& args, const Launch& launch) {
  if (launch.compute_capability != 90) return false;
  for (uint32_t m = 0; m < args.matrix_count; ++m)
    if (find_kernel(args.matrices[m].type) == nullptr) return false;
  return !is_gate(args.epilogue) || args.matrices[0].type == args.matrices[1].type;
}

uint64_t linear_batch_scratch_bytes(uint32_t cols, uint32_t columns) {
  return input_bytes(cols, columns) + scale_bytes(columns);
}

cudaError_t linear_batch(const LinearArgs& args, bool is_invariant, void* scratch,
                         const Launch& launch) {
  if (args.columns == 0 || !linear_batch_supports(args, launch) || launch.sm_count < 1)
    return cudaErrorInvalidValue;
  const uint32_t cols = args.matrices[0].cols;
  HalfInputArgs input;
  input.columns = args.columns;
  input.cols = cols;
  input.depth = round_up(cols, kChunkInputs);
  input.x = args.x;
  input.x_rows = args.x_rows;
  input.norm = args.norm;
  input.epsilon = args.epsilon;
  input.tile_columns = tile_columns(args, is_invariant);
  input.h = static_cast<uint16_t*>(scratch);
  input.scales =
      reinterpret_cast<float*>(static_cast<uint8_t*>(scratch) + input_bytes(cols, args.columns));

  // The columns in each order that a type wants, then one kernel a type.
  bool is_done[kLinearMatricesMax] = {};
  for (uint32_t first = 0; first < args.matrix_count; ++first) {
    if (is_done[first]) continue;
    input.order = find_kernel(args.matrices[first].type)->order;
    if (const cudaError_t status = half_input(input, launch)) return status;
    for (uint32_t i = first; i < args.matrix_count; ++i) {
      const BatchKernel& kernel = *find_kernel(args.matrices[i].type);
      if (is_done[i] || kernel.order != input.order) continue;
      LinearBatchParams params = {};
      params.columns = args.columns;
      const uint32_t record_inputs = kChunkInputs / kernel.records;
      params.record_count = (cols + record_inputs - 1) / record_inputs;
      params.chunk_count = input.depth / kChunkInputs;
      params.epilogue = args.epilogue;
      params.h = input.h;
      params.scales = input.scales;
      for (uint32_t m = i; m < args.matrix_count; ++m) {
        if (args.matrices[m].type != kernel.type) continue;
        is_done[m] = true;
        if (args.matrices[m].rows == 0) continue;
        params.records[params.matrix_count] = args.matrices[m].records;
        params.biases[params.matrix_count] = args.biases[m];
        params.outputs[params.matrix_count] = args.outputs[m];
        params.rows[params.matrix_count++] = args.matrices[m].rows;
      }
      if (params.matrix_count == 0) continue;
      if (const cudaError_t status =
              launch_type(params, kernel, input.tile_columns, is_invariant, launch))
        return status;
    }
  }
  return cudaSuccess;
}

}  // namespace wcuda::kernels
