// rope_kv: x[h] = turn(x[h] * gain / rms(x[h])) for the heads of q and k; k and v rounded to the
// pool's type and written to their page.
//
// A block has kBlockWarps warps and serves some heads of one token; a warp takes a head at a time.
// Angles are position * frequency in double precision, reduced there, so that a position of a
// million is as exact as one of ten. Rounding to f16, q8_0 and e4m3 gives the bits of the host's
// write_kv_row. Bytes moved: q once each way, k and v read once, their rows written once.
#include "kernels/dependent_launch.h"
#include "kernels/numeric.h"
#include "kernels/rope_kv.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockWarps = 8;
constexpr uint32_t kBlockThreads = kBlockWarps * 32;
constexpr uint32_t kLaneValues = kRopeHeadLengthMax / 32;
// With fewer tokens a token's heads are spread over blocks, for latency; with more one block turns
// all heads of a token with one table of sines.
constexpr uint32_t kSpreadTokensMax = 64;

struct RopeKvParams {
  RopeKvArgs args;
  uint32_t block_heads;
};

struct Shared {
  float cosines[kRopeHeadLengthMax / 2];
  float sines[kRopeHeadLengthMax / 2];
  float heads[kBlockWarps][kRopeHeadLengthMax];
};

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (uint32_t step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (uint32_t step = 16; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// sin and cos of position * frequency, within 4e-7.
__device__ inline void turn_of(uint32_t position, float frequency, float* sine, float* cosine) {
  constexpr double kInversePi = 0.318309886183790671538;
  const double half_turns =
      static_cast<double>(position) * static_cast<double>(frequency) * kInversePi;
  const double whole = 2.0 * rint(half_turns * 0.5);
  sincospif(static_cast<float>(half_turns - whole), sine, cosine);
}

// One head in shared memory, scaled to an RMS of 1 and by `gain`.
__device__ inline void norm_head(float* head, uint32_t n, const float* gain, float epsilon,
                                 uint32_t lane) {
  float squares = 0.0f;
#pragma unroll
  for (uint32_t j = 0; j < kLaneValues; ++j) {
    const uint32_t i = lane + 32 * j;
    if (i < n) squares += head[i] * head[i];
  }
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(n) + epsilon);
#pragma unroll
  for (uint32_t j = 0; j < kLaneValues; ++j) {
    const uint32_t i = lane + 32 * j;
    if (i < n) head[i] = head[i] * factor * gain[i];
  }
  __syncwarp();
}

__device__ inline void turn_head(float* head, const RopeKvArgs& args, const Shared& shared,
                                 uint32_t lane) {
  const uint32_t half = args.rope_dimensions / 2;
#pragma unroll
  for (uint32_t j = 0; j < kLaneValues / 2; ++j) {
    const uint32_t pair = lane + 32 * j;
    if (pair >= half) continue;
    float& first = head[args.has_adjacent_pairs ? 2 * pair : pair];
    float& second = head[args.has_adjacent_pairs ? 2 * pair + 1 : half + pair];
    const float a = first, b = second, c = shared.cosines[pair], s = shared.sines[pair];
    first = a * c - b * s;
    second = a * s + b * c;
  }
  __syncwarp();
}

// f16 scale, then 32 codes; the block's values lie one in each lane.
__device__ inline void write_q8_0_block(float value, uint8_t* block, uint32_t lane) {
  const bool is_finite = __all_sync(~0u, isfinite(value));
  const float largest = warp_max(fabsf(value));
  const uint16_t bits = is_finite ? float_to_half(largest / 127.0f) : uint16_t{0x7e00};
  const float scale = half_to_float(bits);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  const float code = is_finite ? rintf(value * inverse) : 0.0f;
  if (lane == 0) *reinterpret_cast<uint16_t*>(block) = bits;
  block[2 + lane] = static_cast<uint8_t>(static_cast<int8_t>(fminf(127.0f, fmaxf(-127.0f, code))));
}

__device__ inline void write_row(KvFormat format, const float* head, uint32_t n, uint8_t* row,
                                 uint32_t lane) {
  if (format == KvFormat::kQ8_0) {
    for (uint32_t i = 0; i < n; i += 32) write_q8_0_block(head[i + lane], row + i / 32 * 34, lane);
  } else if (format == KvFormat::kFp8E4m3) {
    for (uint32_t i = lane; i < n; i += 32) row[i] = float_to_e4m3(head[i]);
  } else {
    for (uint32_t i = lane; i < n; i += 32)
      reinterpret_cast<uint16_t*>(row)[i] = float_to_half(head[i]);
  }
}

__global__ void __launch_bounds__(kBlockThreads) rope_kv_kernel(const RopeKvParams params) {
  __shared__ Shared shared;
  const RopeKvArgs& args = params.args;
  const uint32_t token = blockIdx.x;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t n = args.pages.head_length;
  const uint32_t kv_heads = args.pages.head_count;
  dependent_trigger();

  const uint32_t row = __ldcg(args.step.token_rows + token);
  if (row == kDeadToken || row >= args.step.row_count) {
    // One block waits even so: whoever waits for this kernel must know those ahead of it ended too.
    if (token == 0 && blockIdx.y == 0) dependent_wait();
    return;
  }
  const uint32_t position = __ldcg(args.step.positions + token);
  const uint32_t page = __ldcg(args.step.page_tables + uint64_t{row} * args.step.page_table_stride +
                               position / kPagePositions);
  for (uint32_t i = threadIdx.x; i < args.rope_dimensions / 2; i += kBlockThreads) {
    float sine, cosine;
    turn_of(position, args.rope_frequencies[i], &sine, &cosine);
    shared.cosines[i] = cosine * args.rope_magnitude;
    shared.sines[i] = sine * args.rope_magnitude;
  }
  __syncthreads();
  dependent_wait();

  float* const head = shared.heads[warp];
  const uint32_t heads = args.head_count + 2 * kv_heads;
  const uint32_t head_end = min((blockIdx.y + 1) * params.block_heads, heads);
  const auto source_of = [&](uint32_t h) -> const float* {
    if (h < args.head_count) return args.query + (uint64_t{token} * args.head_count + h) * n;
    const uint32_t kv_head = (h - args.head_count) % kv_heads;
    const bool is_value = h >= args.head_count + kv_heads;
    return (is_value ? args.value : args.key) + (uint64_t{token} * kv_heads + kv_head) * n;
  };
  // The next head is on its way while one is worked on.
  float next[kLaneValues];
  const auto load = [&](uint32_t h) {
    const float* source = source_of(h);
#pragma unroll
    for (uint32_t j = 0; j < kLaneValues; ++j)
      if (lane + 32 * j < n) next[j] = __ldcg(source + lane + 32 * j);
  };
  uint32_t h = blockIdx.y * params.block_heads + warp;
  if (h < head_end) load(h);
  for (; h < head_end; h += kBlockWarps) {
    const bool is_query = h < args.head_count;
    const bool is_value = h >= args.head_count + kv_heads;
    const uint32_t kv_head = is_query ? 0 : (h - args.head_count) % kv_heads;
#pragma unroll
    for (uint32_t j = 0; j < kLaneValues; ++j)
      if (lane + 32 * j < n) head[lane + 32 * j] = next[j];
    if (h + kBlockWarps < head_end) load(h + kBlockWarps);
    __syncwarp();
    const float* gain = is_query ? args.query_norm : is_value ? nullptr : args.key_norm;
    if (gain != nullptr) norm_head(head, n, gain, args.epsilon, lane);
    if (!is_value) turn_head(head, args, shared, lane);
    if (is_query) {
      float* const target = args.query + (uint64_t{token} * args.head_count + h) * n;
      for (uint32_t i = lane; i < n; i += 32) target[i] = head[i];
    } else {
      const uint64_t plane =
          (uint64_t{args.layer} * args.pages.page_count + page) * 2 + (is_value ? 1 : 0);
      const uint64_t kv_row =
          (plane * kv_heads + kv_head) * kPagePositions + position % kPagePositions;
      write_row(args.pages.format, head, n, args.pages.data + kv_row * args.pages.row_bytes, lane);
    }
    __syncwarp();
  }
}

}  // namespace

cudaError_t rope_kv(const RopeKvArgs& args, const Launch& launch) {
  if (args.pages.head_length > kRopeHeadLengthMax || args.pages.head_length == 0 ||
      args.rope_dimensions > args.pages.head_length || args.rope_dimensions % 2 != 0)
    return cudaErrorInvalidValue;
  if (args.step.token_count == 0) return cudaSuccess;
  const uint32_t heads = args.head_count + 2 * args.pages.head_count;
  RopeKvParams params{args, heads};
  if (args.step.token_count <= kSpreadTokensMax) params.block_heads = kBlockWarps;
  const dim3 grid(args.step.token_count, (heads + params.block_heads - 1) / params.block_heads);
  return launch_kernel(launch, grid, dim3(kBlockThreads), 0, 0, rope_kv_kernel, params);
}

}  // namespace wcuda::kernels
