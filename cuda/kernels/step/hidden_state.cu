// hidden_state: out[r][c] = norm[c] * sum over the wanted tokens t of row r of x[t][c] / rms(x[t]).
//
// A warp computes 1 / rms of one token. Then a thread computes one column of one row; it adds the
// tokens in their order, so a sum does not depend on the other rows. Alignment: 4 bytes.
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/step/hidden_state.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr uint32_t kBlockTokens = kBlockThreads / 32;

__global__ void __launch_bounds__(kBlockThreads) rms_inverse_kernel(const HiddenStateArgs args) {
  dependent_trigger();
  dependent_wait();
  const uint32_t token = blockIdx.x * kBlockTokens + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= args.token_count) return;
  const float* const x = args.x + uint64_t{token} * args.cols;
  float square_sum = 0.0f;
  for (uint32_t c = lane; c < args.cols; c += 32) square_sum = fmaf(x[c], x[c], square_sum);
#pragma unroll
  for (uint32_t distance = 16; distance > 0; distance /= 2)
    square_sum += __shfl_xor_sync(~0u, square_sum, distance);
  if (lane == 0)
    args.rms_inverses[token] =
        1.0f / sqrtf(square_sum / static_cast<float>(args.cols) + args.epsilon);
}

__global__ void __launch_bounds__(kBlockThreads)
    hidden_state_kernel(const HiddenStateArgs args, uint32_t row_blocks) {
  dependent_trigger();
  dependent_wait();
  const uint32_t index = blockIdx.x / row_blocks;
  const uint32_t column = blockIdx.x % row_blocks * kBlockThreads + threadIdx.x;
  const StepRow row = args.rows[index];
  if ((row.flags & kRowHidden) == 0 || row.token_count == 0 || column >= args.cols) return;
  const uint32_t count = (row.flags & kRowHiddenSum) != 0 ? row.token_count : 1;
  const uint32_t first =
      row.first_token + ((row.flags & kRowHiddenLast) != 0 ? row.token_count - 1 : 0);
  const float* const x = args.x + uint64_t{first} * args.cols + column;
  float sum = 0.0f;
#pragma unroll 8
  for (uint32_t t = 0; t < count; ++t)
    sum = fmaf(x[uint64_t{t} * args.cols], args.rms_inverses[first + t], sum);
  args.out[uint64_t{index} * args.cols + column] = sum * args.norm[column];
}

}  // namespace

cudaError_t hidden_state(const HiddenStateArgs& args, const Launch& launch) {
  if (args.cols == 0 || args.norm == nullptr) return cudaErrorInvalidValue;
  if (args.token_count == 0 || args.row_count == 0) return cudaSuccess;
  const uint32_t row_blocks = (args.cols + kBlockThreads - 1) / kBlockThreads;
  const uint64_t blocks = uint64_t{args.row_count} * row_blocks;
  if (blocks > 0x7fffffffu) return cudaErrorInvalidValue;
  const cudaError_t error =
      launch_kernel(launch, (args.token_count + kBlockTokens - 1) / kBlockTokens, kBlockThreads, 0,
                    0, rms_inverse_kernel, args);
  if (error != cudaSuccess) return error;
  return launch_kernel(launch, static_cast<uint32_t>(blocks), kBlockThreads, 0, 0,
                       hidden_state_kernel, args, row_blocks);
}

}  // namespace wcuda::kernels
