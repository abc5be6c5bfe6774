// fused_layers: for one token and layers p, y_p = W_p · h_p; h_p is x_p or rms_norm(x_p) * norm,
// and x_p is the output of layer p - 1.
//
// One CTA per SM, all resident at once. Each has an even partition of the M-tiles of each layer.
// One warp copies the weights of the partitions into a ring in shared memory, across layer
// boundaries, so that memory is not idle while the CTAs exchange outputs. Sixteen warps compute:
// the K-tiles (tile.cuh) of all M-tiles of the partition are numbered consecutively, and warp j %
// 16 computes K-tile j.
//
// CTAs exchange outputs through a mailbox in global memory (fused_params.cuh), without a grid
// barrier:
//
//   copying warp   weights of layer 0 | layer 1        | layer 2        | layer 3     no gaps
//   CTA i          x | layer 0 | send | poll | layer 1 | send | poll | layer 2 | …
//   CTA j          x | layer 0   | send | poll | layer 1 | send | poll | layer 2 | …
//
// A layer with many inputs (down) uses split-K, with 1,024 inputs per K-split. A CTA has one or two
// runs of M-tiles; each run lies in one K-split, so the CTA needs at most 2,048 inputs. It sends
// its sums through the mailbox; for each output, one CTA adds them in a fixed order.
//
// Bytes moved: every weight once; x of each layer once per CTA, from L2; with split-K only the
// inputs needed, and the sums.
#include <algorithm>

#include "kernels/linear/fused_copy.cuh"
#include "kernels/linear/fused_layer.cuh"
#include "kernels/linear/fused_layers.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/arena.h"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

// Computes all layers of a launch; called by the computing warps.
template <class EngineA, class EngineB>
__device__ __forceinline__ void run_layers(const FusedParams& params,
                                           const FusedPartition* partitions, uint8_t* shared,
                                           uint32_t warp, uint32_t lane) {
  PipelineState first;
#pragma unroll 1
  for (uint32_t p = 0; p < params.count; ++p) {
    if (!partitions[p].is_second)
      run_layer<EngineA>(params, p, partitions[p], first, shared, warp, lane);
    else
      run_layer<EngineB>(params, p, partitions[p], first, shared, warp, lane);
  }
}

template <class EngineA, class EngineB>
__global__ void __launch_bounds__(kThreads, 1)
    fused_layers_kernel(const __grid_constant__ FusedParams params) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t shared[];
  auto* const partitions = reinterpret_cast<FusedPartition*>(shared + params.partitions_offset);
  dependent_trigger();
  const uint32_t lane = threadIdx.x % 32, warp = vector::uniform(threadIdx.x / 32);
  Barriers& all = *reinterpret_cast<Barriers*>(shared + params.barriers_offset);
  if (threadIdx.x < params.count)
    partitions[threadIdx.x] = partition_of(params.layers[threadIdx.x], blockIdx.x);
  if (warp == kWarps) {
    mbarrier_init(shared_address(all.full + lane), 1);
    mbarrier_init(shared_address(all.empty + lane), 4 * 32);
    if (lane == 0) mbarrier_init(shared_address(&all.staged), kWarps);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (warp >= kWarps) {
    if (lane == 0) {
      copy_weights<EngineA, EngineB>(params, partitions, shared);
      wait_for_others(params, shared);
    }
    __syncwarp();
  } else {
    run_layers<EngineA, EngineB>(params, partitions, shared, warp, lane);
  }
  __syncthreads();
  clear_mailbox(params);
#endif
}

uint32_t m_tiles_of(const Matrix& matrix) { return divide_up(matrix.rows, kMTileRows); }

static_assert(kFusedLayersMax == kPersistentLayersMax);

PersistentLayerShape shape_of(const LinearArgs& args) {
  PersistentLayerShape shape;
  shape.matrix_count = args.tokens == 1 ? args.matrix_count : 0;
  for (uint32_t i = 0; i < std::min(args.matrix_count, kLinearMatricesMax); ++i) {
    if (args.matrices[i].cols != args.matrices[0].cols) shape.matrix_count = 0;
    shape.types[i] = args.matrices[i].type;
    shape.rows[i] = args.matrices[i].rows;
  }
  shape.cols = args.matrices[0].cols;
  shape.is_gate = is_gate(args.epilogue);
  shape.is_added = args.epilogue == Epilogue::kAdd;
  shape.has_norm = args.norm != nullptr;
  return shape;
}

// Sets the parameters of a layer, except pointers to scratch memory.
void fill_layer(const LinearArgs& args, const PersistentLayerPlan& plan, uint32_t ctas,
                FusedLayer* layer) {
  layer->epilogue = args.epilogue;
  layer->x = args.x;
  layer->norm = args.norm;
  layer->epsilon = args.epsilon;
  layer->mean_factor = 1.0f / static_cast<float>(args.matrices[0].cols);
  layer->k_tiles = plan.k_tiles;
  layer->k_splits = plan.k_splits;
  layer->rows_each = plan.rows_each;
  layer->ctas = plan.ctas;
  const uint32_t partitions[2] = {plan.ctas, ctas - plan.ctas};
  uint32_t count = 0;
  for (uint32_t s = 0; s < 2; ++s) {
    layer->matrix_begins[s] = count;
    for (uint32_t i = 0; i < args.matrix_count; ++i) {
      const Matrix& matrix = args.matrices[i];
      if ((matrix.type == TensorType::kQ6_K) != (s == 1)) continue;
      layer->matrices[count++] = {
          matrix.packed_tiles, args.biases[i],
          is_gate(args.epilogue) && i == 1 ? args.outputs[0] : args.outputs[i], matrix.rows,
          m_tiles_of(matrix)};
    }
    layer->matrix_ends[s] = count;
    if (partitions[s] != 0) layer->items[s] = partition_evenly(plan.items[s], partitions[s]);
  }
}

// Returns whether `next` reads the output of `layer`, and `layer` has no other output.
bool follows(const LinearArgs& layer, const LinearArgs& next) {
  return next.x == layer.outputs[0] && next.matrices[0].cols == layer.matrices[0].rows &&
         layer.matrix_count == (is_gate(layer.epilogue) ? 2u : 1u);
}

// Sets the parameters of a launch, except pointers to scratch memory, and returns the bytes of its
// shared memory, or 0 if the layers are not supported.
uint32_t plan(const LinearArgs* layers, uint32_t count, const Launch& launch, FusedParams* params) {
  if (count < 2 || count > kFusedLayersMax || launch.sm_count <= 0) return 0;
  // x_rows is not supported. Only the first layer is tested, because the others read the output of
  // the layer before them.
  if (layers[0].x_rows != nullptr) return 0;
  PersistentLayerShape shapes[kFusedLayersMax];
  for (uint32_t p = 0; p < count; ++p) {
    if (p != 0 && !follows(layers[p - 1], layers[p])) return 0;
    shapes[p] = shape_of(layers[p]);
  }
  int device = 0, most = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return 0;
  const auto ctas = static_cast<uint32_t>(launch.sm_count);
  PersistentPlan plan;
  if (!plan_persistent_layers(shapes, count, launch.compute_capability, ctas,
                              static_cast<uint32_t>(most), &plan))
    return 0;
  for (uint32_t p = 0; p < count; ++p)
    fill_layer(layers[p], plan.layers[p], ctas, &params->layers[p]);
  params->count = count;
  params->batch = plan.batch;
  params->x_scales_offset = plan.x_scales_offset;
  params->squares_offset = plan.squares_offset;
  params->accumulators_offset = plan.accumulators_offset;
  params->partitions_offset = plan.partitions_offset;
  params->barriers_offset = plan.barriers_offset;
  params->ring_offset = plan.ring_offset;
  params->stages = plan.stages;
  params->flight = kFlightStages;
  return plan.shared_bytes;
}

}  // namespace

bool fused_layers_supports(const LinearArgs* layers, uint32_t count, const Launch& launch) {
  FusedParams params = {};
  return plan(layers, count, launch, &params) != 0;
}

bool fused_layers_has_device(const Launch& launch) {
  int device = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess ||
      launch.sm_count <= 0 || launch.sm_count > multiprocessors)
    return false;
#if CUDART_VERSION >= 13000  // older versions do not report MPS
  int is_shared = 0;
  if (cudaDeviceGetAttribute(&is_shared, cudaDevAttrMpsEnabled, device) != cudaSuccess ||
      is_shared != 0)
    return false;
#endif
  int ctas = 0;
  const auto kernel = fused_layers_kernel<EngineA, EngineB>;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, kThreads, 0) == cudaSuccess &&
         ctas > 0;
}

uint64_t fused_layers_scratch_bytes(uint32_t rows_max, uint32_t sum_rows_max) {
  const uint64_t k_splits = (rows_max / kKTileInputs + kSplitKTiles - 1) / kSplitKTiles;
  return 256 + sizeof(float) * (uint64_t{kFusedLayersMax} * round_up(rows_max, 64) +
                                2 * k_splits * round_up(sum_rows_max, 64));
}

cudaError_t fused_layers_prepare(void* scratch, uint64_t scratch_bytes, const Launch& launch) {
  return cudaMemsetAsync(scratch, 0, scratch_bytes, launch.stream);
}

cudaError_t fused_layers(const LinearArgs* layers, uint32_t count, void* scratch,
                         uint64_t scratch_bytes, const Launch& launch) {
  FusedParams params = {};
  const uint32_t shared_bytes = plan(layers, count, launch, &params);
  if (shared_bytes == 0) return cudaErrorInvalidValue;
  params.arrivals = static_cast<uint64_t*>(scratch);
  params.mailbox = reinterpret_cast<float*>(static_cast<uint8_t*>(scratch) + 256);
  Arena mailbox(params.mailbox);
  for (uint32_t p = 0; p < count; ++p) {
    FusedLayer& layer = params.layers[p];
    const LinearArgs& linear = layers[p];
    if (p + 1 < count) {
      layer.mailbox = mailbox.take<float>(linear.matrices[0].rows);
      params.layers[p + 1].x = layer.mailbox;
    }
    if (layer.k_splits != 0)
      layer.partials =
          mailbox.take<float>(layer.k_splits * m_tiles_of(linear.matrices[0]) * kMTileRows);
    if (linear.epilogue != Epilogue::kAdd) continue;
    layer.addend = linear.outputs[0];
    for (uint32_t q = 0; q < p; ++q)
      if (layers[q].outputs[0] == linear.outputs[0]) {
        layer.addend = params.layers[q].mailbox;
        layer.is_addend_awaited = true;
        // Layer q does not write the output: another CTA could write it later than layer p does.
        for (VectorMatrix& part : params.layers[q].matrices) part.output = nullptr;
      }
  }
  params.mailbox_floats = static_cast<uint32_t>(mailbox.bytes() / sizeof(float));
  if (256 + mailbox.bytes() > scratch_bytes) return cudaErrorInvalidValue;
  const auto kernel = fused_layers_kernel<EngineA, EngineB>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  return launch_kernel(launch, dim3(static_cast<uint32_t>(launch.sm_count)), dim3(kThreads),
                       shared_bytes, 0, kernel, params);
}

}  // namespace wcuda::kernels
