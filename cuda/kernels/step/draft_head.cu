// The kernels of draft heads: a block for each token or row, a cluster for each row of logits. Most
// draft steps have one token, so that a block is as large as can be.
#include <cfloat>

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/shared/numeric.h"
#include "kernels/step/draft_head.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 1024;
constexpr uint32_t kBlockWarps = kBlockThreads / 32;
constexpr uint32_t kScatterBlocks = 8;  // of a row of logits

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (uint32_t distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

// Returns the sums of both values over the block, in a fixed order. A block may call it once.
__device__ __forceinline__ float2 block_sums(float a, float b) {
  __shared__ float2 sums[kBlockWarps];
  static_assert(kBlockWarps == 32);
  a = warp_sum(a), b = warp_sum(b);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = make_float2(a, b);
  __syncthreads();
  const float2 own = sums[threadIdx.x % 32];
  return make_float2(warp_sum(own.x), warp_sum(own.y));
}

__device__ float rms_inverse(float square_sum, uint32_t count, float epsilon) {
  return 1.0f / sqrtf(square_sum / static_cast<float>(count) + epsilon);
}

// What the step's inputs say of a token. attention_plan has ended before any kernel of this file
// starts, so that they are read before the dependent wait, past the L1 cache.
struct Token {
  bool exists;
  uint32_t row, position;
  uint32_t flags, slot;  // of its row

  __device__ __forceinline__ Token(const StepRows& step, uint32_t token)
      : row(__ldcg(step.token_rows + token)), position(__ldcg(step.positions + token)) {
    exists = row != kDeadToken && row < step.row_count;
    if (!exists) row = 0;
    flags = __ldcg(&step.rows[row].flags);
    slot = __ldcg(&step.rows[row].sequence_slot);
  }
  __device__ __forceinline__ FeatureRow features(const FeaturePages& pages, const uint32_t* tables,
                                                 uint32_t stride) const {
    const uint32_t* const page = tables + uint64_t{row} * stride + position / kPagePositions;
    return FeatureRow(pages, __ldcg(page), position);
  }
};

__global__ void __launch_bounds__(kBlockThreads) keep_features_kernel(const KeepFeaturesArgs args) {
  dependent_trigger();
  const Token token(args.step, blockIdx.x);
  const uint32_t cols = args.pages.width / 3;
  if (!token.exists) return dependent_wait();
  const FeatureRow features =
      token.features(args.pages, args.step.page_tables, args.step.page_table_stride);
  dependent_wait();
  const float* const x = args.x + uint64_t{blockIdx.x} * cols;
  for (uint32_t third = 0; third < 3; ++third) {
    if ((args.thirds >> third & 1) == 0) continue;
#pragma unroll 4
    for (uint32_t c = threadIdx.x; c < cols; c += kBlockThreads)
      *features.at(third * cols + c) = float_to_bf16(x[c]);
  }
}

__global__ void __launch_bounds__(kBlockThreads) read_features_kernel(const ReadFeaturesArgs args) {
  dependent_trigger();
  const Token token(args.step, blockIdx.x);
  const uint32_t width = args.pages.width;
  float* const out = args.out + uint64_t{blockIdx.x} * width;
  if (!token.exists || (token.flags & kRowFeatures) == 0) {
    dependent_wait();
    for (uint32_t c = threadIdx.x; c < width; c += kBlockThreads) out[c] = 0.0f;
    return;
  }
  const FeatureRow features = token.features(args.pages, args.page_tables, args.page_table_stride);
  dependent_wait();
  float square_sum = 0.0f;
#pragma unroll 4
  for (uint32_t c = threadIdx.x; c < width; c += kBlockThreads) {
    const float value = bf16_to_float(*features.at(c));
    square_sum = fmaf(value, value, square_sum);
    out[c] = value;
  }
  if (args.norm == nullptr) return;
  const float inverse = rms_inverse(block_sums(square_sum, 0.0f).x, width, args.epsilon);
  for (uint32_t c = threadIdx.x; c < width; c += kBlockThreads) out[c] *= inverse * args.norm[c];
}

__global__ void __launch_bounds__(kBlockThreads) head_input_kernel(const HeadInputArgs args) {
  dependent_trigger();
  const Token token(args.step, blockIdx.x);
  const uint32_t cols = args.cols;
  const uint64_t first = uint64_t{blockIdx.x} * cols;
  dependent_wait();
  if (!token.exists) return;
  const float* const embedding = args.embedding + first;
  const float* const state = (token.flags & kRowFeatures) != 0
                                 ? args.g + first
                                 : args.states + uint64_t{token.slot} * cols;
  float token_sum = 0.0f, state_sum = 0.0f;
#pragma unroll 4
  for (uint32_t c = threadIdx.x; c < cols; c += kBlockThreads) {
    token_sum = fmaf(embedding[c], embedding[c], token_sum);
    state_sum = fmaf(state[c], state[c], state_sum);
  }
  const float2 sums = block_sums(token_sum, state_sum);
  const float token_inverse = rms_inverse(sums.x, cols, args.epsilon);
  const float state_inverse = rms_inverse(sums.y, cols, args.epsilon);
  float* const input = args.input + 2 * first;
  float* const x = args.x + first;
#pragma unroll 4
  for (uint32_t c = threadIdx.x; c < cols; c += kBlockThreads) {
    const float normed = state[c] * state_inverse * args.state_norm[c];
    input[c] = embedding[c] * token_inverse * args.token_norm[c];
    input[cols + c] = normed;
    x[c] = args.norms_residual ? normed : state[c];  // the embedding's element has been read
  }
}

__global__ void __launch_bounds__(kBlockThreads) keep_states_kernel(const KeepStatesArgs args) {
  dependent_trigger();
  const StepRow* const row = args.step.rows + blockIdx.x;
  const uint32_t token_count = __ldcg(&row->token_count), slot = __ldcg(&row->sequence_slot);
  const uint32_t last = __ldcg(&row->first_token) + token_count - 1;
  dependent_wait();
  if (token_count == 0) return;
  const float* const x = args.x + uint64_t{last} * args.cols;
  float* const state = args.states + uint64_t{slot} * args.cols;
#pragma unroll 4
  for (uint32_t c = threadIdx.x; c < args.cols; c += kBlockThreads) state[c] = x[c];
}

// The blocks of a cluster share a row. All of it is written before the logits are.
__global__ void __launch_bounds__(kBlockThreads)
    scatter_logits_kernel(const ScatterLogitsArgs args) {
  dependent_trigger();
  dependent_wait();
  const uint32_t row = blockIdx.x / cluster_size();
  const uint32_t first = cluster_rank() * kBlockThreads + threadIdx.x;
  const uint32_t step = cluster_size() * kBlockThreads;
  float* const out = args.out + uint64_t{row} * args.vocabulary;
#pragma unroll 4
  for (uint32_t t = first; t < args.vocabulary; t += step) out[t] = -FLT_MAX;
  cluster_sync();
  const float* const logits = args.logits + uint64_t{row} * args.head_vocabulary;
#pragma unroll 4
  for (uint32_t j = first; j < args.head_vocabulary; j += step) out[args.tokens[j]] = logits[j];
}

template <class Args>
cudaError_t run(void (*kernel)(Args), const Args& args, uint32_t blocks, const Launch& launch) {
  if (blocks == 0) return cudaSuccess;
  return launch_kernel(launch, dim3(blocks), dim3(kBlockThreads), 0, 0, kernel, args);
}

}  // namespace

cudaError_t keep_features(const KeepFeaturesArgs& args, const Launch& launch) {
  if (args.pages.width % 3 != 0 || args.pages.page_layer_bytes == 0) return cudaErrorInvalidValue;
  return run(keep_features_kernel, args, args.step.token_count, launch);
}

cudaError_t read_features(const ReadFeaturesArgs& args, const Launch& launch) {
  if (args.pages.width % 3 != 0 || args.pages.page_layer_bytes == 0) return cudaErrorInvalidValue;
  return run(read_features_kernel, args, args.step.token_count, launch);
}

cudaError_t head_input(const HeadInputArgs& args, const Launch& launch) {
  return run(head_input_kernel, args, args.step.token_count, launch);
}

cudaError_t keep_states(const KeepStatesArgs& args, const Launch& launch) {
  return run(keep_states_kernel, args, args.step.row_count, launch);
}

cudaError_t scatter_logits(const ScatterLogitsArgs& args, const Launch& launch) {
  if (args.count == 0) return cudaSuccess;
  const uint32_t cluster = launch.compute_capability >= 90 ? kScatterBlocks : 0;
  return launch_kernel(launch, dim3(args.count * (cluster == 0 ? 1 : cluster)), dim3(kBlockThreads),
                       0, cluster, scatter_logits_kernel, args);
}

}  // namespace wcuda::kernels
