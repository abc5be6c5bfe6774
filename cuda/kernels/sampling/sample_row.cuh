// Parts of the sampling kernels, included only by files here: the logits of a row, divided among
// the warps of a cluster; the exchange of sums and candidates between the blocks of the cluster;
// and the output of results.
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/sampling/sample.h"
#include "kernels/sampling/sample_plan.h"
#include "kernels/shared/sampling_math.h"
#include "kernels/shared/step_inputs.h"
#include "kernels/shared/warp_prefix.cuh"

namespace wcuda::kernels {
namespace {

namespace math = wcuda::sampling;

using sample_plan::kBlocksMax;
using sample_plan::kBlockThreads;
using sample_plan::kWarps;
constexpr uint32_t kAllLanes = 0xffffffffu;

constexpr uint32_t kBins = 2048;
constexpr uint32_t kBinBits = 11;
// Number of bins of the first histogram for an interval of length 1. The histogram is over the
// floats whose bits rank.key() returns.
constexpr float kStepsPerUnit = 64.0f;

constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kNoToken = UINT32_MAX;

struct SampleParams {
  SampleArgs args;
  uint32_t segment;  // tokens per warp, a multiple of 4
  // Used with sample_stream: the number of rows of logits in shared memory, and an array in
  // args.scratch that marks the rows which sample_stream leaves to sample_kernel.
  uint32_t slots = 0;
  uint32_t* pending = nullptr;  // (row_count)
};

// A 64-bit sum that is updated by 32-bit atomics.
struct Bin {
  uint32_t low, high;
};

// What one block sends to the others of its cluster.
struct __align__(16) Item {
  uint64_t sum;
  uint64_t other;
  uint32_t token;
  uint32_t count;
  uint64_t unused;
};
static_assert(sizeof(Item) == 32);

struct Shared {
  Item warps[kWarps];
  Item blocks[2][kBlocksMax];  // received items; gathers use the two arrays in turn
  uint64_t barriers[3];        // one per array of `blocks`, one for Row::list
  uint64_t segments[kWarps];   // one sum for each warp
  uint32_t ranks[2][kWarps];   // rank_of each warp's largest logit
  uint64_t top[kSampleTopLogprobsMax];
  uint64_t found_before;
  uint32_t found_bin;
  uint32_t found_token;
  uint32_t top_count;
  uint32_t window_count;
  uint32_t list_count;
};

// Dynamic shared memory holds Shared, then the histograms or the penalty window in the same place,
// then the logits.
constexpr uint32_t kSharedBytes = (sizeof(Shared) + 127) / 128 * 128;
constexpr uint32_t kHistogramBytes = 2 * kBins * sizeof(Bin);
constexpr uint32_t kAccumulatorBytes = kSamplePenaltyWindowMax * sizeof(uint32_t);
static_assert(kAccumulatorBytes <= kHistogramBytes);
// The list of the most likely tokens (Row::list) is in the memory of one histogram. The other
// histogram is needed to rank the tokens of the list.
constexpr uint32_t kListMax = kBins * sizeof(Bin) / sizeof(uint64_t);
constexpr uint32_t kListPerThread = kListMax / kBlockThreads;
constexpr uint32_t kBinsPerThread = kBins / kBlockThreads;
static_assert(kListPerThread * kBlockThreads == kListMax && kBinsPerThread == 4);
constexpr uint32_t kListForTopP = 1400;    // least number of tokens to list for top-p
constexpr uint32_t kListWantedMax = 1500;  // below kListMax, to leave room for ties

// ---- numbers ----

// Returns an integer that is ordered like the float: -infinity < … < -0 < 0 < … < infinity < NaN.
__device__ __forceinline__ int32_t order(float value) {
  const int32_t bits = __float_as_int(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ __forceinline__ float unorder(int32_t key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

// Computes math::weight(p) with one conversion; the product p * 2^38 is exact.
__device__ __forceinline__ uint64_t weight(float p) { return __float2ull_rn(p * 0x1p38f); }

// Sums math::weight(p) over up to 127 values in 32-bit arithmetic. `high` is an exact sum of
// multiples of 2^-16. The part of p that is lost when `high` is rounded, at most 2^-17, is itself
// rounded to a multiple of 2^-38 and added to `low`. Adding 1.5 * 2^n to a value rounds it to a
// multiple of 2^(n - 23), which is then an integer in the bits of the float.
struct WeightSum {
  static constexpr float kZero = 128.0f;
  float high = kZero;
  uint32_t low = 0;
  __device__ __forceinline__ void add(float p) {
    constexpr float kLow = 0x1.8p-15f;
    const float before = high;
    high = __fadd_rn(before, p);
    const float rest = __fsub_rn(p, __fsub_rn(high, before));
    low += __float_as_uint(__fadd_rn(rest, kLow)) - 0x38400000u;
  }
  // The sum as a multiple of 2^-38, divided by 2^22 and rounded down. remainder() returns the rest.
  __device__ uint32_t quotient() const {
    return __float_as_uint(high) - __float_as_uint(kZero) +
           static_cast<uint32_t>(static_cast<int32_t>(low) >> 22);
  }
  __device__ uint32_t remainder() const { return low & 0x3fffffu; }
  __device__ uint64_t total() const { return (uint64_t{quotient()} << 22) + remainder(); }
  __device__ uint64_t warp_total() const {
    return (uint64_t{__reduce_add_sync(kAllLanes, quotient())} << 22) +
           __reduce_add_sync(kAllLanes, remainder());
  }
};
// Like WeightSum, for any number of values.
struct LongWeightSum {
  uint64_t sum = 0;
  __device__ __forceinline__ void add(float p) { sum += weight(p); }
  __device__ uint64_t total() const { return sum; }
};
template <bool kIsShared>
struct SumOf {
  using Type = WeightSum;
};
template <>
struct SumOf<false> {
  using Type = LongWeightSum;
};

__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
// Like warp_sum, but faster, for values below 2^53.
__device__ __forceinline__ uint64_t warp_sum_small(uint64_t value) {
  const uint32_t low = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(value) & 0x3ffffffu);
  const uint32_t high = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(value >> 26));
  return (uint64_t{high} << 26) + low;
}

__device__ __forceinline__ void add_to(Bin* bin, uint64_t amount) {
  const auto low = static_cast<uint32_t>(amount);
  auto high = static_cast<uint32_t>(amount >> 32);
  const uint32_t before = atomicAdd(&bin->low, low);
  high += before + low < before;
  if (high != 0) atomicAdd(&bin->high, high);
}

__device__ __forceinline__ uint64_t total_of(const Bin& bin) {
  return (uint64_t{bin.high} << 32) + bin.low;
}

// ---- a row ----

// A warp's view of the row. With kIsShared, `values` is a copy of the logits in shared memory.
// Otherwise `values` is in global memory: the logits themselves or, if bias, mask or penalties
// apply, a copy in scratch memory.
template <bool kIsShared>
struct Row {
  const SampleParams* params;
  uint32_t index;  // of the row
  SampleRow row;
  Shared* shared;
  Bin* histograms;                  // (2, kBins)
  uint32_t* window;                 // (kSamplePenaltyWindowMax), in the same memory as histograms
  float* values;                    // values[id - block_begin] is the logit of token id
  uint32_t block_begin, block_end;  // ids
  uint32_t warp_begin, warp_end;    // ids
  uint32_t rank, size;
  uint32_t gathers;    // number of gathers so far
  uint32_t histogram;  // index of the histogram whose bins are zero
  bool is_aligned;     // rows in global memory are aligned to 16 bytes

  __device__ uint32_t warp() const { return threadIdx.x / 32; }
  __device__ uint32_t lane() const { return threadIdx.x % 32; }
  __device__ float value(uint32_t id) const { return values[id - block_begin]; }
  // The list of the most likely tokens, each as (bits of the logit) << 32 | id, and the histogram
  // that ranks them.
  __device__ uint64_t* list() const { return reinterpret_cast<uint64_t*>(histograms); }
  __device__ Bin* list_bins() const { return histograms + kBins; }

  // Sets the ranges of tokens to those of the block of `block_rank`.
  __device__ void view(uint32_t block_rank) {
    const uint32_t vocabulary = params->args.vocabulary, chunk = kWarps * params->segment;
    block_begin = min(block_rank * chunk, vocabulary);
    block_end = min(block_begin + chunk, vocabulary);
    warp_begin = min(block_begin + warp() * params->segment, vocabulary);
    warp_end = min(warp_begin + params->segment, vocabulary);
  }

  // Loads four logits. The offset of `from` in the row must be a multiple of 4.
  __device__ __forceinline__ float4 float4_at(const float* from) const {
    if (kIsShared || is_aligned) return *reinterpret_cast<const float4*>(from);
    return make_float4(from[0], from[1], from[2], from[3]);
  }
  // Calls visit(id, logit) for the warp's tokens. Each call of for_each visits the same tokens in
  // the same lane, in ascending order.
  template <uint32_t kUnroll = 1, class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    const float* const run = values + (warp_begin - block_begin);
    const uint32_t count = warp_end - warp_begin, float4s = count / 4;
#pragma unroll kUnroll
    for (uint32_t i = lane(); i < float4s; i += 32) {
      const float4 four = float4_at(run + 4 * i);
      const uint32_t id = warp_begin + 4 * i;
      visit(id, four.x);
      visit(id + 1, four.y);
      visit(id + 2, four.z);
      visit(id + 3, four.w);
    }
    const uint32_t last = 4 * float4s + lane();  // the last tokens of the vocabulary, at most 3
    if (last < count) visit(warp_begin + last, run[last]);
  }

  // Like for_each, but reads one token at a time, which takes a quarter of the code. The tokens are
  // divided differently among the lanes.
  template <class Visit>
  __device__ __forceinline__ void for_each_singly(Visit visit) const {
#pragma unroll 1
    for (uint32_t id = warp_begin + lane(); id < warp_end; id += 32) visit(id, value(id));
  }

  // Sends the `item` of each block to all blocks of the cluster, and returns the array of the
  // `size` items. `item` must be the same in all lanes of warp 0. The caller must execute a block
  // barrier between two gathers. With kIsHalf, sends only `sum` and `other`.
  template <bool kIsHalf = false>
  __device__ __forceinline__ const Item* all_gather(const Item& item) {
    const uint32_t phase = gathers % 2;
    [[maybe_unused]] const uint32_t parity = gathers / 2 % 2;
    ++gathers;
    Item* const items = shared->blocks[phase];
#if __CUDA_ARCH__ >= 900
    const uint32_t barrier = shared_address(&shared->barriers[phase]);
    if (warp() == 0) {
      if (lane() == 0)
        mbarrier_expect_tx(barrier, static_cast<uint32_t>(size * sizeof(Item) / (kIsHalf ? 2 : 1)));
      if (lane() < size) {
        const uint32_t target = cluster_address(shared_address(items + rank), lane());
        const uint32_t target_barrier = cluster_address(barrier, lane());
        cluster_store_async(target, item.sum, item.other, target_barrier);
        if (!kIsHalf)
          cluster_store_async(target + 16, uint64_t{item.count} << 32 | item.token, 0,
                              target_barrier);
      }
    }
    mbarrier_wait_cluster(barrier, parity);
#else
    if (threadIdx.x == 0) items[0] = item;
    __syncthreads();
#endif
    return items;
  }
  // Sends `sum` and `other` of each block to the first block of the cluster. Called by warp 0,
  // after all other gathers.
  __device__ __forceinline__ const Item* gather_first(const Item& item) {
    const uint32_t phase = gathers % 2;
    [[maybe_unused]] const uint32_t parity = gathers / 2 % 2;
    Item* const items = shared->blocks[phase];
#if __CUDA_ARCH__ >= 900
    const uint32_t barrier = shared_address(&shared->barriers[phase]);
    if (lane() == 0) {
      if (rank == 0) mbarrier_expect_tx(barrier, static_cast<uint32_t>(size * sizeof(Item) / 2));
      cluster_store_async(cluster_address(shared_address(items + rank), 0), item.sum, item.other,
                          cluster_address(barrier, 0));
    }
    if (rank == 0) mbarrier_wait_cluster(barrier, parity);
#else
    if (lane() == 0) items[0] = item;
    __syncwarp();
#endif
    return items;
  }

  // Returns in warp 0 the sum of `sum`, the sum of `other` and the smallest `token` over the block.
  __device__ Item block_join(uint64_t sum, uint64_t other, uint32_t token) const {
    Item item{};
    item.sum = warp_sum(sum);
    item.other = warp_sum(other);
    item.token = __reduce_min_sync(kAllLanes, token);
    if (lane() == 0) shared->warps[warp()] = item;
    __syncthreads();
    if (warp() == 0) {
      item = lane() < kWarps ? shared->warps[lane()] : Item{0, 0, kNoToken, 0, 0};
      item.sum = warp_sum(item.sum);
      item.other = warp_sum(item.other);
      item.token = __reduce_min_sync(kAllLanes, item.token);
    }
    return item;
  }
  // Returns the sum of `sum`, of `other` and of `count` and the smallest `token` over the `items`
  // of the cluster.
  __device__ Item joined(const Item* items) const {
    Item all{0, 0, kNoToken, 0, 0};
    for (uint32_t i = 0; i < size; ++i) {
      all.sum += items[i].sum;
      all.other += items[i].other;
      all.token = min(all.token, items[i].token);
      all.count += items[i].count;
    }
    return all;
  }
};

// The maximum of the values that were passed to see(). key() returns order(max), or INT32_MAX if
// one of the values was NaN or +infinity.
struct RunningMax {
  float max = -__builtin_inff();
  __device__ __forceinline__ void see(float value) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(max) : "f"(value));
  }
  __device__ int32_t key() const { return max < __builtin_inff() ? order(max) : INT32_MAX; }
};

// Converts order(value) to an unsigned integer with the same order.
__device__ __forceinline__ uint32_t rank_of(int32_t key) {
  return static_cast<uint32_t>(key) ^ 0x80000000u;
}
__device__ __forceinline__ int32_t key_of(uint32_t rank) {
  return static_cast<int32_t>(rank ^ 0x80000000u);
}

// Returns the status of a row, given rank_of its largest logit.
__device__ __forceinline__ int32_t status_of(uint32_t max_rank) {
  if (key_of(max_rank) >= static_cast<int32_t>(kInfinityBits)) return kRowNotFinite;
  return unorder(key_of(max_rank)) == -__builtin_inff() ? kRowEmptyMask : kRowOk;
}

// Returns the largest threshold, with its 14 low bits 0, such that `reached` >= threshold in at
// least `count` threads of the block. Called by all threads.
__device__ inline uint32_t block_threshold(uint32_t reached, uint32_t count) {
  constexpr uint32_t kLastBit = 14;
  uint32_t threshold = 0;
#pragma unroll 1
  for (uint32_t bit = 31; bit >= kLastBit; --bit) {
    const uint32_t candidate = threshold | 1u << bit;
    if (static_cast<uint32_t>(__syncthreads_count(reached >= candidate)) >= count)
      threshold = candidate;
  }
  return threshold;
}

// Prepares the block's barriers and its view of a row, except `index`, `row` and `values`. `memory`
// is shared memory, aligned to 16 bytes. The caller must execute a cluster barrier before the first
// gather.
template <bool kIsShared>
__device__ __forceinline__ Row<kIsShared> begin_block(const SampleParams& params, uint8_t* memory) {
  Row<kIsShared> r;
  r.params = &params;
  r.shared = reinterpret_cast<Shared*>(memory);
  r.histograms = reinterpret_cast<Bin*>(memory + kSharedBytes);
  r.window = reinterpret_cast<uint32_t*>(memory + kSharedBytes);
  r.rank = cluster_rank();
  r.size = cluster_size();
  r.gathers = 0;
  r.histogram = 0;
  r.is_aligned = params.args.vocabulary % 4 == 0;
  r.view(r.rank);
  if (threadIdx.x == 0) {
    r.shared->list_count = 0;
#if __CUDA_ARCH__ >= 900
    for (uint64_t& barrier : r.shared->barriers) mbarrier_init(shared_address(&barrier), 1);
    mbarrier_init_fence();
#endif
  }
  return r;
}

// Reads the warp's logits and returns their maximum. If `copies` is true, copies them to r.values.
template <bool kIsShared>
__device__ RunningMax load_logits(const Row<kIsShared>& r, const float* logits, bool copies) {
  RunningMax seen;
  const float* const from = logits + r.warp_begin;
  float* const to = r.values + (r.warp_begin - r.block_begin);
  const uint32_t count = r.warp_end - r.warp_begin, float4s = count / 4;
  const auto load = [&](uint32_t i, const float4& four) {
    seen.see(four.x);
    seen.see(four.y);
    seen.see(four.z);
    seen.see(four.w);
    if (!copies) return;
    if (kIsShared || r.is_aligned) {
      reinterpret_cast<float4*>(to)[i] = four;
    } else {
      to[4 * i] = four.x;
      to[4 * i + 1] = four.y;
      to[4 * i + 2] = four.z;
      to[4 * i + 3] = four.w;
    }
  };
  if (r.is_aligned) {
#pragma unroll 8
    for (uint32_t i = r.lane(); i < float4s; i += 32)
      load(i, reinterpret_cast<const float4*>(from)[i]);
  } else {
#pragma unroll 4
    for (uint32_t i = r.lane(); i < float4s; i += 32)
      load(i, make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]));
  }
  const uint32_t last = 4 * float4s + r.lane();
  if (last < count) {
    seen.see(from[last]);
    if (copies) to[last] = from[last];
  }
  return seen;
}

// ---- results ----

// Writes the results of the row. Called by one thread of the cluster, after all threads have read
// the row's status and history.
template <bool kIsShared>
__device__ void finish(const Row<kIsShared>& r, int32_t status, uint32_t token, float logprob,
                       uint32_t top_count) {
  const SampleArgs& args = r.params->args;
  const uint32_t index = r.index;
  const bool is_ok = status == kRowOk;
  args.statuses[index] = status;
  const bool has_logprob = is_ok && r.row.omits_logprob == 0;
  args.outputs[index] = SampleOutput{status, is_ok ? static_cast<int32_t>(token) : -1,
                                     has_logprob ? logprob : 0.0f, is_ok ? top_count : 0};
  if (is_ok)
    args.history[uint64_t{r.row.sequence_slot} * args.history_stride + r.row.position] =
        static_cast<int32_t>(token);
}

// Sorts the `count` most likely tokens in shared->top and writes them. Called by one block of the
// cluster.
template <bool kIsShared>
__device__ void write_top(const Row<kIsShared>& r, uint32_t count) {
  const SampleArgs& args = r.params->args;
  if (threadIdx.x < count) {
    const uint64_t own = r.shared->top[threadIdx.x];
    uint32_t place = 0;
    for (uint32_t i = 0; i < count; ++i) place += r.shared->top[i] < own;
    const uint64_t at = uint64_t{r.index} * args.top_stride + place;
    args.top_tokens[at] = static_cast<int32_t>(static_cast<uint32_t>(own));
    args.top_logprobs[at] = 0.0f - __uint_as_float(static_cast<uint32_t>(own >> 32));
  }
}

}  // namespace
}  // namespace wcuda::kernels
