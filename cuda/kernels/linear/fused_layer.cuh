// A linear layer of layer_chain, by its warps of products. Only for layer_chain.cu.
#pragma once

#include "kernels/linear/fused_params.cuh"

namespace wcuda::kernels {
namespace {

// Puts x of a layer into shared memory as the products take it: chunks warp, warp + 16, ….
template <class Engine, bool kHasNorm>
__device__ __forceinline__ void stage_x(const ChainParams& params, const ChainLayer& layer,
                                        const ChainShare& share, bool is_first, uint8_t* shared,
                                        uint32_t warp, uint32_t lane) {
  const uint32_t chunks = share.x_chunks;
  const float* const inputs = layer.x + share.first_chunk * kChunkInputs;
  float4 gains[2];
  const auto load_gains = [&](uint32_t chunk) {
    const float* const place = layer.norm + chunk * kChunkInputs + lane * 8;
    gains[0] = *reinterpret_cast<const float4*>(place);
    gains[1] = *reinterpret_cast<const float4*>(place + 4);
  };
  if (kHasNorm && warp < chunks) load_gains(warp);
  if (is_first) dependent_wait();
  // One word at first: what many CTAs read in vain is in the way of weights and of outputs (H200,
  // 8B Q4_K_M at 0: 675 tokens a second with all words, 691 so).
  Patience patience;
  if (!is_first && warp < chunks)
    while (load_word(inputs + (warp + 1) * kChunkInputs - 1) == kMissing) patience.lose();
  float4 x[2][2];
  const auto load = [&](uint32_t i, uint32_t chunk) {
    if (chunk >= chunks) return;
    const float* const place = inputs + chunk * kChunkInputs + lane * 8;
    x[i][0] = load_now(place);
    x[i][1] = load_now(place + 4);
  };
  load(0, warp);
  load(1, warp + kWarps);
  float square = 0.0f;
#pragma unroll 1
  for (uint32_t first = warp; first < chunks; first += 2 * kWarps) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t chunk = first + i * kWarps;
      if (chunk >= chunks) break;
      while (!is_first && __any_sync(~0u, is_missing(x[i][0]) || is_missing(x[i][1]))) {
        patience.lose();
        load(i, chunk);
      }
      float values[8] = {x[i][0].x, x[i][0].y, x[i][0].z, x[i][0].w,
                         x[i][1].x, x[i][1].y, x[i][1].z, x[i][1].w};
      load(i, chunk + 2 * kWarps);
      if constexpr (kHasNorm) {
        if (chunk != warp) load_gains(chunk);
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
      vector::put_int8<1, Ownership::kEight, kOddShift<Engine>, false>(
          chunk * 32 + lane, 0, values, true, shared, shared + params.x_scales_offset);
    }
  }
  if (kHasNorm && lane == 0)
    reinterpret_cast<float*>(shared + params.squares_offset)[warp] = square;
}

// Adds up the slices of outputs, 16 a warp, the last warps first: each half of a warp every other
// kSlicesAtOnce of them.
__device__ __forceinline__ void add_slices(const ChainLayer& layer, uint32_t warp, uint32_t lane) {
  const uint32_t first_row = (kWarps - 1 - warp) * 16;
  const uint32_t row = blockIdx.x * layer.rows_each + first_row + lane % 16;
  const VectorPart& part = layer.parts[0];
  if (first_row >= layer.rows_each) return;
  const bool is_there = row < part.rows;
  float y = is_there ? read_addend(layer, layer.addend + row) : 0.0f;
  if (is_there && part.bias != nullptr) y += part.bias[row];
  const float* const sums = layer.partials + (is_there ? row : 0);
  const uint32_t stride = part.strips * 16;
  float sum = 0.0f;
  Patience patience;
#pragma unroll 1
  for (uint32_t first = lane / 16 * kSlicesAtOnce; first < layer.slices;
       first += 2 * kSlicesAtOnce) {
    uint32_t v[kSlicesAtOnce];
    for (;;) {
#pragma unroll
      for (uint32_t i = 0; i < kSlicesAtOnce; ++i)
        v[i] = load_word(sums + min(first + i, layer.slices - 1) * stride);
      bool has_all = true;
#pragma unroll
      for (uint32_t i = 0; i < kSlicesAtOnce; ++i) has_all &= v[i] != kMissing;
      if (has_all) break;
      patience.lose();
    }
#pragma unroll
    for (uint32_t i = 0; i < kSlicesAtOnce; ++i)
      if (first + i < layer.slices) sum += __uint_as_float(v[i]);
  }
  __syncwarp();
  y += sum + __shfl_xor_sync(~0u, sum, 16);
  if (lane >= 16 || !is_there) return;
  if (layer.exchange != nullptr) send(layer.exchange + row, y);
  if (part.output != nullptr) part.output[row] = y;
}

// A layer, by the warps of products; first: the stage that it begins with, then the next layer's.
template <class Engine>
__device__ __forceinline__ void run_layer(const ChainParams& params, uint32_t p,
                                          const ChainShare& share, RingPlace& first,
                                          uint8_t* shared, uint32_t warp, uint32_t lane) {
  const ChainLayer& layer = params.layers[p];
  Barriers& all = *reinterpret_cast<Barriers*>(shared + params.barriers_offset);
  if (layer.norm != nullptr)
    stage_x<Engine, true>(params, layer, share, p == 0, shared, warp, lane);
  else
    stage_x<Engine, false>(params, layer, share, p == 0, shared, warp, lane);
  const uint32_t chunks = layer.chunks;
  sync_products();  // also for who has read the slots of the layer ahead
  const bool is_sliced = layer.slices != 0;

  const uint32_t strips0 = share.strips[0], strips = strips0 + share.strips[1];
  const bool is_gate = layer.epilogue >= Epilogue::kSiluGate;
  // What is added to a thread's output.
  float before = 0.0f;
  if (share.addend != nullptr && threadIdx.x < share.rows[0])
    before = read_addend(layer, share.addend + threadIdx.x);
  __syncwarp();
  if (p + 1 == params.count && !is_sliced && lane == 0) arrive<1>(shared_address(&all.staged));

  const uint32_t full = shared_address(all.full), empty = shared_address(all.empty);
  constexpr uint32_t kOwn = kStageChunks<Engine>;
  const uint8_t* const ring = shared + params.ring_offset + warp % kOwn * Engine::kStageBytes;
  float* const slots = reinterpret_cast<float*>(shared + params.slots_offset);
  const uint32_t stages0 = strips0 * chunks / kOwn, stages = strips * chunks / kOwn;
  uint32_t stage = warp / kOwn, strip = 0, chunk = warp;  // of the next product
  uint32_t index = first.index + stage, parity = first.parity;
  while (index >= params.stages) index -= params.stages, parity ^= 1;
  first.index += stages;
  while (first.index >= params.stages) first.index -= params.stages, first.parity ^= 1;
  bool is_in_second = false;
  const auto settle = [&] {
    if (!is_in_second && stage >= stages0) {
      is_in_second = true;
      strip = strips0;
      chunk = (stage - stages0) * kOwn + warp % kOwn;
    }
    while (chunk >= chunks) chunk -= chunks, ++strip;
  };
  settle();
#pragma unroll 1
  for (uint32_t begin = 0; begin < strips; begin += params.window) {
    const uint32_t end = min(begin + params.window, strips);
    float sums[Engine::kSums] = {};
    uint32_t open = ~0u;  // the strip that sums are of
    const auto close = [&](uint32_t slot) {
      float* const place = slots + (open - begin) * 16 * kSlotStride + slot;
      Engine::store(sums, lane, [&](uint32_t i, float value) { place[i * kSlotStride] = value; });
#pragma unroll
      for (uint32_t i = 0; i < Engine::kSums; ++i) sums[i] = 0.0f;
    };
#pragma unroll 1
    while (stage < stages && strip < end) {
      if (open != strip) {
        if (open != ~0u) close(warp);
        open = strip;
      }
      wait_barrier(full + index * 8, parity);
      VectorParams vector_params;
      vector_params.x_scales_offset = params.x_scales_offset;
      const uint32_t group = (chunk + (is_sliced && is_in_second ? kSliceChunks : 0)) * 8;
      Engine::consume(vector_params, ring + index * kStageBytes, shared, group, lane, nullptr,
                      sums);
      arrive<4 / kOwn>(empty + index * 8);
      index += kWarps / kOwn;
      if (index >= params.stages) index -= params.stages, parity ^= 1;
      if (chunks < kWarps) {  // a slot for each chunk
        close(chunk);
        open = ~0u;
      }
      stage += kWarps / kOwn;
      chunk += kWarps;
      settle();
    }
    if (open != ~0u) close(warp);
    sync_products();

    const uint32_t count = (is_gate ? strips0 : end - begin) * 16;
    if (threadIdx.x < count) {
      const uint32_t fours = min(chunks, kWarps) / 4;
      const float* const own = slots + threadIdx.x * kSlotStride;
      const uint32_t row = begin * 16 + threadIdx.x;
      const bool is_second = !is_gate && row >= strips0 * 16;
      const uint32_t place = is_second ? row - strips0 * 16 : row;
      float inverse = 1.0f;
      if (layer.norm != nullptr) {
        const float* const squares = reinterpret_cast<const float*>(shared + params.squares_offset);
        inverse = rsqrtf(vector::add_up(squares, kWarps / 4) * layer.mean_factor + layer.epsilon);
      }
      if (is_sliced) {
        send(share.outputs[is_second ? 1 : 0] + place, vector::add_up(own, fours));
      } else if (place < share.rows[is_second ? 1 : 0]) {
        const float* const bias = share.biases[is_second ? 1 : 0];
        float y = vector::add_up(own, fours) * inverse + (bias != nullptr ? bias[place] : 0.0f);
        if (is_gate) {
          const float* const up = own + strips0 * 16 * kSlotStride;
          const float* const up_bias = share.biases[1];
          y = vector::gate(layer.epilogue, y) *
              (vector::add_up(up, fours) * inverse + (up_bias != nullptr ? up_bias[place] : 0.0f));
        }
        y += before;
        if (share.exchange != nullptr) send(share.exchange + place, y);
        float* const output = share.outputs[is_second ? 1 : 0];
        if (output != nullptr) output[place] = y;
      }
    }
    if (end != strips) sync_products();
  }
  if (!is_sliced) return;
  add_slices(layer, warp, lane);
  __syncwarp();
  if (p + 1 == params.count && lane == 0) arrive<1>(shared_address(&all.staged));
}

}  // namespace
}  // namespace wcuda::kernels
