// sample: one cluster of blocks per row; each warp owns a run of consecutive tokens.
//
// Shapes: logits (…, vocabulary) f32. Bytes moved: the row's logits once; they stay in shared
// memory (on older devices, or if they do not fit, they are read again from global memory). All
// sums are of integers and all choices are by (key, id), so any division of the row gives the same
// bits.
//
// Greedy rows without bias, mask, penalties or filters stay in registers (sample_greedy).
//
// Tokens are ranked in one of two ways. If few tokens decide (top-k, top-p, log probabilities),
// each block proposes a logit that enough of its threads reach. All tokens from the lowest proposal
// on form a list, which the first block ranks alone. If this list is too long or too short, a radix
// histogram over all tokens finds the cut. Its first bins are 1/64 of the key wide, which spreads
// logits evenly; then it uses the bits of the keys in the chosen bin, 11 at a time.
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/sampling/sample_changes.cuh"
#include "kernels/sampling/sample_list.cuh"
#include "kernels/sampling/sample_plan.h"
#include "kernels/sampling/sample_select.cuh"
#include "kernels/sampling/sample_stream.cuh"

namespace wcuda::kernels {
namespace {

// ---- greedy rows ----

// The logits of a row that one thread holds; -infinity past the end.
constexpr uint32_t kGreedyFloat4s = 4;
struct Float4s {
  float4 at[kGreedyFloat4s];
};

template <bool kIsShared>
__device__ __forceinline__ bool fits_float4s(const Row<kIsShared>& r) {
  return r.is_aligned && r.params->segment <= 32 * 4 * kGreedyFloat4s;
}
template <bool kIsShared>
__device__ __forceinline__ Float4s load_float4s(const Row<kIsShared>& r, const float* logits) {
  const auto* const from = reinterpret_cast<const float4*>(logits + r.warp_begin);
  const uint32_t count = (r.warp_end - r.warp_begin) / 4;
  Float4s float4s;
#pragma unroll
  for (uint32_t i = 0; i < kGreedyFloat4s; ++i) {
    const float absent = -__builtin_inff();
    float4s.at[i] = make_float4(absent, absent, absent, absent);
    if (r.lane() + 32 * i < count) float4s.at[i] = from[r.lane() + 32 * i];
  }
  return float4s;
}

// Returns the lowest of the thread's ids that have a logit of `max_logit`, or kNoToken.
template <bool kIsShared>
__device__ __forceinline__ uint32_t lowest_id(const Row<kIsShared>& r, const Float4s& float4s,
                                              float max_logit) {
  uint32_t token = kNoToken;
#pragma unroll
  for (uint32_t i = kGreedyFloat4s; i-- > 0;) {
    const uint32_t id = r.warp_begin + 4 * (r.lane() + 32 * i);
    const float4 four = float4s.at[i];
    if (four.w == max_logit) token = id + 3;
    if (four.z == max_logit) token = id + 2;
    if (four.y == max_logit) token = id + 1;
    if (four.x == max_logit) token = id;
  }
  return token;
}

// Returns in each lane the largest rank of the warp, and its lowest token among equal ones, as
// rank << 32 | ~token.
__device__ __forceinline__ uint64_t warp_best(uint64_t own) {
  const auto own_rank = static_cast<uint32_t>(own >> 32);
  const uint32_t rank = __reduce_max_sync(kAllLanes, own_rank);
  const uint32_t last =
      __reduce_max_sync(kAllLanes, own_rank == rank ? static_cast<uint32_t>(own) : 0);
  return uint64_t{rank} << 32 | last;
}

// sample_greedy without a log probability: one gather is enough.
template <bool kIsShared>
__device__ __forceinline__ void choose_greedy(Row<kIsShared>& r, const Float4s& float4s,
                                              const RunningMax& seen) {
  const uint32_t own = lowest_id(r, float4s, seen.max);
  const uint64_t best = warp_best(uint64_t{rank_of(seen.key())} << 32 | ~own);
  if (r.lane() == 0) r.shared->warps[r.warp()].sum = best;
  __syncthreads();
  cluster_wait();
  if (r.warp() != 0) return;
  Item item{};
  item.sum = warp_best(r.lane() < kWarps ? r.shared->warps[r.lane()].sum : 0);
  const Item* const items = r.gather_first(item);
  if (r.rank != 0) return;
  const uint64_t all = warp_best(r.lane() < r.size ? items[r.lane()].sum : 0);
  if (r.lane() == 0) {
    const int32_t status = status_of(static_cast<uint32_t>(all >> 32));
    finish(r, status, ~static_cast<uint32_t>(all), 0.0f, 0);
  }
}

// With the first gather, every block receives the largest logit. With the second, the first block
// receives the sum of weights and the lowest id that has the largest logit.
template <bool kIsShared>
__device__ __forceinline__ void sample_greedy(Row<kIsShared>& r, const Float4s& float4s) {
  RunningMax seen;
#pragma unroll
  for (const float4& four : float4s.at) {
    seen.see(four.x);
    seen.see(four.y);
    seen.see(four.z);
    seen.see(four.w);
  }
  if (r.row.omits_logprob != 0) {
    choose_greedy(r, float4s, seen);
    return;
  }
  const int32_t warp_key = __reduce_max_sync(kAllLanes, seen.key());
  if (r.lane() == 0) r.shared->ranks[0][r.warp()] = rank_of(warp_key);
  __syncthreads();
  Item item{};
  if (r.warp() == 0)
    item.sum = __reduce_max_sync(kAllLanes, r.lane() < kWarps ? r.shared->ranks[0][r.lane()] : 0);
  cluster_wait();
  const Item* items = r.template all_gather<true>(item);
  const uint32_t max_rank = __reduce_max_sync(
      kAllLanes, static_cast<uint32_t>(r.lane() < r.size ? items[r.lane()].sum : 0));
  const float max_logit = unorder(key_of(max_rank));
  if (const int32_t status = status_of(max_rank); status != kRowOk) {
    if (r.rank == 0 && threadIdx.x == 0) finish(r, status, 0, 0.0f, 0);
    return;
  }

  WeightSum sum;
#pragma unroll
  for (const float4& four : float4s.at) {
    sum.add(math::exp_negative(math::sub(max_logit, four.x)));
    sum.add(math::exp_negative(math::sub(max_logit, four.y)));
    sum.add(math::exp_negative(math::sub(max_logit, four.z)));
    sum.add(math::exp_negative(math::sub(max_logit, four.w)));
  }
  uint32_t token = kNoToken;
  if (seen.max == max_logit) token = lowest_id(r, float4s, max_logit);
  item.sum = sum.warp_total();
  item.token = __reduce_min_sync(kAllLanes, token);
  if (r.lane() == 0) r.shared->warps[r.warp()] = item;
  __syncthreads();
  if (r.warp() != 0) return;
  item = r.lane() < kWarps ? r.shared->warps[r.lane()] : Item{0, 0, kNoToken, 0, 0};
  item.other = __reduce_min_sync(kAllLanes, item.token);
  item.sum = warp_sum_small(item.sum);
  const Item* const joined = r.gather_first(item);
  if (r.rank != 0) return;
  const bool is_block = r.lane() < r.size;
  const uint64_t total = warp_sum_small(is_block ? joined[r.lane()].sum : 0);
  token = __reduce_min_sync(kAllLanes,
                            is_block ? static_cast<uint32_t>(joined[r.lane()].other) : kNoToken);
  if (r.lane() == 0)
    finish(r, kRowOk, token,
           math::log_probability(max_logit, max_logit, math::log_of_weights(total)), 0);
}

// ---- the kernel ----

template <bool kHasFilters, bool kIsShared>
__global__ void __launch_bounds__(kBlockThreads, 2)
    sample_kernel(const __grid_constant__ SampleParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  dependent_trigger();
  const SampleArgs& args = params.args;
  Row<kIsShared> r = begin_block<kIsShared>(params, memory);
  __syncwarp();
  cluster_arrive_relaxed();
  dependent_wait();

  const uint32_t index = r.index = blockIdx.y;
  if (params.pending != nullptr && params.pending[index] == 0) {
    cluster_wait();
    return;
  }
  // Usually row i samples from logits i. Therefore loading starts before the row is read.
  constexpr bool kHasGreedy = kIsShared && !kHasFilters;
  const bool is_early = kHasGreedy && fits_float4s(r) && index < args.logits_count;
  Float4s float4s;
  if (is_early) float4s = load_float4s(r, args.logits + uint64_t{index} * args.vocabulary);
  r.row = args.rows[index];
  const int32_t status = args.statuses[index];
  if (r.row.is_sampled == 0 || status != kRowOk) {  // the same for the whole cluster
    if (r.rank == 0 && threadIdx.x == 0) args.outputs[index] = SampleOutput{status, -1, 0.0f, 0};
    cluster_wait();
    return;
  }
  const float* const logits = args.logits + uint64_t{r.row.logits_row} * args.vocabulary;
  const bool is_changed = has_changes(r.row);
  if (kHasGreedy && r.row.temperature == 0.0f && !is_changed && fits_float4s(r)) {
    if (!is_early || r.row.logits_row != index) float4s = load_float4s(r, logits);
    sample_greedy(r, float4s);
    return;
  }
  if (kIsShared)
    r.values = reinterpret_cast<float*>(memory + kSharedBytes +
                                        (kHasFilters ? kHistogramBytes : kAccumulatorBytes));
  else if (is_changed)
    r.values =
        static_cast<float*>(args.scratch) + uint64_t{index} * args.vocabulary + r.block_begin;
  else
    r.values = const_cast<float*>(logits) + r.block_begin;  // only read

  RunningMax seen = load_logits(r, logits, kIsShared || is_changed);
  if (is_changed) seen = apply_changes(r, seen);

  const ListPlan plan = list_plan<kHasFilters>(r.row, kListForTopP, kListWantedMax);
  const bool has_list = plan.has_list;
  Item item{};
  const Reached own = block_reached(r, r.shared->ranks[0], seen, plan);
  item.count = own.max_rank;
  item.token = own.threshold_rank;
  cluster_wait();
  const Item* items = r.all_gather(item);
  uint32_t max_rank = 0, threshold_rank = UINT32_MAX;
  for (uint32_t i = 0; i < r.size; ++i) {
    max_rank = max(max_rank, items[i].count);
    threshold_rank = min(threshold_rank, items[i].token);
  }
  const float max_logit = unorder(key_of(max_rank));
  const bool is_first = r.rank == 0 && threadIdx.x == 0;
  if (const int32_t status = status_of(max_rank); status != kRowOk) {
    if (is_first) finish(r, status, 0, 0.0f, 0);
    return;
  }
  const float threshold = list_threshold(threshold_rank, plan.min_p_distance, max_logit);

  // The sums of weights at temperature 1 and at the row's temperature, and the lowest id that has
  // the largest logit.
  Candidates candidates(max_logit, r.row.temperature);
  const bool is_tempered = r.row.temperature != 0.0f;
  typename SumOf<kIsShared>::Type sum, tempered_sum;
  add_weights(candidates, NeededSums(r.row, has_list), &sum, &tempered_sum,
              [&r](auto unroll, auto visit) {
                r.template for_each<decltype(unroll)::value>(
                    [&visit](uint32_t, float logit) { visit(logit); });
              });
  if (r.row.temperature == 1.0f) tempered_sum = sum;
  uint32_t best = kNoToken;
  if (seen.max == max_logit)
    r.for_each([&](uint32_t id, float logit) {
      if (logit == max_logit) best = min(best, id);
    });
  if (has_list) gather(r, threshold, seen);
  const uint64_t warp_tempered_sum = is_tempered ? warp_sum(tempered_sum.total()) : 0;
  if (r.lane() == 0) r.shared->segments[r.warp()] = warp_tempered_sum;
  item = r.block_join(sum.total(), tempered_sum.total(), best);
  item.count = has_list ? r.shared->list_count : 0;
  items = r.all_gather(item);
  const Item all = r.joined(items);
  const double log_sum = math::log_of_weights(all.sum);

  uint32_t top_count = 0;
  Left left = Left::kAll;
  if (has_list && all.count <= kListMax)
    left = sample_from_list(r, items, all, threshold, candidates, log_sum, &top_count);
  if (left == Left::kNothing) return;
  if (kHasFilters) {
    const bool wants_top = left == Left::kAll && r.row.top_logprobs > 0;
    if (wants_top || (is_tempered && has_filter(r.row))) {
      sample_from_all(r, candidates, log_sum, all.token, wants_top, top_count);
      return;
    }
  }
  const auto found = [&](uint32_t id, float logit) {
    finish(r, kRowOk, id, math::log_probability(logit, max_logit, log_sum), top_count);
  };
  if (!is_tempered) {
    if (is_first) found(all.token, max_logit);
    return;
  }
  if (kHasFilters) {  // ranking the list has overwritten the segments
    if (r.lane() == 0) r.shared->segments[r.warp()] = warp_tempered_sum;
    __syncthreads();
  }
  locate_in(
      r, warp_tempered_sum, items,
      [&](uint32_t, float logit) { return weight(math::exp_negative(candidates.y(logit))); },
      [&](uint64_t total) {
        return math::mul_high(math::random_bits(r.row.seed, r.row.position), total) + 1;
      },
      found);
}

// ---- the launcher ----

static_assert(kSharedBytes == sample_plan::kSharedBytes);
static_assert(kHistogramBytes == sample_plan::kHistogramBytes);
static_assert(kAccumulatorBytes == sample_plan::kAccumulatorBytes);
static_assert(kStreamSharedBytes == sample_plan::kStreamSharedBytes);
static_assert(kStreamListMax * sizeof(uint64_t) + kBins * sizeof(Bin) ==
              sample_plan::kStreamRankBytes);
// A row's StreamScratch and its element of SampleParams::pending.
static_assert(sizeof(StreamScratch) + sizeof(uint32_t) == sample_plan::kStreamScratchBytes);

// Samples the rows that sample_stream_kernel can complete, and marks the others in params.pending.
cudaError_t sample_stream(const Launch& launch, SampleParams params) {
  const SampleArgs& args = params.args;
  params.segment = sample_plan::stream_segment(args.vocabulary);
  const uint32_t shared_bytes = sample_plan::stream_shared_bytes(args.vocabulary, params.slots);
  const auto kernel = args.has_filters ? sample_stream_kernel<true> : sample_stream_kernel<false>;
  cudaError_t status = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shared_bytes));
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kStreamBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kStreamBlocks, args.row_count);
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (status != cudaSuccess) return status;
  const uint32_t count =
      sample_plan::stream_clusters(args.row_count, static_cast<uint32_t>(clusters));
  return launch_kernel(launch, dim3(kStreamBlocks, count), dim3(kBlockThreads), shared_bytes,
                       kStreamBlocks, kernel, params);
}

}  // namespace

uint64_t sample_scratch_bytes(uint32_t max_rows, uint32_t vocabulary, int32_t compute_capability) {
  return sample_plan::scratch_bytes(max_rows, vocabulary, compute_capability);
}

cudaError_t sample(const SampleArgs& args, const Launch& launch) {
  if (args.row_count == 0) return cudaSuccess;
  if (args.vocabulary == 0 || args.vocabulary > math::kMaxVocabulary) return cudaErrorInvalidValue;
  const uint32_t blocks =
      args.blocks_per_row != 0
          ? args.blocks_per_row
          : sample_plan::blocks_per_row(args.row_count, args.vocabulary, launch.compute_capability);
  const bool has_clusters = launch.compute_capability >= 90;
  if (blocks > kBlocksMax || (blocks & (blocks - 1)) != 0 || (blocks > 1 && !has_clusters))
    return cudaErrorInvalidValue;
  const sample_plan::Shape shape =
      sample_plan::shape_for(args.vocabulary, args.has_filters, blocks, launch.compute_capability);
  SampleParams params{args, shape.segment};
  if (args.blocks_per_row == 0)
    params.slots =
        sample_plan::stream_slots(args.row_count, args.vocabulary, launch.compute_capability);
  if ((params.slots != 0 || !shape.is_shared) && args.scratch == nullptr)
    return cudaErrorInvalidValue;
  if (params.slots != 0) {
    auto* const stream_scratch = static_cast<StreamScratch*>(args.scratch);
    params.pending = reinterpret_cast<uint32_t*>(stream_scratch + args.row_count);
    const cudaError_t status = sample_stream(launch, params);
    if (status != cudaSuccess || !args.has_filters) return status;
  }

  using Kernel = void (*)(SampleParams);
  const Kernel kernel =
      shape.is_shared
          ? (args.has_filters ? sample_kernel<true, true> : sample_kernel<false, true>)
          : (args.has_filters ? sample_kernel<true, false> : sample_kernel<false, false>);
  const auto* const entry = reinterpret_cast<const void*>(kernel);
  cudaError_t status = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shape.shared_bytes));
  // Without the maximum carveout, a second block might not fit on the SM.
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(entry, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared);
  if (status == cudaSuccess && blocks > 8)
    status = cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (status != cudaSuccess) return status;
  return launch_kernel(launch, dim3(blocks, args.row_count), dim3(kBlockThreads),
                       shape.shared_bytes, has_clusters ? blocks : 0, kernel, params);
}

}  // namespace wcuda::kernels
