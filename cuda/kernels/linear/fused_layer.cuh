// One linear layer of fused_layers, computed by the sixteen computing warps. Only for
// fused_layers.cu.
#pragma once

#include "kernels/linear/fused_params.cuh"

namespace wcuda::kernels {
namespace {

// Stages x of a layer in shared memory as operand B. A warp takes K-tiles warp, warp + 16, ….
template <class Engine, bool kHasNorm>
__device__ __forceinline__ void stage_x(const FusedParams& params, const FusedLayer& layer,
                                        const FusedPartition& partition, bool is_first,
                                        uint8_t* shared, uint32_t warp, uint32_t lane) {
  const uint32_t k_tiles = partition.x_k_tiles;
  const float* const inputs = layer.x + partition.first_k_tile * kKTileInputs;
  float4 gains[2];
  const auto load_gains = [&](uint32_t k_tile) {
    const float* const place = layer.norm + k_tile * kKTileInputs + lane * 8;
    gains[0] = *reinterpret_cast<const float4*>(place);
    gains[1] = *reinterpret_cast<const float4*>(place + 4);
  };
  if (kHasNorm && warp < k_tiles) load_gains(warp);
  if (is_first) dependent_wait();
  // A warp polls one word first. If many CTAs poll all words, they slow down weights and outputs
  // (H200, 8B Q4_K_M at position 0: 675 tokens per second with all words, 691 with one).
  SpinLimit spins;
  if (!is_first && warp < k_tiles)
    while (load_relaxed_32(inputs + (warp + 1) * kKTileInputs - 1) == kMissing) spins.count();
  float4 x[2][2];
  const auto load = [&](uint32_t i, uint32_t k_tile) {
    if (k_tile >= k_tiles) return;
    const float* const place = inputs + k_tile * kKTileInputs + lane * 8;
    x[i][0] = load_relaxed_float4(place);
    x[i][1] = load_relaxed_float4(place + 4);
  };
  load(0, warp);
  load(1, warp + kWarps);
  float square = 0.0f;
#pragma unroll 1
  for (uint32_t first = warp; first < k_tiles; first += 2 * kWarps) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t k_tile = first + i * kWarps;
      if (k_tile >= k_tiles) break;
      while (!is_first && __any_sync(~0u, is_missing(x[i][0]) || is_missing(x[i][1]))) {
        spins.count();
        load(i, k_tile);
      }
      float values[8] = {x[i][0].x, x[i][0].y, x[i][0].z, x[i][0].w,
                         x[i][1].x, x[i][1].y, x[i][1].z, x[i][1].w};
      load(i, k_tile + 2 * kWarps);
      if constexpr (kHasNorm) {
        if (k_tile != warp) load_gains(k_tile);
        const float gain[8] = {gains[0].x, gains[0].y, gains[0].z, gains[0].w,
                               gains[1].x, gains[1].y, gains[1].z, gains[1].w};
        float part = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) {
          part += values[j] * values[j];
          values[j] *= gain[j];
        }
#pragma unroll
        for (uint32_t step = 16; step != 0; step /= 2) part += __shfl_xor_sync(~0u, part, step);
        square += part;
      }
      vector::put_int8<1, Ownership::kContiguous8, kOddShift<Engine>, false>(
          k_tile * 32 + lane, 0, values, true, shared, shared + params.x_scales_offset);
    }
  }
  if (kHasNorm && lane == 0)
    reinterpret_cast<float*>(shared + params.squares_offset)[warp] = square;
}

// Adds the sums of the K-splits for the outputs of this CTA. The last warp takes the first 16
// outputs, the warp before it the next 16, and so on. The two halves of a warp alternate between
// groups of kSplitsAtOnce K-splits.
__device__ __forceinline__ void add_splits(const FusedLayer& layer, uint32_t warp, uint32_t lane) {
  const uint32_t first_row = (kWarps - 1 - warp) * kMTileRows;
  const uint32_t row = blockIdx.x * layer.rows_each + first_row + lane % kMTileRows;
  const VectorMatrix& matrix = layer.matrices[0];
  if (first_row >= layer.rows_each) return;
  const bool is_there = row < matrix.rows;
  float y = is_there ? read_addend(layer, layer.addend + row) : 0.0f;
  if (is_there && matrix.bias != nullptr) y += matrix.bias[row];
  const float* const sums = layer.partials + (is_there ? row : 0);
  const uint32_t stride = matrix.m_tiles * kMTileRows;
  float sum = 0.0f;
  SpinLimit spins;
#pragma unroll 1
  for (uint32_t first = lane / kMTileRows * kSplitsAtOnce; first < layer.k_splits;
       first += 2 * kSplitsAtOnce) {
    uint32_t v[kSplitsAtOnce];
    for (;;) {
#pragma unroll
      for (uint32_t i = 0; i < kSplitsAtOnce; ++i)
        v[i] = load_relaxed_32(sums + min(first + i, layer.k_splits - 1) * stride);
      bool has_all = true;
#pragma unroll
      for (uint32_t i = 0; i < kSplitsAtOnce; ++i) has_all &= v[i] != kMissing;
      if (has_all) break;
      spins.count();
    }
#pragma unroll
    for (uint32_t i = 0; i < kSplitsAtOnce; ++i)
      if (first + i < layer.k_splits) sum += __uint_as_float(v[i]);
  }
  __syncwarp();
  y += sum + __shfl_xor_sync(~0u, sum, 16);
  if (lane >= 16 || !is_there) return;
  if (layer.mailbox != nullptr) send(layer.mailbox + row, y);
  if (matrix.output != nullptr) matrix.output[row] = y;
}

// Computes a layer. `first` is the first stage of the layer and, on return, that of the next layer.
template <class Engine>
__device__ __forceinline__ void run_layer(const FusedParams& params, uint32_t p,
                                          const FusedPartition& partition, PipelineState& first,
                                          uint8_t* shared, uint32_t warp, uint32_t lane) {
  const FusedLayer& layer = params.layers[p];
  Barriers& all = *reinterpret_cast<Barriers*>(shared + params.barriers_offset);
  if (layer.norm != nullptr)
    stage_x<Engine, true>(params, layer, partition, p == 0, shared, warp, lane);
  else
    stage_x<Engine, false>(params, layer, partition, p == 0, shared, warp, lane);
  const uint32_t k_tiles = layer.k_tiles;
  sync_consumers();  // also waits until the accumulators of the previous layer have been read
  const bool is_split_k = layer.k_splits != 0;

  const uint32_t m_tiles0 = partition.m_tiles[0], m_tiles = m_tiles0 + partition.m_tiles[1];
  const bool is_gate = layer.epilogue >= Epilogue::kSiluGate;
  // The addend of this thread's output.
  float before = 0.0f;
  if (partition.addend != nullptr && threadIdx.x < partition.rows[0])
    before = read_addend(layer, partition.addend + threadIdx.x);
  __syncwarp();
  if (p + 1 == params.count && !is_split_k && lane == 0)
    mbarrier_arrive<1>(shared_address(&all.staged));

  const Pipeline pipeline = pipeline_of(params, shared);
  constexpr uint32_t kOwn = kStageKTiles<Engine>;
  const uint8_t* const ring = shared + params.ring_offset + warp % kOwn * Engine::kStageBytes;
  float* const accumulators = reinterpret_cast<float*>(shared + params.accumulators_offset);
  const uint32_t stages0 = m_tiles0 * k_tiles / kOwn, stages = m_tiles * k_tiles / kOwn;
  uint32_t stage = warp / kOwn, m_tile = 0, k_tile = warp;  // of the next MMAs
  PipelineState own_stage = first;
  own_stage.skip(stage, params.stages);
  first.skip(stages, params.stages);
  bool is_in_second = false;
  const auto find_next = [&] {
    if (!is_in_second && stage >= stages0) {
      is_in_second = true;
      m_tile = m_tiles0;
      k_tile = (stage - stages0) * kOwn + warp % kOwn;
    }
    while (k_tile >= k_tiles) k_tile -= k_tiles, ++m_tile;
  };
  find_next();
#pragma unroll 1
  for (uint32_t begin = 0; begin < m_tiles; begin += params.batch) {
    const uint32_t end = min(begin + params.batch, m_tiles);
    float sums[Engine::kSums] = {};
    uint32_t open = ~0u;  // the M-tile that `sums` belongs to
    const auto close = [&](uint32_t accumulator) {
      float* const place =
          accumulators + (open - begin) * kMTileRows * kAccumulatorStride + accumulator;
      Engine::store(sums, lane,
                    [&](uint32_t i, float value) { place[i * kAccumulatorStride] = value; });
#pragma unroll
      for (uint32_t i = 0; i < Engine::kSums; ++i) sums[i] = 0.0f;
    };
#pragma unroll 1
    while (stage < stages && m_tile < end) {
      if (open != m_tile) {
        if (open != ~0u) close(warp);
        open = m_tile;
      }
      pipeline.wait_full(own_stage);
      VectorParams vector_params;
      vector_params.x_scales_offset = params.x_scales_offset;
      const uint32_t group = (k_tile + (is_split_k && is_in_second ? kSplitKTiles : 0)) * 8;
      Engine::consume(vector_params, ring + own_stage.stage * kStageBytes, shared, group, lane,
                      nullptr, sums);
      mbarrier_arrive<4 / kOwn>(pipeline.empty_barrier(own_stage.stage));
      own_stage.advance(kWarps / kOwn, params.stages);
      if (k_tiles < kWarps) {  // each K-tile has its own accumulator
        close(k_tile);
        open = ~0u;
      }
      stage += kWarps / kOwn;
      k_tile += kWarps;
      find_next();
    }
    if (open != ~0u) close(warp);
    sync_consumers();

    const uint32_t count = (is_gate ? m_tiles0 : end - begin) * kMTileRows;
    if (threadIdx.x < count) {
      const uint32_t float4s = min(k_tiles, kWarps) / 4;
      const float* const own = accumulators + threadIdx.x * kAccumulatorStride;
      const uint32_t row = begin * kMTileRows + threadIdx.x;
      const bool is_second = !is_gate && row >= m_tiles0 * kMTileRows;
      const uint32_t place = is_second ? row - m_tiles0 * kMTileRows : row;
      float inverse = 1.0f;
      if (layer.norm != nullptr) {
        const float* const squares = reinterpret_cast<const float*>(shared + params.squares_offset);
        inverse = rsqrtf(vector::add_up(squares, kWarps / 4) * layer.mean_factor + layer.epsilon);
      }
      if (is_split_k) {
        send(partition.outputs[is_second ? 1 : 0] + place, vector::add_up(own, float4s));
      } else if (place < partition.rows[is_second ? 1 : 0]) {
        const float* const bias = partition.biases[is_second ? 1 : 0];
        float y = vector::add_up(own, float4s) * inverse + (bias != nullptr ? bias[place] : 0.0f);
        if (is_gate) {
          const float* const up = own + m_tiles0 * kMTileRows * kAccumulatorStride;
          const float* const up_bias = partition.biases[1];
          y = vector::gate(layer.epilogue, y) * (vector::add_up(up, float4s) * inverse +
                                                 (up_bias != nullptr ? up_bias[place] : 0.0f));
        }
        y += before;
        if (partition.mailbox != nullptr) send(partition.mailbox + place, y);
        float* const output = partition.outputs[is_second ? 1 : 0];
        if (output != nullptr) output[place] = y;
      }
    }
    if (end != m_tiles) sync_consumers();
  }
  if (!is_split_k) return;
  add_splits(layer, warp, lane);
  __syncwarp();
  if (p + 1 == params.count && lane == 0) mbarrier_arrive<1>(shared_address(&all.staged));
}

}  // namespace
}  // namespace wcuda::kernels
