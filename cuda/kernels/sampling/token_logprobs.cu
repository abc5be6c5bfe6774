// token_logprobs, raw_logprobs: log p = logit - max - log(sum of exp(logit - max)), and the most
// likely tokens.
//
// Shapes: logits (…, vocabulary) f32; one block a row, which it reads twice. The first time each
// thread finds its largest logit. From these the block chooses a threshold that at least as many
// tokens reach as alternatives are wanted. The second time it sums weights, which are integers, and
// lists the tokens that reach the threshold; then it ranks the list. If the list is too long, or
// might lack a token because logits round to the same log probability, the block reads the row once
// more for each alternative.
#include <cfloat>

#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/sampling/sample_candidates.cuh"
#include "kernels/sampling/token_logprobs.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kScoreThreads = 1024;  // a row is alone on its SM in steps of few rows
constexpr uint32_t kScoreWarps = kScoreThreads / 32;
constexpr uint32_t kScoreListMax = 2048;
constexpr uint32_t kScoreSumMax = 124;  // values of a thread in a WeightSum, a multiple of 4
static_assert(kSampleTopLogprobsMax <= kScoreThreads);

struct ScoreShared {
  uint64_t warps[kScoreWarps];
  uint64_t list[kScoreListMax];
  uint32_t list_count;
  uint32_t has_all;  // the list has all alternatives
};

// The log probability to compute from a row of logits.
struct Wanted {
  const float* logits;  // null: none
  uint32_t token;
  uint32_t top;
};

// Returns join of the values of all threads. Called by all threads.
template <class T, class Join>
__device__ T block_join(T value, Join join, uint64_t* warps) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = join(value, __shfl_xor_sync(kAllLanes, value, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = static_cast<T>(warps[threadIdx.x % kScoreWarps]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = join(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Calls visit(id, logit) for the thread's tokens of begin … end - 1; begin is a multiple of 4.
template <class Visit>
__device__ __forceinline__ void for_each_logit(const float* logits, uint32_t begin, uint32_t end,
                                               bool is_aligned, Visit visit) {
  if (!is_aligned) {
#pragma unroll 8
    for (uint32_t id = begin + threadIdx.x; id < end; id += kScoreThreads) visit(id, logits[id]);
    return;
  }
#pragma unroll 4
  for (uint32_t id = begin + 4 * threadIdx.x; id < end; id += 4 * kScoreThreads) {
    const float4 four = *reinterpret_cast<const float4*>(logits + id);
    visit(id, four.x);
    visit(id + 1, four.y);
    visit(id + 2, four.z);
    visit(id + 3, four.w);
  }
}

// Writes the `top` tokens that rank first; returns how many there are.
template <class Output>
__device__ uint32_t write_listed(ScoreShared& shared, const RankByLogprob& rank, uint32_t top,
                                 float threshold, bool lists_all, const Output& output) {
  const uint32_t count = shared.list_count;
  if (count > kScoreListMax) return kNoToken;
  for (uint32_t i = threadIdx.x; i < count; i += kScoreThreads) {
    const uint64_t entry = shared.list[i];
    const auto id = static_cast<uint32_t>(entry);
    shared.list[i] =
        uint64_t{rank.key(id, __uint_as_float(static_cast<uint32_t>(entry >> 32)))} << 32 | id;
  }
  if (threadIdx.x == 0) shared.has_all = lists_all;
  __syncthreads();
  // Tokens below the threshold have at least its key.
  const uint32_t key_below = lists_all ? kNotRanked : rank.key(0, threshold);
  for (uint32_t i = threadIdx.x; i < count; i += kScoreThreads) {
    const uint64_t own = shared.list[i];
    uint32_t place = 0;
    for (uint32_t other = 0; other < count; ++other) place += shared.list[other] < own;
    if (place < top) output.write_top(place, own);
    if (place + 1 == top && static_cast<uint32_t>(own >> 32) < key_below) shared.has_all = true;
  }
  __syncthreads();
  return shared.has_all ? min(count, top) : kNoToken;
}

// The same for any logits: finds one token after the other.
template <class Output>
__device__ __noinline__ uint32_t write_one_by_one(ScoreShared& shared, const RankByLogprob& rank,
                                                  const Wanted& wanted, uint32_t vocabulary,
                                                  const Output& output) {
  uint64_t next = 0;
  for (uint32_t place = 0; place < wanted.top; ++place) {
    uint64_t best = UINT64_MAX;
    for_each_logit(wanted.logits, 0, vocabulary, false, [&](uint32_t id, float logit) {
      const uint32_t key = rank.key(id, logit);
      const uint64_t entry = uint64_t{key} << 32 | id;
      if (key != kNotRanked && entry >= next) best = min(best, entry);
    });
    best = block_join(
        best, [](uint64_t a, uint64_t b) { return a < b ? a : b; }, shared.warps);
    if (best == UINT64_MAX) return place;
    if (threadIdx.x == 0) output.write_top(place, best);
    next = best + 1;
  }
  return wanted.top;
}

// `Output` has the functions wanted() and, for the results, write_top(place, key << 32 | token),
// finish(logprob, top_count) and fail(status), which one thread calls.
template <class Output>
__global__ void __launch_bounds__(kScoreThreads, 1)
    token_logprobs_kernel(const __grid_constant__ typename Output::Args args) {
  __shared__ ScoreShared shared;
  dependent_trigger();
  dependent_wait();
  const Output output{args, blockIdx.x};
  const Wanted wanted = output.wanted();
  if (wanted.logits == nullptr) return;

  RunningMax seen;
  const bool is_aligned = args.vocabulary % 4 == 0;  // float4s of logits
  for_each_logit(wanted.logits, 0, args.vocabulary, is_aligned,
                 [&](uint32_t, float logit) { seen.see(logit); });
  const uint32_t own_rank = rank_of(seen.key());
  const uint32_t max_rank = block_join(
      own_rank, [](uint32_t a, uint32_t b) { return max(a, b); }, shared.warps);
  const float max_logit = unorder(key_of(max_rank));
  if (key_of(max_rank) >= static_cast<int32_t>(kInfinityBits) || max_logit == -__builtin_inff()) {
    if (threadIdx.x == 0) output.fail(kRowNotFinite);
    return;
  }
  // Listed are ranks from `threshold` on. One step below what the last of the threads reaches,
  // since block_threshold may return exactly this.
  constexpr uint32_t kThresholdStep = 1u << 14;
  uint32_t threshold = UINT32_MAX;
  if (wanted.top > 0) {
    threshold = block_threshold(own_rank, wanted.top);
    threshold -= min(threshold, kThresholdStep);
  }
  const bool lists_all = threshold <= rank_of(order(-__builtin_inff()));
  if (threadIdx.x == 0) shared.list_count = 0;
  __syncthreads();

  // With UINT32_MAX a NaN, which no logit reaches. -infinity is never listed.
  const float least = lists_all ? -FLT_MAX : unorder(key_of(threshold));
  const PlainWeight weight_of(max_logit);
  uint64_t sum = 0;
  for (uint32_t begin = 0; begin < args.vocabulary; begin += kScoreSumMax * kScoreThreads) {
    WeightSum part;
    for_each_logit(wanted.logits, begin, min(begin + kScoreSumMax * kScoreThreads, args.vocabulary),
                   is_aligned, [&](uint32_t id, float logit) {
                     part.add(weight_of(logit));
                     if (!(logit >= least)) return;
                     const uint32_t at = atomicAdd(&shared.list_count, 1u);
                     if (at < kScoreListMax)
                       shared.list[at] = uint64_t{__float_as_uint(logit)} << 32 | id;
                   });
    sum += part.total();
  }
  sum = block_join(
      sum, [](uint64_t a, uint64_t b) { return a + b; }, shared.warps);
  const RankByLogprob rank{max_logit, math::log_of_weights(sum)};
  uint32_t top_count = 0;
  if (wanted.top > 0) {
    top_count =
        write_listed(shared, rank, wanted.top, unorder(key_of(threshold)), lists_all, output);
    if (top_count == kNoToken)
      top_count = write_one_by_one(shared, rank, wanted, args.vocabulary, output);
  }
  if (threadIdx.x == 0)
    output.finish(math::log_probability(wanted.logits[wanted.token], max_logit, rank.log_sum),
                  top_count);
}

struct RawLogprobs {
  using Args = RawLogprobsArgs;
  const Args& args;
  uint32_t index;  // of the row

  __device__ Wanted wanted() const {
    const SampleRow& row = args.rows[index];
    if (row.is_sampled == 0 || row.has_raw_logprobs == 0 || args.statuses[index] != kRowOk)
      return Wanted{nullptr, 0, 0};
    const int32_t token =
        args.history[uint64_t{row.sequence_slot} * args.history_stride + row.position];
    return Wanted{args.logits + uint64_t{row.logits_row} * args.vocabulary,
                  static_cast<uint32_t>(token), min(row.raw_top_logprobs, args.top_stride)};
  }
  __device__ void write_top(uint32_t place, uint64_t entry) const {
    const uint64_t at = uint64_t{index} * args.top_stride + place;
    args.top_tokens[at] = static_cast<int32_t>(static_cast<uint32_t>(entry));
    args.top_logprobs[at] = 0.0f - __uint_as_float(static_cast<uint32_t>(entry >> 32));
  }
  __device__ void finish(float logprob, uint32_t top_count) const {
    args.outputs[index].logprob = logprob;
    args.outputs[index].top_count = top_count;
  }
  __device__ void fail(int32_t) const {}  // logits that were sampled from are finite
};

struct TokenLogprobs {
  using Args = TokenLogprobsArgs;
  const Args& args;
  uint32_t index;  // of the token

  __device__ uint32_t top() const { return min(args.tokens[index].top, args.top_stride); }
  __device__ Wanted wanted() const {
    return Wanted{args.logits + uint64_t{index} * args.vocabulary,
                  static_cast<uint32_t>(args.tokens[index].token), top()};
  }
  __device__ void write(uint32_t place, int32_t token, float logprob) const {
    const uint64_t at = uint64_t{index} * args.top_stride + place;
    args.top_tokens[at] = token;
    args.top_logprobs[at] = logprob;
  }
  __device__ void write_top(uint32_t place, uint64_t entry) const {
    write(place, static_cast<int32_t>(static_cast<uint32_t>(entry)),
          0.0f - __uint_as_float(static_cast<uint32_t>(entry >> 32)));
  }
  __device__ void finish(float logprob, uint32_t top_count) const {
    args.logprobs[index] = logprob;
    for (uint32_t place = top_count; place < top(); ++place) write(place, -1, -__builtin_inff());
  }
  __device__ void fail(int32_t status) const {
    int32_t& row_status = args.row_statuses[args.tokens[index].row];
    if (row_status == kRowOk) row_status = status;
  }
};

template <class Output>
cudaError_t launch_logprobs(const typename Output::Args& args, uint32_t count,
                            const Launch& launch) {
  if (count == 0) return cudaSuccess;
  if (args.vocabulary == 0 || args.vocabulary > math::kMaxVocabulary ||
      args.top_stride > kSampleTopLogprobsMax)
    return cudaErrorInvalidValue;
  return launch_kernel(launch, dim3(count), dim3(kScoreThreads), 0, 0,
                       token_logprobs_kernel<Output>, args);
}

}  // namespace

cudaError_t token_logprobs(const TokenLogprobsArgs& args, const Launch& launch) {
  return launch_logprobs<TokenLogprobs>(args, args.token_count, launch);
}

cudaError_t raw_logprobs(const RawLogprobsArgs& args, const Launch& launch) {
  return launch_logprobs<RawLogprobs>(args, args.row_count, launch);
}

}  // namespace wcuda::kernels
