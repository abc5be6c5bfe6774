// half_input: h[c] = 2^s(c) * x[c], or 2^s(c) * rms_norm(x[c]) * norm, as f16.
//
// A cluster of blocks converts the activations of one token. Each quad of lanes converts kPieces
// groups of 32 inputs; of each group, lane t of the quad holds in registers the 8 inputs that lane
// t of a quad owns in the MMA. Blocks are small, so that they fit on an SM next to those of
// linear_batch. Next to blocks with tiles of 64 tokens and more none fits in any case, so a block
// then has twice the threads, which is faster unless there are many. Bytes moved per token: 4 *
// cols read and 2 * depth written.
#include <cuda_fp16.h>

#include "kernels/linear/half_input.h"
#include "kernels/linear/token_statistics.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kInputThreads = 256;  // of half_input_any
constexpr uint32_t kInputClusterMax = 8;
constexpr uint32_t kBlockInputs = 4096;  // at most
// Tiles of tokens from which, and tokens up to which, blocks have twice the threads. One H200: a
// prompt of 64 tokens is then 1.3 % faster with 8B and 4.6 % faster with SmolLM2, a step of 128
// sequences of 8B 1.9 %, but one of 16 sequences (tiles of 16 tokens) 4.3 % slower, and prompts of
// 2,048 tokens 0.7 to 2.3 % (2026-11-24-h200/short_prompts.txt, 2026-11-29-h200/large_blocks.txt).
constexpr uint32_t kLargeBlockTileMin = 64, kLargeBlockTokensMax = 512;
// Threads of a half_input block, at most. A thread converts kPieces pieces of 8 inputs.
template <uint32_t kPieces>
constexpr uint32_t kPieceThreads = kBlockInputs / (8 * kPieces);

// The functions marked maybe_unused are used only on devices with clusters.

// Returns which two of the eight quarters (runs of 4 inputs) of a group of 32 lane t of a quad
// owns.
[[maybe_unused]] __device__ inline uint2 owned_quarters(InputOrder order, uint32_t t) {
  switch (order) {
    case InputOrder::kSplit:
      return make_uint2(t, t + 4);
    case InputOrder::kNested:
      return make_uint2(t / 2 * 4 + t % 2, t / 2 * 4 + t % 2 + 2);
    default:
      return make_uint2(2 * t, 2 * t + 1);
  }
}

[[maybe_unused]] __device__ inline uint32_t half_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Transposes words over a quad: words[i] of lane t becomes words[t] of lane i.
[[maybe_unused]] __device__ inline void transpose_words(uint32_t (&words)[4]) {
#pragma unroll
  for (uint32_t bit = 1; bit <= 2; bit *= 2) {
    const bool is_upper = (threadIdx.x & bit) != 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t got = __shfl_xor_sync(~0u, is_upper ? words[i] : words[i + bit], bit);
      words[is_upper ? i : i + bit] = got;
    }
  }
}

// Requires that x and norm are aligned to 16 bytes, that cols is a multiple of 4, and that depth is
// at most 8 * kPieces per thread of the cluster.
template <uint32_t kPieces>
__global__ void __launch_bounds__(kPieceThreads<kPieces>, kPieces == 2 ? 5 : 3)
    half_input_kernel(const HalfInputArgs args, uint32_t cluster) {
#if __CUDA_ARCH__ >= 900
  __shared__ Statistics parts[kInputClusterMax];
  const uint32_t piece_groups = blockDim.x / 4;
  const uint32_t token = blockIdx.x / cluster, rank = blockIdx.x % cluster;
  const bool is_token = token < args.tokens, has_norm = args.norm != nullptr;
  const uint32_t group = rank * kPieces * piece_groups + threadIdx.x / 4, lane = threadIdx.x % 4;
  const uint2 quarters = owned_quarters(args.out.order, lane);
  // Returns the index of quarter i % 2 of piece i / 2.
  const auto place = [&](uint32_t i) {
    return (group + i / 2 * piece_groups) * 8 + (i % 2 == 0 ? quarters.x : quarters.y);
  };

  dependent_trigger();
  if (cluster > 1)
    cluster_arrive_relaxed();  // other blocks may write to a block only once it has started
  float4 norm[2 * kPieces], x[2 * kPieces];
  const auto* const norms = reinterpret_cast<const float4*>(args.norm);
#pragma unroll
  for (uint32_t i = 0; i < 2 * kPieces; ++i)
    norm[i] = has_norm && place(i) < args.cols / 4 ? norms[place(i)]
                                                   : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
  dependent_wait();

  const uint32_t x_row = is_token && args.x_rows != nullptr ? args.x_rows[token] : token;
  const uint32_t place_of_token = args.places != nullptr ? args.places[token] : token;
  const auto* const values = reinterpret_cast<const float4*>(args.x + uint64_t{x_row} * args.cols);
#pragma unroll
  for (uint32_t i = 0; i < 2 * kPieces; ++i)
    x[i] = is_token && place(i) < args.cols / 4 ? values[place(i)]
                                                : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  Statistics pieces[kPieces] = {};
#pragma unroll
  for (uint32_t i = 0; i < 2 * kPieces; ++i) {
    const float4 v = x[i], g = norm[i];
    Statistics& all = pieces[i / 2];
    all.square_sum = fmaf(v.x, v.x, all.square_sum);
    all.square_sum = fmaf(v.y, v.y, all.square_sum);
    all.square_sum = fmaf(v.z, v.z, all.square_sum);
    all.square_sum = fmaf(v.w, v.w, all.square_sum);
    const float4 h = make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
    all.gain_square_sum = fmaf(h.x, h.x, all.gain_square_sum);
    all.gain_square_sum = fmaf(h.y, h.y, all.gain_square_sum);
    all.gain_square_sum = fmaf(h.z, h.z, all.gain_square_sum);
    all.gain_square_sum = fmaf(h.w, h.w, all.gain_square_sum);
    all.max = fmaxf(fmaxf(all.max, fmaxf(fabsf(h.x), fabsf(h.y))), fmaxf(fabsf(h.z), fabsf(h.w)));
  }
  Statistics all = block_statistics<kPieceThreads<kPieces> / 32>(pieces);
  if (cluster > 1) {
    cluster_wait();
    if (threadIdx.x < cluster) {
      const uint32_t remote = cluster_address(shared_address(&parts[rank]), threadIdx.x);
      cluster_store(remote, all.square_sum);
      cluster_store(remote + 4, all.gain_square_sum);
      cluster_store(remote + 8, all.max);
    }
    __syncwarp();
    cluster_sync();
    all = parts[0];
    for (uint32_t i = 1; i < cluster; ++i) {
      all.square_sum += parts[i].square_sum;
      all.gain_square_sum += parts[i].gain_square_sum;
      all.max = fmaxf(all.max, parts[i].max);
    }
  }
  const float rms_inverse =
      has_norm ? 1.0f / sqrtf(all.square_sum / static_cast<float>(args.cols) + args.epsilon) : 1.0f;
  const int32_t exponent = scale_exponent(all.max * rms_inverse);
  const float scale = power_of_two(exponent);
  if (is_token && rank == 0 && threadIdx.x == 0) {
    args.out.scales[token] = power_of_two(-exponent);
    if (args.norms != nullptr) args.norms[token] = sqrtf(all.gain_square_sum) * rms_inverse;
  }

#pragma unroll
  for (uint32_t p = 0; p < kPieces; ++p) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const float4 v = x[2 * p + i], g = norm[2 * p + i];
      const float4 h =
          make_float4(v.x * rms_inverse * g.x * scale, v.y * rms_inverse * g.y * scale,
                      v.z * rms_inverse * g.z * scale, v.w * rms_inverse * g.w * scale);
      const bool is_cross = args.out.order == InputOrder::kCross;
      words[2 * i] = half_pair(h.x, is_cross ? h.z : h.y);
      words[2 * i + 1] = half_pair(is_cross ? h.y : h.z, h.w);
    }
    transpose_words(words);
    const uint32_t piece = (group + p * piece_groups) * 4 + lane;
    if (piece >= args.out.depth / 8 || place_of_token == kNoPlace) continue;
    reinterpret_cast<uint4*>(args.out.h)[args.out.piece_index(place_of_token, piece)] =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
#endif
}

// For any number of inputs at any address; reads x twice.
__global__ void __launch_bounds__(kInputThreads) half_input_any_kernel(const HalfInputArgs args) {
  const uint32_t token = blockIdx.x;
  const bool is_token = token < args.tokens;
  dependent_trigger();
  dependent_wait();
  const uint32_t x_row = is_token && args.x_rows != nullptr ? args.x_rows[token] : token;
  const float* const x = args.x + uint64_t{x_row} * args.cols;
  float rms_inverse = 1.0f, scale = 0.0f;
  if (is_token) {
    Statistics part[1] = {};
    for (uint32_t k = threadIdx.x; k < args.cols; k += kInputThreads) {
      const float value = x[k];
      part->square_sum = fmaf(value, value, part->square_sum);
      const float h = args.norm != nullptr ? value * args.norm[k] : value;
      part->gain_square_sum = fmaf(h, h, part->gain_square_sum);
      part->max = fmaxf(part->max, fabsf(h));
    }
    const Statistics all = block_statistics<kInputThreads / 32>(part);
    if (args.norm != nullptr)
      rms_inverse = 1.0f / sqrtf(all.square_sum / static_cast<float>(args.cols) + args.epsilon);
    const int32_t exponent = scale_exponent(all.max * rms_inverse);
    scale = power_of_two(exponent);
    if (threadIdx.x == 0) {
      args.out.scales[token] = power_of_two(-exponent);
      if (args.norms != nullptr) args.norms[token] = sqrtf(all.gain_square_sum) * rms_inverse;
    }
  }

  const uint32_t place_of_token = args.places != nullptr ? args.places[token] : token;
  if (place_of_token == kNoPlace) return;
  for (uint32_t piece = threadIdx.x; piece < args.out.depth / 8; piece += kInputThreads) {
    uint32_t words[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t place = piece * 8 + i;
      const uint32_t k = place / 32 * 32 + input_of_place(args.out.order, place % 32);
      float value = 0.0f;
      if (is_token && k < args.cols) {
        value = x[k] * rms_inverse;
        if (args.norm != nullptr) value *= args.norm[k];
      }
      words[i / 2] |= uint32_t{float_to_half(value * scale)} << (i % 2 * 16);
    }
    reinterpret_cast<uint4*>(args.out.h)[args.out.piece_index(place_of_token, piece)] =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

cudaError_t half_input(const HalfInputArgs& args, const Launch& launch) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.out.tile_tokens == 0 || args.out.depth < args.cols || args.out.depth % 64 != 0)
    return cudaErrorInvalidValue;
  const uint32_t blocks =
      args.places != nullptr ? args.tokens : round_up(args.tokens, args.out.tile_tokens);
  const uint32_t cluster = divide_up(args.out.depth, kBlockInputs);
  // With one piece or two per thread, squares are added in the same order.
  const bool is_large =
      args.out.tile_tokens >= kLargeBlockTileMin && args.tokens <= kLargeBlockTokensMax;
  const uint32_t pieces = is_large ? 1 : 2;
  const uint32_t threads = round_up(divide_up(args.out.depth, cluster * 16), 32) * (2 / pieces);
  if (launch.compute_capability >= 90 && args.cols % 4 == 0 && cluster <= kInputClusterMax &&
      is_aligned(args.x) && is_aligned(args.norm))
    return launch_kernel(launch, dim3(blocks * cluster), dim3(threads), 0,
                         cluster > 1 ? cluster : 0,
                         pieces == 2 ? half_input_kernel<2> : half_input_kernel<1>, args, cluster);
  return launch_kernel(launch, dim3(blocks), dim3(kInputThreads), 0, 0, half_input_any_kernel,
                       args);
}

}  // namespace wcuda::kernels
