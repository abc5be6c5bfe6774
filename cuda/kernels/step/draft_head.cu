// The kernels of draft heads: a block for each token, row or row of logits.
#include <cfloat>

#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/shared/numeric.h"
#include "kernels/step/draft_head.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr uint32_t kBlockWarps = kBlockThreads / 32;

// Returns the sum over the block, in a fixed order. All threads must call it.
__device__ float block_sum(float value, float* shared) {
#pragma unroll
  for (uint32_t distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  __syncthreads();  // the last call's sum has been read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (uint32_t warp = 0; warp < kBlockWarps; ++warp) sum += shared[warp];
  return sum;
}

__device__ float rms_inverse(float square_sum, uint32_t count, float epsilon) {
  return 1.0f / sqrtf(square_sum / static_cast<float>(count) + epsilon);
}

__global__ void __launch_bounds__(kBlockThreads) keep_features_kernel(const KeepFeaturesArgs args) {
  dependent_trigger();
  dependent_wait();
  const uint32_t token = blockIdx.x;
  const uint32_t row = args.step.token_rows[token];
  if (row == kDeadToken || row >= args.step.row_count) return;
  const uint32_t position = args.step.positions[token], cols = args.pages.width / 3;
  const uint32_t page =
      args.step
          .page_tables[uint64_t{row} * args.step.page_table_stride + position / kPagePositions];
  for (uint32_t c = threadIdx.x; c < cols; c += kBlockThreads) {
    const uint16_t value = float_to_bf16(args.x[uint64_t{token} * cols + c]);
    for (uint32_t third = 0; third < 3; ++third)
      if ((args.thirds >> third & 1) != 0) *args.pages.at(page, position, third * cols + c) = value;
  }
}

__global__ void __launch_bounds__(kBlockThreads) read_features_kernel(const ReadFeaturesArgs args) {
  __shared__ float shared[kBlockWarps];
  dependent_trigger();
  dependent_wait();
  const uint32_t token = blockIdx.x, width = args.pages.width;
  const uint32_t row = args.step.token_rows[token];
  float* const out = args.out + uint64_t{token} * width;
  const bool has_features = row != kDeadToken && row < args.step.row_count &&
                            (args.step.rows[row].flags & kRowFeatures) != 0;
  if (!has_features) {
    for (uint32_t c = threadIdx.x; c < width; c += kBlockThreads) out[c] = 0.0f;
    return;
  }
  const uint32_t position = args.step.positions[token];
  const uint32_t page =
      args.page_tables[uint64_t{row} * args.page_table_stride + position / kPagePositions];
  float square_sum = 0.0f;
  for (uint32_t c = threadIdx.x; c < width; c += kBlockThreads) {
    const float value = bf16_to_float(*args.pages.at(page, position, c));
    square_sum = fmaf(value, value, square_sum);
    out[c] = value;
  }
  if (args.norm == nullptr) return;
  const float inverse = rms_inverse(block_sum(square_sum, shared), width, args.epsilon);
  for (uint32_t c = threadIdx.x; c < width; c += kBlockThreads) out[c] *= inverse * args.norm[c];
}

__global__ void __launch_bounds__(kBlockThreads) head_input_kernel(const HeadInputArgs args) {
  __shared__ float shared[kBlockWarps];
  dependent_trigger();
  dependent_wait();
  const uint32_t token = blockIdx.x, cols = args.cols;
  const uint32_t index = args.step.token_rows[token];
  if (index == kDeadToken || index >= args.step.row_count) return;
  const StepRow row = args.step.rows[index];
  const float* const embedding = args.embedding + uint64_t{token} * cols;
  const float* const state = (row.flags & kRowFeatures) != 0
                                 ? args.g + uint64_t{token} * cols
                                 : args.states + uint64_t{row.sequence_slot} * cols;
  float token_sum = 0.0f, state_sum = 0.0f;
  for (uint32_t c = threadIdx.x; c < cols; c += kBlockThreads) {
    token_sum = fmaf(embedding[c], embedding[c], token_sum);
    state_sum = fmaf(state[c], state[c], state_sum);
  }
  const float token_inverse = rms_inverse(block_sum(token_sum, shared), cols, args.epsilon);
  const float state_inverse = rms_inverse(block_sum(state_sum, shared), cols, args.epsilon);
  float* const input = args.input + uint64_t{token} * 2 * cols;
  float* const x = args.x + uint64_t{token} * cols;
  for (uint32_t c = threadIdx.x; c < cols; c += kBlockThreads) {
    const float normed = state[c] * state_inverse * args.state_norm[c];
    input[c] = embedding[c] * token_inverse * args.token_norm[c];
    input[cols + c] = normed;
    x[c] = args.norms_residual ? normed : state[c];  // the embedding's element has been read
  }
}

__global__ void __launch_bounds__(kBlockThreads) keep_states_kernel(const KeepStatesArgs args) {
  dependent_trigger();
  dependent_wait();
  const StepRow row = args.step.rows[blockIdx.x];
  if (row.token_count == 0) return;
  const float* const x = args.x + uint64_t{row.first_token + row.token_count - 1} * args.cols;
  float* const state = args.states + uint64_t{row.sequence_slot} * args.cols;
  for (uint32_t c = threadIdx.x; c < args.cols; c += kBlockThreads) state[c] = x[c];
}

__global__ void __launch_bounds__(kBlockThreads)
    scatter_logits_kernel(const ScatterLogitsArgs args) {
  dependent_trigger();
  dependent_wait();
  float* const out = args.out + uint64_t{blockIdx.x} * args.vocabulary;
  for (uint32_t t = threadIdx.x; t < args.vocabulary; t += kBlockThreads) out[t] = -FLT_MAX;
  __syncthreads();
  const float* const logits = args.logits + uint64_t{blockIdx.x} * args.head_vocabulary;
  for (uint32_t j = threadIdx.x; j < args.head_vocabulary; j += kBlockThreads)
    out[args.tokens[j]] = logits[j];
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
  return run(scatter_logits_kernel, args, args.count, launch);
}

}  // namespace wcuda::kernels
